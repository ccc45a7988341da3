"""Quadrature over pieces of a boundary, sections and boxes, for one theta. The number of nodes is fixed."""

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from clpinn.shapes.cells import Intervals, counting_intervals, critical_slabs, gauss, line_rule, strips_rule
from clpinn.shapes.pieces import Bounds, OnPiece, Piece
from clpinn.shapes.points import elsewhere, is_boundary
from clpinn.shapes.shape import Shape

CURVE_CELLS = 32
"""Cells of a curve, with two nodes in each; more if it has many sides."""
SPARE_CELLS = 8
"""Cells of a curve at least, beyond one for each side."""
CURVE_SAMPLES, CURVE_CHANGES = 160, 24
"""Samples of a curve that show where it leaves the boundary of the shape or comes back, and how often it may."""
ACROSS, ALONG = 12, 8
"""Cells of a surface across its strips, with three lines in each, and along a line, with two nodes in each."""
LINES = 5
"""Lines in each cell of a surface of triangles or with several sides, which may have few cells in each."""
SURFACE_SAMPLES, SURFACE_CHANGES = 48, 8
"""Samples of each direction of a surface that show where it leaves the boundary, and how often a line may."""
MOST_CUT = 32
"""A surface with more triangles or sides has four nodes in each and is not cut exactly."""
UNRESOLVED = 2.0
"""A mismatch beyond what is allowed, which is 1."""
NODES = {1: 32, 2: 12, 3: 8}
"""Nodes of Gauss' rule along each free direction of a box, by the number of free directions."""

Counts = Callable[[Array], Bool[Array, ""]]
Parts = dict[int, tuple[float, float]]
"""The interval of each coordinate that is not taken whole."""


class Rule(NamedTuple):
    """Nodes and weights: an integral is the sum of weight × value."""

    x: Float[Array, "nodes space"]
    normal: Float[Array, "nodes space"]
    """Outward unit normals; zero where there are none."""
    weight: Float[Array, " nodes"]
    mismatch: Float[Array, ""]
    """How far its measure is from that by the boundary, over what is allowed; UNRESOLVED if cells are too few."""


def joined_rules(rules: Rule) -> Rule:
    """Rules in rows as one. Nodes without a weight are moved to one that has some."""
    space = rules.x.shape[-1]
    x, normal, weight = rules.x.reshape(-1, space), rules.normal.reshape(-1, space), rules.weight.reshape(-1)
    heaviest, used = jnp.argmax(weight), (weight != 0)[:, None]
    mismatch = jnp.max(rules.mismatch)
    return Rule(jnp.where(used, x, x[heaviest]), jnp.where(used, normal, normal[heaviest]), weight, mismatch)


class Pieces:
    """Pieces of the boundary of a shape as one family of maps, so that they are compiled once."""

    def __init__(self, shape: Shape, pieces: tuple[Piece, ...], parts: Parts | None = None):
        self.shape, self.pieces, self.parts = shape, pieces, parts or {}
        most = max(len(piece.breaks) for piece in pieces)
        padded = [jnp.append(piece.breaks, jnp.ones(most - len(piece.breaks))) for piece in pieces]
        self.breaks, self.sides = jnp.stack(padded), most + 1

    def at(self, number: Array, unit: Float[Array, " unit"]) -> OnPiece:
        """The point of the numbered piece that belongs to unit numbers."""
        return jax.tree.map(lambda *rows: jnp.stack(rows)[number], *(piece.at(unit) for piece in self.pieces))

    def counts(self, number: Array, unit: Float[Array, " unit"]) -> Bool[Array, ""]:
        """Whether it is on the boundary of the shape, in the parts, and on no earlier piece."""
        x, normal, _ = self.at(number, unit)
        within = [(low <= x[axis]) & (x[axis] <= high) for axis, (low, high) in self.parts.items()]
        first = ~elsewhere(self.shape, self.pieces[:-1], number, x, normal)
        return jnp.all(jnp.stack([is_boundary(self.shape, x, normal), first, *within]))

    @cached_property
    def curves(self) -> Intervals:
        """The parts of each curve that count, by their unit numbers, cut at corners."""

        def of_piece(number: Array) -> Intervals:
            return counting_intervals(
                lambda s: self.counts(number, s[None]), self.breaks[number], CURVE_SAMPLES, CURVE_CHANGES
            )

        return jax.lax.map(of_piece, jnp.arange(len(self.pieces)))

    def curve_rule(self, finer: int = 1, order: int = 2) -> Rule:
        """A rule over curves, with so many nodes in a cell."""
        cells = max(finer * CURVE_CELLS, self.sides + SPARE_CELLS)

        def of_piece(number: Array, intervals: Intervals) -> Rule:
            nodes, weights, fits = line_rule(intervals, cells, order)
            x, normal, stretch = jax.vmap(lambda s: self.at(number, s[None]))(nodes)
            return Rule(x, normal, weights * stretch, jnp.where(fits, 0.0, UNRESOLVED))

        return joined_rules(jax.vmap(of_piece)(jnp.arange(len(self.pieces)), self.curves))

    def surface_rule(self, finer: int = 1) -> Rule:
        """A rule over surfaces."""

        def of_piece(number: Array) -> Rule:
            def counts(unit: Array) -> Array:
                return self.counts(number, unit)

            if self.sides > MOST_CUT:
                units, weights = _four_in_each(self.breaks[number])
                weights, fits = jnp.where(jax.vmap(counts)(units), weights, 0.0), jnp.ones((), bool)
            else:
                units, weights, fits = unit_square_rule(counts, self.breaks[number], finer)
            x, normal, stretch = jax.vmap(lambda unit: self.at(number, unit))(units)
            return Rule(x, normal, weights * stretch, jnp.where(fits, 0.0, UNRESOLVED))

        return joined_rules(jax.lax.map(of_piece, jnp.arange(len(self.pieces))))


def boundary_rule(shape: Shape, pieces: tuple[Piece, ...], parts: Parts | None = None, finer: int = 1) -> Rule:
    """A rule over the pieces, as far as they are on the boundary of the shape and in the parts of the coordinates."""
    family = Pieces(shape, pieces, parts)
    return family.curve_rule(finer) if shape.space == 2 else family.surface_rule(finer)


def _four_in_each(breaks: Float[Array, " breaks"]) -> tuple[Float[Array, "nodes 2"], Float[Array, " nodes"]]:
    """Four nodes between each two breaks. They are exact for polynomials of degree two on triangles of `Facets`."""
    ends = jnp.concatenate([jnp.zeros(1), breaks, jnp.ones(1)])
    nodes, weights = gauss(2)
    first = ends[1:, None] - jnp.diff(ends)[:, None] * nodes**2
    weight = jnp.diff(ends)[:, None] * 2 * nodes * weights
    units = jnp.stack([jnp.repeat(first.reshape(-1), 2), jnp.tile(jnp.asarray(nodes), first.size)], axis=1)
    return units, jnp.repeat(weight.reshape(-1), 2) / 2


def unit_square_rule(
    counts: Counts,
    breaks: Float[Array, " breaks"],
    finer: int = 1,
    cells: tuple[int, int] = (ACROSS, ALONG),
    samples: int = SURFACE_SAMPLES,
) -> tuple[Float[Array, "nodes 2"], Float[Array, " nodes"], Bool[Array, ""]]:
    """A rule over the part of the unit square that counts. What is narrower than 1 / samples may be missed."""
    slabs = critical_slabs(counts, breaks, samples, samples, SURFACE_CHANGES)

    def on_line(v: Array) -> Intervals:
        return counting_intervals(lambda w: counts(jnp.stack([v, w])), jnp.zeros(0), samples, SURFACE_CHANGES)

    (across, along), lines = cells, LINES if len(breaks) else 3
    return strips_rule(slabs, on_line, finer * max(across, len(breaks) + 1), finer * along, lines)


def box_rule(bounds: Bounds, fixed: dict[int, float]) -> Rule:
    """Gauss' rule over a box, some coordinates being fixed."""
    low, high = (jnp.asarray(end, float) for end in bounds)
    free = [axis for axis in range(len(low)) if axis not in fixed]
    if not free:
        at = jnp.stack([jnp.asarray(fixed[axis], float) for axis in range(len(low))])
        return Rule(at[None], jnp.zeros((1, len(low))), jnp.ones(1), jnp.zeros(()))
    nodes, weights = gauss(NODES[len(free)])
    units = np.stack([axis.ravel() for axis in np.meshgrid(*[nodes] * len(free), indexing="ij")], axis=1)
    shares = np.prod(np.stack(np.meshgrid(*[weights] * len(free), indexing="ij")), axis=0).ravel()
    columns = {axis: low[axis] + units[:, i] * (high[axis] - low[axis]) for i, axis in enumerate(free)}
    x = [columns.get(axis, jnp.full(len(units), fixed.get(axis, 0.0))) for axis in range(len(low))]
    size = jnp.prod(jnp.stack([high[axis] - low[axis] for axis in free]))
    return Rule(jnp.stack(x, axis=1), jnp.zeros((len(units), len(low))), shares * size, jnp.zeros(()))


def section_rule(inside: Counts, bounds: Bounds, fixed: dict[int, float], finer: int = 1) -> Rule:
    """A rule over the points of a box that are inside, one or two coordinates or all being free."""
    low, high = (jnp.asarray(end, float) for end in bounds)
    free = [axis for axis in range(len(low)) if axis not in fixed]
    start = jnp.stack([jnp.asarray(fixed.get(axis, 0.0), low.dtype) for axis in range(len(low))])

    def at(unit: Array) -> Array:
        x = start
        for axis, value in zip(free, unit, strict=True):
            x = x.at[axis].set(low[axis] + value * (high[axis] - low[axis]))
        return x

    def counts(unit: Array) -> Array:
        return inside(at(unit))

    none, fits = jnp.zeros(0), jnp.ones((), bool)
    if not free:
        units, weights = jnp.zeros((1, 0)), jnp.where(inside(start), 1.0, 0.0)[None]
    elif len(free) == 1:
        intervals = counting_intervals(lambda s: counts(s[None]), none, CURVE_SAMPLES, CURVE_CHANGES)
        nodes, weights, fits = line_rule(intervals, finer * CURVE_CELLS)
        units = nodes[:, None]
    else:
        units, weights, fits = unit_square_rule(counts, none, finer)
    x = jax.vmap(at)(units)
    size = jnp.prod(jnp.stack([jnp.ones(()), *(high[axis] - low[axis] for axis in free)]))
    return joined_rules(Rule(x, jnp.zeros_like(x), weights * size, jnp.where(fits, 0.0, UNRESOLVED)))
