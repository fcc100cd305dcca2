"""How long trainings take to reach the target, over what tells the cases apart."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dbw_experiments.laboratory.figures.canvas import legend, line, panels, say, scale
from dbw_experiments.laboratory.figures.series import series_of
from dbw_experiments.laboratory.figures.times import ROOM, goal, mark_unreached, unreached_handle
from dbw_experiments.laboratory.runs import Record
from dbw_experiments.laboratory.scenario import Scenario

APART = 0.006  # lines with error bars, in widths of the axes
LOOK: dict[str, Any] = {"linewidth": 1.6, "elinewidth": 1, "marker": "o", "markersize": 4, "capsize": 2.5}  # of these


def plot(figure: Figure, scenario: Scenario, records: Sequence[Record]) -> None:
    """A line for each policy: means, and standard deviations as error bars."""
    axes = panels(figure, 1, 1, height=4.0)[0, 0]
    names = [case.name for case in scenario.cases]
    what, positions = numbered(names)
    times = [(some, [some.of(case) for case in scenario.cases]) for some in series_of(scenario, records)]
    unreached = any(one.unreached for _, ones in times for one in ones)
    bounds = [one.mean + sign * one.deviation for _, ones in times for one in ones for sign in (-1, 1)]
    if not any(one.runs for _, ones in times for one in ones):
        say(axes, "no results yet")
        return
    scale(axes, bounds, ROOM if unreached else 0.06)
    width = float(np.ptp(positions)) or 1.0
    for index, (some, ones) in enumerate(times):
        xs = np.array(positions) + APART * width * (index - (len(times) - 1) / 2)
        means = np.array([one.mean if np.isfinite(one.mean) else np.nan for one in ones])
        deviations = [one.deviation for one in ones]
        axes.errorbar(xs, means, deviations, color=some.colour, linestyle=some.style, **LOOK)
    for column, position in enumerate(positions):
        never = [(some, ones[column]) for some, ones in times if ones[column].unreached]
        for index, (some, one) in enumerate(never):
            x = position + 2 * APART * width * (index - (len(never) - 1) / 2)
            mark_unreached(axes, x, one, some.colour, row=0)
    axes.set_xlim(min(positions) - 0.06 * width, max(positions) + 0.06 * width)
    if what is None:
        axes.set_xticks(positions, names)
    elif len(names) <= 12:
        axes.set_xticks(positions, [f"{position:g}" for position in positions])
    axes.set(xlabel=what or "", ylabel=f"mean time {goal(scenario)} [virtual s]")
    handles = [line(some.label, some.colour, some.style) for some, _ in times]
    legend(figure, [*handles, unreached_handle()] if unreached else handles)


def numbered(names: Sequence[str]) -> tuple[str | None, list[float]]:
    """Where cases such as α = 0.1 are on an axis, and what it is called; None if they have no numbers."""
    found = [re.fullmatch(r"(.*?)\s*=?\s*(-?\d+(?:\.\d+)?)", name) for name in names]
    matches = [match for match in found if match]
    if len(matches) == len(names) and len({match[1] for match in matches}) == 1:
        return matches[0][1], [float(match[2]) for match in matches]
    return None, list(map(float, range(len(names))))
