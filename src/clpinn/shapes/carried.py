"""Pieces of a boundary made of others: drawn into space, turned inside out, moved, renamed."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from clpinn.shapes.pieces import Bounds, OnPiece, Piece, largest, positive


class Cap(Piece):
    """A plane shape at a height: an end of an extruded shape. `bounds` is a box around the plane shape."""

    shape: eqx.Module
    bounds: Bounds
    height: Float[Array, ""]
    upwards: bool = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)

    @property
    def bound(self) -> Array:
        low, high = self.bounds
        return jnp.prod(high - low)

    def within(self, bounds: Bounds) -> "Cap":
        low, high = (jnp.where(jnp.isfinite(own), own, end[:2]) for own, end in zip(self.bounds, bounds, strict=True))
        return Cap(self.shape, (low, high), self.height, self.upwards, self.names)

    def at(self, unit: Array) -> OnPiece:
        low, high = self.bounds
        flat = low + unit * (high - low)
        normal = jnp.array([0.0, 0.0, 1.0 if self.upwards else -1.0])
        return OnPiece(jnp.append(flat, self.height), normal, jnp.where(self._covers(flat, 0.0), self.bound, 0.0))

    def _covers(self, flat: Array, step: Any) -> Array:
        return self.shape.distance(flat) <= step  # pyright: ignore[reportAttributeAccessIssue]

    def factor(self, x: Array, outside: bool = False) -> Array:
        """The distance to the plane of the cap."""
        below = self.height - x[2] if self.upwards else x[2] - self.height
        return positive(below, jnp.abs(self.height) + largest(x), outside)

    def passes(self, x: Array, normal: Array, step: Array) -> Array:
        same = normal[2] > 0.5 if self.upwards else normal[2] < -0.5
        return same & (jnp.abs(x[2] - self.height) < step) & self._covers(x[:2], step)


class Wall(Piece):
    """A piece of a plane boundary, drawn up from `low` to `high`."""

    piece: Piece
    low: Float[Array, ""]
    high: Float[Array, ""]

    @property
    def names(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.piece.names

    @property
    def bound(self) -> Array:
        return self.piece.bound * (self.high - self.low)

    @property
    def breaks(self) -> Array:
        return self.piece.breaks

    def within(self, bounds: Bounds) -> "Wall":
        return Wall(self.piece.within((bounds[0][:2], bounds[1][:2])), self.low, self.high)

    def at(self, unit: Array) -> OnPiece:
        x, normal, stretch = self.piece.at(unit[:1])
        height = self.high - self.low
        return OnPiece(jnp.append(x, self.low + unit[1] * height), jnp.append(normal, 0.0), stretch * height)

    def factor(self, x: Array, outside: bool = False) -> Array:
        return self.piece.factor(x[:2], outside)

    def passes(self, x: Array, normal: Array, step: Array) -> Array:
        along = (self.low - step < x[2]) & (x[2] < self.high + step)
        return along & self.piece.passes(x[:2], normal[:2], step)


class Flipped(Piece):
    """A piece of a shape that is cut out: its normal points into that shape."""

    piece: Piece

    @property
    def names(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.piece.names

    @property
    def bound(self) -> Array:
        return self.piece.bound

    @property
    def breaks(self) -> Array:
        return self.piece.breaks

    def within(self, bounds: Bounds) -> Piece:
        return Flipped(self.piece.within(bounds))

    def at(self, unit: Array) -> OnPiece:
        x, normal, stretch = self.piece.at(unit)
        return OnPiece(x, -normal, stretch)

    def factor(self, x: Array, outside: bool = False) -> Array:
        return self.piece.factor(x, not outside)

    def passes(self, x: Array, normal: Array, step: Array) -> Array:
        return self.piece.passes(x, -normal, step)


class Motion(eqx.Module):
    """x -> offset + scale × rotation @ x."""

    offset: Float[Array, " space"]
    rotation: Float[Array, "space space"]
    scale: Float[Array, ""]

    def __call__(self, x: Array) -> Array:
        return self.offset + self.scale * (self.rotation @ x)

    def back(self, x: Array) -> Array:
        return self.rotation.T @ (x - self.offset) / self.scale

    def box(self, bounds: Bounds) -> Bounds:
        """A box around a box that is moved; infinite where that box is infinite along any coordinate."""
        low, high = bounds
        finite = jnp.all(jnp.isfinite(low) & jnp.isfinite(high))
        low, high = jnp.where(finite, low, 0.0), jnp.where(finite, high, 0.0)
        middle = self((low + high) / 2)
        half = jnp.where(finite, self.scale * (jnp.abs(self.rotation) @ (high - low)) / 2, jnp.inf)
        return middle - half, middle + half

    @property
    def inverse(self) -> "Motion":
        return Motion(-(self.rotation.T @ self.offset) / self.scale, self.rotation.T, 1 / self.scale)


class MovedPiece(Piece):
    """A piece after a motion."""

    piece: Piece
    motion: Motion

    @property
    def names(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.piece.names

    @property
    def _stretch(self) -> Array:
        return self.motion.scale ** (len(self.motion.offset) - 1)

    @property
    def bound(self) -> Array:
        return self.piece.bound * self._stretch

    @property
    def breaks(self) -> Array:
        return self.piece.breaks

    def within(self, bounds: Bounds) -> Piece:
        return MovedPiece(self.piece.within(self.motion.inverse.box(bounds)), self.motion)

    def at(self, unit: Array) -> OnPiece:
        x, normal, stretch = self.piece.at(unit)
        return OnPiece(self.motion(x), self.motion.rotation @ normal, stretch * self._stretch)

    def factor(self, x: Array, outside: bool = False) -> Array:
        return self.motion.scale * self.piece.factor(self.motion.back(x), outside)

    def passes(self, x: Array, normal: Array, step: Array) -> Array:
        return self.piece.passes(self.motion.back(x), self.motion.rotation.T @ normal, step / self.motion.scale)


class Renamed(Piece):
    """A piece with further names."""

    piece: Piece
    names: tuple[str, ...] = eqx.field(static=True)

    @property
    def bound(self) -> Array:
        return self.piece.bound

    @property
    def breaks(self) -> Array:
        return self.piece.breaks

    def within(self, bounds: Bounds) -> Piece:
        return Renamed(self.piece.within(bounds), self.names)

    def at(self, unit: Array) -> OnPiece:
        return self.piece.at(unit)

    def factor(self, x: Array, outside: bool = False) -> Array:
        return self.piece.factor(x, outside)

    def passes(self, x: Array, normal: Array, step: Array) -> Array:
        return self.piece.passes(x, normal, step)
