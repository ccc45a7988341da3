"""The natural stage: natural-gradient steps on fresh batches, steered by a validation loss over the whole box.

The validation loss is taken every 10 steps, on points that are not trained. It bounds the length of steps, paces events
and ends runs without bounds. A run that has learnt nothing after 100 steps starts again from other weights.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from clpinn.errors import SettingsError
from clpinn.formulation.domain import Points
from clpinn.formulation.problem import Problem
from clpinn.formulation.thetas import theta_text
from clpinn.keys import Key, fold_in
from clpinn.machine import memory
from clpinn.networks.make import make
from clpinn.programs import Lowering
from clpinn.training.amplitudes import amplified, rescaled
from clpinn.training.batches import TaskMix, reweighted, row_source
from clpinn.training.causality import causal_weights
from clpinn.training.optimizers import Step
from clpinn.training.optimizers.natural import Linearised, Natural
from clpinn.training.rows import Batch
from clpinn.training.settings import Settings
from clpinn.training.stages import Message, Stage
from clpinn.training.state import State, Timing
from clpinn.training.term_sizes import TermSize

VALIDATION_STEPS, VALIDATION_POINTS = 10, 4096
"""Steps between two validations, and points of each term."""
PATIENCE, SHORTEST = 40, 1 / 16
"""In a run without bounds, the longest step is halved after so many steps without progress, down to this."""
GOAL_PATIENCE = 5
"""Patience is so many times longer in a run to a given error: the error may fall while the validation loss stalls."""
PROGRESS = 0.8
"""A validation loss below this share of the last best is progress."""
LONGEST_STEP = (0.0, 0.8, 1.0), (0.0, 0.6, 1.0)
"""How far the longest step of a bounded run has fallen, on a logarithmic scale, at shares of the run."""
GROW_STEPS, GROW_UNTIL, MEMORY_SHARE = 500, 0.8, 0.5
"""Batches double after so many steps, until this share of a run, within this share of the machine's memory."""
START_STEPS, STARTS, NOTHING_LEARNT = 100, 5, 0.5
"""A start is given up after so many steps with a validation loss above NOTHING_LEARNT, at most STARTS - 1 times."""
NOT_LEARNT, VANISHED = 0.1, 0.01
"""A residual is not learnt with a mean square above the first, unless its terms fell below this share of their size."""
EVENTS_UNTIL = 0.7
"""No events come after this share of a bounded run."""


class NaturalStage(Stage):
    """Natural-gradient steps. `State.natural` holds the optimiser's state and the sizes of the residuals' terms."""

    name = "natural"
    history_steps = VALIDATION_STEPS

    def __init__(self, problem: Problem, settings: Settings, keys: Mapping[str, Key], dtype: Any, timing: Timing):
        """`keys` are those of the network, validation, tasks and batches."""
        _require_settings(settings)
        self.problem, self.settings, self.dtype, self.timing = problem, settings, dtype, timing
        self._keys = keys
        self._rows, self._meter, self._batches = row_source(problem, settings.natural.rows, dtype)
        self._optimizer = Natural(settings.natural.damping, settings.natural.momentum, settings.natural.noise)
        self._validation_tasks = None
        if settings.network.kind == "standard":  # a standard PINN knows its own theta only
            thetas = np.array(settings.tasks.fixed)
            self._validation_tasks = TaskMix(thetas, np.ones(len(thetas)))

    def init(self, network: Any) -> Any:
        return self._optimizer.init(network), self._meter.ones()

    def lowerings(self, network: Any) -> list[Lowering]:
        programs = [*self._rows.lowerings(network, self._batches.points), *self._meter.lowerings(network)]
        return [*programs, *self._batches.lowerings()]

    def enter(self, state: State) -> State:
        if math.isfinite(state.validation):  # the run goes on
            return state
        return self._validated(self._amplified(state))

    # A step --------------------------------------------------------------------------------------------------------

    def objective(self, state: State) -> TaskMix | None:
        return TaskMix(state.pool.thetas, state.weights) if len(state.pool.thetas) else None

    def step(self, state: State, objective: TaskMix | None, done: float) -> tuple[State, Step, dict[str, float]]:
        natural, (optimizer, sizes) = self.settings.natural, state.natural
        # A failed batch would fail again, so the key changes with the number of recoveries.
        key = fold_in(fold_in(self._keys["batches"], state.recoveries), state.step)
        batch = self._batches.draw(state.network, key, sizes, objective, state.growth, causality=natural.causality)
        squares: dict[str, float] = {}

        def linearised(network: Any) -> Linearised:
            rows = self._rows.linearised(network, batch)
            squares.update(rows.squares)
            balanced = reweighted(batch, rows.balance)
            return Linearised(rows.rows, rows.jacobian, lambda moved: self._rows.value(moved, balanced)[0])

        longest = state.rate * min(state.limit, natural.last_step ** np.interp(done, *LONGEST_STEP))
        network, optimizer, step = self._optimizer.step(linearised, state.network, optimizer, longest)
        if math.isfinite(float(step.value)):
            step = step._replace(value=sum(squares.values()))  # as it was before the rows were balanced
        state = replace(state, network=network, natural=(optimizer, sizes))
        return replace(state, step=state.step + 1, stage_step=state.stage_step + 1), step, squares

    def finished(self, state: State, done: float) -> bool:
        return self._progress_ended(state) and state.rate <= SHORTEST

    def _progress_ended(self, state: State) -> bool:
        """Whether a run without bounds has made no progress for long. A start that may be given up gets its time."""
        if self.settings.steps is not None or self.settings.seconds is not None:
            return False
        may_restart = state.starts < STARTS and state.step < state.starts * START_STEPS
        patience = PATIENCE if self.settings.error is None else GOAL_PATIENCE * PATIENCE
        recent = state.step - state.best_step < patience
        return not (recent or (may_restart and state.validation > NOTHING_LEARNT))

    def remedy(self, state: State) -> tuple[State, str]:
        natural = self._optimizer.init(state.network), state.natural[1]
        return replace(state, rate=state.rate / 2, natural=natural), "shorter steps."

    # After a step --------------------------------------------------------------------------------------------------

    def check(self, state: State, done: float, message: Message) -> State:
        if state.step % VALIDATION_STEPS == 0:
            state = self._validated(self._rescaled(self._grown(state, done)))
            if self._is_stuck(state, done):
                message(f"Nothing was learnt in {START_STEPS} steps: another start, with other weights.")
                state = self._restarted(state)
        if self._progress_ended(state) and state.rate > SHORTEST:
            state = replace(state, rate=state.rate / 2, best=state.validation, best_step=state.step)
        return state

    def _validated(self, state: State) -> State:
        """The state with new sizes, a new validation loss, and a new bound on the length of steps."""
        optimizer, sizes = state.natural
        strength, network = self.settings.natural.causality, state.network
        with self.timing.measure("validation"):
            key = fold_in(self._keys["validation"], state.step)
            if math.isfinite(state.validation) and self._batches.time is not None and strength:
                batch, residuals = self._validation_residuals(network, sizes)
                points = np.asarray(batch["interior"].x)
                weights = causal_weights(self._batches.time, points, residuals["interior"], strength)
                sizes = self._meter.measure(network, key, sizes, weights)
            else:  # at first there are no sizes yet to weigh times by
                sizes = self._meter.measure(network, key, sizes)
            validation = capped_loss(self._validation_residuals(network, sizes)[1], self._rows.terms.weights)
        # The value of a batch cannot tell whether a step went too far for all other rows. This can.
        worse = validation > 2 * state.validation
        limit = max(state.limit / 2, SHORTEST) if worse else min(1.2 * state.limit, 1.0)
        state = replace(state, natural=(optimizer, sizes), validation=validation, limit=limit)
        if not validation > PROGRESS * state.best:
            state = replace(state, best=validation, best_step=state.step)
        return state

    def _validation_residuals(
        self, network: Any, sizes: Mapping[str, TermSize]
    ) -> tuple[dict[str, Batch], dict[str, Float[np.ndarray, "points residuals"]]]:
        """Points over the whole box, the same throughout a run, and the scaled residuals there."""
        points, key = self._validation_points(), self._keys["validation"]
        batch = self._batches.uniform(key, points, sizes, self._validation_tasks)
        return batch, self._rows.residuals(network, batch)

    def _validation_points(self) -> dict[str, int]:
        return dict.fromkeys(self._batches.points, self._rows.even(VALIDATION_POINTS))

    def _amplified(self, state: State) -> State:
        """The state before its first step, with outputs as large as the equations ask for."""

        def overflows(network: Any) -> bool:
            residuals = self._validation_residuals(network, self._meter.ones())[1]
            return any(np.isinf(part).any() for part in residuals.values())

        return replace(state, network=amplified(state.network, self._meter, self._keys["validation"], overflows))

    def _rescaled(self, state: State) -> State:
        """The same functions, with amplitudes that keep the output layer's weights near one."""
        optimizer, sizes = state.natural
        network, momentum = rescaled(state.network, optimizer.momentum)
        if network is state.network:
            return state
        return replace(state, network=network, natural=(optimizer._replace(momentum=momentum), sizes))

    def _grown(self, state: State, done: float) -> State:
        """The state with larger batches when it is time: they see more of what is left to solve."""
        parameters = sum(leaf.size for leaf in jax.tree.leaves(state.network))
        rows = 2 * state.growth * self._batches.count
        # The Jacobian as devices have it, as one array and its product with a vector; the kernel and its factor.
        fits = 8 * (3 * rows * parameters + 2 * rows**2) <= MEMORY_SHARE * memory()
        fits &= 2 * state.growth * self.settings.natural.rows <= parameters
        if state.step % GROW_STEPS == 0 and done <= GROW_UNTIL and fits:
            return replace(state, growth=2 * state.growth)
        return state

    def _is_stuck(self, state: State, done: float) -> bool:
        """Whether a start has got nowhere, as some do where a solution oscillates."""
        due = state.step == state.starts * START_STEPS and state.starts < STARTS and done < 0.5
        if not due or state.validation <= NOTHING_LEARNT:
            return False
        # Many residuals, or one of a large weight, may add up to more though each is small.
        residuals = self._validation_residuals(state.network, state.natural[1])[1]
        squares = mean_squares(residuals, self._rows.terms.weights)
        return max(float(np.max(by_residual)) for by_residual in squares.values()) > NOTHING_LEARNT

    def _restarted(self, state: State) -> State:
        """The same run, with another fresh network."""
        key = fold_in(self._keys["network"], state.starts)
        network = make(self.problem, self.settings.network, key, self.dtype)
        state = replace(state, network=network, natural=self.init(network), starts=state.starts + 1)
        state = replace(state, validation=math.inf, best=math.inf, limit=1.0, rate=1.0)
        return self._validated(self._amplified(state))

    # What others ask for -------------------------------------------------------------------------------------------

    def event_due(self, state: State, done: float) -> bool:
        """When the validation loss has halved since the last event, at the latest after `tasks.interval` steps."""
        if len(state.pool.thetas) == 0 or state.step % VALIDATION_STEPS or done > EVENTS_UNTIL:
            return False
        halved = state.validation <= state.event_validation / 2
        return halved or state.step - state.event_step >= self.settings.tasks.interval

    def task_losses(self, state: State, thetas: Points) -> np.ndarray:
        return self._batches.task_losses(state.network, thetas, self._keys["tasks"], state.natural[1])

    def validation_loss(self, state: State) -> float:
        return state.validation

    def undefined(self, state: State) -> list[str]:
        batch, residuals = self._validation_residuals(state.network, state.natural[1])
        texts = []
        for name, part in residuals.items():
            undefined = np.flatnonzero(np.any(~np.isfinite(part), axis=1))
            if len(undefined):
                texts.append(undefined_text(self.problem, name, batch[name], undefined))
        return texts

    def not_learnt(self, state: State) -> list[str]:
        if not math.isfinite(state.validation):  # nothing was validated
            return []
        sizes = state.natural[1]
        residuals = self._validation_residuals(state.network, sizes)[1]
        squares = mean_squares(residuals, self._rows.terms.weights)
        names = []
        for term, by_residual in squares.items():
            by_residual = by_residual - np.mean(~np.isfinite(residuals[term]), axis=0)  # undefined ones count as one
            # The terms of a condition may all vanish in the solution. What is left of them says nothing.
            vanished = np.exp(sizes[term].limits[1]) < VANISHED * sizes[term].largest
            still_large = (by_residual > NOT_LEARNT) & ~vanished
            names += [name for name, large in zip(self._rows.terms.residual_names[term], still_large) if large]
        return names

    def status(self, state: State, step: Step) -> str:
        rows, damping = state.growth * self.settings.natural.rows, float(state.natural[0].damping)
        return f"step {step.length:.2g}  damping {damping:.0e}  rows {rows}"


def capped_loss(residuals: Mapping[str, np.ndarray], weights: Mapping[str, float]) -> float:
    """The sum over residuals of weight × mean square, each square at most one, and one where it is not finite.

    `residuals` are those of an even batch, by term: each is multiplied by the root of weight / points.
    """
    return float(sum(np.sum(np.fmin(r**2, weights[name] / len(r))) for name, r in residuals.items()))


def mean_squares(
    residuals: Mapping[str, np.ndarray], weights: Mapping[str, float]
) -> dict[str, Float[np.ndarray, " residuals"]]:
    """The unweighted mean square of each residual, by term. Each square is at most one, and one if it is not finite."""
    return {name: np.sum(np.fmin(r**2 * len(r) / weights[name], 1.0), axis=0) / len(r) for name, r in residuals.items()}


def undefined_text(problem: Problem, term: str, batch: Batch, undefined: Int[np.ndarray, " undefined"]) -> str:
    """Where a term is not defined, from the numbers of those points: their share, one of them, and what they share."""
    points = np.concatenate([batch.x[:, : len(problem.coordinates)], batch.theta], axis=1)[undefined]
    axes = (*problem.coordinates.axes, *problem.parameters.axes)
    ranges = [
        f"{name} between {column.min():.3g} and {column.max():.3g}"
        for name, axis, column in zip(problem.axes, axes, points.T, strict=True)
        if np.ptp(axis.to_unit(column)) < 0.9
    ]
    label = "equation" if term == "interior" else f"condition {term!r}"
    share = 100 * len(points) / len(batch.x)
    text = f"The residual of the {label} is not defined at {share:.2g} % of its points, for example at "
    text += theta_text(problem.axes, points[0], digits=4)
    text += f". All of them have {' and '.join(ranges)}" if ranges else ""
    return f"{text}. These points are left out. Look for roots, logarithms, powers and quotients there."


def _require_settings(settings: Settings) -> None:
    """Raise where settings make no sense for this stage."""
    if settings.precision != "double":
        raise SettingsError("The natural optimiser needs precision=double: single is not enough for its kernel.")
    if settings.adam.decay != "none" or settings.lbfgs.freeze:
        raise SettingsError(
            "Decay and freezing (acr2-full) belong to Adam and L-BFGS, and natural has neither. Use "
            "optimizer=adam-lbfgs, or acr2."
        )
    if settings.points.interior is not None or settings.batch_rows is not None:
        raise SettingsError(
            "points.interior and batch_rows are for Adam and L-BFGS. The natural optimiser draws fresh rows at every "
            "step. Set natural.rows, or use optimizer=adam-lbfgs."
        )
    if settings.weights.kind == "dynamic" and settings.tasks.selector == "free":
        raise SettingsError("weights.kind=dynamic weighs tasks, and tasks.selector=free has none. Use equal weights.")
