"""A picture of a field: lines over one coordinate, colours over two."""

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clpinn.drawing.colours import BLUE, value_colours
from clpinn.drawing.style import canvas, label, styled
from clpinn.errors import PlotError
from clpinn.formulation.geometry import box_names
from clpinn.formulation.problem import Problem
from clpinn.formulation.thetas import theta_text

if TYPE_CHECKING:
    import xarray

MOST_THETAS = 6
"""Thetas that one figure shows side by side."""


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
    figure, panels = canvas(len(problem.outputs), len(thetas), 3.6, 2.6)
    for column, index in enumerate(thetas):
        at_theta = field.isel(index)
        physical = {name: at_theta[name].broadcast_like(at_theta[problem.outputs[0]]) for name in dim_of}
        physical = {name: array.transpose(*dim_of.values()).values for name, array in physical.items()}
        for row, name in enumerate(problem.outputs):
            values = at_theta[name].transpose(*dim_of.values()).values
            whole = field[name].values
            colours = value_colours(float(np.nanmin(whole)), float(np.nanmax(whole)))
            drawn = draw_field(panels[row][column], problem, physical, values, values.shape, name, **colours)
            if drawn is not None and column == len(thetas) - 1:
                figure.colorbar(drawn, ax=panels[row].tolist(), label=label(problem, name))
        theta = [float(at_theta[name]) for name in problem.parameters]
        panels[0][column].set_title(theta_text(problem.parameters, theta, digits=4))
    return figure


def draw_field(
    panel: Axes,
    problem: Problem,
    physical: Mapping[str, np.ndarray],
    values: np.ndarray,
    shape: tuple[int, ...],
    name: str,
    **colours: Any,
) -> Any:
    """Draw a field on a panel: a line (gives None), or colours (gives what a colour bar needs).

    The panel shows the first coordinates that `physical` has. Values that are NaN leave gaps.
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
    shading = "nearest" if np.isnan(values).any() else "gouraud"
    return panel.pcolormesh(x, y, values.reshape(shape), shading=shading, rasterized=True, **colours)
