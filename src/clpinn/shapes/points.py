"""Points of a shape from numbers in the unit cube, for one theta: candidates, and whether they count.

Candidates that count are uniform: in the shape, on pieces of its boundary, or at a section of it.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from clpinn.shapes.pieces import Bounds, Piece
from clpinn.shapes.shape import Shape

STEP = 1e-6
"""A point belongs to the boundary if this fraction of the extent separates it from inside and from outside."""
CLOSED = 1e-9
"""Points up to this fraction of the extent outside count as inside, where a section runs along the boundary."""
DEEPEST = 0.2
"""Points near the boundary are at most this fraction of the extent away from it."""


class Candidate(NamedTuple):
    """A point that may count."""

    x: Float[Array, " space"]
    normal: Float[Array, " space"]
    """Unit normal out of the shape; zero where there is none."""
    counts: Bool[Array, ""]


def extent(bounds: Bounds) -> Float[Array, ""]:
    """The length of the diagonal of a box."""
    return jnp.linalg.norm(bounds[1] - bounds[0])


def inside(shape: Shape, unit: Float[Array, " space"]) -> Candidate:
    """A candidate for the inside."""
    low, high = shape.bounds
    x = low + unit * (high - low)
    return Candidate(x, jnp.zeros_like(x), shape.distance(x) < 0)


def section(shape: Shape, fixed: dict[int, float], parts: dict[int, tuple[float, float]], unit: Array) -> Candidate:
    """A candidate for the part of a shape where some coordinates have given values or lie in a given part."""
    low, high = map(jnp.asarray, shape.bounds)
    for axis, ends in parts.items():
        low, high = low.at[axis].max(ends[0]), high.at[axis].min(ends[1])
    x = low + unit * (high - low)
    for axis, value in fixed.items():
        x = x.at[axis].set(value)
    limit = CLOSED * extent(shape.bounds) if fixed else 0.0
    return Candidate(x, jnp.zeros_like(x), (shape.distance(x) <= limit) & jnp.all(low <= high))


def on_boundary(shape: Shape, pieces: tuple[Piece, ...], unit: Float[Array, " numbers"]) -> Candidate:
    """A candidate for the pieces, from as many unit numbers as there are coordinates, and one more.

    The first chooses a piece, the last decides whether to keep the point, those between say where on the piece it is.
    """
    space = shape.space
    bounds = jnp.stack([piece.bound for piece in pieces])
    until = jnp.cumsum(bounds)
    chosen = jnp.clip(jnp.searchsorted(until, unit[0] * until[-1], side="right"), 0, len(pieces) - 1)
    at = [piece.at(unit[1:space]) for piece in pieces]
    x, normal, stretch = jax.tree.map(lambda *rows: jnp.stack(rows)[chosen], *at)
    kept = (unit[space] * bounds[chosen] < stretch) & is_boundary(shape, x, normal)
    return Candidate(x, normal, kept & ~elsewhere(shape, pieces[:-1], chosen, x, normal))


def is_boundary(shape: Shape, x: Float[Array, " space"], normal: Float[Array, " space"]) -> Bool[Array, ""]:
    """Whether a point of a piece is on the boundary of the whole: inside on one side, outside on the other."""
    step = STEP * extent(shape.bounds) * normal
    return (shape.distance(x - step) < 0) & (shape.distance(x + step) > 0)


def elsewhere(shape: Shape, pieces: tuple[Piece, ...], before: ArrayLike, x: Array, normal: Array) -> Bool[Array, ""]:
    """Whether a point of the boundary lies on one of the first pieces, too: shapes that are joined may share a line.

    Such points are counted with the first piece only.
    """
    step = STEP * extent(shape.bounds)
    passes = [piece.passes(x, normal, step) for piece in pieces]
    return jnp.any(jnp.stack(passes) & (jnp.arange(len(pieces)) < before)) if passes else jnp.zeros((), bool)


def near_boundary(shape: Shape, unit: Float[Array, " numbers"]) -> Candidate:
    """A candidate inside, denser towards the boundary, from as many unit numbers as there are coordinates, and two."""
    start = on_boundary(shape, shape.pieces(), unit[:-1])
    depth = DEEPEST * extent(shape.bounds) * unit[-1] ** 2
    x = start.x - depth * start.normal
    return Candidate(x, start.normal, start.counts & (shape.distance(x) < 0))


class Samples(NamedTuple):
    """Points of pieces of a boundary, and the length or area that each stands for: zero where it does not count."""

    x: Float[Array, "points space"]
    normal: Float[Array, "points space"]
    measure: Float[Array, " points"]


def boundary_samples(shape: Shape, pieces: tuple[Piece, ...], units: Float[Array, "points unit"]) -> Samples:
    """The same points of each piece, one piece after the other, as far as they are on the boundary of the whole."""

    def counts(number: Array, x: Array, normal: Array) -> Array:
        return is_boundary(shape, x, normal) & ~elsewhere(shape, pieces[:-1], number, x, normal)

    x, normal, stretch = jax.tree.map(
        lambda *rows: jnp.concatenate(rows), *(jax.vmap(piece.at)(units) for piece in pieces)
    )
    numbers = jnp.repeat(jnp.arange(len(pieces)), len(units))
    return Samples(x, normal, jnp.where(jax.vmap(counts)(numbers, x, normal), stretch, 0.0) / len(units))


def measure(shape: Shape, pieces: tuple[Piece, ...], units: Float[Array, "points unit"]) -> Float[Array, ""]:
    """The length or area of the pieces, as far as they are on the boundary, by the mean over points of each piece."""
    return _integral(shape, pieces, units, lambda x, normal: jnp.ones(()))


def volume(shape: Shape, units: Float[Array, "points unit"]) -> Float[Array, ""]:
    """The area of a plane shape, or the volume of one in space, by the divergence theorem."""
    low, high = shape.bounds
    middle = (low + high) / 2
    return _integral(shape, shape.pieces(), units, lambda x, normal: jnp.sum((x - middle) * normal)) / shape.space


def _integral(
    shape: Shape, pieces: tuple[Piece, ...], units: Array, integrand: Callable[[Array, Array], Array]
) -> Float[Array, ""]:
    if not pieces:
        return jnp.zeros(())
    samples = boundary_samples(shape, pieces, units)
    return jnp.sum(samples.measure * jax.vmap(integrand)(samples.x, samples.normal))
