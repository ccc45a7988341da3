"""Shapes in the plane."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from clpinn.errors import DomainError
from clpinn.shapes.carried import Motion
from clpinn.shapes.pieces import Arc, Bounds, Line, Piece, Sides
from clpinn.shapes.shape import Shape, library, number, numbers

SIDES = ("bottom", "right", "top", "left")
"""The sides of a rectangle, anticlockwise."""


class Rectangle(Shape):
    """`cl.Rectangle(x=(0, 4), y=(-1, 1))`, with the sides "left", "right", "bottom" and "top".

    The axes have the names of the problem's coordinates, in their order: the first is from left to right. With a
    `name`, such as "notch", all sides have this name, too.
    """

    low: Float[Array, " 2"]
    high: Float[Array, " 2"]
    name: str | None = eqx.field(static=True)
    sides: tuple[str, ...] = eqx.field(static=True)
    axes: tuple[str, ...] = eqx.field(static=True)

    def __init__(self, *, name: str | None = None, sides: tuple[str, ...] = SIDES, **axes: Any):
        self.low, self.high = _box(axes, 2, "Rectangle(x=(0, 4), y=(-1, 1))")
        if len(sides) != 4:
            raise DomainError(f"A rectangle has four sides, bottom, right, top and left, but got the names {sides}.")
        self.name, self.sides, self.axes = name, sides, tuple(axes)

    @property
    def space(self) -> int:
        return 2

    @property
    def bounds(self) -> Bounds:
        return self.low, self.high

    def distance(self, x: Array) -> Array:
        return _box_distance(x, self.low, self.high)

    def pieces(self) -> tuple[Piece, ...]:
        (left, bottom), (right, top) = self.low, self.high
        corners = [jnp.stack(corner) for corner in ((left, bottom), (right, bottom), (right, top), (left, top))]
        return tuple(
            Sides(start[None], end[None], names=_names(side, self.name))
            for side, start, end in zip(self.sides, corners, [*corners[1:], corners[0]], strict=True)
        )

    def mistake(self) -> str | None:
        return _box_mistake(self.low, self.high, "a rectangle")


class Ellipse(Shape):
    """`cl.Ellipse((0, 0), (2, 1))`: the centre and the half axes. Its boundary is called "ellipse", or `name`."""

    centre: Float[Array, " 2"]
    radii: Float[Array, " 2"]
    name: str = eqx.field(static=True)

    def __init__(self, centre: Any, radii: Any, name: str = "ellipse"):
        self.centre, self.radii = numbers(centre, 2, "The centre"), numbers(radii, 2, "An ellipse's half axes")
        self.name = name

    @property
    def space(self) -> int:
        return 2

    @property
    def bounds(self) -> Bounds:
        return self.centre - self.radii, self.centre + self.radii

    def distance(self, x: Array) -> Array:
        return (jnp.linalg.norm((x - self.centre) / self.radii) - 1) * jnp.min(self.radii)

    def pieces(self) -> tuple[Piece, ...]:
        return (Arc(self.centre, self.radii, number(0.0), number(2 * np.pi), (self.name,), whole=True),)

    def mistake(self) -> str | None:
        if not jnp.all(self.radii > 0):
            return f"the radius of {self.name!r} must be above zero, but is {float(jnp.min(self.radii)):g}"
        return None


def Disk(centre: Any, radius: ArrayLike, name: str = "disk") -> Ellipse:
    """`cl.Disk((1, 0), r, name="cylinder")`: the centre and the radius. Its boundary is called "disk", or `name`."""
    if isinstance(radius, tuple | list) or jnp.ndim(radius):
        raise DomainError("A disk has one radius. With two half axes it is an ellipse: cl.Ellipse((0, 0), (2, 1)).")
    return Ellipse(centre, (radius, radius), name)


class Polygon(Shape):
    """`cl.Polygon([(0, 0), (2, 0), (0, 1)])`: the corners one after the other, in either direction.

    Its boundary is called "polygon", or `name`. With `sides`, a name for each side from the first corner on, sides have
    these names, too; several sides may share one.
    """

    corners: Float[Array, "corners 2"]
    name: str = eqx.field(static=True)
    sides: tuple[str, ...] = eqx.field(static=True)

    def __init__(self, corners: Any, name: str = "polygon", sides: Sequence[str] = ()):
        rows = corners if isinstance(corners, np.ndarray | jax.Array) else list(corners)
        if len(rows) > 1 and _known_equal(rows[0], rows[-1]):
            rows = rows[:-1]  # GeoJSON and shapely repeat the first corner
        if len(rows) < 3:
            raise DomainError(f"A polygon needs at least three corners, but got {len(rows)}.")
        if sides and len(sides) != len(rows):
            raise DomainError(f"A polygon with {len(rows)} corners needs as many names of sides, but got {len(sides)}.")
        if isinstance(rows, list):
            given = [numbers(row, 2, "A corner") for row in rows]
            rows = np.stack(given) if all(isinstance(row, np.ndarray) for row in given) else jnp.stack(given)
        elif rows.shape[1:] != (2,):
            raise DomainError(f"The corners of a polygon are rows of two numbers, but got the shape {rows.shape}.")
        numeric: Any = rows.astype(float) if isinstance(rows, np.ndarray) else 1.0 * rows
        self.corners = numeric
        self.name, self.sides = name, tuple(sides)

    @property
    def space(self) -> int:
        return 2

    @property
    def bounds(self) -> Bounds:
        return jnp.min(self.corners, axis=0), jnp.max(self.corners, axis=0)

    @property
    def _ends(self) -> Float[Array, "corners 2"]:
        return jnp.roll(self.corners, -1, axis=0)

    @property
    def _anticlockwise(self) -> Array:
        a, b = self.corners, self._ends
        return jnp.sum(a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]) > 0

    def distance(self, x: Array) -> Array:
        a, b = self.corners, self._ends
        way, offset = b - a, x - a
        share = jnp.clip(jnp.sum(offset * way, axis=1) / jnp.sum(way**2, axis=1), 0, 1)
        nearest = jnp.sqrt(jnp.min(jnp.sum((offset - share[:, None] * way) ** 2, axis=1)))
        # A ray to the right crosses the boundary an odd number of times from inside.
        crosses = (a[:, 1] > x[1]) != (b[:, 1] > x[1])
        height = jnp.where(crosses, way[:, 1], 1.0)
        right = x[0] < a[:, 0] + way[:, 0] * offset[:, 1] / height
        return jnp.where(jnp.sum(crosses & right) % 2 == 1, -nearest, nearest)

    def pieces(self) -> tuple[Piece, ...]:
        forwards, count, pieces = self._anticlockwise, len(self.corners), []
        # Neighbouring sides of one name are one piece.
        sides = self.sides or (None,) * count
        for name, rows in groupby(range(count), key=lambda i: sides[i]):
            chosen = np.array(list(rows))
            a, b = self.corners[chosen], self._ends[chosen]
            starts, ends = jnp.where(forwards, a, b[::-1]), jnp.where(forwards, b, a[::-1])
            pieces.append(Sides(starts, ends, names=(self.name,) if name is None else _names(name, self.name)))
        return tuple(pieces)

    def mistake(self) -> str | None:
        a = np.asarray(self.corners)
        if not np.isfinite(a).all():
            return f"a corner of {self.name!r} is not finite"
        if np.any(np.linalg.norm(a - np.roll(a, -1, axis=0), axis=1) == 0):
            return f"two neighbouring corners of {self.name!r} are the same"
        crossing = _crossing_sides(a)
        if crossing is not None:
            return f"the sides {crossing[0] + 1} and {crossing[1] + 1} of {self.name!r} cross"
        return None


class HalfPlane(Shape):
    """`cl.HalfPlane((0, 0), (0, 1))`: all on the far side of the `normal`, which points outwards, from the `point`.

    It is infinite: combine it with a shape that is not. Its boundary is called "line", or `name`.
    """

    point: Float[Array, " 2"]
    normal: Float[Array, " 2"]
    name: str = eqx.field(static=True)

    def __init__(self, point: Any, normal: Any, name: str = "line"):
        self.point, direction = numbers(point, 2, "The point"), numbers(normal, 2, "The normal")
        self.normal = _unit(direction)
        self.name = name

    @property
    def space(self) -> int:
        return 2

    @property
    def bounds(self) -> Bounds:
        return number(-np.inf) * np.ones(2), number(np.inf) * np.ones(2)

    def distance(self, x: Array) -> Array:
        return jnp.sum((x - self.point) * self.normal)

    def pieces(self) -> tuple[Piece, ...]:
        return (Line(self.point, self.normal, number(0.0), number(np.inf), names=(self.name,)),)

    def _moved(self, motion: Motion) -> Shape:  # stays a half-plane, so that its edge can be cut to what it bounds
        return HalfPlane(motion(self.point), motion.rotation @ self.normal, self.name)

    def mistake(self) -> str | None:
        return None if jnp.all(jnp.isfinite(self.normal)) else f"the normal of {self.name!r} is zero or not finite"


class Sector(Shape):
    """`cl.Sector((0, 0), 1, 0, jnp.pi / 2)`: a slice of a disk, from the first angle anticlockwise to the second.

    Its boundary has the pieces "arc", "start" and "end", which all have the `name` as well, if there is one.
    """

    centre: Float[Array, " 2"]
    radius: Float[Array, ""]
    start: Float[Array, ""]
    span: Float[Array, ""]
    name: str | None = eqx.field(static=True)

    def __init__(self, centre: Any, radius: ArrayLike, start: ArrayLike, end: ArrayLike, name: str | None = None):
        self.centre, self.radius = numbers(centre, 2, "The centre"), number(radius)
        self.start = number(start)
        self.span = number(end) - self.start
        self.name = name

    @property
    def space(self) -> int:
        return 2

    @property
    def bounds(self) -> Bounds:
        ends = jnp.stack([self.start, self.start + self.span])
        quarters = jnp.arange(4) * jnp.pi / 2  # the arc reaches furthest along an axis there, or at its ends
        quarters = jnp.where(jnp.mod(quarters - self.start, 2 * jnp.pi) < self.span, quarters, self.start)
        angles = jnp.concatenate([ends, quarters])
        rim = self.centre + self.radius * jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
        return jnp.minimum(self.centre, jnp.min(rim, axis=0)), jnp.maximum(self.centre, jnp.max(rim, axis=0))

    def distance(self, x: Array) -> Array:
        offset, end = x - self.centre, self.start + self.span
        before = offset[0] * jnp.sin(self.start) - offset[1] * jnp.cos(self.start)
        after = offset[1] * jnp.cos(end) - offset[0] * jnp.sin(end)
        wedge = jnp.where(self.span <= jnp.pi, jnp.maximum(before, after), jnp.minimum(before, after))
        return jnp.maximum(jnp.linalg.norm(offset) - self.radius, wedge)

    def pieces(self) -> tuple[Piece, ...]:
        def rim(angle: Array) -> Array:
            return self.centre + self.radius * jnp.stack([jnp.cos(angle), jnp.sin(angle)])

        radii = jnp.stack([self.radius, self.radius])
        first, last = rim(self.start), rim(self.start + self.span)
        return (
            Arc(self.centre, radii, self.start, self.span, names=_names("arc", self.name)),
            Sides(self.centre[None], first[None], names=_names("start", self.name)),
            Sides(last[None], self.centre[None], names=_names("end", self.name)),
        )

    def mistake(self) -> str | None:
        if not self.radius > 0:
            return f"the radius of a sector must be above zero, but is {float(self.radius):g}"
        if not 0 < self.span < 2 * jnp.pi:
            return f"a sector reaches over an angle between 0 and 2 pi, but this one over {float(self.span):g}"
        return None


def _unit(direction: Any) -> Any:
    with np.errstate(invalid="ignore"):
        return direction / library(direction).linalg.norm(direction)


def _names(own: str, shared: str | None) -> tuple[str, ...]:
    return (own,) if shared is None else (shared, own)


def _box(sides: dict[str, Any], count: int, example: str) -> Bounds:
    """The low and high corner of intervals by axis."""
    pairs = [value for value in sides.values() if isinstance(value, tuple | list) and len(value) == 2]
    if len(sides) != count or len(pairs) != count:
        raise DomainError(f"Expected {count} intervals, as in cl.{example}, but got {sides}.")
    low, high = zip(*pairs, strict=True)
    return numbers(low, count, "The low ends"), numbers(high, count, "The high ends")


def _box_distance(x: Array, low: Array, high: Array) -> Array:
    beyond = jnp.abs(x - (low + high) / 2) - (high - low) / 2
    outside = jnp.maximum(beyond, 0)
    return jnp.sqrt(jnp.sum(outside**2)) + jnp.minimum(jnp.max(beyond), 0)


def _box_mistake(low: Array, high: Array, label: str) -> str | None:
    for a, b in zip(low.tolist(), high.tolist(), strict=True):
        if not a < b:
            return f"{label} needs low < high along each axis, but one is from {a:g} to {b:g}"
    return None


def _known_equal(first: Any, last: Any) -> bool:
    """Whether two corners are the same, as far as this does not depend on theta."""
    if first is last or isinstance(first, jax.Array) or isinstance(last, jax.Array):
        return first is last
    if not all(isinstance(corner, tuple | list | np.ndarray) for corner in (first, last)):
        return False
    return all(
        a is b or not (isinstance(a, jax.Array) or isinstance(b, jax.Array) or a != b) for a, b in zip(first, last)
    )


def _crossing_sides(corners: Float[np.ndarray, "corners 2"]) -> tuple[int, int] | None:
    """Two sides of a polygon that are no neighbours and meet, if there are any."""
    starts, ends, count = corners, np.roll(corners, -1, axis=0), len(corners)

    def turn(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        return np.sign(
            (b[..., 0] - a[..., 0]) * (c[..., 1] - a[..., 1]) - (b[..., 1] - a[..., 1]) * (c[..., 0] - a[..., 0])
        )

    for i in range(count):
        later = np.arange(i + 2, count if i else count - 1)
        a, b, c, d = starts[i], ends[i], starts[later], ends[later]
        apart = turn(a[None], b[None], c) != turn(a[None], b[None], d)
        apart &= turn(c, d, a[None]) != turn(c, d, b[None])
        if apart.any():
            return i, int(later[np.argmax(apart)])
    return None
