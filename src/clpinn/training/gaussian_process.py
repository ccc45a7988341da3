"""A Gaussian process over task scores, in the unit cube of the parameter box, and the search for its upper bound."""

import warnings
from typing import cast

import numpy as np
from jaxtyping import Float
from scipy.linalg import cholesky, solve_triangular
from scipy.spatial.distance import cdist

from clpinn.formulation.thetas import Theta, Thetas
from clpinn.training.tasks import Losses

NOISE = 1e-6
"""Variance of the observation noise, relative to that of the scores. It also keeps the Cholesky factor stable."""
LENGTH_SCALE, LENGTH_SCALE_BOUNDS = 0.3, (0.05, 5.0)
"""Length scales in the unit cube: where the search for them starts, and its bounds."""
REFINED, ASCENT_STEPS = 12, 20
"""The upper bound is maximised from the best `REFINED` tracked thetas, by `ASCENT_STEPS` steps."""


def normalised(scores: Losses) -> Losses:
    """Scores with zero mean and unit variance; one that is not finite counts as twice the largest finite one."""
    finite = np.isfinite(scores)
    largest = np.abs(scores[finite]).max(initial=0.0)
    # Relative to the largest first, so that squares of huge scores do not overflow.
    relative = np.where(finite, scores, 0.0) / (largest if largest > 0 else 1.0)
    relative = np.where(finite, relative, 2.0)
    spread = relative.std()
    return (relative - relative.mean()) / (spread if spread > 1e-12 else 1.0)


def length_scales(unit: Thetas, scores: Losses) -> Float[np.ndarray, " parameters"]:
    """Length scales of the largest marginal likelihood, for observations in the unit cube."""
    from sklearn.exceptions import ConvergenceWarning  # here, as scikit-learn takes a second to import
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern

    start = np.full(unit.shape[1], LENGTH_SCALE)
    kernel = Matern(start, LENGTH_SCALE_BOUNDS, nu=2.5)  # pyright: ignore[reportArgumentType]  one scale an axis
    regressor = GaussianProcessRegressor(kernel, alpha=NOISE)
    with warnings.catch_warnings():
        # A length scale at its bound is no failure: few observations say little about it.
        warnings.simplefilter("ignore", ConvergenceWarning)
        regressor.fit(unit, normalised(scores))
    return np.exp(cast(Matern, regressor.kernel_).theta)


class Posterior:
    """A Gaussian process at fixed length scales that grows by one observation at a time.

    Thetas are in the unit cube. Mean and deviation at the `tracked` thetas, shape (tracked, parameters), follow each
    observation at a cost linear in their number: with K = L Lᵀ, a new observation adds one row to L⁻¹ and one to
    L⁻¹ k(observed, tracked). Scores are given only when a mean is asked for, as they are normalised anew each time.
    """

    def __init__(self, scales: Float[np.ndarray, " parameters"], observed: Thetas, tracked: Thetas, capacity: int):
        count = len(observed)
        self.scales, self.tracked = scales, tracked
        self._count = count
        self._scaled_tracked = tracked / scales
        self._observed = np.empty((capacity, len(scales)))
        self._inverse = np.zeros((capacity, capacity))  # L⁻¹
        self._precision = np.zeros((capacity, capacity))  # K⁻¹
        self._projected = np.empty((capacity, len(tracked)))
        self._observed[:count] = observed / scales
        covariance = _matern(self._observed[:count], self._observed[:count]) + NOISE * np.eye(count)
        factor = cholesky(covariance, lower=True)
        inverse = solve_triangular(factor, np.eye(count), lower=True)
        self._inverse[:count, :count] = inverse
        self._precision[:count, :count] = inverse.T @ inverse
        self._projected[:count] = inverse @ _matern(self._observed[:count], self._scaled_tracked)
        self._variance = 1 - (self._projected[:count] ** 2).sum(axis=0)

    def add(self, theta: Theta) -> None:
        """Observe one more theta, shape (parameters,)."""
        count = self._count
        scaled = (theta / self.scales)[None]
        inverse = self._inverse[:count, :count]
        row = inverse @ _matern(self._observed[:count], scaled)[:, 0]
        pivot = np.sqrt(max(1 + NOISE - row @ row, NOISE))
        self._inverse[count, :count] = -(row @ inverse) / pivot
        self._inverse[count, count] = 1 / pivot
        last = self._inverse[count, : count + 1]
        self._precision[: count + 1, : count + 1] += np.outer(last, last)
        projected = _matern(scaled, self._scaled_tracked)[0] - row @ self._projected[:count]
        self._projected[count] = projected / pivot
        self._variance -= self._projected[count] ** 2
        self._observed[count] = scaled
        self._count += 1

    def mean(self, scores: Losses) -> Float[np.ndarray, " tracked"]:
        """Posterior mean at the tracked thetas, given scores of the observed ones in order."""
        inverse = self._inverse[: self._count, : self._count]
        return (inverse @ scores) @ self._projected[: self._count]

    def deviation(self) -> Float[np.ndarray, " tracked"]:
        """Posterior standard deviation at the tracked thetas."""
        return np.sqrt(self._variance.clip(NOISE))

    def ucb(self, thetas: Thetas, scores: Losses, kappa: float) -> tuple[np.ndarray, np.ndarray]:
        """mu + kappa sigma, shape (thetas,), and its gradient, shape (thetas, parameters), at any thetas."""
        precision, observed = self._precision[: self._count, : self._count], self._observed[: self._count]
        scaled = thetas / self.scales
        distance = np.sqrt(5) * cdist(scaled, observed)
        decay = np.exp(-distance)
        covariance = (1 + distance + distance**2 / 3) * decay
        solved = covariance @ precision
        coefficients = precision @ scores
        # At least the noise: rounding must not make the deviation at an observation vanish.
        deviation = np.sqrt((1 - (solved * covariance).sum(axis=1)).clip(NOISE))
        value = covariance @ coefficients + kappa * deviation
        # d value / d covariance, times d covariance / d scaled theta, which is -5/3 (1 + distance) decay (x - x_i).
        slope = (coefficients - kappa * solved / deviation[:, None]) * (-5 / 3 * (1 + distance) * decay)
        gradient = (slope.sum(axis=1)[:, None] * scaled - slope @ observed) / self.scales
        return value, gradient


def _matern(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The Matérn 5/2 kernel of thetas already divided by the length scales, shape (len(a), len(b))."""
    distance = np.sqrt(5) * cdist(a, b)
    return (1 + distance + distance**2 / 3) * np.exp(-distance)


def maximise_ucb(posterior: Posterior, scores: Losses, kappa: float) -> Theta:
    """The theta of the unit cube that maximises mu + kappa sigma, given normalised scores.

    From the best of the tracked thetas, by signs of the gradient with a step of its own for each coordinate (Rprop,
    Riedmiller and Braun, 1993): all starts move at once, and the faces of the cube need no special care.
    """
    tracked = posterior.tracked
    bound = posterior.mean(scores) + kappa * posterior.deviation()
    theta = tracked[np.argsort(-bound, kind="stable")[:REFINED]]
    step = np.full(theta.shape, 0.5 * len(tracked) ** (-1 / tracked.shape[1]))
    last_sign = np.zeros(theta.shape)
    best, best_value = theta[0], -np.inf
    for _ in range(ASCENT_STEPS):
        value, gradient = posterior.ucb(theta, scores, kappa)
        if value.max() > best_value:
            best, best_value = theta[value.argmax()], value.max()
        sign = np.sign(gradient)
        step *= np.choose((sign * last_sign).astype(int) + 1, (0.5, 1.0, 1.2))
        theta, last_sign = (theta + step * sign).clip(0, 1), sign
    return best
