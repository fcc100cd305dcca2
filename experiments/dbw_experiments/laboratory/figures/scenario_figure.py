"""The figure of a scenario, drawn from what came of its runs."""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from dbw_experiments.laboratory.figures import curves, durations, estimators, speeds, times, times_over_cases
from dbw_experiments.laboratory.figures.canvas import canvas, save
from dbw_experiments.laboratory.runs import Record
from dbw_experiments.laboratory.scenario import Scenario

KINDS: dict[str, Callable[[Figure, Scenario, Sequence[Record]], None]] = {
    "curves": curves.plot,
    "durations": durations.plot,
    "estimators": estimators.plot,
    "speeds": speeds.plot,
    "times": times.plot,
    "times-over-cases": times_over_cases.plot,
}


def draw(scenario: Scenario, records: Sequence[Record], folder: Path) -> list[Path]:
    """Draw the figure of a scenario into a folder, as SVG and as PNG. The same records give the same bytes."""
    missing = len(scenario.runs()) - len(records)
    note = f" – {missing} of {len(scenario.runs())} runs are missing" if missing > 0 else ""
    with canvas(scenario.title + note) as figure:
        KINDS[scenario.plot](figure, scenario, records)
        return save(figure, folder)
