"""What DBW estimates about gradients, and what it is exactly."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dbw_controller.core.kernels import Array
from dbw_experiments.laboratory.analysis.columns import exact, numbers
from dbw_experiments.laboratory.figures.canvas import INK, Style, legend, line, panels, say, scale
from dbw_experiments.laboratory.figures.series import COLOURS, series_of
from dbw_experiments.laboratory.runs import Record
from dbw_experiments.laboratory.scenario import Scenario

TITLES = {
    "squared_norm": "gradient's squared norm ‖∇F‖²",
    "variance": "gradients' variance V(g)",
    "gain": "loss decrease of an iteration",
}
EXACT: Style = (0, (3, 1.5))


def plot(figure: Figure, scenario: Scenario, records: Sequence[Record]) -> None:
    """A row for each case: norm, variance and gain over iterations."""
    grid = panels(figure, len(scenario.cases), len(TITLES), height=2.5)
    series = [some for some in series_of(scenario, records) if some.policy == "dbw"]
    for row, case in zip(grid, scenario.cases, strict=True):
        found = [one.outcome.columns for some in series if (one := some.first(case))]
        for axes, name in zip(row, TITLES, strict=True):
            if found and f"estimated_{name}" in found[0]:
                _draw(axes, numbers(found[0][f"estimated_{name}"]), exact(found[0], name))
            else:
                say(axes, "no results yet")
        row[0].set_ylabel(case.name)
    for axes, title in zip(grid[0], TITLES.values(), strict=True):
        axes.set_title(title)
    for axes in grid[-1]:
        axes.set_xlabel("iteration")
    label = "estimate (of the loss decrease: its lower bound, the gain)"
    legend(figure, [line(label, COLOURS["dbw"]), line("exact", INK, EXACT)])


def _draw(axes: Axes, estimates: Array, measured: Array) -> None:
    known = np.flatnonzero(np.isfinite(measured))
    axes.plot(estimates, color=COLOURS["dbw"], linewidth=1.3)
    axes.plot(known, measured[known], color=INK, linestyle=EXACT, linewidth=1, marker=".", markersize=3)
    scale(axes, [*estimates, *measured])
