"""The arguments of commands that ask a running server: all name it with --controller."""

from argparse import SUPPRESS, Action, ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from dbw_runtime.channel import ConnectionOptions
from dbw_runtime.configuration import option, parse


@dataclass(frozen=True)
class ClientOptions(ConnectionOptions):
    """Where the controller is."""

    controller: str = option("127.0.0.1:50051", "the controller's address, HOST:PORT")
    timeout: float = option(10.0, "how long the controller may take to answer, in seconds")

    def __post_init__(self) -> None:
        """Refuse a time in which nobody can answer."""
        self.require_between("timeout", 1e-3, 86_400)


T = TypeVar("T", bound=ClientOptions)


class Argument(NamedTuple):
    """A positional argument. Where the address may stand in its place, it can be left out as well."""

    name: str
    kind: type = str
    optional: bool = False
    or_address: bool = False

    @property
    def text(self) -> str:
        """What it is called in the usage."""
        return "HOST:PORT" if self.name == "controller" else self.name.upper()


ADDRESS = Argument("controller", optional=True, or_address=True)


class _Parser(ArgumentParser):
    """Takes flags before, between and after positional arguments."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401
        return self.parse_intermixed_args(args, namespace)


class _AddressOrName(Action):
    """Takes a word with a colon, which no name of a job has, for --controller."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, words: Any, _: str | None = None) -> None:  # noqa: ANN401
        for word in words:
            name = "controller" if ":" in word else self.dest
            if getattr(namespace, name, None) is not None:
                parser.error(f"unrecognized arguments: {word}")
            setattr(namespace, name, word)


def parse_command(
    kind: type[T], name: str, description: str, arguments: Sequence[str] | None, *positional: Argument
) -> tuple[ArgumentParser, T, dict[str, Any]]:
    """The parser of a command, its options, and all that was given."""
    places = [f"[{argument.text}]" if argument.optional else argument.text for argument in positional]
    usage = " ".join(["%(prog)s", *places, "[OPTIONS]"])
    parser = _Parser(prog=f"dbw {name}", usage=usage, description=description, allow_abbrev=False)
    for argument in positional:
        settings: dict[str, Any] = {"metavar": argument.text, "type": argument.kind}
        if argument.or_address:
            settings |= {"nargs": "*", "action": _AddressOrName}
        elif argument.optional:
            settings["nargs"] = "?"
        if argument.name in kind.__dataclass_fields__:
            settings["default"] = SUPPRESS  # the flag has it
        parser.add_argument(argument.name, **settings)
    options, given = parse(parser, kind, "client", arguments)
    return parser, options, given
