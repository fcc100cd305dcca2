"""What short trainings come to over the learning rate, and where the knees are."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex

from dbw_experiments.laboratory.analysis.knee import Curve
from dbw_experiments.laboratory.figures.canvas import canvas, legend, line, panels, save


def draw_knees(found: Mapping[int, Curve], iterations: int, folder: Path) -> list[Path]:
    """Draw the curve of each k, with a dot where its knee is."""
    with canvas("The knee rule") as figure:
        axes = panels(figure, 1, 1, height=4.0)[0, 0]
        colours = [to_hex(colour) for colour in colormaps["viridis_r"](np.linspace(0.1, 0.95, len(found)))]
        highest = max(curve.first_loss for curve in found.values())
        for curve, colour in zip(found.values(), colours, strict=True):
            rates, losses = list(curve.losses), np.minimum(list(curve.losses.values()), 1.5 * highest)
            axes.plot(rates, losses, color=colour)
            if curve.knee is not None:
                axes.plot([curve.knee], [curve.losses[curve.knee]], "o", color=colour)
        axes.set(xscale="log", xlabel="learning rate η", ylabel=f"training loss, end of {iterations} iterations")
        axes.set_ylim(0, 1.2 * highest)
        legend(figure, [line(f"k = {k}", colour) for k, colour in zip(found, colours, strict=True)])
        return save(figure, folder)
