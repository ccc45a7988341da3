"""What an estimate gives: the error at one theta, and the correction that it is made of."""

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float

from clpinn.estimation.splines import SplineSpace
from clpinn.formulation.domain import Grid
from clpinn.formulation.perturbed import to_scaled
from clpinn.formulation.problem import Problem

OWN = 0.2
"""What an estimate leaves of an error, relative to the difference of its two resolutions: about 0.1 in the median, and
mostly below 1 (docs/error-measured.md)."""
ZERO = 1e-6
"""An output whose solution is this fraction of its error is zero: it has no relative error."""
NEGLIGIBLE = 1e-13
"""An error below this fraction of the outputs is rounding."""


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
        error: The error on the problem's evaluation grid: corrected outputs minus outputs. NaN outside of a domain that
            is a shape.
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


def relative_norms(error: np.ndarray, outputs: np.ndarray) -> Float[np.ndarray, " outputs"]:
    """Norms of an error (points, outputs), relative to those of the outputs; NaN for an output that is zero."""
    size, norms = np.linalg.norm(outputs, axis=0), np.linalg.norm(error, axis=0)
    zero = size <= ZERO * norms
    return np.where(zero & (norms > 0), math.nan, norms / np.where(zero, 1.0, size))


def relative_difference(error: np.ndarray, before: np.ndarray, outputs: np.ndarray) -> float:
    """The largest difference of two errors over the outputs, relative to the error. Rounding counts as none."""
    size = np.maximum(np.linalg.norm(error, axis=0), NEGLIGIBLE * np.linalg.norm(outputs, axis=0))
    apart = np.linalg.norm(error - before, axis=0)
    return float(np.max(np.where(apart > 0, apart / np.where(size > 0, size, 1.0), 0.0)))


def scattered(
    rows: Float[np.ndarray, "inside outputs"], inside: Bool[np.ndarray, " points"]
) -> Float[np.ndarray, "points outputs"]:
    """Rows for the points that are inside as rows for all points, NaN at the others."""
    everywhere = np.full((len(inside), rows.shape[1]), math.nan)
    everywhere[inside] = rows
    return everywhere


def remaining(estimate: Estimate, outputs: np.ndarray, corrected: np.ndarray) -> Estimate:
    """What other outputs leave of an estimated error, on the evaluation grid (points, outputs).

    The estimate is that of `outputs`, so the solution is `outputs` plus its error, as far as the estimate is exact.
    What it may leave itself counts as well. Outside of a domain that is a shape all of them are NaN.
    """
    inside = np.isfinite(estimate.error[:, 0])
    solution = (outputs + estimate.error)[inside]
    error, own = solution - corrected[inside], OWN * estimate.difference * estimate.error[inside]
    names = list(estimate.relative_l2)
    relative, largest = (
        np.hypot(*parts)
        for parts in (
            (relative_norms(error, solution), relative_norms(own, solution)),
            (np.abs(error).max(axis=0), np.abs(own).max(axis=0)),
        )
    )
    return replace(
        estimate,
        relative_l2=dict(zip(names, relative.tolist())),
        largest=dict(zip(names, largest.tolist())),
        error=scattered(error, inside),
        reason=f"What a correction leaves of an estimated error. {estimate.reason}",
        correction=None,
    )
