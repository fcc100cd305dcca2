"""Series with a colour and a style that are the same in all figures."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex

from dbw_experiments.laboratory.analysis.series import Series, series_of
from dbw_experiments.laboratory.figures.canvas import Style
from dbw_experiments.laboratory.runs import Record
from dbw_experiments.laboratory.scenario import Scenario

# Okabe and Ito's colours, which nearly everybody can tell apart.
COLOURS = {"dbw": "#0072B2", "b-dbw": "#D55E00", "adasync": "#009E73", "dbw-plus": "#CC3311"}
COLOURS |= {"adasync:1": "#009E73", "adasync:2": "#E69F00"}
ALL = "#333333"  # waiting for all n workers
FURTHER = ["#E69F00", "#CC79A7", "#56B4E9", "#999999", "#B8A800"]  # in order of appearance
RAMP = colormaps["RdPu"]
FIRST: dict[str, Style] = {"b-dbw": (0, (4, 1.2)), "adasync": (0, (7, 1.2, 1.5, 1.2))}  # styles: they may coincide
NEXT: list[Style] = ["-", (0, (2, 1)), (0, (1, 1)), (0, (4, 1, 1, 1, 1, 1))]  # of a policy's further learning rates


@dataclass(frozen=True)
class DrawnSeries(Series):
    """A series as it is drawn."""

    colour: str
    style: Style


def drawn_series(scenario: Scenario, records: Sequence[Record]) -> list[DrawnSeries]:
    """All series of a scenario, in its order, also those of which nothing is known yet."""
    found = series_of(scenario, records)
    fixed = COLOURS | dict.fromkeys(["sync", *(f"static:{case.workers}" for case in scenario.cases)], ALL)
    others = list(dict.fromkeys(some.policy for some in found if some.policy not in fixed))
    colours = fixed | dict(zip(others, _further_colours(len(others)), strict=True))
    drawn: list[DrawnSeries] = []
    for some in found:
        index = sum(one.policy == some.policy for one in drawn)
        style = FIRST[some.policy] if index == 0 and some.policy in FIRST else NEXT[index % len(NEXT)]
        drawn.append(DrawnSeries(**vars(some), colour=colours[some.policy], style=style))
    return drawn


def _further_colours(count: int) -> list[str]:
    """As many colours as there are other policies: shades, if there are many, as these are static k's."""
    return FURTHER[:count] if count <= len(FURTHER) else list(map(to_hex, RAMP(np.linspace(0.25, 1, count))))
