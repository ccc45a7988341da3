"""Axes, boxes, grids, and samplers of points.

Points are arrays of shape (points, axes), columns in the order of the box. Samplers run on the host in double
precision and take an explicit key (see `keys`).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal, TypeVar

import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from clpinn.calculus import jets
from clpinn.calculus.jets import Jet
from clpinn.errors import DomainError, warn_outside
from clpinn.keys import Key, generator
from clpinn.shown import html_table

Sampler = Literal["sobol", "latin", "uniform", "chebyshev", "grid"]
Points = Float[np.ndarray, "points axes"]
T = TypeVar("T", Array, Jet)

RESERVED = ("d", "raw", "self")
"""Names that residuals and hard transforms use for other arguments."""
OVERSHOOT = 1e-6
"""A value counts as inside its axis up to this fraction of the axis beyond an end."""


@dataclass(frozen=True)
class Axis:
    """An interval from `low` to `high` with a scale. `cl.log` and `cl.periodic` make the other two scales.

    - "linear": points are drawn evenly, and the network sees the value scaled to [-1, 1].
    - "log": the same for the logarithm. Choose it if the order of magnitude matters; `low` must be above zero.
    - "periodic": the network sees sine and cosine of the angle, so the solution is exactly periodic.
    """

    low: float
    high: float
    scale: Literal["linear", "log", "periodic"] = "linear"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise DomainError(f"An axis needs finite bounds with low < high, but got low={self.low}, high={self.high}.")
        if self.scale == "log" and self.low <= 0:
            raise DomainError(
                f"A log axis needs bounds above zero, but got low={self.low}. "
                "Raise the lower bound, or use a linear axis."
            )

    def from_unit(self, unit: np.ndarray) -> np.ndarray:
        """Map [0, 1] to the axis, evenly on its scale."""
        if self.scale == "log":
            values = np.exp(np.log(self.low) + unit * np.log(self.high / self.low))
        else:
            values = self.low + unit * (self.high - self.low)
        return np.clip(values, self.low, self.high)

    def to_unit(self, values: np.ndarray) -> np.ndarray:
        """Map the axis to [0, 1]: the inverse of `from_unit`."""
        if self.scale == "log":
            return np.log(np.asarray(values) / self.low) / np.log(self.high / self.low)
        return (np.asarray(values) - self.low) / (self.high - self.low)

    def spaced(self, count: int) -> np.ndarray:
        """`count` values, even on the axis' scale, with both ends. A periodic axis leaves out its upper end."""
        if count < 1:
            raise DomainError(f"A grid needs at least one value on each axis, but got {count}.")
        if count == 1:
            return self.from_unit(np.array([0.5]))
        return self.from_unit(np.linspace(0, 1, count, endpoint=self.scale != "periodic"))

    def scaled(self, value: Jet) -> Jet:
        """A value mapped to [-1, 1], evenly on the axis' scale."""
        if self.scale == "log":
            ends = math.log(self.low), math.log(self.high)
            value = jets.log(value)
        else:
            ends = self.low, self.high
        return value * (2 / (ends[1] - ends[0])) + (-(ends[0] + ends[1]) / (ends[1] - ends[0]))

    def unscaled(self, scaled: T) -> T:
        """The inverse of `scaled`, for arrays and jets."""
        ends = (math.log(self.low), math.log(self.high)) if self.scale == "log" else (self.low, self.high)
        value = scaled * ((ends[1] - ends[0]) / 2) + (ends[0] + ends[1]) / 2
        return jets.exp(value) if self.scale == "log" else value

    def features(self, value: Jet) -> list[Jet]:
        """The network inputs of a value: scaled to [-1, 1], or sine and cosine for a periodic axis."""
        scaled = self.scaled(value)
        if self.scale == "periodic":
            return [jets.sin(scaled * math.pi), jets.cos(scaled * math.pi)]
        return [scaled]


def log(low: float, high: float) -> Axis:
    """An axis on a logarithmic scale, for values whose order of magnitude matters: `log(0.01, 1)`."""
    return Axis(low, high, "log")


def periodic(low: float, high: float) -> Axis:
    """A periodic axis: the network sees sine and cosine, so the solution is exactly periodic."""
    return Axis(low, high, "periodic")


class Box:
    """A product of named axes: the domain of the coordinates, or of the parameters.

        cl.Box(x=(-1, 1), t=(0, 1))
        cl.Box(nu=cl.log(0.01, 1), angle=cl.periodic(0, 360))

    An axis is a pair (low, high), `cl.log(low, high)` or `cl.periodic(low, high)`. The names are those of the arguments
    of a residual (`x`, `nu`) and those after the underscore of a derivative (`d.u_x`). Points are arrays of shape
    (points, axes), with columns in the order of the axes.
    """

    def __init__(self, **axes: Axis | tuple[float, float]):
        self._axes: dict[str, Axis] = {}
        for name, axis in axes.items():
            if name in RESERVED:
                raise DomainError(f"An axis cannot be called {name!r}: clpinn uses that name itself.")
            if not name.isidentifier():
                raise DomainError(f"An axis needs a name such as x or nu, which can be an argument, but got {name!r}.")
            try:
                if not isinstance(axis, Axis):
                    low, high = axis
                    axis = Axis(float(low), float(high))
                self._axes[name] = axis
            except (TypeError, ValueError) as error:
                if isinstance(error, DomainError):
                    raise DomainError(f"Axis {name!r}: {error}") from None
                raise DomainError(
                    f"Axis {name!r} needs a pair (low, high), log(low, high) or periodic(low, high), but got {axis!r}."
                ) from None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._axes)

    @property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(self._axes.values())

    @property
    def feature_count(self) -> int:
        """The number of network inputs: one per axis, two for a periodic axis."""
        return sum(2 if axis.scale == "periodic" else 1 for axis in self.axes)

    def __len__(self) -> int:
        return len(self._axes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._axes)

    def __getitem__(self, name: str) -> Axis:
        self.require([name])
        return self._axes[name]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and list(self._axes.items()) == list(other._axes.items())

    def __hash__(self) -> int:
        return hash(tuple(self._axes.items()))

    def __repr__(self) -> str:
        texts = []
        for name, axis in self._axes.items():
            interval = f"({axis.low:g}, {axis.high:g})"
            texts.append(f"{name}={'' if axis.scale == 'linear' else axis.scale}{interval}")
        return f"Box({', '.join(texts)})"  # files hold this text: it tells a problem from another

    def _repr_html_(self) -> str:
        return html_table("Box", {name: f"{a.low:g} to {a.high:g}, {a.scale}" for name, a in self._axes.items()})

    def require(self, names: Mapping[str, object] | list[str], complete: bool = False) -> None:
        """Raise an error unless every name is an axis of this box and, if `complete`, every axis is named."""
        unknown = [name for name in names if name not in self._axes]
        if unknown:
            raise DomainError(
                f"Unknown axis {', '.join(map(repr, unknown))}. This box has {', '.join(self._axes) or 'no axes'}."
            )
        missing = [name for name in self._axes if name not in names]
        if complete and missing:
            raise DomainError(
                f"No value for {', '.join(map(repr, missing))}. Give one for each of {', '.join(self._axes)}."
            )

    def inside(self, points: Points) -> Bool[np.ndarray, "points axes"]:
        """Whether each value is finite and on its axis. A periodic axis has no outside."""
        inside = np.isfinite(points)
        for column, axis in enumerate(self.axes):
            if axis.scale != "periodic":
                inside[:, column] &= (axis.scale != "log") | (np.asarray(points)[:, column] > 0)
                unit = axis.to_unit(np.where(inside[:, column], np.asarray(points)[:, column], axis.low))
                inside[:, column] &= (unit >= -OVERSHOOT) & (unit <= 1 + OVERSHOOT)
        return inside

    def outside(self, points: Points) -> list[str]:
        """Names of the axes on which a point is outside or not finite."""
        return [name for name, column in zip(self, self.inside(points).T, strict=True) if not column.all()]

    def check(self, points: Points, forbid: bool = False) -> None:
        """Warn if a point is outside the box. Raise an error if `forbid`, or if a point is not finite."""
        for name in self.outside(points):
            values = np.asarray(points)[:, self.names.index(name)]
            axis = self._axes[name]
            ends = dict.fromkeys((f"{values.min():g}", f"{values.max():g}"))  # one text if both are the same
            message = (
                f"{name} is {' to '.join(ends)}, outside its "
                f"box [{axis.low:g}, {axis.high:g}]. The problem is only stated inside: stay in the box, or "
                "widen it and train again."
            )
            if forbid or not np.isfinite(values).all():
                raise DomainError(message)
            warn_outside(message)

    @property
    def centre(self) -> Float[np.ndarray, " axes"]:
        """The middle of every axis, on the scale of that axis."""
        return np.array([axis.from_unit(np.array(0.5)) for axis in self.axes])

    def corners(self) -> Points:
        """The corners of the box, shape (2**axes, axes)."""
        ends = [(axis.low, axis.high) for axis in self.axes]
        return np.array(list(product(*ends)), dtype=float)

    def grid(self, **counts: int) -> "Grid":
        """A regular grid: the number of values per axis by name, even on the axis' scale."""
        self.require(counts, complete=True)
        return Grid(**{name: axis.spaced(counts[name]) for name, axis in self._axes.items()})

    def sample(self, count: int, key: Key, sampler: Sampler = "sobol") -> Points:
        """`count` points in the box, shape (count, axes), each axis on its scale.

        - "sobol": a scrambled Sobol sequence.
        - "latin": a Latin hypercube.
        - "uniform": independent and uniform.
        - "chebyshev": independent, and denser towards the ends of each axis, with the density of Chebyshev nodes.
        - "grid": a regular grid. `count` must be a whole number to the power of the number of axes.
        """
        if count < 1:
            raise DomainError(f"A sampler needs at least one point to draw, but got {count}.")
        if len(self) == 0:
            return np.zeros((count, 0))
        random = generator(key)
        if sampler in ("sobol", "latin"):
            from scipy.stats import qmc  # imported late: it takes a second

            if sampler == "sobol":
                engine = qmc.Sobol(len(self), scramble=True, rng=random)
                unit = engine.random_base2(math.ceil(math.log2(count)))[:count]
            else:
                unit = qmc.LatinHypercube(len(self), rng=random).random(count)
        elif sampler == "uniform":
            unit = random.random((count, len(self)))
        elif sampler == "chebyshev":
            unit = 0.5 - 0.5 * np.cos(np.pi * random.random((count, len(self))))
        elif sampler == "grid":
            side: int = round(count ** (1 / len(self)))
            if side ** len(self) != count:
                raise DomainError(
                    f"A regular grid over {len(self)} axes needs a whole number to the power {len(self)} of points, "
                    f"but got {count}. The nearest is {side ** len(self)}."
                )
            return self.grid(**dict.fromkeys(self.names, side)).points
        else:
            raise DomainError(f"Unknown sampler {sampler!r}. Use sobol, latin, uniform, chebyshev or grid.")
        return self.from_unit(unit)

    def from_unit(self, unit: Points) -> Points:
        """Points of the unit cube as points of the box, each axis on its scale."""
        return np.stack([axis.from_unit(unit[:, i]) for i, axis in enumerate(self.axes)], axis=1)

    def narrowed(self, parts: Mapping[str, tuple[float, float]]) -> "Box":
        """The box with some axes cut to an interval (low, high) within them."""
        for name, (low, high) in parts.items():
            if not self[name].low <= low < high <= self[name].high:
                raise DomainError(
                    f"A part of {name} needs low < high within [{self[name].low:g}, {self[name].high:g}], but got "
                    f"({low:g}, {high:g})."
                )
        scale = {name: "log" if axis.scale == "log" else "linear" for name, axis in self._axes.items()}
        return Box(**self._axes | {name: Axis(*ends, scale[name]) for name, ends in parts.items()})  # pyright: ignore

    def without(self, names: list[str]) -> "Box":
        """The box without the named axes."""
        self.require(names)
        return Box(**{name: axis for name, axis in self._axes.items() if name not in names})


class Grid:
    """A tensor grid: one array of values per named axis, `Grid(x=np.linspace(0, 1, 50), t=[0, 0.5, 1])`."""

    def __init__(self, **values: ArrayLike):
        self.values = {name: np.asarray(v, dtype=float) for name, v in values.items()}
        for name, array in self.values.items():
            if array.ndim != 1 or array.size == 0:
                raise DomainError(f"Grid axis {name!r} needs a non-empty row of values, but got shape {array.shape}.")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(array) for array in self.values.values())

    @property
    def points(self) -> Points:
        """All points, shape (points, axes). The last axis runs fastest."""
        if not self.values:
            return np.zeros((1, 0))
        mesh = np.meshgrid(*self.values.values(), indexing="ij")
        return np.stack([axis.ravel() for axis in mesh], axis=1)

    def thinned(self, most: int) -> dict[str, np.ndarray]:
        """Indices of evenly spread values of each axis, with both ends, that make at most so many points."""
        counts = list(self.shape)
        while math.prod(counts) > most and max(counts) > 1:
            counts[int(np.argmax(counts))] -= 1
        sizes = zip(self.values, self.shape, counts)
        return {name: np.round(np.linspace(0, size - 1, count)).astype(int) for name, size, count in sizes}

    def selected(self, indices: Mapping[str, np.ndarray]) -> "Grid":
        """The grid of some values of each axis."""
        return Grid(**{name: self.values[name][chosen] for name, chosen in indices.items()})

    def __len__(self) -> int:
        return math.prod(self.shape)
