"""Where equations and conditions hold: the interior, parts of the boundary, fixed times."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from clpinn.errors import DomainError
from clpinn.formulation.domain import Box, Points, Sampler
from clpinn.keys import Key, split


@dataclass(frozen=True)
class At:
    """The points of a box at which some axes have a fixed value, such as t = 0, or lie in a part of their axis."""

    fixed: tuple[tuple[str, float], ...]
    parts: tuple[tuple[str, tuple[float, float]], ...] = ()
    """The interval of each axis that is not taken whole."""

    def sample(self, box: Box, count: int, key: Key, sampler: Sampler = "sobol") -> Points:
        """`count` points, or a single one if every axis is fixed."""
        fixed = dict(self.fixed)
        box.require([*fixed, *(name for name, _ in self.parts)])
        free = box.without(list(fixed)).narrowed(dict(self.parts))
        drawn = free.sample(count if len(free) else 1, key, sampler)
        columns = {name: drawn[:, i] for i, name in enumerate(free.names)}
        columns |= {name: np.full(len(drawn), value) for name, value in fixed.items()}
        points = np.stack([columns[name] for name in box], axis=1)
        box.check(points, forbid=True)
        return points


@dataclass(frozen=True)
class Boundary:
    """Both faces of each named axis. Larger faces get more points."""

    names: tuple[str, ...]

    def sample(self, box: Box, count: int, key: Key, sampler: Sampler = "sobol") -> Points:
        """`count` points, at least one per face."""
        box.require(list(self.names))
        faces = [(name, end) for name in self.names for end in (box[name].low, box[name].high)]
        areas = [
            math.prod(axis.high - axis.low for other, axis in zip(box, box.axes) if other != name) for name, _ in faces
        ]
        if not faces or count < len(faces):
            raise DomainError(
                f"A boundary needs at least one axis and a point for each face, but got {len(faces)} faces and "
                f"{count} points. Name an axis, as in boundary('x'), or ask for more points."
            )
        # One point per face, the rest by area.
        rest = count - len(faces)
        edges = np.round(np.cumsum([0, *areas]) / sum(areas) * rest).astype(int)
        keys = split(key, len(faces))
        return np.concatenate(
            [
                At(((name, end),)).sample(box, 1 + int(more), face_key, sampler)
                for (name, end), more, face_key in zip(faces, np.diff(edges), keys)
            ]
        )


@dataclass(frozen=True)
class On:
    """Pieces of the boundary of a shape, by name; all of it without names. Some axes may be fixed or cut to a part."""

    names: tuple[str, ...]
    fixed: tuple[tuple[str, float], ...] = ()
    parts: tuple[tuple[str, tuple[float, float]], ...] = ()

    def sample(self, box: Box, count: int, key: Key, sampler: Sampler = "sobol") -> Points:
        raise DomainError(
            f"on({', '.join(map(repr, self.names))}) needs a domain that is a shape: give the problem a method "
            "`domain`. On a box use cl.boundary('x') or cl.at(x=0)."
        )


@dataclass(frozen=True, eq=False)
class Interior:
    """The points that carry the equation in training as in the paper (adam-lbfgs).

        cl.Interior(5000, anchors=np.array([[0.0, 0.5], [0.0, 0.75]]))

    - `points`: the number of points drawn in the coordinate box, per task.
    - `sampler`: how they are drawn, see `Box.sample`.
    - `anchors`: further points at fixed coordinates, shape (anchors, coordinates), for example near a layer.

    The natural gradient ignores it: it draws its own points at every step, more where residuals are large.
    """

    points: int = 2500
    sampler: Sampler = "sobol"
    anchors: Points | None = None

    @property
    def count(self) -> int:
        """The number of points, anchors included."""
        return self.points + (0 if self.anchors is None else len(self.anchors))

    def thinned(self, fraction: float, axes: int) -> "Interior":
        """The same with about that fraction of the drawn points, for a box of `axes` axes. The anchors stay.

        A regular grid stays regular; its count is rounded up. Sobol points drawn with the same key are a subset of the
        full set.
        """
        if self.sampler == "grid":
            return replace(self, points=math.ceil((fraction * self.points) ** (1 / axes)) ** axes)
        return replace(self, points=max(1, round(fraction * self.points)))

    def sample(self, box: Box, key: Key) -> Points:
        """`count` points of the box, the anchors last."""
        if self.anchors is None:
            return box.sample(self.points, key, self.sampler)
        anchors = np.asarray(self.anchors, dtype=float)
        if anchors.ndim != 2 or anchors.shape[1] != len(box):
            raise DomainError(
                f"Anchors need the shape (points, {len(box)}), one column for each of {', '.join(box)}, but got "
                f"{anchors.shape}."
            )
        box.check(anchors, forbid=True)
        if self.points == 0:
            return anchors
        return np.concatenate([box.sample(self.points, key, self.sampler), anchors])


def at(**where: float | tuple[float, float]) -> At:
    """The points at which the named axes have these values: `at(t=0)`, `at(x=1, y=0)`.

    A pair is a part of an axis: `at(x=1, y=(0, 0.5))` is the lower half of a side.
    """
    return At(*_fixed_and_parts("at", where))


def on(*names: str, **where: float | tuple[float, float]) -> On:
    """Pieces of the boundary of a domain that is a shape: `on("cylinder", "top")`. Without names: all of it.

    Values cut them as in `at`: `on("left", y=(0, 0.5))` is a part of a side, `on("left", t=0)` is at one time.
    """
    if not all(isinstance(name, str) for name in names):
        raise DomainError(
            f"on(...) takes names one by one, as in on('hole', 'left'), but got {', '.join(map(repr, names))}."
        )
    fixed, parts = _fixed_and_parts("on", where)
    in_space = [name for name, _ in fixed if name != "t"]
    if in_space:
        raise DomainError(
            f"on(..., {in_space[0]}=...) needs a pair (low, high) for a part of the boundary; only t can be one number."
        )
    return On(names, fixed, parts)


def _fixed_and_parts(label: str, where: Mapping[str, Any]) -> tuple[tuple, tuple]:
    """The axes with one value, and those with an interval."""
    fixed, parts = {}, {}
    for name, value in where.items():
        try:
            if np.ndim(value):
                low, high = value  # pyright: ignore[reportGeneralTypeIssues]
                parts[name] = (float(low), float(high))
            else:
                fixed[name] = float(value)  # pyright: ignore[reportArgumentType]
        except (TypeError, ValueError):
            raise DomainError(
                f"{label}({name}=...) needs a number, or a pair (low, high) for a part of the axis, but got {value!r}."
            ) from None
    return tuple(fixed.items()), tuple(parts.items())


def boundary(*names: str) -> Boundary:
    """Both faces of each named axis: `boundary("x")`, `boundary("x", "y")`."""
    return Boundary(names)
