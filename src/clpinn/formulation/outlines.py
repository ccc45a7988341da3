"""The boundary of a domain as points: curves of a plane shape, corners included, and a cloud on a shape in space."""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from clpinn.formulation.domain import Points
from clpinn.formulation.identity import Identity
from clpinn.formulation.problem import Problem
from clpinn.formulation.shaped import shape_at, spanned
from clpinn.shapes import points

STEPS = 256
"""Stretches into which each piece is divided at first: a kept part that is shorter may be missed."""
HALVINGS = 40
"""Halvings of a stretch with a corner, or with an end of a kept part."""
CORNER = 0.9
"""Two normals whose inner product is smaller belong to two sides of a corner."""
INWARDS = 1e-4
"""Points at the edge of a piece are judged this fraction of the piece inside it: an edge belongs to two pieces."""


def is_plane(problem: Problem) -> bool:
    """Whether the domain is a shape in the plane."""
    return problem.domain is not None and len(spanned(problem)) == 2


def boundary_curves(problem: Problem, theta: Mapping[str, float], spacing: float | None = None) -> list[Points]:
    """The boundary of a plane shape at one theta: curves (points, 2), with all their corners.

    Points are evenly spaced on each piece, by default a 256th of it, otherwise by about `spacing`.
    """
    row = _row(problem, theta)
    lengths = [length for (length,) in _piece_sizes(problem, row)]
    steps = [STEPS if spacing is None else max(1, int(np.ceil(length / spacing))) for length in lengths]
    breaks = _breaks(problem, row, [max(STEPS, count) for count in steps])
    units = [_nodes(count, at) for count, at in zip(steps, breaks, strict=True)]
    x, _, _ = _on_pieces(problem, row, units)
    _, _, kept = _on_pieces(problem, row, [(along[1:] + along[:-1]) / 2 for along in units])
    return [part for curve, whole in zip(x, kept, strict=True) for part in _parts(curve, whole)]


def boundary_cloud(problem: Problem, theta: Mapping[str, float], spacing: float) -> Points:
    """Points on the boundary of a shape in space at one theta, about `spacing` apart, edges included."""
    row, clouds = _row(problem, theta), []
    for number, lengths in enumerate(_piece_sizes(problem, row)):
        axes = [np.linspace(0, 1, int(np.ceil(length / spacing)) + 1) for length in lengths]
        units = np.stack([column.ravel() for column in np.meshgrid(*axes, indexing="ij")], axis=1)
        with jax.enable_x64(True):
            x, kept = map(np.asarray, _edge_points(Identity(problem), number, units, row))
        clouds.append(x[kept])
    return np.concatenate(clouds)


def distances(problem: Problem, x: Points, theta: Mapping[str, float]) -> Float[np.ndarray, " points"]:
    """The signed distance of points (points, space) to the boundary at one theta; negative inside."""
    with jax.enable_x64(True):
        return np.asarray(_distances(Identity(problem), np.asarray(x, float), _row(problem, theta)))


def bounds(problem: Problem, theta: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """The low and the high corner of a box around the shape at one theta."""
    with jax.enable_x64(True):
        low, high = shape_at(problem, {name: jnp.asarray(float(theta[name])) for name in problem.parameters}).bounds
        return np.asarray(low, float), np.asarray(high, float)


def _row(problem: Problem, theta: Mapping[str, float]) -> Float[np.ndarray, " parameters"]:
    return np.array([float(theta[name]) for name in problem.parameters])


def _piece_sizes(problem: Problem, row: Float[np.ndarray, " parameters"]) -> list[tuple[float, ...]]:
    with jax.enable_x64(True):
        return [tuple(map(float, lengths)) for lengths in _sizes(Identity(problem), row)]


# Curves ------------------------------------------------------------------------------------------------------------


def _breaks(problem: Problem, row: np.ndarray, counts: list[int]) -> list[np.ndarray]:
    """Where each piece has a corner, or where a part of it that is on the boundary ends: unit numbers by piece."""
    units = [(np.arange(count) + 0.5) / count for count in counts]
    _, normals, kept = map(np.concatenate, _on_pieces(problem, row, units))
    pieces, flat = np.repeat(np.arange(len(counts)), counts), np.concatenate(units)
    same_piece = pieces[1:] == pieces[:-1]
    turns = same_piece & (np.sum(normals[1:] * normals[:-1], axis=1) < CORNER)
    chosen = turns | (same_piece & (kept[1:] != kept[:-1]))
    low, high, piece, turns = flat[:-1][chosen], flat[1:][chosen], pieces[:-1][chosen], turns[chosen]
    first_normals, first_kept = normals[:-1][chosen], kept[:-1][chosen]
    for _ in range(HALVINGS if chosen.any() else 0):
        middle = (low + high) / 2
        _, normal, inside = _at(problem, row, piece, middle)
        # Beside a corner nothing counts as on the boundary, so the normals alone tell where the corner is.
        before = np.where(turns, np.sum(normal * first_normals, axis=1) >= CORNER, inside == first_kept)
        low, high = np.where(before, middle, low), np.where(before, high, middle)
    return [(low[piece == i] + high[piece == i]) / 2 for i in range(len(counts))]


def _nodes(steps: int, breaks: np.ndarray) -> np.ndarray:
    """Evenly spaced unit numbers with the breaks among them, without those right beside a break."""
    even = np.linspace(0, 1, steps + 1)
    if len(breaks):
        beside = np.abs(even[:, None] - breaks).min(axis=1) < 0.3 / steps
        even = even[~beside | (even == 0) | (even == 1)]
    return np.unique(np.concatenate([even, breaks]))


def _parts(curve: Points, kept: np.ndarray) -> list[Points]:
    """The parts of a curve whose stretches are all kept."""
    ends = np.flatnonzero(np.diff(np.concatenate([[False], kept, [False]])))
    return [curve[first : last + 1] for first, last in ends.reshape(-1, 2)]


def _on_pieces(problem: Problem, row: np.ndarray, units: list[np.ndarray]) -> tuple[list[np.ndarray], ...]:
    """Points, normals, and whether they are on the boundary of the whole, by piece."""
    pieces = np.repeat(np.arange(len(units)), [len(along) for along in units])
    found = _at(problem, row, pieces, np.concatenate(units))
    ends = np.cumsum([len(along) for along in units])[:-1]
    return tuple(np.split(column, ends) for column in found)


def _at(problem: Problem, row: np.ndarray, pieces: np.ndarray, units: np.ndarray) -> tuple[np.ndarray, ...]:
    """The same for one point of a piece per row."""
    size = max(256, 1 << max(len(units) - 1, 0).bit_length())  # a power of two, so that few sizes are compiled
    with jax.enable_x64(True):
        found = _compiled(Identity(problem), np.resize(pieces, size), np.resize(units, size), row)
    return tuple(np.asarray(column)[: len(units)] for column in found)


@partial(jax.jit, static_argnums=0)
def _compiled(identity: Identity, pieces: Array, units: Array, row: Array) -> tuple[Array, Array, Array]:
    problem = identity.problem
    shape = shape_at(problem, dict(zip(problem.parameters, row, strict=True)))

    def at(number: Array, unit: Array) -> tuple[Array, Array, Array]:
        on_each = [piece.at(unit[None]) for piece in shape.pieces()]
        x, normal, stretch = jax.tree.map(lambda *rows: jnp.stack(rows)[number], *on_each)
        return x, normal, points.is_boundary(shape, x, normal) & (stretch > 0)

    return jax.vmap(at)(pieces, units)


# Surfaces ----------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=(0, 1))
def _edge_points(identity: Identity, number: int, units: Array, row: Array) -> tuple[Array, Array]:
    """Points of a piece, and whether they are on the boundary of the whole, its edges included."""
    problem = identity.problem
    shape = shape_at(problem, dict(zip(problem.parameters, row, strict=True)))
    limit = points.CLOSED * points.extent(shape.bounds)

    def at(unit: Array) -> tuple[Array, Array]:
        piece = shape.pieces()[number]
        x = piece.at(unit).x
        beside, normal, stretch = piece.at(0.5 + (unit - 0.5) * (1 - INWARDS))
        kept = points.is_boundary(shape, beside, normal) & (stretch > 0)
        return x, kept & (shape.distance(x) <= limit)

    return jax.vmap(at)(units)


@partial(jax.jit, static_argnums=0)
def _sizes(identity: Identity, row: Array) -> list[tuple[Array, ...]]:
    """How long each piece is along each of its unit numbers, at most."""
    sides = np.linspace(0, 1, 17)
    sizes = []
    problem = identity.problem
    for piece in shape_at(problem, dict(zip(problem.parameters, row, strict=True))).pieces():
        count = len(spanned(problem)) - 1
        mesh = np.stack(np.meshgrid(*[sides] * count, indexing="ij"), axis=-1).reshape(-1, count)
        x = jax.vmap(lambda unit, piece=piece: piece.at(unit).x)(jnp.asarray(mesh)).reshape(*[17] * count, -1)
        steps = [jnp.linalg.norm(jnp.diff(x, axis=axis), axis=-1) for axis in range(count)]
        sizes.append(tuple(jnp.max(jnp.sum(step, axis=axis)) for axis, step in enumerate(steps)))
    return sizes


@partial(jax.jit, static_argnums=0)
def _distances(identity: Identity, x: Array, row: Array) -> Array:
    problem = identity.problem
    shape = shape_at(problem, dict(zip(problem.parameters, row, strict=True)))
    return jax.lax.map(shape.distance, x, batch_size=1024)
