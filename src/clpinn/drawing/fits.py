"""A picture of a fit: measured against fitted values, and residuals."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from clpinn.drawing.colours import BLUE, GREY
from clpinn.drawing.style import canvas, styled


@styled
def plot_fit(
    measured: Mapping[str, np.ndarray], fitted: Mapping[str, np.ndarray], noise: Mapping[str, float], title: str
) -> Figure:
    """One row per output: measured over fitted values with the line of equality, and residuals over fitted values.

    Grey lines are two standard deviations of the noise away from zero.
    """
    figure, panels = canvas(len(measured), 2, 3.4, 2.6)
    for row, name in enumerate(measured):
        values, residuals = panels[row]
        values.plot(fitted[name], measured[name], ".", color=BLUE)
        ends = [float(np.nanmin(fitted[name])), float(np.nanmax(fitted[name]))]
        values.plot(ends, ends, color=GREY, linewidth=0.8)
        values.set(xlabel=f"fitted {name}", ylabel=f"measured {name}")
        residuals.plot(fitted[name], measured[name] - fitted[name], ".", color=BLUE)
        for level in (-2 * noise[name], 0.0, 2 * noise[name]):
            residuals.axhline(level, color=GREY, linewidth=0.8, linestyle="-" if level == 0 else ":")
        residuals.set(xlabel=f"fitted {name}", ylabel=f"measured − fitted {name}")
    figure.suptitle(title, fontsize=9)
    return figure
