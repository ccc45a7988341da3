"""Whether points are in a domain that is a shape."""

from functools import partial

import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from clpinn.formulation.domain import Points
from clpinn.formulation.identity import Identity
from clpinn.formulation.problem import Problem
from clpinn.formulation.shaped import shape_of, spanned
from clpinn.shapes import points

BATCH = 1024
"""Points that are compared with a shape at the same time."""
DIRECTIONS = (32, 2048)
"""Directions in which the domain is looked for around a point of its boundary; more of them if it may be a corner."""


def is_inside(problem: Problem, x: Points, theta: Float[np.ndarray, " parameters"]) -> Bool[np.ndarray, " points"]:
    """Whether points (points, coordinates) are in the domain of one theta, boundary included. True without a shape."""
    if problem.domain is None:
        return np.ones(len(x), bool)
    names = problem.coordinates.names
    space = np.asarray(x, float)[:, [names.index(name) for name in spanned(problem)]]
    distance, extent = _padded_distances(problem, space, theta)
    inside = distance <= points.CLOSED * extent
    edge = np.flatnonzero(inside & (distance >= -points.CLOSED * extent))
    inside[edge] = False  # a side that two shapes share is no boundary if the domain is on neither side of it
    for count in DIRECTIONS:
        left = edge[~inside[edge]]
        if len(left):
            steps = points.STEP * extent * _directions(space.shape[1], count)
            around, _ = _padded_distances(problem, (space[left, None] + steps).reshape(-1, space.shape[1]), theta)
            inside[left] = np.any(around.reshape(len(left), -1) < 0, axis=1)
    return inside


def _directions(space: int, count: int) -> Float[np.ndarray, "directions space"]:
    """Unit vectors all around: evenly spaced in the plane, on a Fibonacci spiral in space."""
    if space == 1:
        return np.array([[-1.0], [1.0]])
    numbers = np.arange(count) + 0.5
    if space == 2:
        angles = 2 * np.pi * numbers / count
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)
    height, angles = 1 - 2 * numbers / count, np.pi * (1 + np.sqrt(5)) * numbers
    width = np.sqrt(1 - height**2)
    return np.stack([width * np.cos(angles), width * np.sin(angles), height], axis=1)


def _padded_distances(
    problem: Problem, space: Float[np.ndarray, "points space"], theta: Float[np.ndarray, " parameters"]
) -> tuple[Float[np.ndarray, " points"], float]:
    """Signed distances of points in space, and the extent of the shape."""
    size = max(256, 1 << max(len(space) - 1, 0).bit_length())  # a power of two, so that few sizes are compiled
    with jax.enable_x64(True):
        padded = np.resize(space, (size, space.shape[1])) if len(space) else np.zeros((size, space.shape[1]))
        distance, extent = map(np.asarray, _distances(Identity(problem), padded, np.asarray(theta, float)))
    return distance[: len(space)], float(extent)


def are_inside(problem: Problem, x: Points, thetas: Points) -> Bool[np.ndarray, " points"]:
    """The same for points that have a theta each (points, parameters)."""
    inside = np.ones(len(x), bool)
    if problem.domain is not None and len(x):
        distinct, numbers = np.unique(thetas, axis=0, return_inverse=True)
        for i, theta in enumerate(distinct):
            rows = numbers.reshape(-1) == i
            inside[rows] = is_inside(problem, x[rows], theta)
    return inside


@partial(jax.jit, static_argnums=0)
def _distances(identity: Identity, space: Array, theta: Array) -> tuple[Array, Array]:
    shape = shape_of(identity.problem, theta)
    return jax.lax.map(shape.distance, space, batch_size=BATCH), points.extent(shape.bounds)
