"""Box coordinates and physical coordinates: `place` and its inverse, and where data was measured."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from clpinn.errors import DomainError, ProblemError, warn_outside
from clpinn.formulation.calls import call_by_name, with_keys
from clpinn.formulation.domain import Points
from clpinn.formulation.identity import Identity
from clpinn.formulation.problem import Data, Problem
from clpinn.formulation.thetas import theta_text

STARTS = {1: 33, 2: 9, 3: 5}
"""Values on each axis of the grid of starts of a search, by the number of coordinates; 3 if there are more."""
TRIES = 12
"""Starts from which a point is searched in the box: those whose physical coordinates are nearest."""
TRY_STEPS = 60
"""Most steps from one start."""
SLOW = 1e-3
"""A search that reduces the squared misfit by less than this fraction in a step goes no further."""
DAMPING, LARGEST_DAMPING, SMALLEST_DAMPING = 1e-3, 1e6, 1e-14
"""Damping of a search, relative to the largest diagonal entry of its matrix: at the start, and its bounds."""
POLISHING_STEPS = 3
"""Newton steps after a search. k of them make derivatives exact up to the order 2**k - 1."""
MISFIT = {"float64": 1e-9, "float32": 1e-4}
"""Largest accepted misfit of the inverse map by precision, relative to the extent of the domain."""
CHUNK = 4096
"""Points that one compiled computation maps at once."""


def placed(problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
    """Physical coordinates by name of a point of the box. Without `place`, they are the box coordinates.

    `given` holds box coordinates and parameters by name.
    """
    if problem.place is None:
        return {name: given[name] for name in problem.coordinates}
    physical = call_by_name(problem.place, "place", given)
    return with_keys(physical, problem.coordinates, "place")


def box_names(problem: Problem) -> dict[str, str]:
    """The name of the box coordinate by coordinate: "box_x" for "x" if `place` moves points, otherwise "x"."""
    return {name: name if problem.place is None else f"box_{name}" for name in problem.coordinates}


def physical_extent(problem: Problem, thetas: Points) -> dict[str, tuple[float, float]]:
    """Lowest and highest value of each physical coordinate over the box, at any of these thetas (thetas, parameters).

    The values are those of a grid with the edges of the box, so a curved edge may reach a little further.
    """
    side = 4 * STARTS.get(len(problem.coordinates), 3) + 1
    unit = _spread(side, len(problem.coordinates))
    points = [axis.from_unit(column) for axis, column in zip(problem.coordinates.axes, unit.T, strict=True)]
    extents = []
    for theta in np.asarray(thetas, float):
        with jax.enable_x64(True):
            physical = placed(problem, dict(zip(problem.axes, (*points, *theta), strict=True)))
        columns = np.stack([np.broadcast_to(np.asarray(physical[name]), len(unit)) for name in problem.coordinates])
        extents.append((columns.min(axis=1), columns.max(axis=1)))
    lows, highs = (np.stack(ends) for ends in zip(*extents, strict=True))
    ends = zip(lows.min(axis=0).tolist(), highs.max(axis=0).tolist(), strict=True)
    return dict(zip(problem.coordinates, ends, strict=True))


# The inverse of `place` -------------------------------------------------------------------------------------


class Found(NamedTuple):
    """What a search for a physical point found."""

    x: Array
    """Box coordinates; not a number if there are none."""
    lost: Array
    """Whether the search ended inside the box, though not at the point: `place` is not one to one there."""


def box_point(problem: Problem, target: Array, theta: Array) -> Found:
    """Box coordinates of one physical point, shape (coordinates,).

    A JAX function; its derivatives are those of the inverse map. A search in the box comes first. If it does not reach
    the point, the search goes on outside, because `place` may be defined there. Newton steps make the result exact.
    """
    if problem.place is None:
        return Found(target, jnp.asarray(False))
    names, dtype, count = problem.coordinates.names, target.dtype, len(problem.coordinates)

    def place(x: Array, theta: Array) -> Array:
        physical = placed(problem, dict(zip(problem.axes, (*x, *theta), strict=True)))
        return jnp.stack([jnp.asarray(physical[name], dtype) for name in names])

    ends = [(axis.low, axis.high) for axis in problem.coordinates.axes]
    low, high = jnp.asarray(ends, dtype).T
    side = STARTS.get(count, 3)
    starts = jnp.asarray((_spread(side, count) * (side - 1) + 0.5) / side, dtype)  # off the edges
    goal, fixed_theta = jax.lax.stop_gradient((target, theta))
    images = jax.vmap(lambda unit: place(low + unit * (high - low), fixed_theta))(starts)
    extent = jnp.max(images, axis=0) - jnp.min(images, axis=0)
    extent = jnp.where(extent > 0, extent, 1)
    tolerance = MISFIT[str(dtype)] * (1 + jnp.abs(goal) / extent)

    def misfit(unit: Array) -> Array:
        return (place(low + unit * (high - low), fixed_theta) - goal) / extent

    distances = jnp.sum(((images - goal) / extent) ** 2, axis=1)
    nearest = starts[jnp.argsort(distances)[: min(TRIES, len(starts))]]
    periodic = jnp.asarray([axis.scale == "periodic" for axis in problem.coordinates.axes])
    bounds = jnp.where(periodic, -jnp.inf, 0.0).astype(dtype), jnp.where(periodic, jnp.inf, 1.0).astype(dtype)
    inside = _search(misfit, nearest, bounds, tolerance)
    anywhere = (jnp.full(count, -jnp.inf, dtype), jnp.full(count, jnp.inf, dtype))
    end = _search(misfit, inside[None], anywhere, tolerance)
    x = low + end * (high - low)
    for _ in range(POLISHING_STEPS):
        x = x - jnp.linalg.solve(jax.jacfwd(place)(x, theta), place(x, theta) - target)
    reached = jnp.all(jnp.abs(place(x, theta) - target) <= tolerance * extent)
    at_edge = jnp.any((inside <= bounds[0]) | (inside >= bounds[1]))
    return Found(jnp.where(reached, x, jnp.nan), ~reached & ~at_edge)


class _Try(NamedTuple):
    """The state of a search: the current point of the current start, and the best point so far."""

    unit: Array
    cost: Array
    damping: Array
    start: Array
    steps: Array
    best: Array
    best_cost: Array
    reached: Array


def _search(misfit: Callable[[Array], Array], starts: Array, bounds: tuple[Array, Array], tolerance: Array) -> Array:
    """The point within bounds at which a misfit vanishes, or else is smallest.

    Levenberg-Marquardt with bounds (Moré 1978; active bounds as in Bertsekas 1982), from one start after the other
    until one reaches the tolerance.
    """
    low, high = bounds

    def begun(number: Array | int, best: Array, best_cost: Array) -> _Try:
        unit = starts[jnp.minimum(number, len(starts) - 1)]
        residual = misfit(unit)
        cost = jnp.sum(residual**2)
        better = cost < best_cost
        return _Try(
            unit,
            cost,
            jnp.asarray(DAMPING, unit.dtype),
            jnp.asarray(number),
            jnp.asarray(0),
            jnp.where(better, unit, best),
            jnp.where(better, cost, best_cost),
            jnp.all(jnp.abs(residual) <= tolerance),
        )

    def step(now: _Try) -> _Try:
        residual, slopes = misfit(now.unit), jax.jacfwd(misfit)(now.unit)
        gradient, matrix = slopes.T @ residual, slopes.T @ slopes
        held = ((now.unit <= low) & (gradient > 0)) | ((now.unit >= high) & (gradient < 0))
        free = ~held
        damped = matrix + now.damping * jnp.maximum(jnp.max(jnp.diagonal(matrix)), 1e-30) * jnp.eye(len(low))
        system = jnp.where(free[:, None] & free, damped, jnp.diag(held.astype(damped.dtype)))
        trial = jnp.clip(now.unit - jnp.linalg.solve(system, jnp.where(free, gradient, 0)), low, high)
        trial_residual = misfit(trial)
        cost = jnp.sum(trial_residual**2)
        accepted = cost < now.cost
        damping = jnp.where(accepted, now.damping / 10, now.damping * 10)
        slow = jnp.where(accepted, cost > (1 - SLOW) * now.cost, damping > LARGEST_DAMPING)
        best = accepted & (cost < now.best_cost)
        gone_on = _Try(
            jnp.where(accepted, trial, now.unit),
            jnp.where(accepted, cost, now.cost),
            jnp.maximum(damping, SMALLEST_DAMPING),
            now.start,
            now.steps + 1,
            jnp.where(best, trial, now.best),
            jnp.where(best, cost, now.best_cost),
            accepted & jnp.all(jnp.abs(trial_residual) <= tolerance),
        )
        given_up = ~gone_on.reached & (slow | (gone_on.steps >= TRY_STEPS))
        anew = begun(now.start + 1, gone_on.best, gone_on.best_cost)
        return jax.tree.map(lambda a, b: jnp.where(given_up, a, b), anew, gone_on)

    first = begun(0, starts[0], jnp.asarray(jnp.inf, starts.dtype))
    return jax.lax.while_loop(lambda now: ~now.reached & (now.start < len(starts)), step, first).best


def _spread(side: int, count: int) -> Float[np.ndarray, "points axes"]:
    """A regular grid over the unit cube, edges included."""
    mesh = np.meshgrid(*[np.linspace(0, 1, side)] * count, indexing="ij")
    return np.stack([column.ravel() for column in mesh], axis=1)


def box_points(problem: Problem, physical: Points, thetas: Points) -> Points:
    """Box coordinates of physical points, shape (points, coordinates). `thetas` has one row per point.

    A point outside the domain has coordinates outside the box, or none (NaN) if `place` does not reach it.
    """
    physical, thetas = np.asarray(physical, float), np.asarray(thetas, float)
    if problem.place is None or len(physical) == 0:
        return physical
    # A power of two, so that few sizes are compiled for.
    size = min(CHUNK, 1 << (len(physical) - 1).bit_length())
    total = size * -(-len(physical) // size)
    filled = [np.resize(rows, (total, rows.shape[1])) for rows in (physical, thetas)]
    with jax.enable_x64(True):
        chunks = [
            jax.tree.map(np.asarray, _box_points(Identity(problem), *(jnp.asarray(r[i : i + size]) for r in filled)))
            for i in range(0, total, size)
        ]
    points, lost = (np.concatenate(column)[: len(physical)] for column in zip(*chunks, strict=True))
    if lost.any():
        where = _point_text(problem, physical[lost][0], thetas[lost][0])
        raise ProblemError(
            f"place could not be inverted at {int(lost.sum())} of {len(lost)} points, the first at {where}. It must "
            "map the box one to one for every theta."
        )
    return points


@partial(jax.jit, static_argnums=0)
def _box_points(identity: Identity, physical: Array, thetas: Array) -> Found:
    return jax.vmap(lambda target, theta: box_point(identity.problem, target, theta))(physical, thetas)


def outside_domain(problem: Problem, physical: Points, thetas: Points) -> str:
    """What to say of physical points outside the mapped domain, one or more rows of each array."""
    others = f", and so are {len(physical) - 1} other points" if len(physical) > 1 else ""
    extent = physical_extent(problem, thetas[:1])
    ranges = ", ".join(f"{name} from {low:.6g} to {high:.6g}" for name, (low, high) in extent.items())
    at_theta = f" at {theta_text(problem.parameters, thetas[0])}" if len(problem.parameters) else ""
    point = theta_text(problem.coordinates, physical[0])
    return (
        f"The point {point} is outside the domain{at_theta}{others}. The domain there has {ranges}. The problem is "
        "only stated inside: stay there, or widen the domain and train again."
    )


def _point_text(problem: Problem, physical: np.ndarray, theta: np.ndarray) -> str:
    return theta_text(problem.axes, (*physical, *theta))


def data_points(problem: Problem, data: Data) -> tuple[Points, Points, dict[str, np.ndarray]]:
    """Measured data as box coordinates (rows, coordinates), thetas (rows, parameters) and values by output (rows,)."""
    columns = {name: np.atleast_1d(np.asarray(v, dtype=float)) for name, v in data.at.items()}
    measured = {name: np.atleast_1d(np.asarray(v, dtype=float)) for name, v in data.values.items()}
    missing = [name for name in problem.axes if name not in columns]
    unknown_axes = [name for name in columns if name not in problem.axes]
    unknown_outputs = [name for name in measured if name not in problem.outputs]
    if missing or unknown_axes or unknown_outputs or not measured:
        advice = ""
        if measured and set(missing) <= set(problem.parameters.names) and missing:
            advice = (
                " If parameters are what you want to find, train without this data and fit them afterwards: "
                f"surrogate.fit(data, unknown=({', '.join(map(repr, missing))},)), or clpinn fit RUN data.csv."
            )
        raise ProblemError(
            f"Data {data.name!r} needs values of some of {', '.join(problem.outputs)} at all of "
            f"{', '.join(problem.axes)}, but got values of {', '.join(measured) or 'nothing'} at "
            f"{', '.join(columns) or 'nothing'}.{advice}"
        )
    shapes = {name: array.shape for name, array in (columns | measured).items()}
    if len(set(shapes.values())) != 1 or any(len(shape) != 1 for shape in shapes.values()):
        raise ProblemError(f"Data {data.name!r} needs arrays of one length, but got {shapes}.")
    if not all(np.isfinite(array).all() for array in (columns | measured).values()):
        raise ProblemError(f"Data {data.name!r} holds a value that is not finite. Leave that row out.")
    rows = len(next(iter(columns.values())))
    thetas = np.stack([columns[name] for name in problem.parameters], axis=1) if len(problem.parameters) else None
    thetas = np.zeros((rows, 0)) if thetas is None else thetas
    physical = np.stack([columns[name] for name in problem.coordinates], axis=1)
    points = box_points(problem, physical, thetas)
    problem.parameters.check(thetas)
    if problem.place is None:
        problem.coordinates.check(points)
        return points, thetas, measured
    outside = ~problem.coordinates.inside(points).all(axis=1)
    if outside.any():
        message = f"Data {data.name!r}: {outside_domain(problem, physical[outside], thetas[outside])}"
        if not np.isfinite(points).all():
            raise DomainError(message)
        warn_outside(message)
    return points, thetas, measured
