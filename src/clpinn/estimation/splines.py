"""Tensor products of B-splines on the box of the coordinates, each coordinate scaled to [-1, 1]."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int
from scipy.interpolate import BSpline


@dataclass(frozen=True)
class Splines:
    """B-splines of a degree on one axis, as smooth as the degree allows.

    Attributes:
        breaks: Ends of the intervals, from -1 to 1.
        degree: Degree of the polynomials.
        periodic: Whether value and derivatives at both ends are the same.
        multiplicities: How often each inner break is a knot; one of `m` lets derivatives jump from order degree + 1 - m
            on. By default each is a knot once. A periodic axis has no others.
    """

    breaks: Float[np.ndarray, " breaks"]
    degree: int
    periodic: bool
    multiplicities: Int[np.ndarray, " inner"] | None = None

    @property
    def intervals(self) -> int:
        return len(self.breaks) - 1

    @property
    def count(self) -> int:
        """Number of splines."""
        return self.intervals if self.periodic else self.spans + self.degree

    @property
    def spans(self) -> int:
        """Number of intervals between knots, those of no width included."""
        return self.intervals if self.multiplicities is None else 1 + int(self.multiplicities.sum())

    @cached_property
    def _starts(self) -> Int[np.ndarray, " intervals"]:
        """The number of the span that each interval is."""
        if self.multiplicities is None:
            return np.arange(self.intervals)
        return np.concatenate([[0], np.cumsum(self.multiplicities)])

    @cached_property
    def knots(self) -> Float[np.ndarray, " knots"]:
        """The breaks, continued by `degree` knots at both ends."""
        breaks, degree = self.breaks, self.degree
        if not self.periodic:
            times = np.ones(len(breaks), int)
            times[[0, -1]] += degree
            if self.multiplicities is not None:
                times[1:-1] = self.multiplicities
            return np.repeat(breaks, times)
        turns = math.ceil(degree / self.intervals)
        around = np.concatenate([breaks[:-1] + 2 * turn for turn in range(-turns, turns + 2)])
        first = turns * self.intervals
        return around[first - degree : first + self.intervals + degree + 1]

    def intervals_of(self, values: Float[np.ndarray, " values"]) -> Int[np.ndarray, " values"]:
        """The interval that each value lies in."""
        return np.clip(np.searchsorted(self.breaks, values, side="right") - 1, 0, self.intervals - 1)

    def columns(self, intervals: Int[np.ndarray, " intervals"]) -> Int[np.ndarray, "intervals splines"]:
        """The splines that are not zero on each interval."""
        columns = self._starts[intervals][:, None] + np.arange(self.degree + 1)
        return columns % self.count if self.periodic else columns

    def local(
        self, points: Float[np.ndarray, "intervals points"], intervals: Int[np.ndarray, " intervals"], order: int
    ) -> Float[np.ndarray, "intervals points splines"]:
        """A derivative of the splines that are not zero, at points of these intervals."""
        chosen = self._starts[intervals][:, None, None] + np.arange(self.degree + 1)
        dense = self._continued(points.ravel(), order).reshape(*points.shape, -1)
        return np.take_along_axis(dense, np.broadcast_to(chosen, (*points.shape, self.degree + 1)), axis=2)

    def basis(self, points: Float[np.ndarray, " points"], order: int = 0) -> Float[np.ndarray, "points splines"]:
        """A derivative of all splines."""
        dense = self._continued(points, order)
        if self.periodic:
            dense[:, : self.degree] += dense[:, self.count :]
        return dense[:, : self.count]

    def _continued(self, points: np.ndarray, order: int) -> np.ndarray:
        """A derivative of the splines; those that pass the end of a periodic axis stand twice."""
        spline = BSpline(self.knots, np.eye(len(self.knots) - self.degree - 1), self.degree)
        inside = np.clip(points, self.breaks[0], self.breaks[-1])
        return (spline.derivative(order) if order else spline)(inside)


@dataclass(frozen=True)
class SplineSpace:
    """Products of splines, one factor for each coordinate, for several outputs.

    Unknowns are numbered so that those of neighbouring products are close: matrices of products have a narrow band.
    """

    axes: tuple[Splines, ...]
    outputs: int

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(axis.count for axis in self.axes)

    @property
    def size(self) -> int:
        """Number of unknowns."""
        return self.outputs * math.prod(self.counts)

    @cached_property
    def _order(self) -> list[int]:
        """The axes from the one along which numbers grow fastest to the slowest."""
        return sorted(range(len(self.axes)), key=lambda k: (self.axes[k].periodic, -self.axes[k].count))

    @cached_property
    def _positions(self) -> list[Int[np.ndarray, " splines"]]:
        """The place of each spline in the order of its axis."""
        positions = [np.arange(count) for count in self.counts]
        outer = self._order[0]
        if self.axes[outer].periodic:  # both ends are neighbours: 0, last, 1, last but one, ...
            place, count = positions[outer], self.counts[outer]
            positions[outer] = np.where(place < (count + 1) // 2, 2 * place, 2 * (count - place) - 1)
        return positions

    def numbers(self, columns: Sequence[Int[np.ndarray, "elements splines"]]) -> Int[np.ndarray, "elements unknowns"]:
        """The unknowns of the products of these splines, all outputs of a product side by side."""
        elements = len(columns[0])
        numbers = np.zeros((elements,) + (1,) * len(columns), int)
        for k in self._order:
            shape = [elements] + [1] * len(columns)
            shape[k + 1] = columns[k].shape[1]
            numbers = numbers * self.counts[k] + self._positions[k][columns[k]].reshape(shape)
        return (numbers.reshape(elements, -1, 1) * self.outputs + np.arange(self.outputs)).reshape(elements, -1)

    def coefficients(self, unknowns: Float[np.ndarray, " unknowns"]) -> Float[np.ndarray, "outputs ..."]:
        """Unknowns as an array with a dimension for the outputs and one for each axis."""
        numbers = self.numbers([np.arange(count)[None] for count in self.counts])[0]
        return np.moveaxis(unknowns[numbers].reshape(*self.counts, self.outputs), -1, 0)

    def on_grid(
        self, coefficients: Float[np.ndarray, "outputs ..."], grid: Sequence[Float[np.ndarray, " points"]]
    ) -> Float[np.ndarray, "outputs ..."]:
        """Values on a grid of scaled coordinates."""
        values = coefficients
        for k, (axis, points) in enumerate(zip(self.axes, grid, strict=True)):
            values = np.moveaxis(np.tensordot(axis.basis(points), values, (1, k + 1)), 0, k + 1)
        return values
