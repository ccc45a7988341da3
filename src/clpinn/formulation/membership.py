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

BATCH, NUMBERS = 1024, 2**22
"""Points that are compared with a shape at the same time, and numbers of the shape times points: a surface has many."""
DIRECTIONS = (32, 2048)
"""Directions in which the domain is looked for around a point of its boundary; more of them if it may be a corner."""


def is_inside(problem: Problem, x: Points, theta: Float[np.ndarray, " parameters"]) -> Bool[np.ndarray, " points"]:
    """Whether points (points, coordinates) are in the domain of one theta, boundary included. True without a shape."""
    return are_inside(problem, x, np.tile(np.asarray(theta, float), (len(x), 1)))


def are_inside(problem: Problem, x: Points, thetas: Points) -> Bool[np.ndarray, " points"]:
    """The same for points that have a theta each (points, parameters)."""
    if problem.domain is None or len(x) == 0:
        return np.ones(len(x), bool)
    names = problem.coordinates.names
    space = np.asarray(x, float)[:, [names.index(name) for name in spanned(problem)]]
    distance, extent = _padded_distances(problem, space, thetas)
    inside = distance <= points.CLOSED * extent
    edge = np.flatnonzero(inside & (distance >= -points.CLOSED * extent))
    inside[edge] = False  # a side that two shapes share is no boundary if the domain is on neither side of it
    for count in DIRECTIONS:
        left = edge[~inside[edge]]
        if len(left):
            steps = points.STEP * extent[left, None, None] * _directions(space.shape[1], count)
            around = (space[left, None] + steps).reshape(-1, space.shape[1])
            distance, _ = _padded_distances(problem, around, np.repeat(thetas[left], count, axis=0))
            inside[left] = np.any(distance.reshape(len(left), -1) < 0, axis=1)
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
    problem: Problem, space: Float[np.ndarray, "points space"], thetas: Points
) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"]]:
    """Signed distances of points in space, and the extents of their shapes."""
    size = max(256, 1 << (len(space) - 1).bit_length())  # a power of two, so that few sizes are compiled
    rows = np.arange(size) % len(space)
    with jax.enable_x64(True):
        distance, extent = map(np.asarray, _distances(Identity(problem), space[rows], np.asarray(thetas, float)[rows]))
    return distance[: len(space)], extent[: len(space)]


@partial(jax.jit, static_argnums=0)
def _distances(identity: Identity, space: Array, thetas: Array) -> tuple[Array, Array]:
    def at(row: tuple[Array, Array]) -> tuple[Array, Array]:
        x, theta = row
        shape = shape_of(identity.problem, theta)
        return shape.distance(x), points.extent(shape.bounds)

    shape = shape_of(identity.problem, thetas[0])
    numbers = sum(np.size(leaf) for leaf in jax.tree.leaves(shape))
    return jax.lax.map(at, (space, thetas), batch_size=max(1, min(BATCH, NUMBERS // numbers)))
