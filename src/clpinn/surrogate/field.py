"""A field: the outputs on a grid as an xarray.Dataset."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from clpinn.errors import DomainError, warn_outside
from clpinn.formulation.domain import Axis, Grid
from clpinn.formulation.geometry import box_names, box_points, outside_domain, physical_extent, placed
from clpinn.formulation.membership import are_inside
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
    in_box = {box_name: name for name, box_name in box_names(problem).items()}
    named = [name for name in given if name in problem.coordinates.names]
    physical = problem.place is not None and bool(named)
    masked = physical or problem.domain is not None
    if physical and any(name in in_box for name in given):
        raise DomainError(
            f"A field is a grid of physical coordinates ({', '.join(problem.coordinates)}) or of box coordinates "
            f"({', '.join(in_box)}), but got {', '.join(given)}. Give one kind only."
        )
    rows = _given_rows(problem, given if physical else {in_box.get(name, name): given[name] for name in given}, given)
    counts = _counts(problem, count, rows, in_box)
    _require_memory(problem, counts, rows)
    free = _physical_axes(problem, rows, counts) if physical else _box_axes(problem, counts)
    grid = {name: rows[name] if name in rows else free[name] for name in (*problem.parameters, *problem.coordinates)}
    varied = [name for name in grid if grid[name].ndim]
    columns = _outer(grid, varied)
    evaluated = _masked(problem, evaluate, columns) if masked else evaluate([columns[name] for name in problem.axes])

    dims = {name: name for name in grid} | ({} if physical else box_names(problem))
    units = {name: {"units": unit} for name, unit in problem.units.items()}
    varied_dims = [dims[name] for name in varied]
    coords: dict[str, Any] = {
        dims[name]: ([dims[name]] * column.ndim, column, units.get(name, {})) for name, column in grid.items()
    }
    if problem.place is not None and not physical:
        with jax.enable_x64(True):
            moved = placed(problem, columns)
        shape = np.broadcast_shapes(*(column.shape for column in columns.values()))
        coords |= {
            name: (varied_dims, np.broadcast_to(np.asarray(column, float), shape), units.get(name, {}))
            for name, column in moved.items()
        }
    variables = {name: (varied_dims, column, units.get(name, {})) for name, column in evaluated.items()}
    # Tells readers of the dataset which dimensions are coordinates of the problem; the others are parameters.
    axes = {"axes": " ".join(dims[name] for name in problem.coordinates)}
    import xarray  # here, because it takes long to import

    return xarray.Dataset(variables, coords, axes | dict(attributes))


def _given_rows(
    problem: Problem, values: Mapping[str, ArrayLike], given: Mapping[str, ArrayLike]
) -> dict[str, np.ndarray]:
    """The values that were given, as a row or a single value for each axis. `given` has the names that were used."""
    unknown = [name for name, axis in zip(given, values, strict=True) if axis not in problem.axes]
    missing = [name for name in problem.parameters if name not in values]
    if unknown or missing:
        raise names_error(problem.parameters.names, missing, unknown)
    return {axis: _row(name, values[axis]) for name, axis in zip(given, values, strict=True)}


def _counts(
    problem: Problem, count: int | Mapping[str, int] | None, rows: Mapping[str, np.ndarray], in_box: Mapping[str, str]
) -> dict[str, int]:
    """The number of values of each coordinate for which one was asked."""
    if isinstance(count, Mapping):
        counts = {in_box.get(name, name): number for name, number in count.items()}
        problem.coordinates.require(counts)
        return counts
    return {} if count is None else {name: count for name in problem.coordinates if name not in rows}


def _box_axes(problem: Problem, counts: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Each coordinate over its axis of the box."""
    return {
        name: problem.coordinates[name].spaced(counts[name]) if name in counts else problem.evaluation.values[name]
        for name in problem.coordinates
    }


def _physical_axes(
    problem: Problem, rows: Mapping[str, np.ndarray], counts: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """Each physical coordinate over its extent at the given thetas."""
    thetas = Grid(**{name: np.atleast_1d(rows[name]) for name in problem.parameters}).points
    return {
        name: Axis(*ends).spaced(counts.get(name, len(problem.evaluation.values[name])))
        for name, ends in physical_extent(problem, thetas).items()
    }


def _masked(
    problem: Problem,
    evaluate: Callable[[list[np.ndarray]], dict[str, np.ndarray]],
    columns: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """The outputs at physical columns that broadcast; NaN outside the domain."""
    count = len(problem.coordinates)
    spread = np.broadcast_arrays(*(columns[name] for name in problem.axes))
    points = np.stack([column.ravel() for column in spread], axis=1)
    physical, thetas = points[:, :count], points[:, count:]
    if not np.isfinite(physical).all():
        raise DomainError("The coordinates of a field must be finite, but a value is not.")
    box = box_points(problem, physical, thetas)
    inside = problem.coordinates.inside(box).all(axis=1) & are_inside(problem, box, thetas)
    if not inside.any():
        warn_outside(outside_domain(problem, physical, thetas))
    outputs = {name: np.full(len(points), np.nan) for name in problem.outputs}
    for name, column in evaluate([*box[inside].T, *thetas[inside].T]).items():
        outputs[name][inside] = column
    return {name: column.reshape(spread[0].shape) for name, column in outputs.items()}


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
