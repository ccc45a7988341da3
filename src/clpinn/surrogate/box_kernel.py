"""The kernel that interpolates corrections between thetas, and how it is fitted to them."""

import math
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float
from scipy.linalg import LinAlgError, cho_factor, cho_solve, solve_triangular
from scipy.optimize import minimize

from clpinn.formulation.problem import Problem
from clpinn.formulation.thetas import features

SMALLEST_BEND = 1e-4
"""An axis that is bent less than this is straight."""

SMOOTHING = 1e-6
"""Added to squared distances, so that the kernel has derivatives where the distance is zero."""
NUGGET, SINGLE_NUGGET = 1e-8, 1e-6
"""Added to the diagonal of the kernel matrix; and for computations in single precision."""
ROUNDING = 1e-3
"""Deviations below this are those of the nugget."""
SCALES, BENDS = (0.05, 2.0), (-6.0, 6.0)
"""Ranges of the kernel's lengths, for axes of length one, and of its bends."""
PENALTY = 0.02
"""Of the squares of bends, against the logarithm of the error."""
FIT_THETAS = 150
"""Thetas that a fit looks at, at most: those that were estimated last."""
FIT_DRAWS, FIT_STARTS = 40, 3
"""Kernels that are tried at random, and how many of the best are improved."""


class Kernel(eqx.Module):
    """How alike corrections at two thetas are: a Matérn kernel (9/2) of the distance in bent and scaled features.

    The features of a theta are those that networks see, from -1 to 1. An axis that is bent counts distances near one of
    its ends more: with a bend of 5 about as on a logarithmic scale, with -5 the same from the other end.

    Attributes:
        scales: The length of each bent feature at which corrections become unlike.
        bends: How much each feature is bent.
    """

    scales: Any
    bends: Any

    def places(self, features: Any, xp: Any = np) -> Any:
        """Features (..., features) as places between which distances are measured."""
        bends = xp.where(xp.abs(self.bends) < SMALLEST_BEND, SMALLEST_BEND, self.bends)
        return xp.log1p(xp.expm1(bends) * (features + 1) / 2) / bends / self.scales

    @staticmethod
    def between(places: Any, others: Any, xp: Any = np) -> Any:
        """The kernel between places (..., features), which broadcast."""
        r = 3 * (((places - others) ** 2).sum(-1) + SMOOTHING) ** 0.5
        return (1 + r + 3 / 7 * r**2 + 2 / 21 * r**3 + 1 / 105 * r**4) * xp.exp(-r)


@dataclass
class Interpolation:
    """Corrections at thetas, interpolated by a kernel."""

    problem: Problem
    kernel: Kernel
    seen: Float[np.ndarray, "thetas features"]
    fields: Float[np.ndarray, "thetas ..."]
    places: np.ndarray = field(init=False)
    factor: Any = field(init=False)

    def __post_init__(self) -> None:
        self.places = self.kernel.places(self.seen)
        self.factor = cho_factor(_matrix(self.places), lower=True)

    def at(self, theta: np.ndarray) -> Float[np.ndarray, "outputs points"]:
        """The correction at another theta."""
        kernels = Kernel.between(self.kernel.places(features(theta[None], self.problem.parameters)), self.places)
        return np.tensordot(cho_solve(self.factor, kernels), self.fields, 1)

    @property
    def weights(self) -> Float[np.ndarray, "thetas numbers"]:
        """Weights of the kernels at the thetas, if a field is a row of numbers."""
        return cho_solve(self.factor, self.fields)

    def unknown(self, others: Float[np.ndarray, "others features"]) -> Float[np.ndarray, " others"]:
        """How little is known at other thetas: the deviation of a Gaussian process with this kernel.

        Where it is as small as rounding everywhere, the distance to the nearest theta.
        """
        places = self.kernel.places(others)[None]
        whitened = solve_triangular(self.factor[0], Kernel.between(places, self.places[:, None]), lower=True)
        deviation = np.sqrt(np.maximum(1 - (whitened**2).sum(axis=0), 0))
        if deviation.max() > ROUNDING:
            return deviation
        return np.linalg.norm(places - self.places[:, None], axis=2).min(axis=0)


def _matrix(places: Float[np.ndarray, "thetas features"]) -> Float[np.ndarray, "thetas thetas"]:
    return Kernel.between(places[:, None], places) + NUGGET * np.eye(len(places))


def reweighted(places: np.ndarray, weights: Float[np.ndarray, "thetas numbers"]) -> Float[np.ndarray, "thetas numbers"]:
    """Weights of the kernels for computations in single precision, from those of an interpolation."""
    matrix = _matrix(places)
    return np.linalg.solve(matrix + (SINGLE_NUGGET - NUGGET) * np.eye(len(places)), matrix @ weights)


def fitted_kernel(
    kernel: Kernel, seen: np.ndarray, products: Float[np.ndarray, "outputs thetas thetas"], sizes: np.ndarray
) -> Kernel:
    """The kernel with which each correction is best predicted by the others.

    `products` are the inner products of the corrections, by output; `sizes` make their errors relative.
    """
    last = slice(-FIT_THETAS, None)
    seen, products, sizes = seen[last], products[:, last, last], sizes[last]
    count = seen.shape[1]
    if not np.any(sizes):
        return kernel

    def loss(numbers: np.ndarray) -> float:
        places = Kernel(np.exp(numbers[:count]), numbers[count:]).places(seen)
        try:
            inverse = cho_solve(cho_factor(_matrix(places)), np.eye(len(places)))
        except LinAlgError:
            return 100.0
        left = np.sqrt(np.maximum((_left_out(inverse, products) * sizes**2).sum(axis=1), 0))
        return math.log(max(left.mean(), 1e-300)) + PENALTY * float(np.sum(numbers[count:] ** 2))

    ends = np.array([np.log(SCALES)] * count + [BENDS] * count)
    drawn = ends[:, 0] + np.random.default_rng(0).random((FIT_DRAWS, 2 * count)) * (ends[:, 1] - ends[:, 0])
    straight = [np.concatenate([np.full(count, math.log(scale)), np.zeros(count)]) for scale in (0.1, 0.3, 1.0)]
    starts = sorted([np.concatenate([np.log(kernel.scales), kernel.bends]), *straight, *drawn], key=loss)[:FIT_STARTS]
    bounds = [tuple(pair) for pair in ends]
    fits = [minimize(loss, start, method="L-BFGS-B", bounds=bounds, options={"maxiter": 20}) for start in starts]
    best = min(fits, key=lambda fit: fit.fun).x
    return Kernel(np.exp(best[:count]), best[count:])


def _left_out(inverse: np.ndarray, products: np.ndarray) -> Float[np.ndarray, "thetas outputs"]:
    """The squared norm of what is left of each correction if the others predict it (leave one out)."""
    return np.stack([np.einsum("ij,ij->i", inverse @ part, inverse) for part in products], 1) / (
        np.diag(inverse)[:, None] ** 2
    )
