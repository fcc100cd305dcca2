"""The plots of a report: each of them an SVG element that takes its colours and its font from the page around it.

Matplotlib draws with stand-ins for colours, which become CSS variables: so the page has a light and a dark mode, and a
policy the same colour everywhere. The same runs give the same bytes.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from statistics import median
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from dbw_experiments.demo.runs import Run

Array = npt.NDArray[np.float64]

COLOURS = 6  # of runs, in the page; then they begin again
INK, MUTED, GRID, LATE = "#f10001", "#f10002", "#f10003", "#f10004"
VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", LATE: "late"} | {
    f"#f2000{i}": f"run-{i}" for i in range(COLOURS)
}
WIDTH = 5.6  # inches; 403 units of the SVG, about what it has on a screen: text of 11 is readable on a phone, too
CLOSE_UP_ITERATIONS = 20
LEGEND_COLUMNS = 4
BINS = 80  # of time, for shares
ROW = 0.76  # how high a worker's is
SETTINGS: dict[Any, object] = {
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titlepad": 8,
    "axes.axisbelow": True,
    "font.size": 11,
    "grid.color": GRID,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.solid_capstyle": "butt",
    "path.simplify": False,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,  # a policy may be called anything
    "xtick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.color": GRID,
    "ytick.labelcolor": MUTED,
    "ytick.left": False,
}


def loss_over_time(runs: Sequence[Run]) -> str:
    """What was reached when: every loss, faint, and their moving average; the end of a training is a dot."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        over_time(axes, runs, "loss")
        for index, run in enumerate(runs):
            times, losses = measured((i.begin + i.duration, i.loss) for i in run.iterations)
            smooth = moving_average(losses, width=len(losses) // 25)
            axes.plot(times, losses, color=colour(index), linewidth=0.7, alpha=0.3)
            axes.plot(times, smooth, color=colour(index), linewidth=2, label=short(run.policy))
            axes.plot(times[-1:], smooth[-1:], color=colour(index), marker="o", markersize=6)
        target_loss = runs[0].target_loss
        axes.set_ylim(bottom=min(0.0, target_loss))
        axes.axhline(target_loss, color=INK, linewidth=1, linestyle=(0, (4, 3)), label=f"target {target_loss:g}")
        legend(axes)

    return svg("loss", 2.9, draw)


def k_over_time(runs: Sequence[Run]) -> str:
    """How many gradients each iteration waited for."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        over_time(axes, runs, "k: gradients waited for")
        workers = max(run.workers for run in runs)
        for index, run in enumerate(runs):
            apart = 0.1 * (index - (len(runs) - 1) / 2)  # for policies that choose the same
            edges = [*(i.begin for i in run.iterations), run.seconds]
            ks = [i.k + apart for i in run.iterations]
            axes.stairs(ks, edges, baseline=None, color=colour(index), linewidth=1.8, label=short(run.policy))
        axes.set_ylim(0.5, workers + 0.5)
        axes.yaxis.set_major_locator(MaxNLocator(8, integer=True))
        legend(axes)

    return svg("k", 2.9, draw)


def close_up(runs: Sequence[Run]) -> tuple[str, float]:
    """Some iterations from the middle of each training, at the same scale, and for how many seconds: the picture of
    what waiting means, since single gradients can be told apart.
    """
    quickest = min(median(i.duration for i in run.iterations) for run in runs)
    seconds = min(CLOSE_UP_ITERATIONS * quickest, max(run.seconds for run in runs)) or 1.0

    def draw(figure: Figure) -> None:
        for index, (run, axes) in enumerate(zip(runs, panels(figure, runs), strict=True)):
            begins = np.array([i.begin for i in run.iterations])
            latest = max(0.0, run.seconds - seconds)
            first = int(np.searchsorted(begins, min(run.seconds / 2, latest), side="right")) - 1
            begin = begins[max(first, 0)].item()
            seen = begins[(begins >= begin) & (begins < begin + seconds)]
            axes.vlines(seen - begin, -0.6, run.workers - 0.4, color=MUTED, linewidth=0.6, alpha=0.6)
            for late in (False, True):
                shown = [a for a in run.arrivals if a.is_late == late and begin <= a.time <= begin + seconds]
                axes.plot(
                    [a.time - begin for a in shown],
                    [a.worker for a in shown],
                    color=LATE if late else colour(index),
                    marker="x" if late else "o",
                    markersize=4,
                    linestyle="none",
                )
            axes.set_title(f"{short(run.policy)}: {len(seen)} iteration{'s' * (len(seen) != 1)}")
            worker_rows(axes, run)
            axes.set_xlim(-0.01 * seconds, seconds)
        axes.set_xlabel("seconds", loc="right")

    return svg("closeup", panels_height(runs), draw), seconds


def lateness_over_time(runs: Sequence[Run]) -> str:
    """Which share of every worker's gradients was late, over time and, at the right, altogether."""

    def draw(figure: Figure) -> None:
        edges = np.linspace(0, longest(runs), BINS + 1)
        grid = figure.subplots(len(runs), 2, squeeze=False, sharex="col", width_ratios=(5, 1))
        for index, (run, (axes, shares)) in enumerate(zip(runs, grid, strict=True)):
            rows = range(run.workers)
            axes.barh(rows, run.seconds, height=ROW, color=colour(index), alpha=0.25)
            for worker in rows:
                late = late_shares(run, worker, edges)
                there = edges[: len(late)] < run.seconds  # and then only late ones are to come
                bottom = worker + ROW / 2
                ends = np.minimum(edges[: there.sum() + 1], run.seconds)
                axes.stairs(bottom - ROW * late[there], ends, baseline=bottom, fill=True, color=LATE, linewidth=0)
            shares.barh(rows, [late_share(run, worker) for worker in rows], height=ROW, color=LATE)
            axes.set_title(short(run.policy))
            worker_rows(axes, run)
            worker_rows(shares, run)
            shares.set(xlim=(0, 1), ylabel="")
            shares.set_xticks([0, 1], ["0", "100 %"])
            shares.tick_params(labelleft=False)
        grid[0, 1].set_title("overall")
        grid[-1, 0].set_xlim(0, longest(runs))
        grid[-1, 0].set_xlabel("seconds", loc="right")

    return svg("lateness", panels_height(runs), draw)


def durations_over_time(runs: Sequence[Run]) -> str:
    """How long iterations took, and how long the controller expected them to take: in proportion, as some policies'
    iterations are far shorter than others'.
    """

    def draw(figure: Figure) -> None:
        for index, (run, axes) in enumerate(zip(runs, panels(figure, runs, sharey=True), strict=True)):
            times, observed = measured((i.begin, i.duration or None) for i in run.iterations)
            axes.plot(times, observed, color=colour(index), marker="o", markersize=2.2, alpha=0.5, linestyle="none")
            axes.plot(*measured((i.begin, i.estimated or None) for i in run.iterations), color=INK, linewidth=1.4)
            axes.set_title(f"{short(run.policy)}: seconds an iteration")
            axes.grid(axis="y")
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_locator(NullLocator())
        axes.set_xlim(0, longest(runs))
        axes.set_xlabel("seconds of training", loc="right")

    return svg("durations", panels_height(runs), draw)


def late_shares(run: Run, worker: int, edges: Array) -> Array:
    """Which share of a worker's gradients was late in each span of time; 0 where there are none."""
    times = [[a.time for a in run.arrivals if a.worker == worker and a.is_late >= late] for late in (False, True)]
    every, late = (np.histogram(seen, edges)[0] for seen in times)
    shares: Array = late / np.maximum(every, 1)
    return shares


def late_share(run: Run, worker: int) -> float:
    """Which share of a worker's gradients came when the iteration had enough."""
    return run.late.get(worker, 0) / max(1, run.sent.get(worker, 0))


def moving_average(values: Array, width: int) -> Array:
    """The mean over `width` values at either side, over fewer at the ends."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    middle = np.arange(len(values))
    first, last = np.maximum(middle - width, 0), np.minimum(middle + width + 1, len(values))
    average: Array = (sums[last] - sums[first]) / (last - first)
    return average


def measured(points: Iterable[tuple[float, float | None]]) -> tuple[Array, Array]:
    """The points that have a value."""
    there = np.array([(x, y) for x, y in points if y is not None and np.isfinite(y)]).reshape(-1, 2)
    return there[:, 0], there[:, 1]


def longest(runs: Sequence[Run]) -> float:
    """How far time goes in plots of whole trainings, in seconds: the same for all of them."""
    return 1.02 * max(run.seconds for run in runs) or 1.0


def colour(index: int) -> str:
    """What stands for the colour of a run."""
    return f"#f2000{index % COLOURS}"


def panels(figure: Figure, runs: Sequence[Run], *, sharey: bool = False) -> list[Axes]:
    """One plot a run, below each other, with the same time in all of them."""
    return list(figure.subplots(len(runs), 1, squeeze=False, sharex=True, sharey=sharey)[:, 0])


def panels_height(runs: Sequence[Run]) -> float:
    """How high a figure of panels is, in inches."""
    return 0.5 + 1.9 * len(runs)


def over_time(axes: Axes, runs: Sequence[Run], title: str) -> None:
    """What plots over the time of training have in common."""
    axes.set_title(title, pad=10 + 16 * -(-(len(runs) + 1) // LEGEND_COLUMNS))
    axes.set_xlim(0, longest(runs))
    axes.set_xlabel("seconds", loc="right")
    axes.grid(axis="y")


def legend(axes: Axes) -> None:
    """Which line is whose, between title and plot."""
    made = axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=LEGEND_COLUMNS,
        handlelength=1.2,
        borderaxespad=0,
        borderpad=0.3,
    )
    made.set_in_layout(False)  # the title makes room for it


def short(policy: str) -> str:
    """A policy's name where there is little room."""
    return policy if len(policy) <= 16 else f"{policy[:15]}…"


def worker_rows(axes: Axes, run: Run) -> None:
    """One row a worker, the first at the top."""
    axes.set_ylim(run.workers - 0.4, -0.6)
    axes.set_yticks(range(0, run.workers, -(-run.workers // 10)))
    axes.tick_params(axis="y", labelsize=9)
    axes.set_ylabel("worker")


def svg(name: str, height: float, draw: Callable[[Figure], None]) -> str:
    """Draw a figure, and make it an SVG element for a page that has others."""
    written = StringIO()
    with matplotlib.rc_context(SETTINGS | {"svg.hashsalt": name}):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure)
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    text = written.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"\s*<metadata>.*?</metadata>|<!--.*?-->\n?", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns:xlink="[^"]*"| width="[^"]*pt"| height="[^"]*pt"| version="1.1"', "", text)
    text = text.replace("xlink:href", "href")
    text = re.sub(r"<g id=\"[^\"]*\"", "<g", text)  # nobody refers to groups
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{name}-", text)
    text = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", text)  # the family is the page's
    text = re.sub(r'\b(d|x|y|transform)="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), text)
    return re.sub("|".join(VARIABLES), lambda found: f"var(--{VARIABLES[found[0]]})", text)
