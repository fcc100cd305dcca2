"""How long an iteration takes for each k: averages, and estimates that keep to what must hold."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from dbw_experiments.laboratory.analysis.columns import matrix, numbers
from dbw_experiments.laboratory.analysis.durations import true_durations
from dbw_experiments.laboratory.figures import canvas
from dbw_experiments.laboratory.figures.canvas import MUTED, Style, line
from dbw_experiments.laboratory.figures.series import COLOURS, series_of
from dbw_experiments.laboratory.runs import Record
from dbw_experiments.laboratory.scenario import Scenario

TRUE: Style = (0, (5, 3))
TITLES = ["k chosen", "averages of what was observed", "constrained estimates"]


def plot(figure: Figure, scenario: Scenario, records: Sequence[Record]) -> None:
    """A row for each case: the k that were chosen, averages for each k, and estimates for each k."""
    grid = canvas.panels(figure, len(scenario.cases), len(TITLES), height=3.0)
    dynamic = [some for some in series_of(scenario, records) if not some.is_static]
    dynamic.sort(key=lambda some: some.policy != "dbw")
    for row, case in zip(grid, scenario.cases, strict=True):
        found = [one for some in dynamic if (one := some.first(case)) and "estimated_durations" in one.outcome.columns]
        if found:
            _draw_case(row, found[0], scenario.folder)
        else:
            canvas.say(row[0], "no results yet")
        row[0].set_ylabel(f"{case.name}\nk" if case.name else "k")
        row[1].set_ylabel("virtual seconds of an iteration")
    for axes, title in zip(grid[0], TITLES, strict=True):
        axes.set_title(title)
    for axes in grid[-1]:
        axes.set_xlabel("iteration")
    canvas.legend(figure, [line("true mean if k were always the same", MUTED, TRUE, 0.9)])


def _draw_case(row: Sequence[Axes], record: Record, folder: Path) -> None:
    run, columns = record.run, record.outcome.columns
    chosen, averaged, constrained = row
    colours = colormaps["viridis"](np.linspace(0, 0.9, run.workers))
    ks = numbers(columns["k"])
    chosen.stairs(ks, np.arange(len(ks) + 1), baseline=None, color=COLOURS["dbw"], linewidth=1)
    chosen.set_ylim(0.5, run.workers + 0.5)
    chosen.yaxis.set_major_locator(canvas.whole_numbers())
    true = true_durations(run, folder)
    tables = [matrix(columns[name], run.workers) for name in ("average_durations", "estimated_durations")]
    for axes, table in zip((averaged, constrained), tables, strict=True):
        for k, colour in enumerate(colours):
            axes.plot(table[:, k], color=colour, linewidth=1.3)
            axes.axhline(true[k], color=colour, linewidth=0.8, linestyle=TRUE)
        canvas.scale(axes, [*true, *np.concatenate(tables).ravel().tolist()])
    scalar = ScalarMappable(BoundaryNorm(np.arange(0.5, run.workers + 1), run.workers), ListedColormap(colours))
    bar = constrained.figure.colorbar(scalar, ax=constrained, label="k", ticks=range(1, run.workers + 1))
    bar.ax.tick_params(length=0)
    bar.ax.minorticks_off()
