"""How commands show decisions and numbers."""

from google.protobuf.message import Message
from rich.table import Table

from dbw.v1.iteration_pb2 import Decision, DecisionReason, MissingInput
from dbw_controller.core.reasons import Input, Reason


def new_table(*columns: str) -> Table:
    """A table without lines, numbers to the right."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, justify="left" if column in ("job", "owner", "policy", "why", "") else "right")
    return table


def number(value: float | None) -> str:
    """Four digits of a number that may not be known."""
    return "–" if value is None else f"{value:.4g}"


def field(message: Message, name: str) -> str:
    """Four digits of a field that may not be set."""
    return number(getattr(message, name) if message.HasField(name) else None)


def reason(decision: Decision) -> str:
    """The rule that chose k, in words."""
    name = DecisionReason.Name(decision.reason).removeprefix("DECISION_REASON_")
    return Reason[name].value if name in Reason.__members__ else name.lower()


def missing_input(item: MissingInput.ValueType) -> str:
    """Something that the parameter server does not report, in words."""
    name = MissingInput.Name(item).removeprefix("MISSING_INPUT_")
    return Input[name].value if name in Input.__members__ else name.lower()
