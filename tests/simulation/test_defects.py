"""The simulation finds defects that were there once, when what mended them is taken out again."""

import math
from collections.abc import Callable
from contextlib import ExitStack
from unittest.mock import patch

import pytest

from dbw_controller.server import service as controller_service
from dbw_controller.wire.state import import_state
from dbw_ps import intake
from dbw_ps.gradient import IncomingGradient, MalformedError
from dbw_ps.outliers import Outliers
from dbw_ps.pace import Pace
from dbw_ps.pieces import Piece
from dbw_ps.rounds import Fate, Rounds
from dbw_ps.service import ParameterServerService
from dbw_ps.turns import Turns
from tests.simulation.nemesis import Fault
from tests.simulation.run import run_seed

MAX_SEEDS = 400


class LostError(MalformedError):
    """A gradient broke off, and its worker goes on waiting for newer parameters."""

    fate = Fate.LOST


def lose_gradients_for_ever(patches: ExitStack) -> None:
    """A worker whose upload breaks off is not told to start over, nor expected again."""
    patches.enter_context(patch.object(intake, "BrokenOffError", LostError))
    patches.enter_context(patch.object(Rounds, "is_blocked", lambda rounds, live: False))


def import_older_states(patches: ExitStack) -> None:
    """An exported state replaces what a job has learnt since."""
    always = lambda job, header, data, only_if_newer: import_state(job, header, data)  # noqa: E731
    patches.enter_context(patch.object(controller_service, "import_state", always))


def keep_turns_for_ever(patches: ExitStack) -> None:
    """A gradient keeps its turn as long as pieces come, which may be empty."""
    take = IncomingGradient.take

    def take_empty(gradient: IncomingGradient, piece: Piece) -> None:
        if piece.data.nbytes:
            take(gradient, piece)

    patches.enter_context(patch.object(IncomingGradient, "take", take_empty))
    patches.enter_context(patch.object(Turns, "_passed_on_at", math.inf))
    patches.enter_context(patch.object(Turns, "ends_at", lambda turns, turn: math.inf))


def share_the_time_of_slow_turns(patches: ExitStack) -> None:
    """Whoever is broken off gets more time the next time, and so does everybody else."""
    ask = Turns.ask
    patches.enter_context(patch.object(Turns, "ask", lambda turns, worker: ask(turns, 0)))


def wait_for_workers_that_hang(patches: ExitStack) -> None:
    """A worker is alive as long as its heartbeats come."""
    patches.enter_context(patch.object(ParameterServerService, "_find_stalled", lambda service: None))


def trust_heartbeats_of_idle_workers(patches: ExitStack) -> None:
    """A worker that says that it computes nothing owes nothing."""
    patches.enter_context(patch.object(Pace, "send", lambda *_: None))
    patches.enter_context(patch.object(Pace, "sent", lambda *_: None))


def believe_whoever_is_there(patches: ExitStack) -> None:
    """What all workers send that are alive must be right, though others are away."""
    patches.enter_context(patch.object(Outliers, "are_most", lambda outliers, workers: bool(workers)))


@pytest.mark.parametrize(
    ("take_out", "faults", "violation"),
    [
        (lose_gradients_for_ever, [Fault.STALLED_UPLOAD], "has not ended iteration"),
        (import_older_states, [Fault.KILL, Fault.RESET], "had learnt"),
        (keep_turns_for_ever, [Fault.DRIBBLE], "has not ended iteration"),
        (share_the_time_of_slow_turns, [Fault.DRIBBLE], "has not ended iteration"),
        (wait_for_workers_that_hang, [Fault.STUCK], "has not ended iteration"),
        (trust_heartbeats_of_idle_workers, [Fault.IDLE], "has not ended iteration"),
        (believe_whoever_is_there, [Fault.ONLY_GARBAGE], "moments of iteration"),
    ],
)
def test_a_defect_is_found(take_out: Callable[[ExitStack], None], faults: list[Fault], violation: str) -> None:
    with ExitStack() as patches:
        take_out(patches)
        results = (run_seed(seed, faults) for seed in range(MAX_SEEDS))
        assert next((result for result in results if violation in str(result.violation)), None)
