"""Quadrature over a shape, a section of it, or pieces of its boundary, for one theta. The number of nodes is fixed."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from clpinn.shapes.pieces import Bounds, Piece
from clpinn.shapes.points import elsewhere, is_boundary
from clpinn.shapes.shape import Shape

CURVE_CELLS, SURFACE_CELLS = 32, 16
"""Cells of a curve, and of each direction of a surface. A curve has two nodes in a cell, a surface has four."""
CELLS = {1: 32, 2: 12, 3: 6}
"""Cells along each free direction of a section, by the number of free directions; two nodes in each."""
BISECTIONS, CHANGES = 32, 8
"""Halvings of a cell in which a curve leaves the shape or enters it, and how many such cells there may be."""
NODES = {1: 32, 2: 12, 3: 8}
"""Nodes of Gauss' rule along each free direction of a box, by the number of free directions."""
GAUSS = np.array([0.5 - 0.5 / np.sqrt(3), 0.5 + 0.5 / np.sqrt(3)])
"""The two nodes of Gauss' rule on the unit interval, each of weight one half."""


class Rule(NamedTuple):
    """Nodes and weights: an integral is the sum of weight × value."""

    x: Float[Array, "nodes space"]
    normal: Float[Array, "nodes space"]
    """Outward unit normals; zero where there are none."""
    weight: Float[Array, " nodes"]


def line_rule(counts: Callable[[Array], Bool[Array, ""]], cells: int) -> tuple[Array, Array]:
    """Nodes and weights on the part of the unit interval that counts. Its ends are found by bisection in each cell."""
    ends = jnp.linspace(0.0, 1.0, cells + 1)
    kept = jax.vmap(counts)(jnp.clip(ends, 1e-12, 1 - 1e-12))
    low, high, first, last = ends[:-1], ends[1:], kept[:-1], kept[1:]
    changing = jnp.nonzero(first != last, size=min(CHANGES, cells), fill_value=0)[0]

    def halve(_: int, interval: tuple[Array, Array]) -> tuple[Array, Array]:
        a, b = interval
        middle = (a + b) / 2
        like_first = jax.vmap(counts)(middle) == first[changing]
        return jnp.where(like_first, middle, a), jnp.where(like_first, b, middle)

    change = low.at[changing].set(jax.lax.fori_loop(0, BISECTIONS, halve, (low[changing], high[changing]))[0])
    start = jnp.where(first, low, change)
    stop = jnp.where(last, high, change)
    length = jnp.where(first | last, stop - start, 0.0)
    nodes = start[:, None] + length[:, None] * GAUSS
    return nodes.reshape(-1), jnp.repeat(length / 2, 2)


def boundary_rule(shape: Shape, pieces: tuple[Piece, ...]) -> Rule:
    """A rule over the pieces, as far as they are on the boundary of the shape."""
    of_piece = _curve_rule if shape.space == 2 else _surface_rule
    rules = [of_piece(shape, piece, pieces[:number]) for number, piece in enumerate(pieces)]
    return Rule(*(jnp.concatenate(parts) for parts in zip(*rules, strict=True)))


def _counts(shape: Shape, earlier: tuple[Piece, ...], x: Array, normal: Array) -> Bool[Array, ""]:
    return is_boundary(shape, x, normal) & ~elsewhere(shape, earlier, len(earlier), x, normal)


def _curve_rule(shape: Shape, piece: Piece, earlier: tuple[Piece, ...]) -> Rule:
    def counts(s: Array) -> Array:
        x, normal, _ = piece.at(s[None])
        return _counts(shape, earlier, x, normal)

    nodes, weights = line_rule(counts, CURVE_CELLS)
    x, normal, stretch = jax.vmap(lambda s: piece.at(s[None]))(nodes)
    return Rule(x, normal, weights * stretch)


def _surface_rule(shape: Shape, piece: Piece, earlier: tuple[Piece, ...]) -> Rule:
    side = ((np.arange(SURFACE_CELLS)[:, None] + GAUSS) / SURFACE_CELLS).reshape(-1)
    units = np.stack([axis.ravel() for axis in np.meshgrid(side, side, indexing="ij")], axis=1)
    x, normal, stretch = jax.vmap(piece.at)(jnp.asarray(units))
    counts = jax.vmap(lambda x, normal: _counts(shape, earlier, x, normal))(x, normal)
    return Rule(x, normal, jnp.where(counts, stretch, 0.0) / len(units))


def box_rule(bounds: Bounds, fixed: dict[int, float]) -> Rule:
    """Gauss' rule over a box, some coordinates being fixed."""
    low, high = (jnp.asarray(end, float) for end in bounds)
    free = [axis for axis in range(len(low)) if axis not in fixed]
    if not free:
        at = jnp.stack([jnp.asarray(fixed[axis], float) for axis in range(len(low))])
        return Rule(at[None], jnp.zeros((1, len(low))), jnp.ones(1))
    nodes, weights = np.polynomial.legendre.leggauss(NODES[len(free)])
    units = np.stack([axis.ravel() for axis in np.meshgrid(*[(nodes + 1) / 2] * len(free), indexing="ij")], axis=1)
    shares = np.prod(np.stack(np.meshgrid(*[weights / 2] * len(free), indexing="ij")), axis=0).ravel()
    columns = {axis: low[axis] + units[:, i] * (high[axis] - low[axis]) for i, axis in enumerate(free)}
    x = [columns.get(axis, jnp.full(len(units), fixed.get(axis, 0.0))) for axis in range(len(low))]
    size = jnp.prod(jnp.stack([high[axis] - low[axis] for axis in free]))
    return Rule(jnp.stack(x, axis=1), jnp.zeros((len(units), len(low))), shares * size)


def section_rule(inside: Callable[[Array], Bool[Array, ""]], bounds: Bounds, fixed: dict[int, float]) -> Rule:
    """A rule over the points of a box that are inside, some coordinates being fixed.

    Along the last free direction the ends of what is inside are found; the other directions have cells of equal size.
    """
    low, high = (jnp.asarray(end, float) for end in bounds)
    space = len(low)
    free = [axis for axis in range(space) if axis not in fixed]
    start = jnp.stack([jnp.asarray(fixed.get(axis, 0.0), low.dtype) for axis in range(space)])
    if not free:
        counts = inside(start)
        return Rule(start[None], jnp.zeros((1, space)), jnp.where(counts, 1.0, 0.0)[None])
    *outer, last = free
    cells = CELLS[len(free)]
    side = ((np.arange(cells)[:, None] + GAUSS) / cells).reshape(-1)
    units = np.zeros((1, 0))
    if outer:
        units = np.stack([axis.ravel() for axis in np.meshgrid(*[side] * len(outer), indexing="ij")], axis=1)

    def along_last(unit: Array) -> tuple[Array, Array]:
        x = start
        for axis, value in zip(outer, unit, strict=True):
            x = x.at[axis].set(low[axis] + value * (high[axis] - low[axis]))

        def at(s: Array) -> Array:
            return x.at[last].set(low[last] + s * (high[last] - low[last]))

        nodes, weights = line_rule(lambda s: inside(at(s)), cells)
        return jax.vmap(at)(nodes), weights

    x, weights = jax.vmap(along_last)(jnp.asarray(units))
    size = jnp.prod(jnp.stack([high[axis] - low[axis] for axis in free]))
    x = x.reshape(-1, space)
    return Rule(x, jnp.zeros_like(x), weights.reshape(-1) * size / len(units))
