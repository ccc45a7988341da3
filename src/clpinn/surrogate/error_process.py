"""A Gaussian process over the logarithms of errors, in the unit cube of the parameters."""

import math
import warnings
from typing import Any

import numpy as np
from jaxtyping import Float

from clpinn.formulation.domain import Points
from clpinn.formulation.problem import Problem
from clpinn.formulation.thetas import to_unit

DRAWS = 400
"""Draws of the process from which spreads are taken."""
NOISE = 1e-3
"""Variance of the noise of the logarithms, relative to their variance."""
MOST_VARIANCE = 2.0
"""The largest variance of the process, relative to that of the logarithms: a rough error must not be taken for a wild
one, of which nothing is known between the estimates."""
LEVELS = (0.05, 0.5, 0.95)
"""Quantiles of the draws: the ends of a spread of 90 %, and the middle."""


class Process:
    """A Gaussian process over numbers in the unit cube. With one observation, or no parameters, it is a constant.

    Its mean is that of the numbers by weight.
    """

    def __init__(
        self, unit: Points, numbers: Float[np.ndarray, " observations"], weights: Float[np.ndarray, " observations"]
    ):
        self._centre = float(np.average(numbers, weights=weights))
        self._size = max(float(np.sqrt(np.mean((numbers - self._centre) ** 2))), 1e-6)
        self._regressor = None
        if len(unit) > 1 and unit.shape[1]:
            from sklearn.exceptions import ConvergenceWarning  # here, as scikit-learn takes a second to import
            from sklearn.gaussian_process import GaussianProcessRegressor
            from sklearn.gaussian_process.kernels import ConstantKernel, Matern

            smooth = Matern(np.full(unit.shape[1], 0.3), (0.05, 5.0), nu=2.5)  # pyright: ignore[reportArgumentType]
            self._regressor = GaussianProcessRegressor(ConstantKernel(1.0, (1e-2, MOST_VARIANCE)) * smooth, alpha=NOISE)
            with warnings.catch_warnings():
                # A scale at its bound is no failure: few observations say little about it.
                warnings.simplefilter("ignore", ConvergenceWarning)
                self._regressor.fit(unit, (numbers - self._centre) / self._size)

    def mean_and_deviation(self, unit: Points) -> tuple[np.ndarray, np.ndarray]:
        if self._regressor is None:
            return np.full(len(unit), self._centre), np.full(len(unit), 0.0)
        mean, deviation = map(np.asarray, self._regressor.predict(unit, return_std=True)[:2])
        return self._centre + self._size * mean, self._size * deviation

    def numbers(self) -> dict[str, Any]:
        """The process for other programs.

        At Matérn 5/2 covariances k with the observed thetas, of length scales `scales` and variance `variance`, the
        mean is centre + size k·weights, and the deviation is size √(variance - |whitening k|²).
        """
        ends = {"centre": self._centre, "size": self._size}
        if self._regressor is None:
            return ends | dict.fromkeys(("observed", "scales", "weights", "whitening"), np.zeros(0)) | {"variance": 0.0}
        kernel: Any = self._regressor.kernel_
        return ends | {
            "observed": np.asarray(self._regressor.X_train_),
            "scales": np.atleast_1d(kernel.k2.length_scale),
            "variance": float(kernel.k1.constant_value),
            "weights": np.ravel(self._regressor.alpha_),
            "whitening": np.linalg.inv(self._regressor.L_),
        }

    def spread(self, unit: Points) -> Float[np.ndarray, "levels thetas"]:
        """Quantiles of the exponential of the process."""
        from scipy.special import ndtri

        mean, deviation = self.mean_and_deviation(unit)
        return np.exp(mean + ndtri(np.array(LEVELS))[:, None] * deviation)

    def draws(self, unit: Points) -> Float[np.ndarray, "draws thetas"]:
        """Draws of the exponential of the process, jointly at these thetas."""
        if self._regressor is None:
            return np.full((1, len(unit)), math.exp(self._centre))
        drawn = self._regressor.sample_y(unit, DRAWS, random_state=0)
        return np.exp(self._centre + self._size * drawn.T)


def process_through(problem: Problem, thetas: Points, numbers: Float[np.ndarray, " thetas"]) -> Process:
    """The process through numbers at thetas. Each weighs as many candidates as it is the nearest to."""
    unit, candidates = (to_unit(rows, problem.parameters) for rows in (thetas, problem.candidates.points))
    nearest = np.argmin(np.linalg.norm(candidates[:, None] - unit, axis=2), axis=1)
    return Process(unit, numbers, np.bincount(nearest, minlength=len(unit)))
