"""How long a client waits for gradients, and what it tells of that."""

import pytest

from dbw.v1.iteration_pb2 import END_CAUSE_DEADLINE, END_CAUSE_MAX_WAIT
from dbw_controller.client.conversation import Summary
from dbw_controller.client.waiting import LONGEST_PAUSE, Wait

DEADLINE = 0.5


@pytest.mark.parametrize(
    ("wait", "elapsed", "remaining"),
    [
        (Wait(3, None, [0.1, 0.2]), 9.0, None),
        (Wait(3, DEADLINE, []), 9.0, None),  # the first gradient is always waited for
        (Wait(3, DEADLINE, [0.1]), 0.2, 0.3),
        (Wait(3, DEADLINE, [0.1]), 0.5, 0.0),
        (Wait(3, DEADLINE, [0.1]), 0.5 - 1e-12, 0.0),  # a clock need not show that this time passes
        (Wait(3, DEADLINE, [0.9]), 0.9, 0.0),  # it was
        (Wait(3, DEADLINE, [0.1, 0.1, 0.2]), 0.2, 0.0),
        (Wait(3, None, [0.1, 0.1, 0.2]), 0.2, 0.0),
        (Wait(1, None, [0.1, 0.1, 0.2]), 0.2, 0.0),  # workers were lost
    ],
)
def test_it_waits_until_k_are_in_or_the_deadline_has_passed(
    wait: Wait, elapsed: float, remaining: float | None
) -> None:
    assert wait.remaining(elapsed) == (None if remaining is None else pytest.approx(remaining))


def test_it_looks_from_time_to_time_whether_workers_were_lost() -> None:
    assert Wait(2, None, [0.1]).pause(9.0) == LONGEST_PAUSE
    assert Wait(2, 1e6, [0.1]).pause(9.0) == LONGEST_PAUSE
    assert Wait(2, DEADLINE, [0.1]).pause(0.5) == 0.0


@pytest.mark.parametrize(("arrived", "missing"), [([], 2), ([0.1], 1), ([0.1, 0.2], 0), ([0.1, 0.2, 0.2], 0)])
def test_it_counts_what_is_missing(arrived: list[float], missing: int) -> None:
    assert Wait(2, None, arrived).missing == missing


def at_deadline(k: int, seconds: float) -> Summary:
    return {"k": k, "end_cause": END_CAUSE_DEADLINE, "duration_seconds": seconds}


@pytest.mark.parametrize(
    ("wait", "given", "completed"),
    [
        (Wait(2, DEADLINE, [0.1, 0.2]), {}, {"k": 2}),
        (Wait(2, DEADLINE, [0.1, 0.2, 0.2]), {}, {"k": 2}),  # the third one is late
        (Wait(3, DEADLINE, [0.1, 0.2]), {}, at_deadline(2, DEADLINE)),
        (Wait(3, DEADLINE, [0.1, 0.2]), {"k": 2, "loss": 1.0}, at_deadline(2, DEADLINE) | {"loss": 1.0}),
        (Wait(3, DEADLINE, [0.9]), {}, at_deadline(1, 0.9)),  # the first one came after it
        (Wait(3, DEADLINE, [0.1, 0.2, 0.7]), {"k": 2}, at_deadline(2, DEADLINE)),  # the third one came after it
        (Wait(3, DEADLINE, [0.1, 0.2, 0.3]), {"k": 2}, {"k": 2}),  # but could not be used
        (Wait(3, None, [0.1, 0.2]), {}, {"k": 2}),
        (Wait(3, DEADLINE, []), {"k": 2}, {"k": 2}),  # of arrivals nothing was told
        (Wait(3, DEADLINE, []), {}, {"k": 0}),  # which the conversation refuses
        (
            Wait(3, DEADLINE, [0.1]),
            {"end_cause": END_CAUSE_MAX_WAIT, "duration_seconds": 0.3},
            {"k": 1, "end_cause": END_CAUSE_MAX_WAIT, "duration_seconds": 0.3},
        ),
    ],
)
def test_a_summary_tells_how_the_wait_ended_unless_the_caller_does(
    wait: Wait, given: Summary, completed: Summary
) -> None:
    assert wait.completed(given) == completed
