"""What a diagnosis finds."""

from dataclasses import dataclass
from enum import Enum


class FindingKind(Enum):
    """What may be wrong, the most serious first; the names are those of the contract."""

    TIMES_NOT_SINCE_PUBLICATION = "times grow"
    MOMENTS_IMPOSSIBLE = "moments impossible"
    LOSS_IS_A_SUM = "loss is a sum"
    K_NOT_RESPECTED = "k not respected"
    DEADLINE_IGNORED = "deadline ignored"
    ARRIVALS_INCONSISTENT = "arrivals inconsistent"
    INPUT_MISSING = "input missing"
    LATE_ARRIVALS_MISSING = "late arrivals missing"
    MEMBERSHIP_OUT_OF_DATE = "membership out of date"
    TIMES_NOT_SECONDS = "times not seconds"


# What noise may cause must show so often in a row: what does in every second iteration will, once in a million.
ROW = 20
# What an iteration shows: what was seen, what was expected and what to do, in words.
Problem = tuple[FindingKind, str]


@dataclass(frozen=True)
class Finding:
    """A problem that several iterations show."""

    kind: FindingKind
    message: str  # the last iteration's
    iterations: int  # how many show it
    last_iteration: int
