"""Single trainings over time: what is learnt, and which k was chosen meanwhile."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from dbw_experiments.laboratory.analysis.columns import began, last_accuracy, numbers, seconds_to_accuracy, smoothed
from dbw_experiments.laboratory.analysis.times import times_of
from dbw_experiments.laboratory.figures import canvas
from dbw_experiments.laboratory.figures.canvas import INK, MUTED, Style, line
from dbw_experiments.laboratory.figures.series import Series, series_of
from dbw_experiments.laboratory.figures.times import Box, draw_boxes
from dbw_experiments.laboratory.runs import Outcome, Record
from dbw_experiments.laboratory.scenario import Case, Scenario

TARGET: Style = (0, (4, 3))
RATIO: Style = (0, (1, 1.2))


def plot(figure: Figure, scenario: Scenario, records: Sequence[Record]) -> None:
    """A column for each case: loss, accuracy if it was measured, and k with the ratio that explains it.

    These are of the first seed. Where there are more, box plots of all seeds' accuracy are below.
    """
    series = series_of(scenario, records)
    seeds = {run.seed for run in scenario.runs()}
    rows, boxes = ["loss"], []
    if any("accuracy" in record.outcome.columns for record in records):
        rows.append("accuracy")
        if len(seeds) > 1:
            targets = any(case.target_accuracy for case in scenario.cases)
            boxes = ["in the end", "to the target"] if targets else ["in the end"]
    if not all(some.is_static for some in series):
        rows.append("k")
    grid = canvas.panels(figure, len(rows + boxes), len(scenario.cases), 2.1, y="row")
    ratios: list[Axes] = []
    for column, case in zip(grid.T, scenario.cases, strict=True):
        ratios += _draw_case(dict(zip(rows, column[: len(rows)], strict=True)), case, series)
        _draw_boxes(dict(zip(boxes, column[len(rows) :], strict=True)), case, series)
    _label(dict(zip(rows + boxes, grid[:, 0], strict=True)), ratios, max(case.workers for case in scenario.cases))
    handles = [line(some.label, some.colour, some.style) for some in series]
    if ratios:
        handles.append(line("‖∇F‖² / V(g), as DBW estimates it", MUTED, RATIO))
    if any(case.target_loss is not None for case in scenario.cases):
        handles.append(line("target", INK, TARGET, 0.8))
    canvas.legend(figure, handles, f"seed {min(seeds)}" if len(seeds) > 1 else None)


def _draw_case(column: dict[str, Axes], case: Case, series: Sequence[Series]) -> list[Axes]:
    """Draw a column; returns the axes of DBW's ratio, if there is one."""
    *others, last = column.values()
    last.set_xlabel("virtual seconds")
    for axes in others:
        axes.sharex(last)
        axes.tick_params(labelbottom=False)
    column["loss"].set_title(case.name)
    shown = [(some, one.outcome) for some in series if (one := some.first(case)) and "seconds" in one.outcome.columns]
    if not shown:
        canvas.say(column["loss"], "no results yet")
        return []
    if case.target_loss is not None:
        column["loss"].axhline(case.target_loss, color=INK, linewidth=0.8, linestyle=TARGET)
    for some, outcome in sorted(shown, key=lambda pair: not pair[0].is_static):  # the latter are seen best
        _draw_loss(column["loss"], some, outcome, case.workers)
        if "accuracy" in outcome.columns:
            _draw_accuracy(column["accuracy"], some, outcome)
        if not some.is_static:
            _draw_choices(column["k"], some, outcome)
    last.set_xlim(0, 1.02 * max(outcome.seconds for _, outcome in shown) or 1.0)
    return [_draw_ratio(column["k"], outcome) for outcome in [one for some, one in shown if some.policy == "dbw"][:1]]


def _draw_boxes(column: dict[str, Axes], case: Case, series: Sequence[Series]) -> None:
    """Box plots over seeds: how accurate models are in the end, and when they were as accurate as they should be."""
    numbers_of: dict[str, Callable[[Outcome], float | None]] = {
        "in the end": last_accuracy,
        "to the target": lambda outcome: seconds_to_accuracy(outcome, case.target_accuracy or 1.0),
    }
    for name, axes in column.items():
        theirs = [(some, [one.outcome for one in some.there(case)]) for some in series]
        boxes = [(some, times_of(map(numbers_of[name], outcomes))) for some, outcomes in theirs if outcomes]
        draw_boxes(axes, [Box(some.label.replace(", ", "\n"), some.colour, found) for some, found in boxes])


def _draw_loss(axes: Axes, some: Series, outcome: Outcome, workers: int) -> None:
    """The loss; a dot where the target was reached, a cross where training diverged."""
    seconds, ks, losses = (numbers(outcome.columns[name]) for name in ("seconds", "k", "loss"))
    means = smoothed(ks, losses, workers)
    axes.plot(seconds, means, color=some.colour, linestyle=some.style, linewidth=1.4)
    known = np.flatnonzero(np.isfinite(means))
    if len(known) and (outcome.reached is not None or outcome.loss is None):
        end = known[-1]
        marker = "x" if outcome.loss is None else "o"
        axes.plot(seconds[end], means[end], marker=marker, color=some.colour, markersize=5)


def _draw_accuracy(axes: Axes, some: Series, outcome: Outcome) -> None:
    seconds, accuracy = began(outcome), numbers(outcome.columns["accuracy"])
    known = np.isfinite(accuracy)
    axes.plot(seconds[known], accuracy[known], color=some.colour, linestyle=some.style, linewidth=1.4)


def _draw_choices(axes: Axes, some: Series, outcome: Outcome) -> None:
    edges = [0.0, *numbers(outcome.columns["seconds"])]
    ks = numbers(outcome.columns["k"])
    axes.stairs(ks, edges, baseline=None, color=some.colour, linestyle=some.style, linewidth=0.9)


def _draw_ratio(axes: Axes, outcome: Outcome) -> Axes:
    ratio = axes.twinx()
    norms, variances = (numbers(outcome.columns.get(f"estimated_{name}")) for name in ("squared_norm", "variance"))
    seconds = numbers(outcome.columns["seconds"])
    known = (norms > 0) & (variances > 0)
    ratio.plot(seconds[known], norms[known] / variances[known], color=MUTED, linestyle=RATIO, linewidth=1)
    return ratio


def _label(first: dict[str, Axes], ratios: Sequence[Axes], workers: int) -> None:
    """Name and scale the axes; those of the first column are those of all."""
    first["loss"].set_ylabel("training loss")
    if any(len(drawn.get_lines()) for drawn in first["loss"].get_shared_y_axes().get_siblings(first["loss"])):
        canvas.logarithmic(first["loss"])
    for name, label in (("accuracy", "held-out accuracy"), ("in the end", "accuracy in the end,\nall seeds")):
        if name in first:
            first[name].set_ylabel(label)
            first[name].yaxis.set_major_formatter(PercentFormatter(1.0))
    if "to the target" in first:
        first["to the target"].set_ylabel("seconds to the target\naccuracy, all seeds")
    if "k" in first:
        first["k"].set(ylabel="k", ylim=(0, workers + 0.5))
        first["k"].yaxis.set_major_locator(canvas.whole_numbers())
    values = [value for axes in ratios for drawn in axes.get_lines() for value in np.asarray(drawn.get_ydata())]
    for axes in ratios:
        canvas.scale(axes, values)
        axes.grid(visible=False)
        axes.tick_params(right=axes is ratios[-1], labelright=axes is ratios[-1])
    if ratios:
        ratios[-1].set_ylabel("‖∇F‖² / V(g)")
