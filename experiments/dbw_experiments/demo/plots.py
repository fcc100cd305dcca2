"""The plots of a report: each of them an SVG element that takes its colours and its font from the page around it.

Matplotlib draws with stand-ins for colours, which become CSS variables: so the page has a light and a dark mode, and a
policy the same colour everywhere. The same runs give the same bytes.
"""

import re
from collections.abc import Callable, Sequence
from io import StringIO
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from dbw_experiments.demo.analysis import begins_in_the_middle, close_up_seconds, late_shares, measured, moving_average
from dbw_experiments.demo.runs import Run

COLOURS = 6  # of runs, in the page; then they begin again
INK, MUTED, GRID, LATE = "#f10001", "#f10002", "#f10003", "#f10004"
VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", LATE: "late"}
VARIABLES |= {f"#f2000{i}": f"run-{i}" for i in range(COLOURS)}
SIZE = (5.6, 2.9)  # inches; 403 units of the SVG, about its width on a screen: text of 11 is readable on a phone, too
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


def loss_over_time(figure: Figure, runs: Sequence[Run]) -> None:
    """What was reached when: every loss, faint, and their moving average; the end of a training is a dot."""
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


def k_over_time(figure: Figure, runs: Sequence[Run]) -> None:
    """How many gradients each iteration waited for."""
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


def close_up(figure: Figure, runs: Sequence[Run]) -> None:
    """Some seconds from the middle of each training, at the same scale: the picture of what waiting means."""
    seconds = close_up_seconds(runs)
    for index, (run, axes) in enumerate(zip(runs, panels(figure, runs)[:, 0], strict=True)):
        seen = begins_in_the_middle(run, seconds)
        begin = seen[0].item()
        axes.vlines(seen - begin, -0.6, run.workers - 0.4, color=MUTED, linewidth=0.6, alpha=0.6)
        for late, marker, shade in ((False, "o", colour(index)), (True, "x", LATE)):
            shown = [a for a in run.arrivals if a.is_late == late and begin <= a.time <= begin + seconds]
            times, rows = [a.time - begin for a in shown], [a.worker for a in shown]
            axes.plot(times, rows, marker, color=shade, markersize=4)
        axes.set_title(f"{short(run.policy)}: {len(seen)} iteration{'s' * (len(seen) != 1)}")
        worker_rows(axes, run)
        axes.set_xlim(-0.01 * seconds, seconds)
    axes.set_xlabel("seconds", loc="right")


def lateness_over_time(figure: Figure, runs: Sequence[Run]) -> None:
    """Which share of every worker's gradients was late, over time and, at the right, altogether."""
    edges = np.linspace(0, longest(runs), BINS + 1)
    grid = panels(figure, runs, (5, 1))
    for index, (run, (axes, shares)) in enumerate(zip(runs, grid, strict=True)):
        rows = range(run.workers)
        axes.barh(rows, run.seconds, height=ROW, color=colour(index), alpha=0.25)
        for worker in rows:
            late = late_shares(run, worker, edges)
            there = edges[: len(late)] < run.seconds  # and then only late ones are to come
            bottom = worker + ROW / 2
            ends = np.minimum(edges[: there.sum() + 1], run.seconds)
            axes.stairs(bottom - ROW * late[there], ends, baseline=bottom, fill=True, color=LATE, linewidth=0)
        shares.barh(rows, [run.late_share(worker) for worker in rows], height=ROW, color=LATE)
        axes.set_title(short(run.policy))
        worker_rows(axes, run)
        worker_rows(shares, run)
        shares.set(xlim=(0, 1), ylabel="")
        shares.set_xticks([0, 1], ["0", "100 %"])
        shares.tick_params(labelleft=False)
    grid[0, 1].set_title("overall")
    grid[-1, 0].set_xlim(0, longest(runs))
    grid[-1, 0].set_xlabel("seconds", loc="right")


def durations_over_time(figure: Figure, runs: Sequence[Run]) -> None:
    """How long iterations took, and how long the controller expected them to take: in proportion, as some policies'
    iterations are far shorter than others'.
    """
    for index, (run, axes) in enumerate(zip(runs, panels(figure, runs, y=True)[:, 0], strict=True)):
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


def longest(runs: Sequence[Run]) -> float:
    """How far time goes in plots of whole trainings, in seconds: the same for all of them."""
    return 1.02 * max(run.seconds for run in runs) or 1.0


def colour(index: int) -> str:
    """What stands for the colour of a run."""
    return f"#f2000{index % COLOURS}"


def panels(figure: Figure, runs: Sequence[Run], widths: Sequence[float] = (1,), y: bool = False) -> Any:  # noqa: ANN401
    """A row of plots for each run, with the same time in all of them, and perhaps the same y."""
    figure.set_figheight(0.5 + 1.9 * len(runs))
    return figure.subplots(len(runs), len(widths), squeeze=False, sharex="col", sharey=y, width_ratios=widths)


def over_time(axes: Axes, runs: Sequence[Run], title: str) -> None:
    """What plots over the time of training have in common."""
    axes.set_title(title, pad=10 + 16 * -(-(len(runs) + 1) // LEGEND_COLUMNS))
    axes.set_xlim(0, longest(runs))
    axes.set_xlabel("seconds", loc="right")
    axes.grid(axis="y")


def legend(axes: Axes) -> None:
    """Which line is whose, between title and plot."""
    made = axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=LEGEND_COLUMNS, handlelength=1.2, borderaxespad=0, borderpad=0.3
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


def svg(name: str, draw: Callable[[Figure, Sequence[Run]], None], runs: Sequence[Run]) -> str:
    """Draw a figure, and make it an SVG element for a page that has others."""
    written = StringIO()
    with matplotlib.rc_context(SETTINGS | {"svg.hashsalt": name}):
        figure = Figure(figsize=SIZE, layout="constrained")
        draw(figure, runs)
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
