"""Quadrature over the inside of a shape, for one theta: strips between its boundary, then exact moments."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from clpinn.shapes.cells import Intervals, allotted, between, first_true, gauss, strips_rule
from clpinn.shapes.quadrature import ACROSS, ALONG, UNRESOLVED, Pieces, Rule, joined_rules, unit_square_rule
from clpinn.shapes.shape import Shape

OUTLINE = 256
"""Straight pieces that stand for a curve of a boundary where lines cross it."""
CROSSINGS, CRITICAL = 24, 32
"""Crossings of a line with the boundary, and places where the number of crossings changes, at most."""
MOST_ACROSS = 32
"""Cells across the strips of a shape with many sides; they have two lines each."""
SOLID_SAMPLES = 24
"""Samples of each direction of a section of a solid that show where it leaves the solid."""
DEGREE = {2: 8, 3: 3}
"""The degree up to which polynomials are integrated exactly, by the number of coordinates."""
ALLOWED = {2: 0.01, 3: 0.03}
"""How far the area or volume by strips may be from that by the boundary, relatively, by the number of coordinates."""
SMALLEST = 1e-10
"""Combinations of polynomials with a smaller mean square, relatively, have no part in the moments."""
SOLID_ACROSS, SOLID_ALONG = 4, 4
"""Cells of a solid: along the first and the second coordinate with three nodes in each, along the third with two."""


def inside_rule(shape: Shape, finer: int = 1) -> Rule:
    """A rule over the inside of a shape."""
    pieces = Pieces(shape, shape.pieces())
    if shape.space == 2:
        boundary, (x, weight) = pieces.curve_rule(order=6), _plane_strips(pieces, finer)
    else:
        boundary, (x, weight) = pieces.surface_rule(), _solid_strips(shape, finer)
    size, *others = [jnp.sum(boundary.weight * boundary.x[:, i] * boundary.normal[:, i]) for i in range(shape.space)]
    apart = jnp.max(jnp.abs(jnp.stack([*others, jnp.sum(weight)]) / jnp.where(size > 0, size, 1.0) - 1))
    apart = apart / ALLOWED[shape.space]
    mismatch = jnp.where(size > 0, jnp.maximum(apart, boundary.mismatch), UNRESOLVED)
    weight = _with_moments(x, weight, boundary, DEGREE[shape.space])
    return joined_rules(Rule(x, jnp.zeros_like(x), weight, mismatch))


def _plane_strips(family: Pieces, finer: int) -> tuple[Array, Array]:
    """Strips of a plane shape: lines along the first coordinate, from one crossing of the boundary to the next."""
    shape, intervals = family.shape, family.curves
    sides = len(family.pieces) * family.sides

    def outline(number: Array, intervals: Intervals) -> tuple[Array, Array, Array]:
        cell, _ = allotted(intervals, OUTLINE + len(intervals.start))
        start, length = intervals.start[cell.interval], intervals.length[cell.interval]
        at = jax.vmap(lambda s: family.at(number, s[None]).x)
        first, last = at(start + length * cell.first), at(start + length * (cell.first + cell.size))
        used = (cell.size > 0) & (length > 0)
        rises = jnp.sign(last[:, 1] - first[:, 1])
        turns = (cell.first == 0) | (rises != jnp.roll(rises, 1))
        stops = cell.first + 1.5 * cell.size > 1
        critical = [jnp.where(used & turns, first[:, 1], jnp.inf), jnp.where(used & stops, last[:, 1], jnp.inf)]
        unused = jnp.where(used, 0.0, jnp.nan)[:, None]
        return first + unused, last + unused, jnp.concatenate(critical)

    a, b, critical = jax.vmap(outline)(jnp.arange(len(family.pieces)), intervals)
    a, b = a.reshape(-1, 2), b.reshape(-1, 2)
    low, high = jnp.nanmin(a[:, 1]), jnp.nanmax(a[:, 1])

    def along(height: Array) -> Intervals:
        crosses = (a[:, 1] > height) != (b[:, 1] > height)
        chosen = first_true(crosses, CROSSINGS)
        real = chosen < len(a)
        first, last = a[chosen % len(a)], b[chosen % len(a)]
        share = (height - first[:, 1]) / jnp.where(first[:, 1] == last[:, 1], 1.0, last[:, 1] - first[:, 1])
        x = first[:, 0] + share * (last[:, 0] - first[:, 0])
        last_x = jnp.max(jnp.where(real, x, -jnp.inf))
        x = jnp.where(real, x, jnp.where(jnp.any(crosses), last_x, 0.0))
        return between(x, lambda value: shape.distance(jnp.stack([value, height])) < 0, jnp.ones((), bool))

    across = int(np.clip(sides, ACROSS, MOST_ACROSS))
    lines = 3 if across < MOST_ACROSS else 2
    slabs = _slabs(critical.reshape(-1), low, high)
    x, weight, _ = strips_rule(slabs, along, finer * across, finer * ALONG, lines)
    return x[:, ::-1], weight


def _slabs(critical: Float[Array, " places"], low: Array, high: Array) -> Intervals:
    """Slabs between critical heights that are not close to each other; one slab if there are too many."""
    ordered = jnp.sort(jnp.concatenate([critical, jnp.stack([low, high])]))
    apart = jnp.append(jnp.array(True), jnp.diff(ordered) > 1e-4 * (high - low)) & jnp.isfinite(ordered)
    chosen = first_true(apart, CRITICAL)
    places = jnp.where(chosen < len(ordered), ordered[chosen % len(ordered)], high)
    places = jnp.where(jnp.sum(apart) > CRITICAL, jnp.where(jnp.arange(CRITICAL) == 0, low, high), places)
    return Intervals(places, jnp.append(jnp.diff(places), high - places[-1]), jnp.ones((), bool))


def _solid_strips(shape: Shape, finer: int) -> tuple[Array, Array]:
    """Sections of a solid at values of the first coordinate, each by strips."""
    low, high = map(jnp.asarray, shape.bounds)
    cells = finer * SOLID_ACROSS
    nodes, weights = gauss(3)
    t = ((np.arange(cells)[:, None] + nodes) / cells).reshape(-1)
    first, share = t**2 * (3 - 2 * t), np.tile(weights / cells, cells) * 6 * t * (1 - t)

    def section(unit: Array) -> tuple[Array, Array]:
        def at(units: Array) -> Array:
            return low + jnp.append(unit[None], units) * (high - low)

        units, weight, _ = unit_square_rule(
            lambda units: shape.distance(at(units)) < 0, jnp.zeros(0), finer, (SOLID_ACROSS, SOLID_ALONG), SOLID_SAMPLES
        )
        return jax.vmap(at)(units), weight

    x, weight = jax.lax.map(section, jnp.asarray(first))
    weight = weight * share[:, None] * jnp.prod(high - low)
    return x.reshape(-1, 3), weight.reshape(-1)


def _with_moments(
    x: Float[Array, "nodes space"], weight: Float[Array, " nodes"], boundary: Rule, degree: int
) -> Float[Array, " nodes"]:
    """The nearest weights with which polynomials are integrated exactly: their integrals follow from the boundary."""
    space = x.shape[1]
    used = boundary.weight != 0
    low = jnp.min(jnp.where(used[:, None], boundary.x, jnp.inf), axis=0)
    high = jnp.max(jnp.where(used[:, None], boundary.x, -jnp.inf), axis=0)
    index = np.array([i for i in itertools.product(range(degree + 1), repeat=space) if sum(i) <= degree]).T

    def polynomials(points: Array) -> Array:
        return _legendre((2 * points - low - high) / (high - low), degree + 1)

    def products(first: Array, rest: Array) -> Array:
        return jnp.prod(jnp.stack([first[index[0]], *(rest[index[i], :, i] for i in range(1, space))]), axis=0)

    edge, inner = polynomials(boundary.x), polynomials(x)
    count = np.arange(1, degree + 1)[:, None]
    primitive = jnp.concatenate([edge[1:2, :, 0], (edge[2:, :, 0] - edge[:-2, :, 0]) / (2 * count + 1)])
    half = (high - low)[0] / 2
    moments = half * products(primitive, edge) @ (boundary.weight * boundary.normal[:, 0])
    rows = products(inner[:, :, 0], inner)
    size = jnp.maximum(jnp.sum(weight), 1e-300)
    values, vectors = jnp.linalg.eigh((rows * weight) @ rows.T / size)
    missing = vectors.T @ (moments - rows @ weight) / size
    factors = jnp.where(values > SMALLEST * values[-1], missing / jnp.maximum(values, 1e-300), 0.0)
    return weight * (1 + (vectors @ factors) @ rows)


def _legendre(x: Float[Array, "nodes space"], degree: int) -> Float[Array, "degrees nodes space"]:
    """Legendre's polynomials up to a degree."""
    rows = [jnp.ones_like(x), x]
    for n in range(1, degree):
        rows.append(((2 * n + 1) * x * rows[n] - n * rows[n - 1]) / (n + 1))
    return jnp.stack(rows)
