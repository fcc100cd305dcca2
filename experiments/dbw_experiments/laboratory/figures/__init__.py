"""The figure of a scenario, drawn from what came of its runs."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # scenarios look at KINDS
    from dbw_experiments.laboratory.runs import Record
    from dbw_experiments.laboratory.scenario import Scenario

KINDS = {  # what a scenario's `plot` may be, and the module that draws it
    "curves": "curves",
    "durations": "durations",
    "estimators": "estimators",
    "speeds": "speeds",
    "times": "times",
    "times-over-cases": "over_cases",
}


def draw(scenario: "Scenario", records: "Sequence[Record]", folder: Path) -> list[Path]:
    """Draw the figure of a scenario into a folder, as SVG and as PNG. The same records give the same bytes."""
    from dbw_experiments.laboratory.figures.canvas import canvas, save  # matplotlib takes a second to import

    kind = import_module(f"{__name__}.{KINDS[scenario.plot]}")
    missing = len(scenario.runs()) - len(records)
    note = f" – {missing} of {len(scenario.runs())} runs are missing" if missing > 0 else ""
    with canvas(scenario.title + note) as figure:
        kind.plot(figure, scenario, records)
        return save(figure, folder)
