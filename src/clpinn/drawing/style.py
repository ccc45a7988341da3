"""How all figures look: sizes in inches, colours that colour-blind readers can tell apart, labels."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Transform

from clpinn.drawing.colours import BLUE, GREEN, GRID, ORANGE, PURPLE, RED, SKY
from clpinn.errors import PlotError
from clpinn.files import replacing
from clpinn.formulation.domain import Axis
from clpinn.formulation.problem import Problem

COLOURS = (BLUE, RED, GREEN, ORANGE, PURPLE, SKY)
LINES = ("-", "--", "-.", ":")

STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.formatter.limits": (-2, 4),
    "axes.formatter.use_mathtext": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "figure.dpi": 150,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
}


P = ParamSpec("P")
R = TypeVar("R")


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """A function that draws in our style and leaves matplotlib's settings unchanged."""

    @wraps(draw)
    def inside(*arguments: P.args, **named: P.kwargs) -> R:
        with matplotlib.rc_context(STYLE):
            return draw(*arguments, **named)

    return inside


def canvas(rows: int, columns: int, width: float, height: float) -> tuple[Figure, np.ndarray]:
    """A figure of panels, each of a width and height in inches, and the panels as (rows, columns)."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def label(problem: Problem, name: str) -> str:
    """A name with its unit."""
    unit = problem.units.get(name)
    return f"{name} [{unit}]" if unit else name


def scale(panel: Axes, axis: Axis, which: str = "x") -> None:
    """Give a panel's axis the scale (log or linear) of a parameter's axis."""
    if axis.scale == "log":
        getattr(panel, f"set_{which}scale")("log")


def along_edge(panel: Axes) -> Transform:
    """The transform of points (value on the horizontal axis, fraction of the panel's height)."""
    return panel.get_xaxis_transform()


def log_or_linear(panel: Axes, *columns: np.ndarray) -> None:
    """A log scale on the vertical axis where any value is positive."""
    if any(np.any(column[np.isfinite(column)] > 0) for column in columns):
        panel.set_yscale("log")


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format that the file's ending names."""
    if not path.suffix:
        raise PlotError(f"{path.name} needs an ending, such as .png, .svg or .pdf.")
    try:
        replacing(path, lambda temporary: figure.savefig(temporary, dpi=200))
    except (OSError, ValueError) as error:
        raise PlotError(f"{path} could not be drawn: {error}. Give a file such as picture.png.") from error
