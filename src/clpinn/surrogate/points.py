"""Random points of a domain with the outputs there, for plots, statistics and tables."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import jax
import numpy as np

from clpinn.errors import DomainError
from clpinn.formulation.geometry import box_names, placed
from clpinn.formulation.problem import Problem
from clpinn.formulation.shaped_points import term_points
from clpinn.formulation.thetas import one_theta
from clpinn.keys import make_key

if TYPE_CHECKING:
    import xarray


def surrogate_points(
    problem: Problem,
    evaluate: Callable[[list[np.ndarray]], dict[str, np.ndarray]],
    count: int,
    seed: int,
    theta: Mapping[str, float],
) -> "xarray.Dataset":
    """Random points in the domain of one theta, and the outputs there: a dataset with the dimension `point`.

    `evaluate` gives the outputs at columns in the order of the problem's axes, in coordinates of the box. Points are
    uniform in a domain that is a shape, and as even as a Sobol sequence in a box. If the problem moves its geometry,
    box_x, box_y, ... are the coordinates of the box, and x, y, ... the physical ones.
    """
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise DomainError(f"The number of points is a whole number above zero, but got {count!r}.")
    row = np.asarray(one_theta(problem.parameters, theta), float)
    problem.parameters.check(row)
    thetas = np.repeat(row, count, axis=0)
    points = term_points(problem, None, thetas, make_key(seed))
    outputs = evaluate([*points.T, *thetas.T])

    units = {name: {"units": unit} for name, unit in problem.units.items()}
    columns = dict(zip(box_names(problem).values(), points.T, strict=True))
    if problem.place is not None:
        with jax.enable_x64(True):
            moved = placed(problem, dict(zip(problem.axes, (*points.T, *thetas.T), strict=True)))
        columns |= {name: np.broadcast_to(np.asarray(column, float), count) for name, column in moved.items()}
    coords = {name: ("point", column, units.get(name, {})) for name, column in columns.items()}
    coords |= {name: ((), value, units.get(name, {})) for name, value in zip(problem.parameters, row[0].tolist())}
    variables = {name: ("point", outputs[name], units.get(name, {})) for name in problem.outputs}
    import xarray  # here, because it takes long to import

    return xarray.Dataset(variables, coords)
