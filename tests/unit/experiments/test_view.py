from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from dbw_experiments.demo.runs import Run
from dbw_experiments.demo.view import progress, view
from tests.runs import WORKERS, simulated

RUN = simulated("dbw", 100)


def losing(*losses: float | None) -> Run:
    """A training with these losses."""
    return replace(RUN, iterations=tuple(replace(RUN.iterations[0], loss=loss) for loss in losses))


@pytest.mark.parametrize(
    ("losses", "share"),
    [
        ([2.0] * 10, 0.0),
        ([2.0, *[0.2] * 10], 1.0),
        ([2.0, *[0.02] * 10], 1.0),
        ([2.0, *[0.2 * 10**0.5] * 10], 0.5),
        ([2.0, *[5.0] * 10], 0.0),
        ([0.1, 0.1], 0.0),
        ([None, None], 0.0),
    ],
)
def test_progress_is_the_share_of_the_way_to_the_target_in_ratios(losses: list[float | None], share: float) -> None:
    assert progress(losing(*losses)) == pytest.approx(share)


def test_where_there_is_no_terminal_lines_say_how_far_it_is() -> None:
    output = StringIO()
    with view(Console(file=output), "dbw") as shown:
        shown.say("starting")
        shown.show(losing())
        shown.show(RUN)
        shown.show(RUN)
    first, second = output.getvalue().splitlines()
    assert first == "dbw: starting"
    assert second.startswith(f"dbw: {RUN.seconds:.1f} s, iteration 99, loss ")
    assert f"k = {RUN.iterations[-1].k} of {WORKERS}" in second
    assert f"worker {max(RUN.late, key=RUN.late.__getitem__)} late" in second


def test_a_terminal_shows_a_line_for_every_worker_and_why_k_is_what_it_is() -> None:
    output = StringIO()
    console = Console(file=output, force_terminal=True, width=100, color_system=None)
    with view(console, "dbw") as shown:
        shown.say("starting")
        shown.show(RUN)
    text = output.getvalue()
    for worker in range(WORKERS):
        assert f"worker {worker}" in text
        assert f"{RUN.late.get(worker, 0)} of {RUN.sent[worker]} gradients late" in text
    assert f"k = {RUN.iterations[-1].k} of {WORKERS}" in text
    assert RUN.iterations[-1].explanation[:40] in text
