"""Events: select a task, let it into the pool, weigh the tasks anew."""

from dataclasses import replace
from typing import Any

import numpy as np

from clpinn.errors import SettingsError
from clpinn.formulation.domain import Axis, Box, Points
from clpinn.formulation.problem import Problem, task_prior
from clpinn.formulation.thetas import same_as_any, theta_text
from clpinn.keys import Key, fold_in
from clpinn.training.selection import Bayesian, Fixed, GridGreedy, Query, Selection, Selector, Uniform
from clpinn.training.settings import Settings
from clpinn.training.state import State, Timing
from clpinn.training.tasks import Moves, TaskPool
from clpinn.training.weighting import Dynamic, Equal, Weighting


class Events:
    """What happens at events: the selector, the weighting and the priors of a run."""

    def __init__(self, problem: Problem, settings: Settings, task_key: Key, timing: Timing):
        self.problem, self.settings, self.timing = problem, settings, timing
        self._key = task_key
        self.box = task_box(problem, settings)
        self._excluded = excluded_thetas(problem, settings)
        self.selector = make_selector(settings, self.box)
        weights = settings.weights
        self.weighting: Weighting = Equal() if weights.kind == "equal" else Dynamic(weights.static, weights.dynamic)

    def first_pool(self) -> TaskPool:
        """The tasks that training starts with."""
        tasks = self.settings.tasks
        initial = np.zeros((0, len(self.box)))
        if tasks.selector != "free":
            initial = self.selector.initial(self.box, tasks.active, fold_in(self._key, 0))
        self.check_tasks(initial)
        if tasks.selector not in ("free", "uniform", "fixed"):
            return TaskPool.from_corners(initial, tasks.active, tasks.replay, tasks.uncapped)
        if len(initial) > tasks.active:
            raise SettingsError(
                f"{len(initial)} fixed tasks do not fit into an active set of {tasks.active}. Raise tasks.active."
            )
        return TaskPool.fixed(initial)

    def check_tasks(self, thetas: Points) -> None:
        """Raise an error if one of these tasks, shape (tasks, parameters), is held out."""
        held_out = same_as_any(thetas, self._excluded, self.box)
        if held_out.any():
            place = theta_text(self.problem.parameters, thetas[np.argmax(held_out)])
            raise SettingsError(
                f"A task at {place} is to be trained, but tasks.exclude holds it out. The tasks that "
                f"tasks.selector={self.settings.tasks.selector} starts with must be others. Change one of the two."
            )

    def first_weights(self, pool: TaskPool) -> np.ndarray:
        """Weights before any loss is known."""
        count = len(pool.thetas)
        return self.weighting.weights(np.ones(count), np.full(count, np.nan), self._training_priors(pool.thetas))

    def hold(self, state: State, query: Query) -> tuple[State, dict[str, Any] | None]:
        """The state after an event, and the event as plain values; None where nothing can change."""
        number = state.events + 1
        state = replace(state, events=number, event_step=state.step, event_validation=state.validation)
        queried_before = self.timing.seconds.get("queries", 0.0)
        with self.timing.measure("selection"):
            selection = self._selection(state, lambda thetas: self._timed(query, thetas), number)
        if selection is None:
            return state, None
        # Selection is the time of the event without its queries.
        self.timing.seconds["selection"] -= self.timing.seconds.get("queries", 0.0) - queried_before
        pool, moves = state.pool.event(
            selection.newcomer, selection.newcomer_loss, selection.active_losses, selection.replay_losses
        )
        queried = [*selection.active_losses, *selection.replay_losses]
        known = dict(zip(map(bytes, state.pool.thetas), queried, strict=True))
        if selection.newcomer is not None:
            known[bytes(selection.newcomer)] = selection.newcomer_loss
        before = dict(zip(map(bytes, state.pool.thetas), state.losses, strict=True))
        losses = np.array([known[bytes(theta)] for theta in pool.thetas])
        previous = np.array([before.get(bytes(theta), np.nan) for theta in pool.thetas])
        weights = self.weighting.weights(losses, previous, self._training_priors(pool.thetas))
        displaced = [
            np.array([*theta, known[bytes(theta)], state.step])
            for theta in (moves.to_replay, moves.dropped)
            if theta is not None
        ]
        state = replace(
            state,
            pool=pool,
            weights=weights,
            losses=losses,
            displaced=np.concatenate([state.displaced, *(row[None] for row in displaced)]),
            queries=state.queries + selection.queries,
        )
        return state, _record(state, selection, moves)

    def _selection(self, state: State, query: Query, number: int) -> Selection | None:
        selection = self.selector.select(
            query,
            state.pool,
            self.problem.candidates.points,
            self.box,
            self._search_priors if self.settings.tasks.search_prior else None,
            fold_in(self._key, number),
            self._barred(state),
        )
        if selection is not None or isinstance(self.weighting, Equal):
            return selection
        # A pool that never changes: its losses are needed for the weights.
        losses = query(state.pool.thetas)
        count = len(state.pool.active)
        return Selection(None, np.nan, np.nan, losses[:count], losses[count:], state.pool.thetas, losses, losses)

    def _barred(self, state: State) -> Points:
        """Thetas that are not to be selected, (thetas, parameters): those held out, and perhaps those dropped."""
        dropped = state.displaced[:, :-2]
        return self._excluded if self.settings.tasks.readmit else np.concatenate([self._excluded, dropped])

    def _timed(self, query: Query, thetas: Points) -> np.ndarray:
        with self.timing.measure("queries"):
            return query(thetas)

    def _search_priors(self, thetas: Points) -> np.ndarray:
        return self._priors(thetas, self.settings.tasks.search_prior, "tasks.search_prior")

    def _training_priors(self, thetas: Points) -> np.ndarray:
        return self._priors(thetas, self.settings.weights.prior, "weights.prior")

    def _priors(self, thetas: Points, exponent: float, setting: str) -> np.ndarray:
        """f_prior of each theta to the power `exponent`."""
        priors = np.array([task_prior(self.problem, theta) for theta in thetas])
        with np.errstate(divide="ignore", over="ignore"):
            powers = priors if exponent == 1 else priors**exponent
        if np.isinf(powers).any():
            place = theta_text(self.problem.parameters, thetas[np.argmax(powers)])
            raise SettingsError(
                f"The prior to the power {setting}={exponent:g} must be finite, but overflows at {place}. Choose an "
                "exponent nearer to 0."
            )
        return powers


def _record(state: State, selection: Selection, moves: Moves) -> dict[str, Any]:
    """An event as plain values, for events.jsonl; the state is the one after it."""

    def listed(array: Any) -> Any:
        return None if array is None else np.asarray(array).tolist()

    return {
        "step": state.step,
        "event": state.events,
        "queried": listed(selection.queried),
        "losses": listed(selection.losses),
        "scores": listed(selection.scores),
        "newcomer": listed(selection.newcomer),
        "newcomer_loss": float(selection.newcomer_loss),
        **{f"moved_{name}": listed(getattr(moves, name)) for name in ("entered", "to_replay", "restored", "dropped")},
        "active": listed(state.pool.active),
        "replay": listed(state.pool.replay),
        "weights": listed(state.weights),
        "queries": state.queries,
    }


def task_box(problem: Problem, settings: Settings) -> Box:
    """The box on whose scale tasks are spread and their distances measured."""
    problem.parameters.require(list(settings.tasks.linear))
    return Box(
        **{
            name: Axis(axis.low, axis.high) if name in settings.tasks.linear else axis
            for name, axis in zip(problem.parameters, problem.parameters.axes, strict=True)
        }
    )


def excluded_thetas(problem: Problem, settings: Settings) -> Points:
    """The thetas that are held out, shape (thetas, parameters)."""
    tasks = settings.tasks
    if not tasks.exclude:
        return np.zeros((0, len(problem.parameters)))
    if tasks.selector == "free":
        raise SettingsError(
            "tasks.exclude holds thetas out of a pool, but tasks.selector=free has none: it draws thetas all over the "
            "box. Leave tasks.exclude out, or choose a method with a pool."
        )
    if any(len(theta) != len(problem.parameters) for theta in tasks.exclude):
        raise SettingsError(
            f"tasks.exclude needs one value for each of {', '.join(problem.parameters)} per theta, such as "
            f"{[problem.parameters.centre.tolist()]}, but got {[list(theta) for theta in tasks.exclude]}."
        )
    thetas = np.array(tasks.exclude)
    problem.parameters.check(thetas, forbid=True)
    return thetas


def make_selector(settings: Settings, box: Box) -> Selector:
    """The selector that the settings name."""
    tasks = settings.tasks
    if tasks.selector in ("free", "uniform"):
        return Uniform()
    if tasks.selector == "fixed":
        return Fixed(tasks.fixed or tuple(map(tuple, [*box.corners().tolist(), box.centre.tolist()])))
    if tasks.selector == "grid":
        return GridGreedy()
    return Bayesian(tasks.evaluations, tasks.kappa, tasks.coverage, tasks.refit)
