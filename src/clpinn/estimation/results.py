"""What an estimate gives: the error at one theta, and the correction that it is made of."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from clpinn.estimation.splines import SplineSpace
from clpinn.formulation.domain import Grid
from clpinn.formulation.perturbed import to_scaled
from clpinn.formulation.problem import Problem


@dataclass(frozen=True)
class Correction:
    """A perturbation of the raw outputs at one theta, by splines."""

    space: SplineSpace
    coefficients: Float[np.ndarray, "outputs ..."]

    def on_grid(self, problem: Problem, grid: Grid) -> Float[np.ndarray, "points outputs"]:
        """Values at all points of a grid of box coordinates."""
        axes = zip(problem.coordinates, problem.coordinates.axes)
        scaled = [to_scaled(axis, grid.values[name]) for name, axis in axes]
        return self.space.on_grid(self.coefficients, scaled).reshape(self.space.outputs, -1).T


@dataclass(frozen=True)
class Estimate:
    """The estimated error of a network at one theta.

    Attributes:
        relative_l2: Norm of the error, relative to that of the corrected outputs, by output.
        largest: Largest absolute error by output.
        error: The error on the problem's evaluation grid: corrected outputs minus outputs.
        resolved: Whether two resolutions agree.
        reason: Why the estimate is resolved, or what limits it.
        functions: Number of splines by coordinate.
        difference: How far the last two resolutions are apart, relative to the error.
        newton_steps: Steps of Newton's method in the last resolution.
        correction: The correction of the raw outputs; None if there is none.
    """

    relative_l2: dict[str, float]
    largest: dict[str, float]
    error: Float[np.ndarray, "points outputs"]
    resolved: bool
    reason: str
    functions: dict[str, int]
    difference: float
    newton_steps: int
    correction: Correction | None
