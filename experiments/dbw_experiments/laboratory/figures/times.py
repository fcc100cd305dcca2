"""How long trainings take to reach the target: box plots, and the mean over every static k."""

from collections.abc import Sequence
from itertools import cycle
from statistics import fmean
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dbw_experiments.laboratory.analysis.times import Times, best_static
from dbw_experiments.laboratory.figures.canvas import INK, legend, line, panels, say, scale, whole_numbers
from dbw_experiments.laboratory.figures.series import ALL, FURTHER, Series, series_of
from dbw_experiments.laboratory.runs import Record
from dbw_experiments.laboratory.scenario import Case, Scenario

ROOM = 0.3  # above the times, for marks of runs that never reached the target


class Static(NamedTuple):
    """A static policy in a case."""

    k: int
    rule: str
    rate: float
    records: list[Record]
    times: Times  # when the target was reached


class Box(NamedTuple):
    """What a box plot is of."""

    label: str
    colour: str
    times: Times


def plot(figure: Figure, scenario: Scenario, records: Sequence[Record]) -> None:
    """A column for each case: box plots above, static policies below."""
    cases, series = scenario.cases, series_of(scenario, records)
    dynamic = [some for some in series if not some.is_static]
    static = [some for some in series if some.is_static]
    rules = dict(zip(dict.fromkeys(some.rule for some in static), cycle(FURTHER), strict=False))
    sweeps = len(static) > len(rules)  # more than one k for some rule
    boxes = [_dynamic_boxes(dynamic, case) + _static_boxes(_in(case, static), rules, case.workers) for case in cases]
    grid = panels(figure, 2 if sweeps else 1, len(cases), 2.7, 0.6 + 0.5 * max(map(len, boxes)))
    for axes, case, some in zip(grid[0], cases, boxes, strict=True):
        axes.set_title(case.name)
        draw_boxes(axes, some)
    grid[0, 0].set_ylabel(f"time {goal(scenario)} [virtual s]")
    if sweeps:
        for axes, case in zip(grid[1], cases, strict=True):
            _draw_every_k(axes, _in(case, static), rules, dynamic, case)
        grid[1, 0].set_ylabel(f"mean time {goal(scenario)} [virtual s]")
    handles = [line(some.label, some.colour, some.style) for some in dynamic]
    handles += [line(f"static k, {rule} learning rate" if rule else "static k", rules[rule]) for rule in rules]
    if any(some.of(case).unreached for some in series for case in cases):
        handles.append(unreached_handle())
    legend(figure, handles)


def unreached_handle() -> Line2D:
    """The mark of runs that never reached the target, for the legend."""
    return Line2D([], [], marker="^", color=INK, linestyle="none", markersize=5, label="target not reached by all runs")


def mark_unreached(axes: Axes, x: float, times: Times, colour: str, row: int | None = None) -> None:
    """Show at the top that runs never reached the target: in a row of marks, or with how many of how many."""
    if not times.unreached:
        return
    top, y = axes.get_xaxis_transform(), 0.97 - 0.05 * (row or 0)
    axes.plot([x], [y], marker="^", color=colour, markersize=5, transform=top, clip_on=False, linestyle="none")
    if row is None:
        share = f"{times.unreached}/{times.runs}"
        text = axes.text(x, 0.925, share, transform=top, ha="center", va="top", fontsize=7, color=colour)
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.8})


def goal(scenario: Scenario) -> str:
    """What trainings are to reach."""
    targets = {case.target_loss for case in scenario.cases}
    return f"to a loss of {targets.pop():g}" if len(targets) == 1 and None not in targets else "to the target"


def _in(case: Case, static: Sequence[Series]) -> list[Static]:
    theirs = [(some, some.there(case)) for some in static]
    return [Static(one[0].run.static_k, some.rule, one[0].run.rate, one, some.of(case)) for some, one in theirs if one]


def _dynamic_boxes(dynamic: Sequence[Series], case: Case) -> list[Box]:
    boxes = [Box(some.label.replace(", ", "\n"), some.colour, some.of(case)) for some in dynamic]
    return [box for box in boxes if box.times.runs]


def _static_boxes(statics: Sequence[Static], rules: dict[str, str], workers: int) -> list[Box]:
    """The best static policy of each rule, and the one that waits for all workers, unless that is the same."""
    boxes, shown = [], set()
    for rule, colour in rules.items():
        if alike := [some for some in statics if some.rule == rule]:
            k = best_static(one for some in alike for one in some.records)
            best = next(some for some in alike if some.k == k)
            name = f"k = {best.k}" if best.times.seconds else "none"
            boxes.append(Box(f"best:\n{name}" if len(alike) > 1 else name, colour, best.times))
            shown.add((best.k, best.rate))
    for some in statics:
        if some.k == workers and (some.k, some.rate) not in shown:
            boxes.append(Box(f"all:\nk = {some.k}", ALL, some.times))
            shown.add((some.k, some.rate))
    return boxes


def draw_boxes(axes: Axes, boxes: Sequence[Box]) -> None:
    """Box plots side by side, with every run as a dot."""
    if not boxes:
        say(axes, "no results yet")
        return
    seconds = [time for box in boxes for time in box.times.seconds]
    end = scale(axes, seconds, ROOM if any(box.times.unreached for box in boxes) else 0.06)
    for x, (_, colour, times) in enumerate(boxes):
        if times.seconds:
            axes.bxp(
                [_quartiles(times, end)],
                positions=[x],
                widths=0.6,
                showfliers=False,
                patch_artist=True,
                manage_ticks=False,
                boxprops={"facecolor": f"{colour}40", "edgecolor": colour},
                medianprops={"color": colour, "linewidth": 2},
                whiskerprops={"color": colour},
                capprops={"color": colour},
            )
            aside = np.linspace(-0.15, 0.15, times.runs)[: len(times.seconds)] if times.runs > 1 else [0.0]
            axes.plot(x + np.asarray(aside), times.seconds, ".", color=colour, markersize=4, alpha=0.7, zorder=3)
        mark_unreached(axes, x, times, colour)
    axes.set_xticks(range(len(boxes)), [box.label for box in boxes], fontsize=7.5)
    axes.set_xlim(-0.6, len(boxes) - 0.4)
    axes.grid(visible=False, axis="x")


def _quartiles(times: Times, end: float) -> dict[str, float]:
    """A box plot whose whiskers are as long as the distribution: beyond the axis, if runs never reached the target."""
    everything = np.array([*times.seconds, *[1e9 * end] * times.unreached])
    parts = np.minimum(np.percentile(everything, [0, 25, 50, 75, 100]), 2 * end)
    return dict(zip(("whislo", "q1", "med", "q3", "whishi"), parts.tolist(), strict=True))


def _draw_every_k(
    axes: Axes, statics: Sequence[Static], rules: dict[str, str], dynamic: Sequence[Series], case: Case
) -> None:
    means = {some.label: some.of(case).mean for some in dynamic}
    if not statics:
        say(axes, "no results yet")
        return
    unreached = any(times.unreached for times in [some.times for some in statics] + [some.of(case) for some in dynamic])
    seconds = [time for some in statics for time in some.times.seconds] + list(means.values())
    scale(axes, seconds, ROOM if unreached else 0.06)
    for row, policy in enumerate(dynamic):
        mark_unreached(axes, case.workers + 0.5, policy.of(case), policy.colour, row)
        if np.isfinite(means[policy.label]):
            axes.axhline(means[policy.label], color=policy.colour, linestyle=policy.style, linewidth=1.4)
    for row, (rule, colour) in enumerate(rules.items()):
        alike = sorted((some for some in statics if some.rule == rule), key=lambda some: some.k)
        ks = [some.k for some in alike]
        shown = [some.times.seconds if np.isfinite(some.times.mean) else [np.nan] for some in alike]
        axes.fill_between(ks, list(map(min, shown)), list(map(max, shown)), color=colour, alpha=0.25, linewidth=0)
        axes.plot(ks, list(map(fmean, shown)), ".-", color=colour)
        for some in alike:
            mark_unreached(axes, some.k, some.times, colour, row)
    axes.set_xlabel("static k")
    axes.set_xlim(0.5, case.workers + 0.5)
    axes.xaxis.set_major_locator(whole_numbers())
