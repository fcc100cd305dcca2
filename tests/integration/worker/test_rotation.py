"""Tokens are renewed while a training goes on."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from dbw.v1 import parameter_server_pb2 as pb
from dbw_ps.client import NEVER_LET_IN_SECONDS, LinkError, Parameters
from dbw_ps.client import ParameterServer as Link
from dbw_runtime.channel import Connection
from tests.reports import failure
from tests.servers import PATIENCE, TINY_WORK, ParameterServer, Worker, controller, parameter_server, wait_until, worker

TINY = ("--model", "tests.models:tiny", "--policy", "sync")


def replace(path: Path, text: str) -> None:
    """Write a file as orchestrators do: there is no moment in which a part of it is missing."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


class Training(NamedTuple):
    """A training whose server wants tokens."""

    server: ParameterServer
    workers: list[Worker]
    tokens: Path  # of the server
    token: Path  # of the workers

    def status(self, token: str) -> pb.GetStatusResponse:
        """How it goes, for a caller with this token."""
        with self.server.stub() as stub:
            metadata = (("authorization", f"Bearer {token}"),)
            return stub.GetStatus(pb.GetStatusRequest(include_workers=True), metadata=metadata, timeout=PATIENCE)

    def goes_on(self, token: str) -> None:
        """Wait until gradients of all workers are used that are computed from now on."""
        before = {one.worker_id: one.used_gradients for one in self.status(token).workers}

        def has_gone_on() -> bool:
            return all(one.used_gradients > before[one.worker_id] + 2 for one in self.status(token).workers)

        wait_until(has_gone_on)


@contextmanager
def training(folder: Path, mode: str) -> Iterator[Training]:
    tokens, token = folder / "tokens", folder / "token"
    replace(tokens, "workers old-s3cret\n")
    replace(token, "old-s3cret\n")
    with ExitStack() as stack:
        flags = (*TINY, "--sync-mode", mode, "--min-workers", "2", "--token-file", str(tokens))
        server = stack.enter_context(parameter_server(*flags))
        how = (*TINY_WORK, "--delay", "constant:0.01", "--token-file", str(token))
        workers = [stack.enter_context(worker(server.target, id_, *how)) for id_ in ("one", "two")]
        found = Training(server, workers, tokens, token)
        wait_until(lambda: found.status("old-s3cret").k == 2)
        found.goes_on("old-s3cret")
        yield found


@pytest.mark.parametrize("mode", ["push-wait", "pull"])
def test_a_rotation_with_both_tokens_for_a_while_costs_nobody_a_session(mode: str, tmp_path: Path) -> None:
    with training(tmp_path, mode) as one:
        replace(one.tokens, "workers old-s3cret\nworkers new-s3cret\n")
        one.goes_on("new-s3cret")
        replace(one.token, "new-s3cret\n")
        one.goes_on("new-s3cret")
        replace(one.tokens, "workers new-s3cret\n")
        one.goes_on("new-s3cret")
        with pytest.raises(grpc.RpcError) as caught:
            one.status("old-s3cret")
        assert failure(caught.value)[:2] == (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
        for process in one.workers:
            assert len([line for line in process.logs if line["message"] == "joined"]) == 1
            assert not [line for line in process.logs if line["level"] == "warning"]
            assert process.stop() == 0


@pytest.mark.parametrize("mode", ["push-wait", "pull"])
def test_workers_whose_token_the_server_does_not_know_any_more_wait_for_another(mode: str, tmp_path: Path) -> None:
    with training(tmp_path, mode) as one:
        before = {worker.worker_id: worker.worker for worker in one.status("old-s3cret").workers}
        replace(one.tokens, "workers new-s3cret\n")
        for process in one.workers:
            advice = f"{one.token} must have a token that it knows"
            text = f"the parameter server {one.server.target} does not let this worker in, trying again; {advice}"
            assert process.wait_for_log(text)["level"] == "warning"
        replace(one.token, "new-s3cret\n")
        one.goes_on("new-s3cret")
        assert {worker.worker_id: worker.worker for worker in one.status("new-s3cret").workers} == before
        assert [process.stop() for process in one.workers] == [0, 0]
        assert "s3cret" not in str([process.logs for process in one.workers])


class Waiting:
    """A link that waits for parameters, by a clock that the test sets."""

    def __init__(self, target: str, token: Path, patience: float | None = None) -> None:
        self.now = 0.0
        self.link = Link(Connection(target, token_file=token), "w", patience=patience, clock=lambda: self.now)
        self.found: list[Parameters | LinkError | None] = []
        threading.Thread(target=self.wait, daemon=True).start()

    def wait(self) -> None:
        """Wait for parameters."""
        try:
            self.found.append(self.link.newer(None))
        except LinkError as error:
            self.found.append(error)


def refusals(server: ParameterServer) -> float:
    lines = [line for line in server.metrics().splitlines() if 'refused_calls_total{reason="unauthenticated"}' in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


@pytest.mark.parametrize(("patience", "expected"), [(None, NEVER_LET_IN_SECONDS), (10.0, 10.0), (1e6, 60.0)])
def test_a_worker_that_was_never_let_in_gives_up_after_a_minute_at_most(
    patience: float | None, expected: float, tmp_path: Path
) -> None:
    replace(tmp_path / "tokens", "workers s3cret\n")
    replace(tmp_path / "token", "another-s3cret\n")
    with parameter_server(*TINY, "--token-file", str(tmp_path / "tokens")) as server:
        one = Waiting(server.target, tmp_path / "token", patience)
        wait_until(lambda: refusals(server) >= 2)
        assert not one.found
        one.now = expected + 1.0
        wait_until(lambda: one.found)
        assert f"did not let this worker in for {expected:g} s: UNAUTHENTICATED: the token" in str(one.found)
        one.link.close()


def test_one_that_was_let_in_once_does_not_give_up(tmp_path: Path) -> None:
    replace(tmp_path / "tokens", "workers s3cret\n")
    replace(tmp_path / "token", "s3cret\n")
    with parameter_server(*TINY, "--token-file", str(tmp_path / "tokens")) as server:
        one = Waiting(server.target, tmp_path / "token")
        wait_until(lambda: one.found)
        (parameters,) = one.found
        assert isinstance(parameters, Parameters)
        replace(tmp_path / "tokens", "workers new-s3cret\n")
        assert one.link.push(parameters, parameters.vector) is None
        threading.Thread(target=one.wait, daemon=True).start()
        one.now, before = 1e6, refusals(server)
        wait_until(lambda: refusals(server) >= before + 3)
        assert len(one.found) == 1
        replace(tmp_path / "token", "new-s3cret\n")
        wait_until(lambda: len(one.found) == 2)
        assert isinstance(one.found[1], Parameters)
        one.link.close()


def test_a_parameter_server_whose_token_is_renewed_gets_its_decisions_again(tmp_path: Path) -> None:
    """The controller knows the new token first; training goes on meanwhile."""
    tokens, token = tmp_path / "tokens", tmp_path / "token"
    replace(tokens, "trainings old-s3cret\n")
    replace(token, "old-s3cret\n")
    with ExitStack() as stack:
        decides = stack.enter_context(controller("--token-file", str(tokens)))
        how = ("--controller", decides.target, "--controller-token-file", str(token), "--job", "rotated")
        server = stack.enter_context(parameter_server("--model", "tests.models:tiny", *how))
        stack.enter_context(worker(server.target, "one", *TINY_WORK, "--delay", "constant:0.05"))

        def source() -> "pb.DecisionSource.ValueType":
            return server.status().decision_source

        wait_until(lambda: source() == pb.DECISION_SOURCE_CONTROLLER and server.status().iteration > 3)
        replace(tokens, "trainings new-s3cret\n")
        decides.kill()  # calls that are open stay open
        decides = stack.enter_context(controller("--token-file", str(tokens), "--listen", decides.target))
        wait_until(lambda: source() == pb.DECISION_SOURCE_FALLBACK)
        iteration = server.status().iteration
        wait_until(lambda: server.status().iteration > iteration + 3)
        replace(token, "new-s3cret\n")
        wait_until(lambda: source() == pb.DECISION_SOURCE_CONTROLLER)
        iteration = server.status().iteration
        wait_until(lambda: server.status().iteration > iteration + 3)
