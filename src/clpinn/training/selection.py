"""Selectors: given the task losses a query returns, pick the next theta to train on.

A selector knows neither network nor trainer. It gets `query`, which maps thetas of shape (tasks, parameters) to
their complete, unweighted losses of shape (tasks,); every row is one query and is counted.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import jax
import numpy as np
from jaxtyping import Float
from scipy.linalg import cholesky, solve_triangular
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_limits

from clpinn.errors import ProblemError
from clpinn.formulation.domain import Box
from clpinn.formulation.thetas import Theta, Thetas, nearest_distance, to_unit
from clpinn.training.tasks import Losses, TaskPool

Query = Callable[[Thetas], np.ndarray]
Prior = Callable[[Thetas], np.ndarray]

# Thetas closer than this in the unit cube are the same task: grids reach the corners only up to rounding.
SAME = 1e-9
# Variance of the observation noise, relative to that of the scores; it also keeps the Cholesky factor stable.
NOISE = 1e-6
# Length scales in the unit cube: where the search for them starts, and its bounds.
LENGTH_SCALE, LENGTH_SCALE_BOUNDS = 0.3, (0.05, 5.0)
# UCB is maximised from the best `REFINED` of `STARTS` Sobol points and all candidates, by `ASCENT_STEPS` steps.
STARTS, REFINED, ASCENT_STEPS = 1024, 12, 20


@dataclass(frozen=True, eq=False)
class Selection:
    """What a selector found out at one event.

    `newcomer` is the chosen theta, shape (parameters,), or None if every candidate is in the pool already; its loss
    and score are then NaN. `queried`, shape (queries, parameters), with `losses` and `scores`, shape (queries,), is
    everything that was observed, in order.
    """

    newcomer: Theta | None
    newcomer_loss: float
    newcomer_score: float
    active_losses: Losses
    replay_losses: Losses
    queried: Thetas
    losses: Losses
    scores: Losses

    @property
    def queries(self) -> int:
        """How many task losses were evaluated."""
        return len(self.queried)


class Selector(ABC):
    """Which tasks training starts with, and which one comes next."""

    @abstractmethod
    def initial(self, box: Box, capacity: int, key: jax.Array) -> Thetas:
        """The tasks to start with, shape (tasks, parameters)."""

    @abstractmethod
    def select(
        self, query: Query, pool: TaskPool, candidates: Thetas, box: Box, prior: Prior | None, key: jax.Array
    ) -> Selection | None:
        """The next task, one of the candidates in neither set of the pool; None if the selector never adds one.

        `box` fixes the scale of distances between tasks. `prior` is the search prior s(theta), None for one.
        """


# Tasks chosen once ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Uniform(Selector):
    """As many tasks as the active set holds, spread evenly over the box on its scale; none is added later.

    Equally spaced with both ends for one parameter, scrambled Sobol for more.
    """

    def initial(self, box: Box, capacity: int, key: jax.Array) -> Thetas:
        if len(box) == 0:
            return box.corners()
        if len(box) == 1:
            return box.axes[0].spaced(capacity)[:, None]
        return box.sample(capacity, key, "sobol")

    def select(
        self, query: Query, pool: TaskPool, candidates: Thetas, box: Box, prior: Prior | None, key: jax.Array
    ) -> None:
        return None


@dataclass(frozen=True)
class Fixed(Selector):
    """A hand-picked list of tasks, one tuple of parameters each; none is added later."""

    thetas: tuple[tuple[float, ...], ...]

    def initial(self, box: Box, capacity: int, key: jax.Array) -> Thetas:
        thetas = np.array(self.thetas, dtype=float)
        if thetas.ndim != 2 or thetas.shape[1] != len(box):
            raise ProblemError(
                f"Fixed tasks need the shape (tasks, {len(box)}), one value for each of {', '.join(box)}, but got "
                f"{thetas.shape}."
            )
        if len(thetas) > capacity:
            raise ProblemError(
                f"{len(thetas)} fixed tasks do not fit an active set of {capacity}. Raise the active capacity, or "
                "list fewer tasks."
            )
        box.check(thetas, forbid=True)
        return thetas

    def select(
        self, query: Query, pool: TaskPool, candidates: Thetas, box: Box, prior: Prior | None, key: jax.Array
    ) -> None:
        return None


# Tasks chosen by their loss ---------------------------------------------------------------------------------


class _Observations:
    """Thetas queried so far with their losses and scores, in order."""

    def __init__(self, query: Query, prior: Prior | None):
        self._query, self._prior = query, prior
        self._thetas: list[np.ndarray] = []
        self._losses: list[np.ndarray] = []
        self._scores: list[np.ndarray] = []

    def ask(self, thetas: Thetas) -> Losses:
        """Losses of thetas, shape (tasks, parameters), in one call of the query."""
        losses = np.asarray(self._query(thetas), dtype=float)
        if losses.shape != (len(thetas),):
            raise ProblemError(
                f"A query of {len(thetas)} tasks must return the shape ({len(thetas)},), but returned {losses.shape}."
            )
        self._thetas.append(np.array(thetas, dtype=float))
        self._losses.append(losses)
        self._scores.append(losses if self._prior is None else losses * np.asarray(self._prior(thetas), dtype=float))
        return losses

    @property
    def thetas(self) -> Thetas:
        return np.concatenate(self._thetas)

    @property
    def scores(self) -> Losses:
        return np.concatenate(self._scores)

    def selection(self, newcomer: Theta | None, active_losses: Losses, replay_losses: Losses) -> Selection:
        """The event's result; a newcomer's loss is what a last query of it gives."""
        if newcomer is not None:
            self.ask(newcomer[None])
        losses, scores = np.concatenate(self._losses), self.scores
        loss, score = (losses[-1], scores[-1]) if newcomer is not None else (np.nan, np.nan)
        return Selection(newcomer, float(loss), float(score), active_losses, replay_losses, self.thetas, losses, scores)


@dataclass(frozen=True)
class GridGreedy(Selector):
    """Start with the corners; at each event evaluate every candidate and take the worst that is in neither set.

    The worst is that of the largest loss: the search prior belongs to `Bayesian` and is not used. An event costs
    |candidates| + 1 queries, and one more for each task of the pool that is not a candidate.
    """

    def initial(self, box: Box, capacity: int, key: jax.Array) -> Thetas:
        return box.corners()

    def select(
        self, query: Query, pool: TaskPool, candidates: Thetas, box: Box, prior: Prior | None, key: jax.Array
    ) -> Selection:
        tasks = pool.thetas
        distances = cdist(to_unit(tasks, box), to_unit(candidates, box))
        on_grid = distances.min(axis=1, initial=np.inf) <= SAME
        observations = _Observations(query, None)
        losses = observations.ask(np.concatenate([candidates, tasks[~on_grid]]))
        where = np.empty(len(tasks), int)
        where[on_grid] = distances[on_grid].argmin(axis=1)
        where[~on_grid] = len(candidates) + np.arange((~on_grid).sum())
        task_losses = losses[where]

        unseen = np.flatnonzero(distances.min(axis=0) > SAME)
        worst = np.where(np.isnan(losses), np.inf, losses)
        newcomer = candidates[unseen[np.argmax(worst[unseen])]] if len(unseen) else None
        count = len(pool.active)
        return observations.selection(newcomer, task_losses[:count], task_losses[count:])


@dataclass(frozen=True)
class Bayesian(Selector):
    """Start with the corners; at each event search the box for large s(theta) L(theta) with a Gaussian process.

    The process first observes the tasks of the pool. Then, `evaluations` times, the theta of the box that maximises
    the upper confidence bound mu + kappa sigma is queried and added. Of the candidates in neither set, the one with
    the largest mean becomes the newcomer. An event costs |active| + |replay| + evaluations + 1 queries; if no
    candidate is left, only the tasks of the pool are queried.

    The kernel is Matérn 5/2 with one length scale an axis, in the unit cube of the box, on scores normalised to zero
    mean and unit variance. Length scales are those of the largest marginal likelihood, found when the event starts
    and again whenever the observations have doubled since; in between the posterior is updated exactly. A score that
    is not finite counts as twice the largest finite one.

    `coverage` (ours; the paper names such a control without defining it) is the least normalised distance a newcomer
    keeps from the tasks of the pool; where no candidate is that far away it is ignored.
    """

    evaluations: int
    kappa: float
    coverage: float = 0.0

    def initial(self, box: Box, capacity: int, key: jax.Array) -> Thetas:
        return box.corners()

    def select(
        self, query: Query, pool: TaskPool, candidates: Thetas, box: Box, prior: Prior | None, key: jax.Array
    ) -> Selection:
        observations = _Observations(query, prior)
        task_losses = observations.ask(pool.thetas)
        active_losses, replay_losses = np.split(task_losses, [len(pool.active)])
        distances = nearest_distance(candidates, pool.thetas, box)
        unseen = np.flatnonzero(distances > SAME)
        if len(unseen) == 0:
            return observations.selection(None, active_losses, replay_losses)

        starts = to_unit(np.concatenate([box.sample(STARTS, key, "sobol"), candidates]), box).clip(0, 1)
        # Matrices this small lose to the cost of sharing them out: one thread is several times faster than two.
        with threadpool_limits(1, user_api="blas"):
            mean = self._search(observations, starts, box)[STARTS:]
        far = unseen[distances[unseen] >= self.coverage]
        choice = far if len(far) else unseen
        newcomer = candidates[choice[np.argmax(mean[choice])]]
        return observations.selection(newcomer, active_losses, replay_losses)

    def _search(self, observations: _Observations, starts: Thetas, box: Box) -> Losses:
        """Query `evaluations` thetas, one at a time; the posterior mean at the starts in the end."""
        thetas = to_unit(observations.thetas, box)
        capacity, fitted = len(thetas) + self.evaluations, len(thetas)
        posterior = Posterior(length_scales(thetas, observations.scores), thetas, starts, capacity)
        for _ in range(self.evaluations):
            if len(thetas) >= 2 * fitted:
                posterior = Posterior(length_scales(thetas, observations.scores), thetas, starts, capacity)
                fitted = len(thetas)
            best = maximise_ucb(posterior, normalised(observations.scores), self.kappa)
            theta = np.array([axis.from_unit(value) for axis, value in zip(box.axes, best, strict=True)])
            observations.ask(theta[None])
            thetas = np.concatenate([thetas, best[None]])
            posterior.add(best)
        return posterior.mean(normalised(observations.scores))


# The Gaussian process ---------------------------------------------------------------------------------------


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
