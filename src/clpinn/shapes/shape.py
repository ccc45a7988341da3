"""What all shapes share: membership, boundary, and how they are combined and moved.

A shape is a pytree built for one theta inside a traced computation, so that every row of a batch may have its own. Its
structure must not depend on theta, its numbers may.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from clpinn.errors import DomainError
from clpinn.shapes.carried import Flipped, Motion, MovedPiece, Renamed
from clpinn.shapes.pieces import Bounds, Piece

INTERFACE_END = 1e-5
"""Interfaces end this fraction of the extent before the boundary of the domain: a part may share a side with it."""


class Shape(eqx.Module):
    """A part of the plane or of space. Combine shapes with `-` (cut out), `|` (join) and `&` (what both cover)."""

    @property
    @abstractmethod
    def space(self) -> int:
        """The number of coordinates."""

    @property
    @abstractmethod
    def bounds(self) -> Bounds:
        """A box around the shape; infinite where the shape is."""

    @abstractmethod
    def distance(self, x: Float[Array, " space"]) -> Float[Array, ""]:
        """Negative inside, positive outside, zero on the boundary; near the boundary about the distance to it."""

    @abstractmethod
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces that the boundary is a part of: some of a combined shape's are inside or outside it in places."""

    def mistake(self) -> str | None:
        """What is wrong with the numbers of the shape, if anything; they must be known."""
        return None

    def joined(self, cut_out: bool) -> Iterator["Shape"]:
        """The parts for which the factor of a piece is zero inside the shape, or outside of it, away from the piece."""
        return iter(())

    def interfaces(self) -> tuple["Shape", ...]:
        """The parts inside the shape whose boundary is an interface, see `split`."""
        return ()

    @property
    def names(self) -> list[str]:
        """The names of the pieces of the boundary."""
        return list(dict.fromkeys(name for piece in self.pieces() for name in piece.names))

    # Combinations ------------------------------------------------------------------------------------------------

    def __sub__(self, other: "Shape") -> "Shape":
        return Combined(self, _same_space(self, other), "without")

    def __or__(self, other: "Shape") -> "Shape":
        return Combined(self, _same_space(self, other), "or")

    def __and__(self, other: "Shape") -> "Shape":
        return Combined(self, _same_space(self, other), "and")

    def split(self, part: "Shape") -> "Shape":
        """The same domain in two parts: the boundary of `part` is an interface inside it, with a name of its own.

        On an interface the normal points out of `part`. Pieces of it that are outside of the domain do not count.
        """
        names = _same_space(self, part).names
        if {*names} <= {*self.names, *interface_names(self)}:
            raise DomainError(
                f"An interface needs a name of its own, but the domain has {', '.join(names)}, too. Name the part: "
                'cl.Disk((0, 0), 1, name="interface").'
            )
        return Split(self, part)

    # Motions -----------------------------------------------------------------------------------------------------

    def translate(self, *by: ArrayLike) -> "Shape":
        """The shape moved by an offset along each coordinate: `shape.translate(1, 0)`."""
        offset = numbers(by, self.space, "translate")
        return self._moved(Motion(offset, _unturned(self.space), number(1.0)))

    def rotate(self, angle: ArrayLike, centre: Any = None, axis: Any = None) -> "Shape":
        """The shape turned anticlockwise by an angle in radians around a centre, by default the origin.

        In space it turns around the direction `axis`, by default that of the third coordinate.
        """
        if self.space == 2:
            turn = number(angle)
            cosine, sine = library(turn).cos(turn), library(turn).sin(turn)
            rotation = _matrix([[cosine, -sine], [sine, cosine]])
        else:
            rotation = _rotation(number(angle), numbers((0.0, 0.0, 1.0) if axis is None else axis, 3, "The axis"))
        middle = numbers(np.zeros(self.space) if centre is None else centre, self.space, "The centre")
        return self._moved(Motion(middle - rotation @ middle, rotation, number(1.0)))

    def scale(self, factor: ArrayLike, centre: Any = None) -> "Shape":
        """The shape made larger by a factor, the same in all directions, seen from a centre, by default the origin."""
        middle = numbers(np.zeros(self.space) if centre is None else centre, self.space, "The centre")
        return self._moved(Motion(middle * (1 - number(factor)), _unturned(self.space), number(factor)))

    def _moved(self, motion: Motion) -> "Shape":
        return Moved(self, motion)

    def named(self, name: str, *pieces: str) -> "Shape":
        """The same shape, some pieces of whose boundary have one more name; all of them if none is given."""
        unknown = [piece for piece in pieces if piece not in self.names]
        if unknown:
            raise DomainError(unknown_names(unknown, self.names))
        return Named(self, name, pieces)


def interface_names(shape: Shape) -> list[str]:
    """The names of the interfaces inside a shape, without those that its boundary has, too."""
    names = dict.fromkeys(name for part in shape.interfaces() for name in part.names)
    return [name for name in names if name not in shape.names]


def unknown_names(unknown: list[str], known: list[str]) -> str:
    """What to say of names that no piece of a boundary has."""
    return (
        f"No piece of the boundary is called {', '.join(map(repr, unknown))}. The boundary has {', '.join(known)}. "
        "Use one of these names, or give a shape one with name=..."
    )


class Combined(Shape):
    """Two shapes as one: `first - second`, `first | second` or `first & second`."""

    first: Shape
    second: Shape
    kind: str = eqx.field(static=True)

    @property
    def space(self) -> int:
        return self.first.space

    @property
    def bounds(self) -> Bounds:
        (low, high), (other_low, other_high) = self.first.bounds, self.second.bounds
        if self.kind == "without":
            return low, high
        if self.kind == "or":
            return jnp.minimum(low, other_low), jnp.maximum(high, other_high)
        return jnp.maximum(low, other_low), jnp.minimum(high, other_high)

    def distance(self, x: Array) -> Array:
        first, second = self.first.distance(x), self.second.distance(x)
        if self.kind == "or":
            return jnp.minimum(first, second)
        return jnp.maximum(first, -second if self.kind == "without" else second)

    def pieces(self) -> tuple[Piece, ...]:
        first, second = ([piece.within(self.bounds) for piece in part.pieces()] for part in (self.first, self.second))
        return (*first, *(map(Flipped, second) if self.kind == "without" else second))

    def mistake(self) -> str | None:
        return self.first.mistake() or self.second.mistake()

    def interfaces(self) -> tuple[Shape, ...]:
        second = () if self.kind == "without" else self.second.interfaces()
        return tuple(Within(part, self) for part in (*self.first.interfaces(), *second))


class Wrapped(Shape):
    """A shape made of another one, which answers what is not said here."""

    shape: Shape

    @property
    def space(self) -> int:
        return self.shape.space

    @property
    def bounds(self) -> Bounds:
        return self.shape.bounds

    def distance(self, x: Array) -> Array:
        return self.shape.distance(x)

    def pieces(self) -> tuple[Piece, ...]:
        return self.shape.pieces()

    def mistake(self) -> str | None:
        return self.shape.mistake()

    def interfaces(self) -> tuple[Shape, ...]:
        return self.shape.interfaces()


class Split(Wrapped):
    """A shape with a part whose boundary is an interface."""

    part: Shape

    def mistake(self) -> str | None:
        return self.shape.mistake() or self.part.mistake()

    def joined(self, cut_out: bool) -> Iterator[Shape]:
        return joined_parts(self.shape, cut_out)

    def interfaces(self) -> tuple[Shape, ...]:
        return (*self.shape.interfaces(), Within(self.part, self.shape))


class Moved(Wrapped):
    """A shape after a motion."""

    motion: Motion

    @property
    def bounds(self) -> Bounds:
        return self.motion.box(self.shape.bounds)

    def distance(self, x: Array) -> Array:
        return self.motion.scale * self.shape.distance(self.motion.back(x))

    def pieces(self) -> tuple[Piece, ...]:
        return tuple(MovedPiece(piece, self.motion) for piece in self.shape.pieces())

    def interfaces(self) -> tuple[Shape, ...]:
        return tuple(Moved(part, self.motion) for part in self.shape.interfaces())

    def mistake(self) -> str | None:
        if not self.motion.scale > 0:
            return f"a shape is scaled by a factor above zero, but the factor is {float(self.motion.scale):g}"
        return self.shape.mistake()


class Named(Wrapped):
    """A shape with one more name for some pieces of its boundary, or for all of them."""

    name: str = eqx.field(static=True)
    chosen: tuple[str, ...] = eqx.field(static=True)

    def pieces(self) -> tuple[Piece, ...]:
        def chosen(piece: Piece) -> bool:
            return not self.chosen or bool(set(self.chosen) & set(piece.names))

        pieces = self.shape.pieces()
        return tuple(Renamed(piece, (*piece.names, self.name)) if chosen(piece) else piece for piece in pieces)


class Within(Shape):
    """What of a part is well inside a domain. Its pieces are those of the part."""

    part: Shape
    domain: Shape

    @property
    def space(self) -> int:
        return self.domain.space

    @property
    def bounds(self) -> Bounds:
        return self.domain.bounds

    @property
    def names(self) -> list[str]:
        return self.part.names

    def distance(self, x: Array) -> Array:
        low, high = self.bounds
        end = INTERFACE_END * jnp.linalg.norm(high - low)
        return jnp.maximum(self.part.distance(x), self.domain.distance(x) + end)

    def pieces(self) -> tuple[Piece, ...]:
        return tuple(piece.within(self.bounds) for piece in self.part.pieces())


# Hard conditions ---------------------------------------------------------------------------------------------------


def vanishing_on(shape: Shape, names: tuple[str, ...]) -> Callable[[Array], Array]:
    """A smooth factor of a point: zero on the named pieces (all without names), positive elsewhere in the shape."""
    wanted = set(names or shape.names)
    unknown = [name for name in names if name not in shape.names]
    if unknown:
        raise DomainError(unknown_names(unknown, shape.names))
    for joined in joined_parts(shape):
        hidden = wanted & set(joined.names)
        if hidden:
            raise DomainError(
                f"A factor that vanishes on {', '.join(sorted(hidden))} would vanish inside the domain, too: shapes "
                "that are joined with | may hide a part of it, as may pieces of what is cut out with - if that is "
                "itself a cut shape, a solid with edges or a surface of triangles. In the plane draw the outline as "
                "one cl.Polygon."
            )
    chosen = [piece for piece in shape.pieces() if wanted & set(piece.names)]

    def factor(x: Array) -> Array:
        return jnp.prod(jnp.stack([piece.factor(x) for piece in chosen]))

    return factor


def joined_parts(shape: Shape, cut_out: bool = False) -> Iterator[Shape]:
    """The parts of a shape some of whose pieces may lie inside the whole, which is what is outside of it if cut out."""
    if isinstance(shape, Combined):
        # Outside of what both cover is outside of the one or of the other.
        if shape.kind == "or" if not cut_out else shape.kind != "or":
            yield shape
        else:
            yield from joined_parts(shape.first, cut_out)
            yield from joined_parts(shape.second, cut_out != (shape.kind == "without"))
    elif isinstance(shape, Named):
        for part in joined_parts(shape.shape, cut_out):
            yield Named(part, shape.name, shape.chosen)
    elif isinstance(shape, Moved):
        yield from joined_parts(shape.shape, cut_out)
    else:
        yield from shape.joined(cut_out)


# Numbers -----------------------------------------------------------------------------------------------------------


def _same_space(first: Shape, second: object) -> Shape:
    if not isinstance(second, Shape):
        raise DomainError(f"A shape is combined with a shape such as cl.Disk((0, 0), 1), but got {second!r}.")
    if second.space != first.space:
        raise DomainError(f"A shape in {first.space} coordinates cannot be combined with one in {second.space}.")
    return second


def numbers(values: Any, count: int, label: str) -> Any:
    """A row of numbers, each of which may depend on theta: a NumPy array in double precision if none does."""
    values = list(values) if isinstance(values, tuple | list) or jnp.ndim(values) else [values]
    if any(isinstance(value, tuple | list) or jnp.ndim(value) for value in values):
        raise DomainError(f"{label} needs numbers, but got {values}.")
    if len(values) != count:
        raise DomainError(f"{label} needs {count} numbers, one for each coordinate, but got {len(values)}.")
    rows = [number(value) for value in values]
    return np.array(rows) if all(isinstance(row, np.ndarray) for row in rows) else jnp.stack([*map(jnp.asarray, rows)])


def number(value: ArrayLike) -> Any:
    """A number that may depend on theta: a NumPy array in double precision if it does not."""
    return jnp.asarray(value) if isinstance(value, jax.Array) else np.asarray(value, float)


def _unturned(space: int) -> Any:
    return np.eye(space)


def library(*values: Any) -> Any:
    """NumPy for numbers that do not depend on theta, so that they stay in double precision; jax.numpy for others."""
    return jnp if any(isinstance(value, jax.Array) for value in values) else np


def _matrix(rows: list[list[Any]]) -> Any:
    stack = library(*(value for row in rows for value in row)).stack
    return stack([stack(row) for row in rows])


def _rotation(angle: Any, axis: Any) -> Any:
    """Rodrigues' formula."""
    x, y, z = axis / library(axis).linalg.norm(axis)
    cross = _matrix([[0 * x, -z, y], [z, 0 * x, -x], [-y, x, 0 * x]])
    cosine, sine = library(angle).cos(angle), library(angle).sin(angle)
    return np.eye(3) + sine * cross + (1 - cosine) * (cross @ cross)
