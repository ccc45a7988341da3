"""Conditions on integrals as rows of an estimate: a row has all unknowns that the region of the integral meets."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from clpinn.estimation.elements import ScatteredElements, scattered_elements, time_points
from clpinn.estimation.least_squares import Block, linearised, slope_sizes
from clpinn.estimation.perturbed_programs import PerturbedPrograms
from clpinn.estimation.splines import SplineSpace
from clpinn.formulation.integrals import integral_nodes, integral_targets


class IntegralRows:
    """The nodes of one integral in a spline space, at one theta and at Gauss points of the time."""

    def __init__(
        self,
        programs: PerturbedPrograms,
        number: int,
        space: SplineSpace,
        theta: Float[np.ndarray, " parameters"],
        per_interval: Sequence[int],
    ):
        self.programs, self.space, self.theta = programs, space, theta
        self.number = len(programs.terms) + number
        problem, integral = programs.problem, programs.integrals[number]
        times, self.parts = time_points(problem, space, integral.on, per_interval)
        nodes = integral_nodes(problem, integral, theta, times)
        self.targets = integral_targets(problem, integral, nodes[:, 0], theta)
        self.by_time: list[ScatteredElements] = [
            scattered_elements(problem, space, rows[rows[:, -1] != 0, :-1], rows[rows[:, -1] != 0, -1])
            for rows in nodes
        ]

    def block(
        self, network: Any, unknowns: Float[np.ndarray, " unknowns"], amplitudes: Float[np.ndarray, " outputs"]
    ) -> Block:
        """The rows at the network with the perturbation that the unknowns give, as one element with all unknowns."""
        rows, residuals = [], []
        for elements, part, target in zip(self.by_time, self.parts, self.targets, strict=True):
            linear = linearised(self.programs, self.number, elements, network, self.theta, unknowns, amplitudes)
            factor = np.sqrt(part / self.parts.sum() / elements.measure.sum()) / slope_sizes(self.programs, linear)
            row, integral = np.zeros((len(target), self.space.size)), np.zeros(len(target))
            for one in linear:
                slopes = np.einsum("eq,eqroa,aeqf->erfo", one.measure, one.slopes, one.products, optimize=True)
                flat = slopes.reshape(*slopes.shape[:2], -1)
                np.add.at(row.T, one.columns, flat.swapaxes(1, 2))
                integral += np.einsum("eq,eqr->r", one.measure, one.residuals)
            rows.append(row * factor[:, None])
            residuals.append((integral - target) * factor)
        return Block(
            np.concatenate(rows)[None], np.arange(self.space.size)[None], np.concatenate(residuals)[None], len(target)
        )
