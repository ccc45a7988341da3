"""Selectors: given the task losses a query returns, pick the next theta to train on.

A selector knows neither network nor trainer. It gets `query`, which maps thetas of shape (tasks, parameters) to
their complete, unweighted losses of shape (tasks,); every row is one query and is counted.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from threadpoolctl import threadpool_limits

from clpinn.errors import ProblemError
from clpinn.formulation.domain import Box
from clpinn.formulation.thetas import SAME, Theta, Thetas, nearest_distance, same_as_any, to_unit
from clpinn.keys import Key
from clpinn.training.tasks import Losses, TaskPool

Query = Callable[[Thetas], np.ndarray]
Prior = Callable[[Thetas], np.ndarray]

# Sobol points that the search for the upper confidence bound starts from, besides all candidates.
STARTS = 1024


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
    def initial(self, box: Box, capacity: int, key: Key) -> Thetas:
        """The tasks to start with, shape (tasks, parameters)."""

    @abstractmethod
    def select(
        self,
        query: Query,
        pool: TaskPool,
        candidates: Thetas,
        box: Box,
        prior: Prior | None,
        key: Key,
        barred: Thetas | None = None,
    ) -> Selection | None:
        """The next task, one of the candidates in neither set of the pool; None if the selector never adds one.

        `box` fixes the scale of distances between tasks. `prior` is the search prior s(theta), None for one. Thetas
        that are `barred` are observed like all others, but never chosen.
        """


# Tasks chosen once ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Uniform(Selector):
    """As many tasks as the active set holds, spread evenly over the box on its scale; none is added later.

    Equally spaced with both ends for one parameter, scrambled Sobol for more.
    """

    def initial(self, box: Box, capacity: int, key: Key) -> Thetas:
        if len(box) == 0:
            return box.corners()
        if len(box) == 1:
            return box.axes[0].spaced(capacity)[:, None]
        return box.sample(capacity, key, "sobol")

    def select(
        self,
        query: Query,
        pool: TaskPool,
        candidates: Thetas,
        box: Box,
        prior: Prior | None,
        key: Key,
        barred: Thetas | None = None,
    ) -> None:
        return None


@dataclass(frozen=True)
class Fixed(Selector):
    """A hand-picked list of tasks, one tuple of parameters each; none is added later."""

    thetas: tuple[tuple[float, ...], ...]

    def initial(self, box: Box, capacity: int, key: Key) -> Thetas:
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
        self,
        query: Query,
        pool: TaskPool,
        candidates: Thetas,
        box: Box,
        prior: Prior | None,
        key: Key,
        barred: Thetas | None = None,
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


def _unseen(candidates: Thetas, distances: Losses, barred: Thetas | None, box: Box) -> np.ndarray:
    """Indices of the candidates that may be chosen, given the distance of each to the nearest task of the pool."""
    is_open = distances > SAME
    if barred is not None:
        is_open &= ~same_as_any(candidates, barred, box)
    return np.flatnonzero(is_open)


@dataclass(frozen=True)
class GridGreedy(Selector):
    """Start with the corners; at each event evaluate every candidate and take the worst that is in neither set.

    The worst is that of the largest loss: the search prior belongs to `Bayesian` and is not used. An event costs
    |candidates| + 1 queries, and one more for each task of the pool that is not a candidate.
    """

    def initial(self, box: Box, capacity: int, key: Key) -> Thetas:
        return box.corners()

    def select(
        self,
        query: Query,
        pool: TaskPool,
        candidates: Thetas,
        box: Box,
        prior: Prior | None,
        key: Key,
        barred: Thetas | None = None,
    ) -> Selection:
        from scipy.spatial.distance import cdist  # here, because it takes long to import

        tasks = pool.thetas
        distances = cdist(to_unit(tasks, box), to_unit(candidates, box))
        on_grid = distances.min(axis=1, initial=np.inf) <= SAME
        observations = _Observations(query, None)
        losses = observations.ask(np.concatenate([candidates, tasks[~on_grid]]))
        where = np.empty(len(tasks), int)
        where[on_grid] = distances[on_grid].argmin(axis=1)
        where[~on_grid] = len(candidates) + np.arange((~on_grid).sum())
        task_losses = losses[where]

        unseen = _unseen(candidates, distances.min(axis=0), barred, box)
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
    and again whenever the observations have doubled since, or before `every` evaluation (`refit`). In between the
    posterior is updated exactly. A score that is not finite counts as twice the largest finite one.

    `coverage` (ours; the paper names such a control without defining it) is the least normalised distance a newcomer
    keeps from the tasks of the pool; where no candidate is that far away it is ignored.
    """

    evaluations: int
    kappa: float
    coverage: float = 0.0
    refit: Literal["doubling", "every"] = "doubling"

    def initial(self, box: Box, capacity: int, key: Key) -> Thetas:
        return box.corners()

    def select(
        self,
        query: Query,
        pool: TaskPool,
        candidates: Thetas,
        box: Box,
        prior: Prior | None,
        key: Key,
        barred: Thetas | None = None,
    ) -> Selection:
        observations = _Observations(query, prior)
        task_losses = observations.ask(pool.thetas)
        active_losses, replay_losses = np.split(task_losses, [len(pool.active)])
        distances = nearest_distance(candidates, pool.thetas, box)
        unseen = _unseen(candidates, distances, barred, box)
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
        from clpinn.training.gaussian_process import (  # here, because SciPy takes long to import
            Posterior,
            length_scales,
            maximise_ucb,
            normalised,
        )

        thetas = to_unit(observations.thetas, box)
        capacity, fitted = len(thetas) + self.evaluations, len(thetas)
        posterior = Posterior(length_scales(thetas, observations.scores), thetas, starts, capacity)
        for _ in range(self.evaluations):
            if len(thetas) >= (fitted + 1 if self.refit == "every" else 2 * fitted):
                posterior = Posterior(length_scales(thetas, observations.scores), thetas, starts, capacity)
                fitted = len(thetas)
            best = maximise_ucb(posterior, normalised(observations.scores), self.kappa)
            theta = np.array([axis.from_unit(value) for axis, value in zip(box.axes, best, strict=True)])
            observations.ask(theta[None])
            thetas = np.concatenate([thetas, best[None]])
            posterior.add(best)
        return posterior.mean(normalised(observations.scores))
