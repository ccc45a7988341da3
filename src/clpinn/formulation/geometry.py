"""Box coordinates and physical coordinates: `place` and its inverse, and where data was measured."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from clpinn.errors import ProblemError
from clpinn.formulation.calls import call_by_name, with_keys
from clpinn.formulation.domain import Points
from clpinn.formulation.identity import Identity
from clpinn.formulation.problem import Data, Problem

NEWTON_STEPS = 30
MISFIT = 1e-9
"""Largest accepted misfit of the inverse map, relative to the largest coordinate or to 1."""


def placed(problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
    """Physical coordinates by name of a point of the box. Without `place`, they are the box coordinates.

    `given` holds box coordinates and parameters by name.
    """
    if problem.place is None:
        return {name: given[name] for name in problem.coordinates}
    physical = call_by_name(problem.place, "place", given)
    return with_keys(physical, problem.coordinates, "place")


def box_point(problem: Problem, target: Array, theta: Array) -> tuple[Array, Array]:
    """Box coordinates of one physical point, and the largest misfit: `place` inverted by Newton's method.

    `target` has the shape (coordinates,). A JAX function; its derivatives are those of the inverse map.
    """
    if problem.place is None:
        return target, jnp.zeros_like(target[0])
    names = problem.coordinates.names

    def place(x: Array) -> Array:
        physical = placed(problem, dict(zip(problem.axes, (*x, *theta), strict=True)))
        return jnp.stack([physical[name] for name in names])

    def step(_: int, x: Array) -> Array:
        return x - jnp.linalg.solve(jax.jacfwd(place)(x), place(x) - target)

    middle = jnp.asarray(problem.coordinates.centre, target.dtype)
    x = jax.lax.fori_loop(0, NEWTON_STEPS, step, middle)
    return x, jnp.max(jnp.abs(place(x) - target))


def box_points(problem: Problem, physical: Points, thetas: Points) -> Points:
    """Box coordinates of physical points, shape (points, coordinates). `thetas` has one row per point."""
    if problem.place is None:
        return np.asarray(physical, dtype=float)
    with jax.enable_x64(True):
        x, misfit = _box_points(Identity(problem), jnp.asarray(physical, float), jnp.asarray(thetas, float))
    largest = max(1.0, float(np.max(np.abs(physical), initial=0.0)))
    failed = ~(np.asarray(misfit) <= MISFIT * largest)
    if failed.any():
        raise ProblemError(
            f"place could not be inverted at {int(failed.sum())} of {len(failed)} points, the first at "
            f"{np.asarray(physical)[failed][0].tolist()}. It must map the box one to one for every theta."
        )
    return np.asarray(x)


@partial(jax.jit, static_argnums=0)
def _box_points(identity: Identity, physical: Array, thetas: Array) -> tuple[Array, Array]:
    return jax.vmap(lambda target, theta: box_point(identity.problem, target, theta))(physical, thetas)


def data_points(problem: Problem, data: Data) -> tuple[Points, Points, dict[str, np.ndarray]]:
    """Measured data as box coordinates (rows, coordinates), thetas (rows, parameters) and values by output (rows,)."""
    columns = {name: np.atleast_1d(np.asarray(v, dtype=float)) for name, v in data.at.items()}
    measured = {name: np.atleast_1d(np.asarray(v, dtype=float)) for name, v in data.values.items()}
    missing = [name for name in problem.axes if name not in columns]
    unknown_axes = [name for name in columns if name not in problem.axes]
    unknown_outputs = [name for name in measured if name not in problem.outputs]
    if missing or unknown_axes or unknown_outputs or not measured:
        raise ProblemError(
            f"Data {data.name!r} needs values of some of {', '.join(problem.outputs)} at all of "
            f"{', '.join(problem.axes)}, but got values of {', '.join(measured) or 'nothing'} at "
            f"{', '.join(columns) or 'nothing'}."
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
    problem.coordinates.check(points)
    return points, thetas, measured
