"""Where the rows of an estimate lie: elements of a spline space, and the points in them.

An element is a product of intervals, one of each axis. All its points share the same few splines.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from clpinn.estimation.cut_domain import CutDomain
from clpinn.estimation.splines import Splines, SplineSpace
from clpinn.formulation.domain import Axis
from clpinn.formulation.perturbed import from_scaled, to_scaled
from clpinn.formulation.problem import Condition, Problem
from clpinn.formulation.regions import At, On

Region = Mapping[str, float | tuple[float, float]]
"""The axes that are fixed at a value, or cut to a part; both scaled."""


@dataclass(frozen=True)
class BoxElements:
    """The elements of a box. The points are products of points of each axis.

    In a domain that is a shape those outside count as nothing, and stand at a point inside.
    """

    space: SplineSpace
    axes: tuple[Axis, ...]
    nodes: list[Float[np.ndarray, "intervals points"]]
    """Points of each axis in its intervals."""
    measures: list[Float[np.ndarray, "intervals points"]]
    """The part of the axis that each point stands for."""
    intervals: list[Int[np.ndarray, " intervals"]]
    domain: CutDomain | None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(numbers) for numbers in self.intervals)

    @property
    def points_in_each(self) -> tuple[int, ...]:
        return tuple(nodes.shape[1] for nodes in self.nodes)

    @cached_property
    def volume(self) -> Float[np.ndarray, "elements points"]:
        """The volume that each point stands for, inside the domain or not."""
        return np.prod([self._spread(k, measure) for k, measure in enumerate(self.measures)], axis=0)

    @cached_property
    def measure(self) -> Float[np.ndarray, "elements points"]:
        """The volume that each point stands for: none outside the domain."""
        return self.volume if self.inside is None else np.where(self.inside, self.volume, 0.0)

    @cached_property
    def inside(self) -> Bool[np.ndarray, "elements points"] | None:
        """Whether each point is in the domain; None if all are."""
        return None if self.domain is None else self.domain.contains(self._everywhere)

    @cached_property
    def points(self) -> Float[np.ndarray, "elements points coordinates"]:
        """Box coordinates of the points."""
        if self.inside is None or self.domain is None:
            return self._everywhere
        return np.where(self.inside[..., None], self._everywhere, self.domain.somewhere)

    @cached_property
    def _everywhere(self) -> Float[np.ndarray, "elements points coordinates"]:
        return np.stack(
            [from_scaled(axis, self._spread(k, self.nodes[k])) for k, axis in enumerate(self.axes)], axis=-1
        )

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
        return _Local(self.space, self.nodes, self.intervals)


@dataclass(frozen=True)
class ScatteredElements:
    """Elements with points anywhere in them: on pieces of the boundary of a shape, or nodes of a quadrature."""

    space: SplineSpace
    points: Float[np.ndarray, "elements points numbers"]
    """Box coordinates of the points; on a boundary the normals behind them."""
    measure: Float[np.ndarray, "elements points"]
    """What each point stands for: a length, an area, a volume, times the time."""
    nodes: list[Float[np.ndarray, "elements points"]]
    """Scaled coordinates of the points, by axis."""
    intervals: list[Int[np.ndarray, " elements"]]

    def columns(self, chosen: Int[np.ndarray, " elements"]) -> Int[np.ndarray, "elements unknowns"]:
        """The unknowns of some elements."""
        return self.space.numbers(
            [axis.columns(numbers[chosen]) for axis, numbers in zip(self.space.axes, self.intervals)]
        )

    def products(
        self, chosen: Int[np.ndarray, " elements"], indices: Sequence[tuple[int, ...]]
    ) -> Float[np.ndarray, "indices elements points splines"]:
        """Derivatives of the products of splines at the points of some elements."""
        products = []
        for index in indices:
            total = np.ones((len(chosen), self.measure.shape[1], 1))
            for k, order in enumerate(index):
                local = self._local[k, order][chosen]
                total = (total[..., None] * local[:, :, None, :]).reshape(*total.shape[:2], -1)
            products.append(total)
        return np.stack(products)

    @cached_property
    def _local(self) -> "_Local":
        return _Local(self.space, self.nodes, self.intervals)


Elements = BoxElements | ScatteredElements
"""Some elements of a spline space, each with the same number of points."""


class _Local(dict[tuple[int, int], np.ndarray]):
    """Derivatives of the splines by axis and order, computed when they are first needed."""

    def __init__(self, space: SplineSpace, nodes: Sequence[np.ndarray], intervals: Sequence[np.ndarray]):
        self.space, self.nodes, self.intervals = space, nodes, intervals

    def __missing__(self, key: tuple[int, int]) -> np.ndarray:
        k, order = key
        self[key] = self.space.axes[k].local(self.nodes[k], self.intervals[k], order)
        return self[key]


def elements_of(
    problem: Problem,
    space: SplineSpace,
    term: Condition | None,
    per_interval: Sequence[int],
    domain: CutDomain | None = None,
) -> Sequence[Elements]:
    """The elements of the equation (None) or of a condition, with so many points in an interval of each axis."""
    if term is not None and isinstance(term.on, On):
        assert domain is not None
        return [_boundary_elements(problem, space, term.on, per_interval, domain)]
    return [box_elements(problem, space, region, per_interval, domain) for region in _regions(problem, term)]


def _regions(problem: Problem, term: Condition | None) -> list[Region]:
    """Where the equation or a condition holds."""
    if term is None:
        return [{}]
    if isinstance(term.on, At):
        return [_scaled_region(problem, term.on)]
    return [{name: end} for name in term.on.names for end in (-1.0, 1.0)]


def _scaled_region(problem: Problem, where: At | On) -> Region:
    box = problem.coordinates
    region: dict[str, float | tuple[float, float]] = {
        name: float(to_scaled(box[name], value)) for name, value in where.fixed
    }
    for name, ends in where.parts:
        low, high = to_scaled(box[name], ends).tolist()
        region[name] = (low, high)
    return region


def box_elements(
    problem: Problem, space: SplineSpace, region: Region, per_interval: Sequence[int], domain: CutDomain | None
) -> BoxElements:
    """Gauss points in all elements of a region."""
    axes = problem.coordinates.axes
    by_axis = [
        _gauss_points(splines, region.get(name, (-1.0, 1.0)), count)
        for splines, name, count in zip(space.axes, problem.coordinates, per_interval, strict=True)
    ]
    nodes, measures, intervals = map(list, zip(*by_axis))
    return BoxElements(space, axes, nodes, measures, intervals, domain)


def _gauss_points(
    splines: Splines, where: float | tuple[float, float], count: int
) -> tuple[Float[np.ndarray, "intervals points"], Float[np.ndarray, "intervals points"], Int[np.ndarray, " intervals"]]:
    """Points in the intervals of an axis, the part of the axis that each stands for, and the intervals."""
    if not isinstance(where, tuple):
        return np.array([[where]]), np.ones((1, 1)), splines.intervals_of(np.array([where]))
    low, high = np.clip(splines.breaks[:-1], *where), np.clip(splines.breaks[1:], *where)
    inside = np.flatnonzero(high - low > 1e-12)
    low, width = low[inside, None], (high - low)[inside, None]
    gauss, weights = np.polynomial.legendre.leggauss(count)
    return low + width * (gauss + 1) / 2, width * weights / 2, inside


def _boundary_elements(
    problem: Problem, space: SplineSpace, where: On, per_interval: Sequence[int], domain: CutDomain
) -> ScatteredElements:
    """The elements that pieces of a boundary pass through. Time, if there is one, has Gauss points."""
    names, samples = problem.coordinates.names, domain.boundary(where)
    along = [names.index(name) for name in domain.spanned]
    places = [
        space.axes[k].intervals_of(to_scaled(problem.coordinates.axes[k], column))
        for k, column in zip(along, samples.x.T, strict=True)
    ]
    kept, factor = _thinned(np.stack(places, axis=1), (max(per_interval) + 1) ** (len(along) - 1))
    times, parts = time_points(problem, space, where, per_interval)
    count, measure = len(kept), np.asarray(samples.measure)[kept] * factor
    points = np.empty((count, len(times), len(names) + len(along)))
    points[:, :, along] = samples.x[kept, None]
    points[:, :, len(names) :] = samples.normal[kept, None]
    if "t" in names:
        points[:, :, names.index("t")] = times
    return scattered_elements(
        problem, space, points.reshape(count * len(times), -1), (measure[:, None] * parts).ravel()
    )


def time_points(
    problem: Problem, space: SplineSpace, where: At | On, per_interval: Sequence[int]
) -> tuple[Float[np.ndarray, " times"], Float[np.ndarray, " times"]]:
    """Gauss points of the time of a region, and the time that each stands for; one point if there is no time."""
    names = problem.coordinates.names
    if "t" not in names:
        return np.zeros(1), np.ones(1)
    k = names.index("t")
    ends = _scaled_region(problem, where).get("t", (-1.0, 1.0))
    times, parts, _ = _gauss_points(space.axes[k], ends, per_interval[k])
    return from_scaled(problem.coordinates.axes[k], times.ravel()), parts.ravel()


def scattered_elements(
    problem: Problem,
    space: SplineSpace,
    points: Float[np.ndarray, "points numbers"],
    measure: Float[np.ndarray, " points"],
) -> ScatteredElements:
    """The elements of points in box coordinates, which may have normals behind."""
    scaled = [to_scaled(axis, points[:, k]) for k, axis in enumerate(problem.coordinates.axes)]
    places = [splines.intervals_of(values) for splines, values in zip(space.axes, scaled, strict=True)]
    cells, rows, real = _grouped(np.stack(places, axis=1))
    nodes = [values[rows] for values in scaled]
    return ScatteredElements(space, points[rows], np.where(real, measure[rows], 0.0), nodes, list(cells.T))


def _thinned(
    places: Int[np.ndarray, "points axes"], most: int
) -> tuple[Int[np.ndarray, " kept"], Float[np.ndarray, " kept"]]:
    """At most so many points of each place, evenly chosen, and how many points each stands for."""
    order, first, count = _by_place(places)
    position = np.arange(len(order)) - first
    number = np.minimum(count, most)
    chosen = (position + 1) * number // count > position * number // count
    return order[chosen], (count / number)[chosen]


def _grouped(
    places: Int[np.ndarray, "points axes"],
) -> tuple[Int[np.ndarray, "cells axes"], Int[np.ndarray, "cells points"], Bool[np.ndarray, "cells points"]]:
    """The distinct places, the numbers of their points in rows of the same length, and which of these are real."""
    order, first, count = _by_place(places)
    starts = np.unique(first)
    counts = count[starts]
    position = np.arange(counts.max())
    real = position < counts[:, None]
    rows = order[starts[:, None] + np.where(real, position, 0)]
    return places[rows[:, 0]], rows, real


def _by_place(places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An order of points by place, the position in it where the place of each starts, and how many points that has."""
    order = np.lexsort(places.T)
    ordered = places[order]
    starts = np.concatenate([[True], np.any(ordered[1:] != ordered[:-1], axis=1)])
    number = np.cumsum(starts) - 1
    first = np.flatnonzero(starts)[number]
    return order, first, np.bincount(number)[number]
