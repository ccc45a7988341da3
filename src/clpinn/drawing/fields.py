"""A picture of a field: lines over one coordinate, colours over two, with the outline of a domain that is a shape."""

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.path import Path

from clpinn.drawing.colours import BLUE, INK, value_colours
from clpinn.drawing.style import canvas, label, styled
from clpinn.errors import PlotError
from clpinn.formulation.geometry import box_names
from clpinn.formulation.outlines import boundary_curves, distances, is_plane
from clpinn.formulation.problem import Problem
from clpinn.formulation.shaped import spanned
from clpinn.formulation.thetas import theta_text

if TYPE_CHECKING:
    import xarray

MOST_THETAS = 6
"""Thetas that one figure shows side by side."""
CLIPPING = 301
"""Nodes on each axis of the grid on which the inside of a domain is found, to cut pictures at its boundary."""


@styled
def plot_field(problem: Problem, field: "xarray.Dataset") -> Figure:
    """A surrogate's field over one or two coordinates: a row of panels per output, a column per theta."""
    dims = [str(dim) for dim in field[problem.outputs[0]].dims]
    dim_of = {name: dim for name in problem.coordinates for dim in (name, box_names(problem)[name]) if dim in dims}
    rows = [dim for dim in dims if dim not in dim_of.values()]
    thetas = [dict(zip(rows, index)) for index in product(*(range(field.sizes[dim]) for dim in rows))]
    if len(dim_of) not in (1, 2) or len(thetas) > MOST_THETAS:
        raise PlotError(
            f"A picture has one or two coordinates and at most {MOST_THETAS} thetas, but this field has "
            f"{len(dim_of)} coordinates and {len(thetas)} thetas. Give single values or rows of others by name."
        )
    figure, panels = canvas(len(problem.outputs), len(thetas), 3.6, panel_height(problem, 3.6, 2.6))
    for column, index in enumerate(thetas):
        at_theta = field.isel(index)
        physical = {name: at_theta[name].broadcast_like(at_theta[problem.outputs[0]]) for name in dim_of}
        physical = {name: array.transpose(*dim_of.values()).values for name, array in physical.items()}
        for row, name in enumerate(problem.outputs):
            values = at_theta[name].transpose(*dim_of.values()).values
            colours = value_colours(*value_range(field[name].values))
            theta = {parameter: float(at_theta[parameter]) for parameter in problem.parameters}
            drawn = draw_field(panels[row][column], problem, physical, values, values.shape, name, theta, **colours)
            if drawn is not None and column == len(thetas) - 1:
                figure.colorbar(drawn, ax=panels[row].tolist(), label=label(problem, name))
        theta = [float(at_theta[name]) for name in problem.parameters]
        panels[0][column].set_title(theta_text(problem.parameters, theta, digits=4))
    return figure


def value_range(*values: np.ndarray) -> tuple[float, float]:
    """The lowest and the highest of all values that are not NaN; from 0 to 1 if there are none."""
    numbers = np.concatenate([np.ravel(array) for array in values])
    numbers = numbers[~np.isnan(numbers)]
    return (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 1.0)


def draw_field(
    panel: Axes,
    problem: Problem,
    physical: Mapping[str, np.ndarray],
    values: np.ndarray,
    shape: tuple[int, ...],
    name: str,
    theta: Mapping[str, float],
    **colours: Any,
) -> Any:
    """Draw a field at a theta on a panel: a line (gives None), or colours (gives what a colour bar needs).

    The panel shows the first coordinates that `physical` has. Values that are NaN leave gaps. A shape in the plane is
    cut out along its boundary.
    """
    names = [axis for axis in problem.coordinates if axis in physical]
    if len(shape) == 1:
        panel.plot(physical[names[0]], values, color=BLUE)
        panel.set(xlabel=label(problem, names[0]), ylabel=label(problem, name))
        return None
    # Time runs to the right.
    across, up = (names[1], names[0]) if names[1] == "t" else names[:2]
    x, y = (physical[axis].reshape(shape) for axis in (across, up))
    panel.grid(False)
    panel.locator_params(nbins=4)
    panel.set(xlabel=label(problem, across), ylabel=label(problem, up))
    values = values.reshape(shape)
    if is_plane(problem) and (across, up) == spanned(problem):
        draw: Any = panel.pcolormesh(x, y, filled(values), shading="gouraud", rasterized=True, **colours)
        cut_out(panel, problem, theta, draw)
        return draw
    shading = "nearest" if np.isnan(values).any() else "gouraud"
    return panel.pcolormesh(x, y, values, shading=shading, rasterized=True, **colours)


# Domains that are shapes in the plane ------------------------------------------------------------------------------


def panel_height(problem: Problem, width: float, height: float) -> float:
    """The height of a panel: that given, but where the domain is a shape in the plane, as its extent needs it."""
    if not is_plane(problem):
        return height
    across, up = (problem.coordinates[name] for name in spanned(problem))
    ratio = (up.high - up.low) / (across.high - across.low)
    return float(np.clip(0.7 * width * ratio + 1.0, 1.5, 2 * height))


def filled(values: np.ndarray) -> np.ndarray:
    """Values on a grid with those of the nearest node where they are NaN, so that colours reach the boundary."""
    from scipy.ndimage import distance_transform_edt  # here, because it takes long to import

    missing = np.isnan(values)
    if not missing.any() or missing.all():
        return np.where(missing, 0.0, values)
    nearest: Any = distance_transform_edt(missing, return_distances=False, return_indices=True)
    return values[tuple(nearest)]


def cut_out(panel: Axes, problem: Problem, theta: Mapping[str, float], drawn: Any) -> None:
    """Show what is drawn inside the domain of a theta only, with the boundary around it. Both axes are equally long."""
    axes = [problem.coordinates[name] for name in spanned(problem)]
    x, y = (axis.spaced(CLIPPING) for axis in axes)
    nodes = np.stack([column.ravel() for column in np.meshgrid(x, y)], axis=1)
    # A margin, because a boundary may run along the edge of the grid.
    level = distances(problem, nodes, theta).reshape(CLIPPING, CLIPPING) - 1e-6 * (np.ptp(x) + np.ptp(y))
    drawn.set_clip_path(_inside(x, y, level), panel.transData)
    curves: Any = boundary_curves(problem, theta)
    panel.add_collection(LineCollection(curves, colors=INK, linewidths=0.8, zorder=3, clip_on=False), autolim=False)
    panel.set_aspect("equal")


def _inside(x: np.ndarray, y: np.ndarray, level: np.ndarray) -> Path:
    """The part of a grid where a level is below zero."""
    from contourpy import FillType, contour_generator  # matplotlib draws contours by it

    contours: Any = contour_generator(x, y, level, fill_type=FillType.OuterCode)
    points, codes = contours.filled(-np.inf, 0.0)
    if not points:
        return Path(np.zeros((0, 2)))
    return Path(np.concatenate(points), np.concatenate(codes))
