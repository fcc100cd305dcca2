"""What commands have in common that ask a running controller."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc
from rich.console import Console

from dbw.v1.controller_pb2 import ListJobsRequest
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.job_pb2 import Job
from dbw_runtime.client_command import Argument, ClientOptions, parse_command
from dbw_runtime.configuration import UsageError
from dbw_runtime.failure import describe, reason_of

JOB = Argument("job")


@dataclass(frozen=True)
class Controller:
    """A controller that was connected to."""

    channel: grpc.Channel
    metadata: tuple[tuple[str, str], ...]
    timeout: float

    def calls(self, stub: Callable[[grpc.Channel], object] = ControllerServiceStub, endless: bool = False) -> Any:  # noqa: ANN401
        """The rpcs of a service, each with the caller's token, and with a deadline unless they are endless."""
        usual = {"metadata": self.metadata, "timeout": None if endless else self.timeout}
        return SimpleNamespace(**{name: partial(call, **usual) for name, call in vars(stub(self.channel)).items()})

    def all_jobs(self) -> Iterator[Job]:
        """The jobs that the caller may see."""
        calls, tokens = self.calls(), [""]
        while True:
            page = calls.ListJobs(ListJobsRequest(page_token=tokens[-1]))
            yield from page.jobs
            if not page.next_page_token:
                return
            if page.next_page_token in tokens:
                raise grpc.RpcError(f"the page token {page.next_page_token!r} came twice: the list of jobs has no end")
            tokens.append(page.next_page_token)


Ask = Callable[[Controller, dict[str, Any]], int]


def run_command(name: str, description: str, arguments: Sequence[str] | None, ask: Ask, *positional: Argument) -> int:
    """Run a command: parse its arguments, connect, and say what went wrong in one line. Returns the exit code."""
    parser, options, given = parse_command(ClientOptions, name, description, arguments, *positional)
    try:
        connection = options.connection(options.controller)
    except UsageError as error:
        parser.error(str(error))
    try:
        with connection.open() as channel:
            return ask(Controller(channel, connection.metadata(), options.timeout), given)
    except grpc.RpcError as error:
        hint = "; is it running, and does it use TLS or not, as you do?" if _is_out_of_reach(error) else ""
        print(f"dbw {name}: {options.controller}: {describe(error)}{hint}", file=sys.stderr)
    except BrokenPipeError:  # nobody reads to the end, so that success cannot be claimed
        sys.stdout = None
    except OSError as error:
        print(f"dbw {name}: {error}", file=sys.stderr)
    return 1


def _is_out_of_reach(error: grpc.RpcError) -> bool:
    unavailable = isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNAVAILABLE
    return unavailable and reason_of(error) is None  # one that starts or stops says so itself


def wide_console() -> Console:
    """The terminal as wide as it is; a pipe takes lines of any width."""
    console = Console()
    return console if console.is_terminal else Console(width=1000)
