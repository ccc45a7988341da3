"""Pieces of a boundary: curves in the plane and surfaces in space, each with its exact normals and measure.

A piece is a map from the unit interval or square. `stretch` is what the map multiplies lengths or areas by. It is at
most `bound`, so a point that is kept with the probability stretch / bound is uniform on the piece.
"""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

TIE = 1e-9
"""A point counts as on the inner side of a piece up to this fraction of the piece's size and of the coordinates, and up
to a few roundings."""

TINY = 1e-30
"""Keeps the derivatives of a root finite at a corner."""

Bounds = tuple[Float[Array, " space"], Float[Array, " space"]]
"""The lowest and the highest value of each coordinate."""


class OnPiece(NamedTuple):
    """A point of a piece."""

    x: Float[Array, " space"]
    normal: Float[Array, " space"]
    """Unit normal, out of the shape."""
    stretch: Float[Array, ""]


class Piece(eqx.Module):
    """A part of a boundary with one or more names."""

    if TYPE_CHECKING:  # not a field: subclasses have it behind their own ones

        @property
        def names(self) -> tuple[str, ...]: ...
    else:
        names: eqx.AbstractVar[tuple[str, ...]]

    @property
    @abstractmethod
    def bound(self) -> Float[Array, ""]:
        """The measure of the piece, or more: the largest stretch."""

    @property
    def breaks(self) -> Float[Array, " breaks"]:
        """Where the first unit number meets a corner or an edge: the map is smooth between these numbers."""
        return jnp.zeros(0)

    @abstractmethod
    def at(self, unit: Float[Array, " unit"]) -> OnPiece:
        """The point that belongs to a point of the unit interval (1 number) or square (2 numbers)."""

    @abstractmethod
    def factor(self, x: Float[Array, " space"], outside: bool = False) -> Float[Array, ""]:
        """A smooth function of a point: zero on the piece, positive elsewhere, about the distance near the piece.

        Its slope on the piece is that of the inner side, or of the outer one: points of a boundary are inexact.
        """

    @abstractmethod
    def passes(self, x: Float[Array, " space"], normal: Float[Array, " space"], step: Array) -> Bool[Array, ""]:
        """Whether the piece passes through a point, up to a step, with the shape on the same side."""

    def within(self, bounds: Bounds) -> "Piece":
        """The piece, cut to a box if it is infinite."""
        return self


class Sides(Piece):
    """Straight sides from starts to ends (sides, 2). The shape is to their left."""

    starts: Float[Array, "sides 2"]
    ends: Float[Array, "sides 2"]
    names: tuple[str, ...] = eqx.field(static=True)

    @property
    def _lengths(self) -> Float[Array, " sides"]:
        return _norm(self.ends - self.starts)

    @property
    def bound(self) -> Array:
        return jnp.sum(self._lengths)

    @property
    def breaks(self) -> Array:
        until = jnp.cumsum(self._lengths)
        return until[:-1] / until[-1]

    def at(self, unit: Array) -> OnPiece:
        lengths = self._lengths
        until = jnp.cumsum(lengths)
        along = unit[0] * until[-1]
        side = jnp.clip(jnp.searchsorted(until, along, side="right"), 0, len(lengths) - 1)
        share = jnp.clip((along - until[side] + lengths[side]) / lengths[side], 0, 1)
        start, way = (jnp.asarray(rows)[side] for rows in (self.starts, self.ends - self.starts))
        normal = jnp.stack([way[1], -way[0]]) / lengths[side]
        return OnPiece(start + share * way, normal, until[-1])

    def factor(self, x: Array, outside: bool = False) -> Array:
        """A product of normalised, trimmed distances (Sukumar and Srivastava 2022, arXiv:2104.08426, section 3)."""
        lengths = self._lengths
        way = (self.ends - self.starts) / lengths[:, None]
        offset = x - self.starts
        f = offset[:, 1] * way[:, 0] - offset[:, 0] * way[:, 1]  # distance to the line, positive on the shape's side
        middle = x - (self.starts + self.ends) / 2
        t = lengths / 4 - jnp.sum(middle**2, axis=1) / lengths  # positive in the circle around the side
        distances = _trimmed(positive(f, lengths + largest(x), outside), t)
        # Each factor tends to one away from its side, so that many of them do not vanish together.
        reach = jnp.sum(lengths) / (2 * len(lengths))
        return reach * jnp.prod(distances / jnp.sqrt(distances**2 + reach**2))

    def passes(self, x: Array, normal: Array, step: Array) -> Array:
        way, offset = self.ends - self.starts, x - self.starts
        share = jnp.clip(jnp.sum(offset * way, axis=1) / jnp.sum(way**2, axis=1), 0, 1)
        near = _norm(offset - share[:, None] * way) < step
        return jnp.any(near & (way[:, 1] * normal[0] - way[:, 0] * normal[1] > 0))


class Line(Piece):
    """The edge of a half-plane: through `point`, at right angles to its `normal`, from `middle` so far both ways."""

    point: Float[Array, " 2"]
    normal: Float[Array, " 2"]
    middle: Float[Array, ""]
    half: Float[Array, ""]
    names: tuple[str, ...] = eqx.field(static=True)

    @property
    def _way(self) -> Float[Array, " 2"]:
        return jnp.stack([-self.normal[1], self.normal[0]])

    @property
    def bound(self) -> Array:
        return 2 * self.half

    def within(self, bounds: Bounds) -> "Line":
        low, high = bounds
        finite = jnp.all(jnp.isfinite(low) & jnp.isfinite(high))
        centre = jnp.where(finite, (low + high) / 2, 0.0)
        middle = jnp.where(finite, (centre - self.point) @ self._way, self.middle)
        half = jnp.where(finite, _norm(jnp.where(finite, high - low, 0.0)) / 2, self.half)
        return Line(self.point, self.normal, middle, half, names=self.names)

    def at(self, unit: Array) -> OnPiece:
        along = self.middle + (2 * unit[0] - 1) * self.half
        return OnPiece(self.point + along * self._way, self.normal, self.bound)

    def factor(self, x: Array, outside: bool = False) -> Array:
        """The distance to the line."""
        return positive((self.point - x) @ self.normal, largest(self.point) + largest(x), outside)

    def passes(self, x: Array, normal: Array, step: Array) -> Array:
        return (jnp.abs((self.point - x) @ self.normal) < step) & (self.normal @ normal > 0)


class Arc(Piece):
    """A part of an ellipse around `centre` with half axes `radii`, anticlockwise from angle `start` over `span`.

    `whole` says that it is all of the ellipse.
    """

    centre: Float[Array, " 2"]
    radii: Float[Array, " 2"]
    start: Float[Array, ""]
    span: Float[Array, ""]
    names: tuple[str, ...] = eqx.field(static=True)
    whole: bool = eqx.field(static=True, default=False)

    @property
    def bound(self) -> Array:
        return self.span * jnp.max(self.radii)

    def at(self, unit: Array) -> OnPiece:
        angle = self.start + unit[0] * self.span
        cosine, sine = jnp.cos(angle), jnp.sin(angle)
        a, b = self.radii
        speed = jnp.sqrt((a * sine) ** 2 + (b * cosine) ** 2)
        normal = jnp.stack([b * cosine, a * sine]) / speed
        return OnPiece(self.centre + self.radii * jnp.stack([cosine, sine]), normal, self.span * speed)

    def factor(self, x: Array, outside: bool = False) -> Array:
        """Positive inside the ellipse and outside. An arc is trimmed by its chord."""
        offset, size = (x - self.centre) / self.radii, jnp.min(self.radii)
        level = _level(jnp.sum(offset**2), 1 + largest(x) / size, outside)
        if self.whole:
            return size * level
        half = self.span / 2
        beyond = offset @ jnp.stack([jnp.cos(self.start + half), jnp.sin(self.start + half)]) - jnp.cos(half)
        return size * _trimmed(level, beyond)

    def passes(self, x: Array, normal: Array, step: Array) -> Array:
        offset = (x - self.centre) / self.radii
        slope = offset / self.radii
        near = jnp.abs(jnp.sum(offset**2) - 1) < 2 * step * _norm(slope)
        turn = jnp.mod(jnp.arctan2(offset[1], offset[0]) - self.start, 2 * jnp.pi)
        return near & (slope @ normal > 0) & (self.whole | (turn < self.span))


class Sphere(Piece):
    """The surface of a ball."""

    centre: Float[Array, " 3"]
    radius: Float[Array, ""]
    names: tuple[str, ...] = eqx.field(static=True)

    @property
    def bound(self) -> Array:
        return 4 * jnp.pi * self.radius**2

    def at(self, unit: Array) -> OnPiece:
        height, angle = 2 * unit[0] - 1, 2 * jnp.pi * unit[1]
        around = jnp.sqrt(jnp.maximum(1 - height**2, 0))
        normal = jnp.stack([around * jnp.cos(angle), around * jnp.sin(angle), height])
        return OnPiece(self.centre + self.radius * normal, normal, self.bound)

    def factor(self, x: Array, outside: bool = False) -> Array:
        squares = jnp.sum(((x - self.centre) / self.radius) ** 2)
        return self.radius * _level(squares, 1 + largest(x) / self.radius, outside)

    def passes(self, x: Array, normal: Array, step: Array) -> Array:
        offset = x - self.centre
        return (jnp.abs(_norm(offset) - self.radius) < step) & (offset @ normal > 0)


class Facets(Piece):
    """Triangles with corners (triangles, 3, 3), anticlockwise as seen from outside."""

    corners: Float[Array, "triangles 3 3"]
    names: tuple[str, ...] = eqx.field(static=True)

    @property
    def _areas(self) -> Float[Array, " triangles"]:
        return _norm(self._crosses) / 2

    @property
    def _crosses(self) -> Float[Array, "triangles 3"]:
        a, b, c = (self.corners[:, i] for i in range(3))
        return jnp.cross(b - a, c - a)

    @property
    def bound(self) -> Array:
        return jnp.sum(self._areas)

    @property
    def breaks(self) -> Array:
        until = jnp.cumsum(self._areas)
        return until[:-1] / until[-1]

    def at(self, unit: Array) -> OnPiece:
        until = jnp.cumsum(self._areas)
        along = unit[0] * until[-1]
        facet = jnp.clip(jnp.searchsorted(until, along, side="right"), 0, len(until) - 1)
        rest = jnp.clip((until[facet] - along) / self._areas[facet], 0, 1)  # what is left of this number is uniform
        a, b, c = jnp.asarray(self.corners)[facet]
        root = jnp.sqrt(rest)
        normal = jnp.asarray(self._crosses)[facet] / (2 * self._areas[facet])
        return OnPiece((1 - root) * a + root * (1 - unit[1]) * b + root * unit[1] * c, normal, until[-1])

    def factor(self, x: Array, outside: bool = False) -> Array:
        """A smooth mean of the distances to the planes near x; exact on the surface of a convex body only."""
        normals = self._crosses / (2 * self._areas)[:, None]
        reach = jnp.sqrt(self.bound) / 4
        f = positive(-jnp.sum((x - self.corners[:, 0]) * normals, axis=1), reach + largest(x), outside)
        return reach * jnp.prod(f / jnp.sqrt(f**2 + reach**2))

    def passes(self, x: Array, normal: Array, step: Array) -> Array:
        crosses = self._crosses
        normals = crosses / jnp.maximum(_norm(crosses), TINY)[:, None]
        ends = jnp.roll(self.corners, -1, axis=1)
        beside = jnp.cross(normals[:, None], ends - self.corners)  # into the triangle, at right angles to each edge
        depth = jnp.sum((x - self.corners) * beside, axis=2) > -step * _norm(beside)
        near = jnp.abs(jnp.sum((x - self.corners[:, 0]) * normals, axis=1)) < step
        return jnp.any(near & jnp.all(depth, axis=1) & (normals @ normal > 0.5))


def _level(squares: Array, size: Any, outside: bool) -> Array:
    """About the distance to a circle, over its radius: (1 - s²) / 2 inside and s - 1 outside, of squares s²."""
    level = positive(1 - squares, size, outside)
    # Where the outside is meant, no point is near the centre.
    return level / (1 + jnp.sqrt(jnp.maximum(squares, 0.25))) if outside else level / 2


def positive(level: Array, size: Any, outside: bool) -> Array:
    """The absolute value, whose slope at zero is that of the positive side, or of the negative one for the outside.

    `size` is that of the numbers whose difference the level is.
    """
    level = -level if outside else level
    tie = max(TIE, 16 * float(jnp.finfo(level.dtype).eps))
    return jnp.where(level > -tie * size, level, -level)


def _trimmed(f: Array, t: Array) -> Array:
    """sqrt(f² + ((sqrt(t² + f⁴) - t) / 2)²): zero where f is zero and t is not negative, about f there."""
    beside = t > 0
    safe = jnp.where(beside, t, 1.0)
    near = f**3 / (jnp.sqrt(safe**2 + f**4) + safe) / 2  # the second term over f, written without a root at the piece
    far_t = jnp.where(beside, -1.0, t)
    far = (jnp.sqrt(far_t**2 + f**4 + TINY) - far_t) / 2
    return jnp.where(beside, f * jnp.sqrt(1 + near**2), jnp.sqrt(f**2 + far**2 + TINY))


def largest(x: Array) -> Array:
    return jnp.max(jnp.abs(x))


def _norm(vectors: Float[Array, "... space"]) -> Float[Array, " ..."]:
    return jnp.sqrt(jnp.sum(vectors**2, axis=-1))
