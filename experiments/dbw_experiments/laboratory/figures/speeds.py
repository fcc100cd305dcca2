"""How fast policies are beside the best static k, which one could only know afterwards: a row for each case."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from dbw_experiments.laboratory.analysis.comparison import Comparison
from dbw_experiments.laboratory.figures.canvas import INK, legend, panels, say
from dbw_experiments.laboratory.figures.series import Series, series_of
from dbw_experiments.laboratory.figures.times import goal
from dbw_experiments.laboratory.runs import Record
from dbw_experiments.laboratory.scenario import Scenario

SLOWEST, FASTEST = 1 / 16, 2.0  # what is beyond is drawn at the edge
APART = 0.14  # policies of a case, in rows
TICKS = [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2]


def plot(figure: Figure, scenario: Scenario, records: Sequence[Record]) -> None:
    """A dot for each policy's median, and a line from its slowest to its fastest seed."""
    comparison = Comparison(scenario, records)
    dynamic = [some for some in series_of(scenario, records) if not some.is_static]
    axes = panels(figure, 1, 1, 0.6 + 0.42 * len(comparison.cases))[0, 0]
    if not records:
        say(axes, "no results yet")
        return
    for row, case in enumerate(comparison.cases):
        for index, some in enumerate(dynamic):
            _draw(axes, comparison, case, some, row + APART * (index - (len(dynamic) - 1) / 2))
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(SLOWEST / 1.1, FASTEST * 1.05)
    axes.set_xticks(TICKS)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"1/{1 / value:.0f}" if value < 1 else f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks(range(len(comparison.cases)), [_label(comparison, case) for case in comparison.cases])
    axes.set_ylim(len(comparison.cases) - 0.4, -0.6)
    axes.set_xlabel(f"speed {goal(scenario)}, beside the best static k in hindsight")
    look: dict[str, Any] = {"marker": "o", "markersize": 5, "linewidth": 1.2}
    legend(figure, [Line2D([], [], color=some.colour, label=some.label, **look) for some in dynamic])


def _label(comparison: Comparison, case: str) -> str:
    k = comparison.best_k(case)
    return case if k is None else f"{case}  (best k = {k})"


def _draw(axes: Axes, comparison: Comparison, case: str, some: Series, y: float) -> None:
    speeds = comparison.speeds(case, some.policy)
    if speeds is None:
        return
    low, middling, high = (min(max(speed, SLOWEST), FASTEST) for speed in speeds)
    axes.plot([low, high], [y, y], color=some.colour, linewidth=1.2, alpha=0.6)
    axes.plot([middling], [y], marker="o" if speeds[1] >= SLOWEST else "<", color=some.colour, markersize=5)
