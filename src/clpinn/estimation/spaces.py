"""The spline spaces in which an error is looked for: the first one, and finer ones where something is left."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from clpinn.estimation.cut_domain import CutDomain
from clpinn.estimation.elements import BoxElements
from clpinn.estimation.jumps import jumps_by_axis
from clpinn.estimation.meshes import Breaks, curvature_breaks, refined_breaks, with_jumps
from clpinn.estimation.perturbed_programs import PerturbedPrograms
from clpinn.estimation.splines import Splines, SplineSpace
from clpinn.formulation.domain import Grid
from clpinn.formulation.perturbed import from_scaled

INTERVALS = {1: 24, 2: 12, 3: 6}
"""Intervals of each axis at the start, by the number of coordinates. More coordinates have too many products."""
DEGREE, DEGREE_3 = 5, 4
"""Degree of the splines, with up to two and with three coordinates. An equation of high order gets a higher one."""
ABOVE_ORDER = 3
"""The degree is at least the highest order of a derivative plus this."""
OVERSAMPLING = 2.0
"""Points on an axis for each spline, at least."""
NEARLY_SOLVED = 0.05
"""If only this fraction of the residual is left, the next resolution is a little finer and not much."""
LITTLE, SLOW, FAST = 1.2, 1.15, 0.65
"""Growth of the number of intervals: a little, or for an axis with none and with most of what is left (SLOW + FAST)."""
SAMPLES = {1: 801, 2: 129, 3: 33}
"""Values on each axis of the grid on which the surrogate's curvature is seen."""


class Spaces:
    """The spline spaces for one network at one theta."""

    def __init__(
        self,
        programs: PerturbedPrograms,
        network: Any,
        theta: np.ndarray,
        functions: int,
        domain: CutDomain | None,
    ):
        self.problem, self.programs, self.network, self.theta = programs.problem, programs, network, theta
        self.functions, self.domain = functions, domain
        order = max(max(index) for index in programs.indices)
        few = len(self.problem.coordinates) < 3
        self.degree = max(DEGREE if few else DEGREE_3, order + ABOVE_ORDER)
        self.extension_order = max(order, 2)

    def first(self) -> SplineSpace:
        """The coarsest space, with breaks where the surrogate bends."""
        box, side = self.problem.coordinates, SAMPLES[len(self.problem.coordinates)]
        scaled = np.linspace(-1, 1, side)
        points = Grid(**{name: from_scaled(axis, scaled) for name, axis in zip(box, box.axes)}).points
        nothing = np.zeros((len(points), len(self.problem.outputs)))
        values = self.programs.values(self.network, points, self.theta, nothing)
        if self.domain is not None:
            values = np.where(self.domain.contains(points)[:, None], values, np.nan)
        intervals = INTERVALS[len(box)]
        counts = [max(intervals, self.degree + 1)] * len(box)
        breaks = curvature_breaks(scaled, values.reshape(*[side] * len(box), -1), counts)
        return self._space([with_jumps(each, jumps) for each, jumps in zip(breaks, self._jumps, strict=True)])

    def finer(
        self,
        space: SplineSpace,
        elements: BoxElements,
        left: Sequence[Float[np.ndarray, "elements rows"]],
        largest_left: float,
    ) -> SplineSpace:
        """The next space. All axes grow, those along which most of the equation's residuals is left most.

        `left` is what is left of them in the elements of the equation, by block, and `largest_left` the largest
        fraction of any residual.
        """
        by_axis = _left_by_axis(elements, left)
        total = np.array([float(part.sum()) for part in by_axis])
        share = np.sqrt(total / total.max()) if total.max() > 0 else np.zeros(len(total))
        growth = np.full(len(total), LITTLE) if largest_left < NEARLY_SOLVED else SLOW + FAST * share
        while True:
            counts = [
                max(axis.intervals + 1, math.ceil(axis.intervals * factor)) for axis, factor in zip(space.axes, growth)
            ]
            breaks = [
                with_jumps(refined_breaks(axis.breaks, part, count, axis.periodic), jumps)
                for axis, part, count, jumps in zip(space.axes, by_axis, counts, self._jumps, strict=True)
            ]
            # Rather a smaller step than none, if the next one would be too large.
            if self._space(breaks).size <= self.functions or growth.max() <= LITTLE:
                return self._space(breaks)
            growth = np.maximum(1 + 0.8 * (growth - 1), np.minimum(growth, LITTLE))

    def points_per_interval(self, space: SplineSpace) -> list[int]:
        """Points of the equation in an interval of each axis."""
        return [max(self.degree - 1, math.ceil(OVERSAMPLING * axis.count / axis.intervals)) for axis in space.axes]

    def _space(self, breaks: Sequence[Breaks]) -> SplineSpace:
        splines = [
            Splines(each, self.degree, axis.scale == "periodic", self._multiplicities(k, each))
            for k, (each, axis) in enumerate(zip(breaks, self.problem.coordinates.axes, strict=True))
        ]
        return SplineSpace(tuple(splines), len(self.problem.outputs))

    @cached_property
    def _jumps(self) -> list[Breaks]:
        """Where the equation's coefficients or sources jump, by axis; a periodic axis is not searched."""
        axes = self.problem.coordinates.axes
        shape = (len(self.problem.outputs), len(self.programs.indices))

        def numbers(scaled: np.ndarray) -> np.ndarray:
            points = np.stack([from_scaled(axis, column) for axis, column in zip(axes, scaled.T)], axis=1)
            residuals, slopes = self.programs.residuals(
                0, self.network, points, self.theta, np.zeros((len(points), *shape))
            )
            return np.concatenate([residuals, slopes.reshape(len(points), -1)], axis=1)

        found = jumps_by_axis(numbers, len(axes))
        return [np.zeros(0) if axis.scale == "periodic" else jumps for axis, jumps in zip(axes, found)]

    def _multiplicities(self, k: int, breaks: Breaks) -> np.ndarray | None:
        """How often each inner break is a knot: at a jump the highest derivatives may jump, those below may not."""
        if not len(self._jumps[k]):
            return None
        order = max(1, *(index[k] for index in self.programs.indices))
        return np.where(np.isin(breaks[1:-1], self._jumps[k]), self.degree + 1 - order, 1)


def _left_by_axis(
    elements: BoxElements, left: Sequence[Float[np.ndarray, "elements rows"]]
) -> list[Float[np.ndarray, " intervals"]]:
    """How much is left of the equation's residuals by interval of each axis: their variation along that axis.

    What the splines of an axis do not resolve varies along it inside the intervals.
    """
    axes = len(elements.shape)
    sizes = *elements.shape, *elements.points_in_each, -1
    rows = np.concatenate(left).reshape(sizes)
    inside = np.ones(1) if elements.inside is None else elements.inside.reshape(sizes)
    counts = np.broadcast_to(inside, (*rows.shape[:-1], 1))
    by_axis = []
    for k in range(axes):
        number = counts.sum(axis=axes + k, keepdims=True)
        varying = (rows - rows.sum(axis=axes + k, keepdims=True) / np.maximum(number, 1)) * counts
        by_axis.append(np.sum(varying**2, axis=tuple(j for j in range(rows.ndim) if j != k)))
    return by_axis
