"""Where the rows of an estimate lie: elements of a spline space, and the points in them.

An element is a product of intervals, one of each axis. All its points share the same few splines.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from clpinn.estimation.splines import SplineSpace
from clpinn.formulation.perturbed import from_scaled, to_scaled
from clpinn.formulation.problem import Condition, Problem
from clpinn.formulation.regions import At

Region = Mapping[str, float | tuple[float, float]]
"""The axes that are fixed at a value, or cut to a part; both scaled."""


@dataclass(frozen=True)
class Elements:
    """The elements of a region, and the points in them."""

    space: SplineSpace
    nodes: list[Float[np.ndarray, "intervals points"]]
    """Points of each axis in its intervals."""
    measures: list[Float[np.ndarray, "intervals points"]]
    """The part of the axis that each point stands for."""
    intervals: list[Int[np.ndarray, " intervals"]]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(numbers) for numbers in self.intervals)

    @property
    def points_in_each(self) -> tuple[int, ...]:
        return tuple(nodes.shape[1] for nodes in self.nodes)

    @cached_property
    def measure(self) -> Float[np.ndarray, "elements points"]:
        """The volume that each point stands for."""
        return np.prod([self._spread(k, measure) for k, measure in enumerate(self.measures)], axis=0)

    def points(self, problem: Problem) -> Float[np.ndarray, "elements points coordinates"]:
        """Box coordinates of the points."""
        axes = problem.coordinates.axes
        return np.stack([from_scaled(axes[k], self._spread(k, nodes)) for k, nodes in enumerate(self.nodes)], axis=-1)

    def _spread(self, k: int, rows: np.ndarray) -> np.ndarray:
        """Numbers at the points of one axis, at all points: (elements, points)."""
        count = len(self.nodes)
        shape = [1] * (2 * count)
        shape[k], shape[count + k] = rows.shape
        spread = np.broadcast_to(rows.reshape(shape), self.shape + self.points_in_each)
        return spread.reshape(math.prod(self.shape), -1)

    def columns(self, chosen: Int[np.ndarray, " elements"]) -> Int[np.ndarray, "elements unknowns"]:
        """The unknowns of some elements."""
        places = np.unravel_index(chosen, self.shape)
        by_axis = [axis.columns(numbers) for axis, numbers in zip(self.space.axes, self.intervals)]
        return self.space.numbers([columns[place] for columns, place in zip(by_axis, places)])

    def products(
        self, chosen: Int[np.ndarray, " elements"], indices: Sequence[tuple[int, ...]]
    ) -> Float[np.ndarray, "indices elements points splines"]:
        """Derivatives of the products of splines at the points of some elements."""
        places = np.unravel_index(chosen, self.shape)
        products = []
        for index in indices:
            total = np.ones((len(chosen), 1, 1))
            for k, place in enumerate(places):
                local = self._local[k, index[k]][place]
                total = total[:, :, None, :, None] * local[:, None, :, None, :]
                total = total.reshape(len(chosen), total.shape[1] * total.shape[2], -1)
            products.append(total)
        return np.stack(products)

    @cached_property
    def _local(self) -> "_Local":
        return _Local(self)


class _Local(dict[tuple[int, int], np.ndarray]):
    """Derivatives of the splines by axis and order, computed when they are first needed."""

    def __init__(self, elements: Elements):
        self.elements = elements

    def __missing__(self, key: tuple[int, int]) -> np.ndarray:
        (k, order), elements = key, self.elements
        self[key] = elements.space.axes[k].local(elements.nodes[k], elements.intervals[k], order)
        return self[key]


def _regions(problem: Problem, term: Condition | None) -> list[Region]:
    """Where the equation or a condition holds."""
    if term is None:
        return [{}]
    box = problem.coordinates
    if isinstance(term.on, At):
        fixed = {name: float(to_scaled(box[name], value)) for name, value in term.on.fixed}
        region: dict[str, float | tuple[float, float]] = dict(fixed)
        for name, ends in term.on.parts:
            low, high = to_scaled(box[name], ends).tolist()
            region[name] = (low, high)
        return [region]
    return [{name: end} for name in term.on.names for end in (-1.0, 1.0)]


def elements_of(
    problem: Problem, space: SplineSpace, term: Condition | None, per_interval: Sequence[int]
) -> list[Elements]:
    """The elements of the equation (None) or of a condition, with so many points in an interval of each axis."""
    return [_elements(space, problem.coordinates.names, region, per_interval) for region in _regions(problem, term)]


def _elements(space: SplineSpace, names: Sequence[str], region: Region, per_interval: Sequence[int]) -> Elements:
    """Gauss points in all elements of a region."""
    nodes, measures, intervals = [], [], []
    for axis, name, count in zip(space.axes, names, per_interval, strict=True):
        where = region.get(name, (-1.0, 1.0))
        if not isinstance(where, tuple):
            nodes.append(np.array([[where]]))
            measures.append(np.ones((1, 1)))
            intervals.append(np.array([axis.interval_of(where)]))
            continue
        low, high = np.clip(axis.breaks[:-1], *where), np.clip(axis.breaks[1:], *where)
        inside = np.flatnonzero(high - low > 1e-12)
        low, width = low[inside, None], (high - low)[inside, None]
        gauss, weights = np.polynomial.legendre.leggauss(count)
        nodes.append(low + width * (gauss + 1) / 2)
        measures.append(width * weights / 2)
        intervals.append(inside)
    return Elements(space, nodes, measures, intervals)
