"""Task weights from task losses."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

PerTask = Float[np.ndarray, " tasks"]

# Stands for a loss that is infinite or not a number: large, yet its sums and ratios stay finite.
DIVERGED = 1e150


class Weighting(ABC):
    """How much each task counts in the objective. Weights sum to the number of tasks."""

    @abstractmethod
    def weights(self, losses: PerTask, previous: PerTask, prior: PerTask) -> PerTask:
        """Weights from the current losses, those of the event before (NaN where there is none) and f_prior."""


@dataclass(frozen=True)
class Equal(Weighting):
    """Every task counts the same, whatever its loss and prior."""

    def weights(self, losses: PerTask, previous: PerTask, prior: PerTask) -> PerTask:
        return np.ones(len(losses))


@dataclass(frozen=True)
class Dynamic(Weighting):
    """f_prior exp[static L / sum L + dynamic (L_prev - L) / (L + L_prev)], scaled to sum to the number of tasks.

    A task without a previous loss has a zero second term. A loss that is infinite or not a number takes the limit
    of a very large one.
    """

    static: float
    dynamic: float

    def weights(self, losses: PerTask, previous: PerTask, prior: PerTask) -> PerTask:
        new = np.isnan(np.asarray(previous, dtype=float))
        losses, previous = _bounded(losses), _bounded(previous)
        total, pair = losses.sum(), losses + previous
        share = losses / total if total > 0 else np.full(len(losses), 1 / len(losses))
        decrease = np.divide(previous - losses, pair, out=np.zeros(len(losses)), where=~new & (pair > 0))
        with np.errstate(divide="ignore"):  # a prior of zero gives a weight of zero
            logarithm = np.log(np.asarray(prior, dtype=float)) + self.static * share + self.dynamic * decrease
        # Relative to the largest, so that no exponential overflows.
        weights = np.exp(logarithm - logarithm.max())
        return weights * (len(losses) / weights.sum())


def _bounded(losses: PerTask) -> PerTask:
    return np.nan_to_num(np.asarray(losses, dtype=float), nan=DIVERGED, posinf=DIVERGED).clip(0, DIVERGED)
