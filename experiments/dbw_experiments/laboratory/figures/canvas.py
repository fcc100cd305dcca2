"""What all figures have in common: how they look, how axes are scaled, and how they are written."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

Style = Literal["-"] | tuple[float, Sequence[float]]  # of lines
Shared = Literal["none", "row"]

WIDTH, PIXELS = 10.0, 1600  # inches, of the PNG
INK, MUTED, GRID = "#222222", "#555555", "#dddddd"
LETTER = 0.085  # inches, of a legend
WIDE_RANGE = 10  # largest to smallest: beyond it an axis is logarithmic
SETTINGS: dict[Any, object] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#999999",
    "axes.grid": True,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "figure.facecolor": "white",
    "figure.titlesize": 12,
    "font.size": 9,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "dbw",
    "text.color": INK,
    "text.parse_math": False,  # a case may be called anything
    "xtick.color": "#999999",
    "xtick.labelcolor": MUTED,
    "xtick.labelsize": 8,
    "ytick.color": "#999999",
    "ytick.labelcolor": MUTED,
    "ytick.labelsize": 8,
}


@contextmanager
def canvas(title: str) -> Iterator[Figure]:
    """A figure to draw on."""
    with matplotlib.rc_context(SETTINGS):
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
        figure = Figure(figsize=(WIDTH, 4), layout=layout)
        figure.suptitle(title)
        yield figure


def save(figure: Figure, folder: Path) -> list[Path]:
    """Write a figure twice: for the web, and for everything else."""
    folder.mkdir(parents=True, exist_ok=True)
    svg, png = folder / "figure.svg", folder / "figure.png"
    figure.savefig(svg, format="svg", metadata={"Date": None})
    figure.savefig(png, format="png", dpi=PIXELS / figure.get_figwidth(), metadata={"Software": None})
    return [svg, png]


def panels(
    figure: Figure, rows: int, columns: int, height: float, least: float = 2.6, y: Shared = "none"
) -> "np.ndarray[Any, Any]":
    """A grid of axes, each this high and at least this wide, in inches."""
    figure.set_size_inches(max(WIDTH, least * columns), 1.0 + height * rows)
    return figure.subplots(rows, columns, squeeze=False, sharey=y)


def legend(figure: Figure, handles: Sequence[Artist], title: str | None = None) -> None:
    """Which line is whose, below everything."""
    if handles:
        letters = sum(len(str(handle.get_label())) + 8 for handle in handles)
        rows = math.ceil(letters * LETTER / figure.get_figwidth())
        columns = math.ceil(len(handles) / rows)
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, title=title, title_fontsize=9)


def line(label: str, colour: str, style: Style = "-", width: float = 1.6) -> Line2D:
    """A line for the legend."""
    return Line2D([], [], color=colour, linestyle=style, linewidth=width, label=label)


def say(axes: Axes, text: str) -> None:
    """Say why there is nothing to be seen."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED)
    axes.tick_params(left=False, labelleft=False, bottom=False, labelbottom=False)
    axes.grid(visible=False)


def scale(axes: Axes, values: Iterable[float], above: float = 0.06) -> float:
    """Let the y axis hold these values, with some room above; logarithmic if their range is wide. Returns its end."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        axes.tick_params(axis="y", left=False, labelleft=False)
        finite = [0.0, 1.0]
    low, high = min(finite), max(finite)
    if low > 0 and high > WIDE_RANGE * low:
        logarithmic(axes)
        ratio = high / low
        low, high = low / ratio**0.06, high * ratio**above
    else:
        span = high - low or abs(high) or 1.0
        low, high = low - 0.06 * span, high + above * span
    axes.set_ylim(low, high)
    return high


def logarithmic(axes: Axes) -> None:
    """A logarithmic y axis whose numbers are written out."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def whole_numbers() -> MaxNLocator:
    """Ticks of an axis of counts."""
    return MaxNLocator(8, integer=True, min_n_ticks=1, steps=[1, 2, 4, 10])
