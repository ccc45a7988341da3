"""A field: the outputs on a grid as an xarray.Dataset."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from clpinn.errors import DomainError
from clpinn.formulation.geometry import placed
from clpinn.formulation.problem import Problem
from clpinn.machine import free_memory
from clpinn.surrogate.answers import names_error

if TYPE_CHECKING:
    import xarray


def field(
    problem: Problem,
    evaluate: Callable[[list[np.ndarray]], dict[str, np.ndarray]],
    count: int | Mapping[str, int] | None,
    given: Mapping[str, ArrayLike],
    attributes: Mapping[str, Any],
) -> "xarray.Dataset":
    """The outputs on a grid, with coordinates, parameters, units and attributes (see `Surrogate.field`).

    `evaluate` gives the outputs at columns in the order of the problem's axes, in coordinates of the box.
    """
    grid = _grid(problem, count, given)
    prefix = "" if problem.place is None else "box_"
    dims = {name: f"{prefix}{name}" if name in problem.coordinates.names else name for name in grid}
    varied = [name for name in grid if grid[name].ndim]
    columns = _outer(grid, varied)
    outputs = evaluate([columns[name] for name in problem.axes])
    units = {name: {"units": unit} for name, unit in problem.units.items()}
    varied_dims = [dims[name] for name in varied]
    coords: dict[str, Any] = {
        dims[name]: ([dims[name]] * column.ndim, column, units.get(name, {})) for name, column in grid.items()
    }
    if problem.place is not None:
        with jax.enable_x64(True):
            physical = placed(problem, columns)
        shape = np.broadcast_shapes(*(column.shape for column in columns.values()))
        coords |= {
            name: (varied_dims, np.broadcast_to(np.asarray(column, float), shape), units.get(name, {}))
            for name, column in physical.items()
        }
    variables = {name: (varied_dims, column, units.get(name, {})) for name, column in outputs.items()}
    # Tells readers of the dataset which dimensions are coordinates of the problem; the others are parameters.
    axes = {"axes": " ".join(dims[name] for name in problem.coordinates)}
    import xarray  # here, because it takes long to import

    return xarray.Dataset(variables, coords, axes | dict(attributes))


def _grid(
    problem: Problem, count: int | Mapping[str, int] | None, given: Mapping[str, ArrayLike]
) -> dict[str, np.ndarray]:
    """The values of each axis, a row or a single value, parameters first."""
    unknown = [name for name in given if name not in problem.axes]
    missing = [name for name in problem.parameters if name not in given]
    if unknown or missing:
        raise names_error(problem.parameters.names, missing, unknown)
    if count is None:
        counts: Mapping[str, int] = {}
    elif isinstance(count, Mapping):
        counts = count
    else:
        counts = {name: count for name in problem.coordinates if name not in given}
    problem.coordinates.require(counts)
    _require_memory(problem, counts, given)
    grid = {}
    for name in (*problem.parameters, *problem.coordinates):
        if name in given:
            grid[name] = _row(name, given[name])
        elif name in counts:
            grid[name] = problem.coordinates[name].spaced(counts[name])
        else:
            grid[name] = problem.evaluation.values[name]
    return grid


def _require_memory(problem: Problem, counts: Mapping[str, int], given: Mapping[str, ArrayLike]) -> None:
    """Raise an error if the field does not fit into the memory that is free."""
    sizes = [
        counts.get(name, len(problem.evaluation.values[name])) for name in problem.coordinates if name not in given
    ]
    sizes += [np.size(row) for row in given.values()]
    points = math.prod(min(size, 10**18) for size in sizes)
    needed = 8 * points * (len(problem.outputs) + len(problem.axes))
    if needed > free_memory():
        raise DomainError(
            f"A field of {points:.1e} points needs about {needed / 1e9:.3g} GB of memory, but "
            f"{free_memory() / 1e9:.1f} GB are free. Ask for fewer points, or give some coordinates: x=0.5."
        )


def _row(name: str, given: ArrayLike) -> np.ndarray:
    try:
        row = np.asarray(given, dtype=float)
    except ValueError:
        raise DomainError(f"{name} must be a number or a row of them, but is {given!r}.") from None
    if row.ndim > 1 or row.size == 0:
        raise DomainError(f"A field needs a value or a row of values of {name}, but got the shape {row.shape}.")
    return row


def _outer(grid: Mapping[str, np.ndarray], varied: list[str]) -> dict[str, np.ndarray]:
    """The values of each axis along a dimension of its own, in the order of `varied`; single values as they are."""
    columns = {}
    for name, column in grid.items():
        shape = [-1 if other == name else 1 for other in varied]
        columns[name] = column.reshape(shape) if name in varied else column
    return columns
