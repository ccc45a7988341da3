"""Training: the loop, top to bottom.

With `adam-lbfgs`, Adam first, with an event every `interval` steps (select a task, exchange tasks, update weights),
then L-BFGS on the pool as Adam left it. With `natural` there is one stage of natural-gradient steps on fresh batches,
and events come when the validation loss has halved. The trainer knows nothing of files: it gets callbacks, and a
`State` is all there is to save.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from clpinn.errors import SettingsError
from clpinn.formulation.domain import Axis, Box, Points
from clpinn.formulation.problem import Problem, task_prior
from clpinn.machine import memory
from clpinn.networks.architecture import trainable
from clpinn.networks.fnn import ParamFNN
from clpinn.networks.layers import Output
from clpinn.networks.make import make
from clpinn.training.optimizers import Step
from clpinn.training.optimizers.adam import Adam
from clpinn.training.optimizers.lbfgs import LBFGS
from clpinn.training.optimizers.natural import Natural
from clpinn.training.pool_loss import Collocation, Loss, Tasks
from clpinn.training.rows import Pool, Rows
from clpinn.training.selection import Bayesian, Fixed, GridGreedy, Selection, Selector, Uniform
from clpinn.training.settings import Settings
from clpinn.training.tasks import Moves, TaskPool
from clpinn.training.weighting import Dynamic, Equal, Weighting

ADAM, LBFGS_STAGE, NATURAL, DONE = "adam", "lbfgs", "natural", "done"
VALIDATION_THETAS = 16
SNAPSHOT_STEPS = 100
RECOVERIES = 5
# Of the natural stage: steps from one validation to the next, and its points; steps without a fifth less validation
# loss after which the steps become shorter, and how short at last.
VALIDATION_STEPS, VALIDATION_POINTS = 10, 4096
PATIENCE, SHORTEST = 40, 1 / 16
FALL = (0.0, 0.8, 1.0), (0.0, 0.6, 1.0)
"""How far the longest step has fallen, on a logarithmic scale, at shares of a bounded run: faster at the end."""
GROW_STEPS, GROW_UNTIL, MEMORY_SHARE = 500, 0.8, 0.5
"""Batches grow twofold after so many steps, up to the number of parameters and this share of the machine's memory, and
not after that share of a run."""
START_STEPS, STARTS, NOTHING_LEARNT = 100, 5, 0.5
"""A start is given up after so many steps with a validation loss above this: residuals as large as their terms."""
AMPLITUDE_RANGE, TINY = 0.01, 1e-6
"""Norms of an output's weights, or one over them, at which its amplitude is changed; by no more than this at once."""
EVENTS_UNTIL = 0.7
"""No events after this share of a bounded run."""


@dataclass(frozen=True)
class State:
    """Everything that changes in a run. `tree()` and `counters()` are what a checkpoint holds."""

    network: Any
    adam: Any
    lbfgs: Any
    natural: Any
    """The optimiser's state and the residuals' scales; empty outside its stage, like `adam` and `lbfgs`."""
    pool: TaskPool
    weights: np.ndarray
    """Shape (tasks,), in the order of `pool.thetas`."""
    losses: np.ndarray
    """Loss of each task at the event before, NaN where there was none."""
    displaced: np.ndarray
    """One row a task when it was displaced: theta, loss, step. Shape (displacements, parameters + 2)."""
    stage: str = ADAM
    step: int = 0
    """Optimiser steps of the whole run."""
    stage_step: int = 0
    evaluations: int = 0
    """Function evaluations of the L-BFGS stage."""
    queries: int = 0
    recoveries: int = 0
    rate: float = 1.0
    """What numerical failures, or the end of progress, have left of the learning rate or longest step."""
    events: int = 0
    validation: float = math.inf
    """The newest validation loss of the natural stage."""
    best: float = math.inf
    """The validation loss that the next must be a fifth below to count as progress."""
    best_step: int = 0
    limit: float = 1.0
    """The longest step that validation allows: halved when its loss doubles, then raised again."""
    starts: int = 1
    """Networks that were begun with."""
    growth: int = 1
    """What the rows of a batch are multiplied by."""
    event_step: int = 0
    event_validation: float = math.inf
    """When the last event was, and the validation loss then."""

    def tree(self) -> dict[str, Any]:
        names = ("network", "adam", "lbfgs", "natural", "pool", "weights", "losses", "displaced")
        return {name: getattr(self, name) for name in names}

    def counters(self) -> dict[str, Any]:
        names = ("stage", "step", "stage_step", "evaluations", "queries", "recoveries", "rate")
        names += ("events", "validation", "best", "best_step", "limit", "starts", "growth")
        names += ("event_step", "event_validation")
        return {name: getattr(self, name) for name in names}


@dataclass
class Timing:
    """Wall seconds by what they were spent on."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - start


def _nothing(*_: Any) -> None:
    return None


@dataclass(frozen=True)
class Callbacks:
    """How a run tells of itself. `stop` returns the name of an outcome to end the run with."""

    history: Callable[[dict[str, Any]], None] = _nothing
    event: Callable[[dict[str, Any], Any], None] = _nothing
    """Gets the event as plain values, and the network at that moment."""
    progress: Callable[[State, Step, dict[str, float]], None] = _nothing
    save: Callable[[State], None] = _nothing
    """Called after every step; decides itself when to write."""
    probe: Callable[[Any], dict[str, float]] | None = None
    """Errors of a network, for the history only."""
    stop: Callable[[], str | None] = _nothing
    elapsed: Callable[[], float] = lambda: 0.0
    """Wall seconds of the run so far, those before a resume included."""
    message: Callable[[str], None] = _nothing


class Trainer:
    """What stays the same through a run: the problem, its settings and all that follows from them."""

    def __init__(self, problem: Problem, settings: Settings):
        self.problem, self.settings = problem, settings
        self.dtype = jnp.float64 if settings.precision == "double" else jnp.float32
        keys = jax.random.split(jax.random.key(settings.seed), 5)
        self._network_key, points_key, validation_key, self._task_key, self._batch_key = keys
        fraction = settings.tasks.fraction if settings.tasks.density == "sparse" else 1.0
        dense = Collocation.sample(problem, points_key)
        sparse = Collocation.sample(problem, points_key, fraction)
        independent = Collocation.sample(problem, validation_key)
        self.loss = Loss(problem, dense, sparse, self.dtype, settings.chunk, settings.batch)
        self._full_loss = self.loss if settings.batch == 1 else Loss(problem, dense, sparse, self.dtype, settings.chunk)
        self._validation = Loss(problem, independent, independent, self.dtype, settings.chunk)
        self._validation_thetas = problem.parameters.sample(VALIDATION_THETAS, validation_key)
        self._validation_pool = None
        if settings.network.kind == "standard":  # has no other theta than its own
            self._validation_thetas = np.array(settings.tasks.fixed)
            self._validation_pool = Pool(self._validation_thetas, np.ones(len(self._validation_thetas)))
        self.box = task_box(problem, settings)
        self.selector = make_selector(settings, self.box)
        weights = settings.weights
        self.weighting: Weighting = Equal() if weights.kind == "equal" else Dynamic(weights.static, weights.dynamic)
        self.adam = Adam(settings.adam.learning_rate)
        lbfgs = settings.lbfgs
        self.lbfgs = LBFGS(lbfgs.history, lbfgs.gradient_tolerance, lbfgs.line_search)
        natural = settings.natural
        self.natural = Natural(natural.damping, natural.momentum, natural.noise)
        self.rows = Rows(problem, natural.rows, self.dtype) if settings.optimizer == NATURAL else None
        self._validation_key = validation_key
        self.timing = Timing()

    # The start ---------------------------------------------------------------------------------------------------

    def init(self, network: Any = None) -> State:
        """The state before the first step, of a given network or a fresh one."""
        settings = self.settings
        network = network or make(self.problem, settings.network, self._network_key, self.dtype)
        for what, wanted in (
            ("lbfgs.freeze", settings.lbfgs.freeze),
            ("adam.decay=branch", settings.adam.decay == "branch"),
        ):
            if wanted and not isinstance(network, ParamFNN):
                raise SettingsError(f"{what} needs a parameter branch. Use network.kind=param-fnn, or leave it out.")
        if self.rows is None and (settings.tasks.selector == "free" or settings.until is not None):
            what = "until" if settings.until is not None else "tasks.selector=free"
            raise SettingsError(f"{what} needs the natural optimiser. Use optimizer=natural, or leave it out.")
        if self.rows is not None:
            self._check_natural()
        tasks = settings.tasks
        initial = np.zeros((0, len(self.box)))
        if tasks.selector != "free":
            initial = self.selector.initial(self.box, tasks.active, jax.random.fold_in(self._task_key, 0))
        if tasks.selector in ("free", "uniform", "fixed"):
            if len(initial) > tasks.active:
                raise SettingsError(
                    f"{len(initial)} fixed tasks do not fit into an active set of {tasks.active}. Raise tasks.active."
                )
            pool = TaskPool.fixed(initial)
        else:
            pool = TaskPool.from_corners(initial, tasks.active, tasks.replay)
        count = len(pool.thetas)
        return State(
            network=network,
            **self._optimizer_states(network),
            stage=ADAM if self.rows is None else NATURAL,
            pool=pool,
            weights=self.weighting.weights(np.ones(count), np.full(count, np.nan), self._training_priors(pool.thetas)),
            losses=np.full(count, np.nan),
            displaced=np.zeros((0, len(self.problem.parameters) + 2)),
        )

    def _check_natural(self) -> None:
        settings, natural = self.settings, self.settings.natural
        if settings.precision != "double":
            raise SettingsError("The natural optimiser needs precision=double: single is not enough for its kernel.")
        if settings.adam.decay != "none" or settings.lbfgs.freeze:
            raise SettingsError(
                "Decay and freezing (acr2-full) belong to Adam and L-BFGS, and natural has neither. Use "
                "optimizer=adam-lbfgs, or acr2."
            )
        if natural.rows < 1 or not 0 < natural.last_step <= 1 or not natural.causality >= 0:
            raise SettingsError(
                "natural.rows must be at least 1, natural.last_step above 0 and at most 1, and natural.causality at "
                f"least 0, but got {natural.rows}, {natural.last_step} and {natural.causality}."
            )

    def _optimizer_states(self, network: Any) -> dict[str, Any]:
        """The optimisers' states at the start, empty for those that the run does not use."""
        if self.rows is not None:
            return {"adam": (), "lbfgs": (), "natural": (self.natural.init(network), self.rows.unscaled())}
        lbfgs = self.lbfgs.init(self._trainable(network, LBFGS_STAGE)[0])
        return {"adam": self.adam.init(self._trainable(network, ADAM)[0]), "lbfgs": lbfgs, "natural": ()}

    def _priors(self, thetas: Points) -> np.ndarray:
        """f_prior of each theta."""
        return np.array([task_prior(self.problem, theta) for theta in thetas])

    def _training_priors(self, thetas: Points) -> np.ndarray:
        return self._priors(thetas) if self.settings.weights.prior else np.ones(len(thetas))

    # The loop ----------------------------------------------------------------------------------------------------

    def run(self, state: State, callbacks: Callbacks) -> tuple[State, str]:
        """Train until the end, a bound or a stop. Returns the last state and the outcome's name."""
        settings = self.settings
        every = max(1, min(100, (settings.adam.steps + settings.lbfgs.steps) // 100))
        if self.rows is not None:
            every = VALIDATION_STEPS
        if state.stage == NATURAL and not math.isfinite(state.validation):  # not one that was stopped at once
            state = self._validated(self._amplified(state))
        objective = self._objective(state)
        good = state
        while True:
            stage, done = state.stage, self._done(state.step, callbacks.elapsed())
            state = self._staged(state, done)
            if state.stage not in (stage, DONE):
                objective, good = self._objective(state), state
            if state.stage == DONE:
                return state, "finished"
            if settings.until is not None and state.validation <= settings.until:
                return state, "until"
            if settings.steps is not None and state.step >= settings.steps:
                return state, "steps"
            reason = callbacks.stop()
            if reason is not None:
                return state, reason

            with self.timing.measure(state.stage):
                state, met = self._step(state, objective, done)
                value = float(met.value)
            if not (math.isfinite(value) and math.isfinite(float(met.gradient_norm))):
                if good.recoveries >= RECOVERIES:
                    names = [name for name, part in objective.named.items() if not math.isfinite(float(part))]
                    callbacks.message(
                        f"The loss is not finite (of {', '.join(names) or 'its derivatives'}) and the remedy did not "
                        "help. The run ends here. Look for roots, logarithms, powers and quotients that are not "
                        "defined for every value a network may give."
                    )
                    return good, "diverged"
                good = self._remedied(good)
                callbacks.message(
                    f"The loss is not finite at step {state.step}: back to step {good.step}, "
                    + {ADAM: "a smaller learning rate.", NATURAL: "shorter steps."}.get(
                        good.stage, "L-BFGS starts afresh."
                    )
                )
                state, objective = good, self._objective(good)
                continue
            if met.finished:
                callbacks.message(f"L-BFGS stopped after {state.stage_step} steps: {met.reason}.")
                state = replace(state, stage=DONE)
            if state.stage == NATURAL and state.step % VALIDATION_STEPS == 0:
                state = self._validated(self._rescaled(self._grown(state, done)))
                if self._is_stuck(state, done):
                    callbacks.message(f"Nothing was learnt in {START_STEPS} steps: another start, with other weights.")
                    state = self._restarted(state)
            named = {name: float(part) for name, part in objective.named.items()}
            if self._event_due(state, done):
                state = self._event(state, callbacks)
                objective, good = self._objective(state), state
            elif state.stage_step % SNAPSHOT_STEPS == 0:
                good = state
            callbacks.progress(state, met, named)
            if state.step % every == 0:
                callbacks.history(self._history(state, value, named, callbacks))
            callbacks.save(state)

    def _done(self, step: int, elapsed: float) -> float:
        """The share of a bounded run that is over, by its steps or its time; zero without bounds."""
        steps, seconds = self.settings.steps, self.settings.seconds
        return min(1.0, max(step / steps if steps else 0.0, elapsed / seconds if seconds else 0.0))

    def _staged(self, state: State, done: float) -> State:
        """The state in the stage it is due for."""
        settings = self.settings
        unbounded = settings.steps is None and settings.seconds is None
        may_restart = state.starts < STARTS and state.step < state.starts * START_STEPS
        patient = state.step - state.best_step < PATIENCE or (may_restart and state.validation > NOTHING_LEARNT)
        if state.stage == NATURAL and unbounded and not patient:
            if state.rate <= SHORTEST:
                return replace(state, stage=DONE)
            return replace(state, rate=state.rate / 2, best=state.validation, best_step=state.step)
        half_time = settings.seconds is not None and done > 0.5
        if state.stage == ADAM and (state.stage_step >= settings.adam.steps or half_time):
            state = replace(state, stage=LBFGS_STAGE, stage_step=0)
        if state.stage == LBFGS_STAGE:
            allowed = settings.lbfgs.evaluations * settings.lbfgs.steps
            if state.stage_step >= settings.lbfgs.steps or state.evaluations >= allowed:
                state = replace(state, stage=DONE)
        return state

    def _step(self, state: State, objective: "_Objective | _Batches", done: float) -> tuple[State, Any]:
        if isinstance(objective, _Batches):
            return self._natural_step(state, objective, done)
        trainable, frozen = self._trainable(state.network, state.stage)
        if state.stage == ADAM:
            optimizer = replace(self.adam, learning_rate=self.adam.learning_rate * state.rate)
            objective.key = jax.random.fold_in(self._batch_key, state.step)
            trainable, adam, met = optimizer.step(objective, trainable, state.adam)
            state = replace(state, adam=adam)
        else:
            trainable, lbfgs, met = self.lbfgs.step(objective, trainable, state.lbfgs)
            state = replace(state, lbfgs=lbfgs, evaluations=state.evaluations + met.evaluations)
        network = eqx.combine(trainable, frozen)
        return replace(state, network=network, step=state.step + 1, stage_step=state.stage_step + 1), met

    def _natural_step(self, state: State, objective: "_Batches", done: float) -> tuple[State, Any]:
        """One step on a fresh batch, no longer than the run's progress allows."""
        assert self.rows is not None
        optimizer, scales = state.natural
        # Other batches after a failure: the old one would fail again.
        key = jax.random.fold_in(jax.random.fold_in(self._batch_key, state.recoveries), state.step)
        objective.draw(state.network, key, scales, state.growth, self.settings.natural.causality)
        largest = state.rate * min(state.limit, self.settings.natural.last_step ** np.interp(done, *FALL))
        network, optimizer, met = self.natural.step(objective, state.network, optimizer, largest)
        if math.isfinite(float(met.value)):
            met = met._replace(value=sum(objective.named.values()))  # as it was before the rows were balanced
        state = replace(state, network=network, natural=(optimizer, scales))
        return replace(state, step=state.step + 1, stage_step=state.stage_step + 1), met

    def _amplified(self, state: State) -> State:
        """The state before its first step, with outputs of the size that the equations ask for."""
        assert self.rows is not None
        if not _has_amplitudes(state.network):
            return state
        network = state.network

        def multiplied(network: Any, factor: np.ndarray) -> Any:
            by = jnp.asarray(factor, self.dtype)
            return eqx.tree_at(lambda n: n.output.amplitude, network, replace_fn=lambda before: before * by)

        for _ in range(1 + len(self.problem.outputs)):  # one output's amplitude may ask for another's
            network = multiplied(network, self.rows.amplitudes(network, self._validation_key))
        while np.any(raised := np.asarray(network.output.amplitude) > 1):
            found = self._validation_residuals(network, self.rows.unscaled())[1]
            infinite = any(np.isinf(part).any() for part in found.values())
            over = raised & (infinite | self.rows.overshot(network, self._validation_key))
            if not over.any():
                break
            network = multiplied(network, np.where(over, 0.5, 1.0))
        return replace(state, network=network)

    def _rescaled(self, state: State) -> State:
        """The same functions, with an amplitude of its own size for an output that has become far smaller or larger.

        Steps are measured in the network's weights, and such an output asks for steps of quite another size.
        """
        if not _has_amplitudes(state.network):
            return state
        output, (optimizer, scales) = state.network.output, state.natural
        size = jnp.linalg.norm(output.weight, axis=0)
        factor = jnp.where((size < AMPLITUDE_RANGE) | (size > 1 / AMPLITUDE_RANGE), jnp.maximum(size, TINY), 1.0)
        if jnp.all(factor == 1):
            return state
        _, unflatten = ravel_pytree(state.network)
        momentum = unflatten(jnp.asarray(optimizer.momentum))

        def divided(network: Any) -> Any:
            return eqx.tree_at(
                lambda n: (n.output.weight, n.output.bias), network, replace_fn=lambda leaf: leaf / factor
            )

        network = eqx.tree_at(lambda n: n.output.amplitude, divided(state.network), output.amplitude * factor)
        optimizer = optimizer._replace(momentum=np.asarray(ravel_pytree(divided(momentum))[0]))
        return replace(state, network=network, natural=(optimizer, scales))

    def _validated(self, state: State) -> State:
        """The state with new scales and a new validation loss: over the whole box, on points of its own."""
        assert self.rows is not None
        optimizer, scales = state.natural
        rows, network = self.rows, state.network
        causality = self.settings.natural.causality
        with self.timing.measure("validation"):
            key = jax.random.fold_in(self._validation_key, state.step)
            if math.isfinite(state.validation) and rows.has_time and causality:  # otherwise there are no scales yet
                weigh = rows.causal(*self._validation_residuals(network, scales), causality)
                scales = rows.scales(network, key, scales, weigh)
            else:
                scales = rows.scales(network, key, scales)
            validation = rows.capped(self._validation_residuals(network, scales)[1])
        # A batch's own value cannot tell whether the step went too far for all the other rows; this can.
        worse = validation > 2 * state.validation
        limit = max(state.limit / 2, SHORTEST) if worse else min(1.2 * state.limit, 1.0)
        state = replace(state, natural=(optimizer, scales), validation=validation, limit=limit)
        if not validation > 0.8 * state.best:
            state = replace(state, best=validation, best_step=state.step)
        return state

    def _validation_residuals(self, network: Any, scales: Any) -> tuple[Any, Any]:
        """Points over the whole box that are the same throughout a run, and the scaled residuals there."""
        assert self.rows is not None
        points = dict.fromkeys(self.rows.points, self.rows.even(VALIDATION_POINTS))
        batch = self.rows.uniform(self._validation_key, points, scales, self._validation_pool)
        return batch, self.rows.residuals(network, batch)

    def _grown(self, state: State, done: float) -> State:
        """The state with larger batches where it is time: they see more of what is left when the rest is solved."""
        assert self.rows is not None
        parameters = sum(leaf.size for leaf in jax.tree.leaves(state.network))
        rows = 2 * state.growth * self.rows.count
        # The Jacobian as devices have it, as one array and its product with a vector; the kernel and its factor.
        fits = 8 * (3 * rows * parameters + 2 * rows**2) <= MEMORY_SHARE * memory()
        fits &= 2 * state.growth * self.settings.natural.rows <= parameters
        if state.step % GROW_STEPS == 0 and done <= GROW_UNTIL and fits:
            return replace(state, growth=2 * state.growth)
        return state

    def _is_stuck(self, state: State, done: float) -> bool:
        """Whether a start has got nowhere. Some do, where a solution oscillates: no batch helps any other."""
        assert self.rows is not None
        early = state.step == state.starts * START_STEPS and state.starts < STARTS and done < 0.5
        if not early or state.validation <= NOTHING_LEARNT:
            return False
        found = self._validation_residuals(state.network, state.natural[1])[1]
        return self.rows.largest(found) > NOTHING_LEARNT  # many residuals, or one that weighs much, add up to more

    def _restarted(self, state: State) -> State:
        """The same run, with another fresh network."""
        network = make(
            self.problem, self.settings.network, jax.random.fold_in(self._network_key, state.starts), self.dtype
        )
        state = replace(state, network=network, natural=self._optimizer_states(network)["natural"])
        state = replace(state, starts=state.starts + 1, validation=math.inf, best=math.inf, limit=1.0, rate=1.0)
        return self._validated(self._amplified(state))

    def _event_due(self, state: State, done: float) -> bool:
        """Every so many Adam steps; under natural when the validation loss has halved, at the latest after as many."""
        interval = self.settings.tasks.interval
        if state.stage == ADAM:
            return state.stage_step % interval == 0
        if (
            state.stage != NATURAL
            or len(state.pool.thetas) == 0
            or state.step % VALIDATION_STEPS
            or done > EVENTS_UNTIL
        ):
            return False
        return state.validation <= state.event_validation / 2 or state.step - state.event_step >= interval

    def _remedied(self, good: State) -> State:
        """The last good state with half the learning rate or longest step, or with L-BFGS' memory cleared."""
        good = replace(good, recoveries=good.recoveries + 1)
        if good.stage == NATURAL:
            return replace(good, rate=good.rate / 2, natural=(self.natural.init(good.network), good.natural[1]))
        if good.stage == ADAM:
            return replace(good, rate=good.rate / 2)
        return replace(good, lbfgs=self.lbfgs.init(self._trainable(good.network, LBFGS_STAGE)[0]))

    def _trainable(self, network: Any, stage: str) -> tuple[Any, Any]:
        """The network's arrays that a stage trains, and the others."""
        chosen = trainable(network)
        if stage == LBFGS_STAGE and self.settings.lbfgs.freeze:
            branch = jax.tree.map(lambda _: False, network.parameter_branch)
            chosen = eqx.tree_at(lambda n: n.parameter_branch, chosen, branch)
        return eqx.partition(network, chosen)

    def _objective(self, state: State) -> "_Objective | _Batches":
        """The objective of a stage on the tasks and weights of a state."""
        tasks, pool = self.settings.tasks, state.pool
        if self.rows is not None:
            return _Batches(self.rows, Pool(pool.thetas, state.weights) if len(pool.thetas) else None)
        # Room for the whole capacity, so that a growing pool compiles nothing anew; without a limit, in steps.
        room = 16 * math.ceil(len(pool.replay) / 16) if tasks.replay is None else tasks.replay
        active = Tasks.padded(pool.active, state.weights[: len(pool.active)], pool.active_capacity, self.dtype)
        replay = Tasks.padded(pool.replay, state.weights[len(pool.active) :], room, self.dtype)
        frozen = self._trainable(state.network, state.stage)[1]
        in_adam = state.stage == ADAM
        decay = (self.settings.adam.decay, self.settings.adam.decay_rate) if in_adam else ("none", 0.0)
        return _Objective(self.loss if in_adam else self._full_loss, active, replay, frozen, decay, self._batch_key)

    def _history(self, state: State, value: float, named: dict[str, float], callbacks: Callbacks) -> dict[str, Any]:
        validation = state.validation
        if self.rows is None:
            with self.timing.measure("validation"):
                validation = float(np.mean(self._validation.task_losses(state.network, self._validation_thetas)))
        row = {
            "step": state.step,
            "stage": state.stage,
            "loss": value,
            "terms": named,
            "validation": validation,
            "active": len(state.pool.active),
            "replay": len(state.pool.replay),
            "queries": state.queries,
        }
        if callbacks.probe is not None:
            with self.timing.measure("evaluation"):
                row["probe"] = callbacks.probe(state.network)
        return row

    # Events ------------------------------------------------------------------------------------------------------

    def _event(self, state: State, callbacks: Callbacks) -> State:
        """Select a task, move tasks, update weights."""
        number = state.events + 1
        state = replace(state, events=number, event_step=state.step, event_validation=state.validation)
        inside = self.timing.seconds.get("queries", 0.0)
        with self.timing.measure("selection"):
            found = self.selector.select(
                lambda thetas: self._query(state, thetas),
                state.pool,
                self.problem.candidates.points,
                self.box,
                self._priors if self.settings.tasks.search_prior else None,
                jax.random.fold_in(self._task_key, number),
            )
            if found is None and isinstance(self.weighting, Equal):
                return state
            if found is None:
                found = self._losses_only(state)
        # Selection is what the event took besides the queries.
        self.timing.seconds["selection"] -= self.timing.seconds.get("queries", 0.0) - inside
        pool, moves = state.pool.event(found.newcomer, found.newcomer_loss, found.active_losses, found.replay_losses)
        known = dict(zip(map(bytes, state.pool.thetas), [*found.active_losses, *found.replay_losses], strict=True))
        if found.newcomer is not None:
            known[bytes(found.newcomer)] = found.newcomer_loss
        before = dict(zip(map(bytes, state.pool.thetas), state.losses, strict=True))
        losses = np.array([known[bytes(theta)] for theta in pool.thetas])
        previous = np.array([before.get(bytes(theta), np.nan) for theta in pool.thetas])
        weights = self.weighting.weights(losses, previous, self._training_priors(pool.thetas))
        displaced = [
            np.array([*theta, known[bytes(theta)], state.step])
            for theta in (moves.to_replay, moves.dropped)
            if theta is not None
        ]
        queries = state.queries + found.queries
        callbacks.event(_event_record(state.step, number, found, moves, pool, weights, queries), state.network)
        return replace(
            state,
            pool=pool,
            weights=weights,
            losses=losses,
            displaced=np.concatenate([state.displaced, *(row[None] for row in displaced)]),
            queries=queries,
        )

    def _query(self, state: State, thetas: Points) -> np.ndarray:
        with self.timing.measure("queries"):
            return self.task_losses(state, thetas)

    def task_losses(self, state: State, thetas: Points) -> np.ndarray:
        """The complete loss of each theta; under natural on the residuals' common scale."""
        if self.rows is None:
            return self.loss.task_losses(state.network, thetas)
        return self.rows.task_losses(state.network, thetas, self._task_key, state.natural[1])

    def _losses_only(self, state: State) -> Selection:
        """An event of a pool that never changes: its losses, for the weights."""
        losses = self._query(state, state.pool.thetas)
        count = len(state.pool.active)
        return Selection(None, np.nan, np.nan, losses[:count], losses[count:], state.pool.thetas, losses, losses)


def _has_amplitudes(network: Any) -> bool:
    """Whether the outputs have amplitudes; those of a network whose weights are computed have not."""
    return isinstance(getattr(network, "output", None), Output)


class _Batches:
    """Rows for the natural gradient, drawn anew for each step; remembers the value by name."""

    def __init__(self, rows: Rows, pool: Pool | None):
        self.rows, self.pool = rows, pool
        self.named: dict[str, float] = {}

    def draw(self, network: Any, key: jax.Array, scales: Any, growth: int, causality: float) -> None:
        self.batch = self.rows.draw(network, key, scales, self.pool, growth, causality=causality)

    def value(self, parameters: Any) -> float:
        return self.rows.value(parameters, self.batch)[0]

    def jacobian(self, parameters: Any) -> tuple[np.ndarray, np.ndarray]:
        """Balances the batch, after its value has been noted."""
        found = self.rows.jacobian(parameters, self.batch)
        self.named = found.named
        self.batch = {
            name: eqx.tree_at(lambda b: b.scale, part, part.scale * found.balance[name])
            for name, part in self.batch.items()
        }
        return found.rows, found.jacobian


class _Objective:
    """Value and gradient for an optimiser; remembers the value by name."""

    def __init__(self, loss: Loss, active: Tasks, replay: Tasks, frozen: Any, decay: tuple[str, float], key: jax.Array):
        self.loss, self.active, self.replay, self.frozen, self.decay = loss, active, replay, frozen, decay
        self.key = key
        self.named: dict[str, Any] = {}

    def __call__(self, trainable: Any) -> tuple[Any, Any]:
        network = eqx.combine(trainable, self.frozen)
        value, gradient, self.named = self.loss.objective(network, self.active, self.replay, self.key)
        value, gradient = _decayed(network, value, gradient, *self.decay)
        # None marks what is frozen, in the same places as in the trainable part.
        return value, jax.tree.map(
            lambda t, g: None if t is None else g, trainable, gradient, is_leaf=lambda leaf: leaf is None
        )


def _decayed(network: Any, value: Any, gradient: Any, what: str, rate: float) -> tuple[Any, Any]:
    """The penalty rate/2 ‖weights‖² on the parameter branch, or on the whole network."""
    if what == "none":
        return value, gradient
    part = eqx.filter(network, trainable(network)) if what == "global" else network.parameter_branch
    penalty = rate / 2 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(part))
    if what == "global":
        return value + penalty, jax.tree.map(lambda g, w: g + rate * w, gradient, network)
    branch = jax.tree.map(lambda g, w: g + rate * w, gradient.parameter_branch, part)
    return value + penalty, eqx.tree_at(lambda g: g.parameter_branch, gradient, branch)


def _event_record(
    step: int, number: int, found: Selection, moves: Moves, pool: TaskPool, weights: np.ndarray, queries: int
) -> dict[str, Any]:
    """An event as plain values, for events.jsonl."""

    def listed(array: Any) -> Any:
        return None if array is None else np.asarray(array).tolist()

    return {
        "step": step,
        "event": number,
        "queried": listed(found.queried),
        "losses": listed(found.losses),
        "scores": listed(found.scores),
        "newcomer": listed(found.newcomer),
        "newcomer_loss": float(found.newcomer_loss),
        **{f"moved_{name}": listed(getattr(moves, name)) for name in ("entered", "to_replay", "restored", "dropped")},
        "active": listed(pool.active),
        "replay": listed(pool.replay),
        "weights": listed(weights),
        "queries": queries,
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


def make_selector(settings: Settings, box: Box) -> Selector:
    """The selector that the settings name."""
    tasks = settings.tasks
    if tasks.selector in ("free", "uniform"):
        return Uniform()
    if tasks.selector == "fixed":
        return Fixed(tasks.fixed or tuple(map(tuple, [*box.corners().tolist(), box.centre.tolist()])))
    if tasks.selector == "grid":
        return GridGreedy()
    return Bayesian(tasks.evaluations, tasks.kappa, tasks.coverage)
