"""The paper's two stages: Adam with an event every so many steps, then L-BFGS on the pool as Adam left it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from clpinn.errors import SettingsError
from clpinn.formulation.domain import Points
from clpinn.formulation.problem import Problem
from clpinn.keys import Key, fold_in
from clpinn.networks.architecture import trainable
from clpinn.networks.fnn import ParamFNN
from clpinn.training.optimizers import Step
from clpinn.training.optimizers.adam import Adam
from clpinn.training.optimizers.lbfgs import LBFGS
from clpinn.training.pool_loss import Collocation, PoolLoss, Tasks
from clpinn.training.settings import Settings
from clpinn.training.stages import Stage
from clpinn.training.state import State

VALIDATION_THETAS = 16

Objective = Callable[[Any, Any, Key], tuple[Any, Any, dict[str, Any]]]
"""(trained arrays, frozen arrays, key) -> value, gradient of the trained arrays, value by residual name."""


@dataclass(frozen=True)
class PoolLosses:
    """The losses that both stages share: on a part of the rows, on all rows, and on points that are not trained."""

    sampled: PoolLoss
    full: PoolLoss
    validation: PoolLoss
    validation_thetas: Points

    @staticmethod
    def of(problem: Problem, settings: Settings, points_key: Key, validation_key: Key, dtype: Any) -> "PoolLosses":
        """The losses of a problem, on points that the keys decide."""
        if settings.batch != 1 and settings.batch_rows is not None:
            raise SettingsError(
                f"batch={settings.batch:g} and batch_rows={settings.batch_rows} both say how many rows an Adam step "
                "draws. Give one of them."
            )
        fraction = settings.tasks.fraction if settings.tasks.density == "sparse" else 1.0
        interior = settings.points.interior
        dense = Collocation.sample(problem, points_key, interior=interior)
        sparse = Collocation.sample(problem, points_key, fraction, interior)
        independent = Collocation.sample(problem, validation_key, interior=interior)
        thetas = problem.parameters.sample(VALIDATION_THETAS, validation_key)
        if settings.network.kind == "standard":  # a standard PINN knows its own theta only
            thetas = np.array(settings.tasks.fixed)
        sampled = PoolLoss(problem, dense, sparse, dtype, settings.chunk, settings.batch, settings.batch_rows)
        full = sampled
        if settings.batch != 1 or settings.batch_rows is not None:
            full = PoolLoss(problem, dense, sparse, dtype, settings.chunk)
        return PoolLosses(sampled, full, PoolLoss(problem, independent, independent, dtype, settings.chunk), thetas)


class _PoolStage(Stage):
    """What Adam and L-BFGS have in common: an objective that is the loss of the pool."""

    loss: PoolLoss
    """The loss that is minimised."""
    decay: tuple[str, float] = ("none", 0.0)

    def __init__(self, losses: PoolLosses, settings: Settings):
        if settings.tasks.selector == "free" or settings.until is not None:
            setting = "until" if settings.until is not None else "tasks.selector=free"
            raise SettingsError(f"{setting} needs the natural optimiser. Use optimizer=natural, or leave it out.")
        self.losses, self.settings = losses, settings
        self.history_steps = max(1, min(100, (settings.adam.steps + settings.lbfgs.steps) // 100))

    def partition(self, network: Any) -> tuple[Any, Any]:
        """The network's arrays that this stage trains, and the others."""
        return eqx.partition(network, trainable(network))

    def objective(self, state: State) -> Objective:
        pool, tasks, dtype = state.pool, self.settings.tasks, self.loss.dtype
        # Room for the whole capacity, so that a growing pool compiles nothing; without a limit, in steps of 16.
        room = 16 * math.ceil(len(pool.replay) / 16) if tasks.replay is None else tasks.replay
        active = Tasks.padded(pool.active, state.weights[: len(pool.active)], pool.active_capacity, dtype)
        replay = Tasks.padded(pool.replay, state.weights[len(pool.active) :], room, dtype)

        def evaluate(trained: Any, frozen: Any, key: Key) -> tuple[Any, Any, dict[str, Any]]:
            network = eqx.combine(trained, frozen)
            value, gradient, named = self.loss.objective(network, active, replay, key)
            value, gradient = _decayed(network, value, gradient, *self.decay)
            # None marks frozen arrays, in the same places as in the trained part.
            kept = jax.tree.map(
                lambda t, g: None if t is None else g, trained, gradient, is_leaf=lambda leaf: leaf is None
            )
            return value, kept, named

        return evaluate

    def _stepped(
        self, state: State, objective: Objective, optimizer: Any, optimizer_state: Any, key: Key
    ) -> tuple[State, Any, Step, dict[str, float]]:
        """One step of an optimiser on the trained arrays: state, optimiser's state, what it met, loss by name."""
        trained, frozen = self.partition(state.network)
        named: dict[str, Any] = {}

        def value_and_gradient(arrays: Any) -> tuple[Any, Any]:
            value, gradient, by_name = objective(arrays, frozen, key)
            named.update(by_name)
            return value, gradient

        trained, optimizer_state, step = optimizer.step(value_and_gradient, trained, optimizer_state)
        state = replace(
            state,
            network=eqx.combine(trained, frozen),
            step=state.step + 1,
            stage_step=state.stage_step + 1,
        )
        return state, optimizer_state, step, {name: float(value) for name, value in named.items()}

    def task_losses(self, state: State, thetas: Points) -> np.ndarray:
        return self.losses.sampled.task_losses(state.network, thetas)

    def validation_loss(self, state: State) -> float:
        losses = self.losses
        return float(np.mean(losses.validation.task_losses(state.network, losses.validation_thetas)))


class AdamStage(_PoolStage):
    """Adam, with an event every `tasks.interval` steps. In a run bounded by time it gets half of it."""

    name = "adam"

    def __init__(self, losses: PoolLosses, settings: Settings, batch_key: Key):
        super().__init__(losses, settings)
        self.loss = losses.sampled
        self.decay = settings.adam.decay, settings.adam.decay_rate
        self._optimizer, self._batch_key = Adam(settings.adam.learning_rate), batch_key

    def init(self, network: Any) -> Any:
        if self.settings.adam.decay == "branch":
            require_branch(network, "adam.decay=branch")
        return self._optimizer.init(self.partition(network)[0])

    def step(self, state: State, objective: Objective, done: float) -> tuple[State, Step, dict[str, float]]:
        optimizer = replace(self._optimizer, learning_rate=self._optimizer.learning_rate * state.rate)
        key = fold_in(self._batch_key, state.step)
        state, adam, step, named = self._stepped(state, objective, optimizer, state.adam, key)
        return replace(state, adam=adam), step, named

    def finished(self, state: State, done: float) -> bool:
        half_time = self.settings.seconds is not None and done > 0.5
        return state.stage_step >= self.settings.adam.steps or half_time

    def event_due(self, state: State, done: float) -> bool:
        return state.stage_step % self.settings.tasks.interval == 0

    def remedy(self, state: State) -> tuple[State, str]:
        return replace(state, rate=state.rate / 2), "a smaller learning rate."


class LBFGSStage(_PoolStage):
    """L-BFGS on a fixed pool. With `lbfgs.freeze` the parameter branch stays as Adam left it."""

    name = "lbfgs"

    def __init__(self, losses: PoolLosses, settings: Settings, batch_key: Key):
        super().__init__(losses, settings)
        lbfgs = settings.lbfgs
        self.loss = losses.full
        self._optimizer = LBFGS(lbfgs.history, lbfgs.gradient_tolerance, lbfgs.line_search)
        self._batch_key = batch_key

    def init(self, network: Any) -> Any:
        if self.settings.lbfgs.freeze:
            require_branch(network, "lbfgs.freeze")
        return self._optimizer.init(self.partition(network)[0])

    def partition(self, network: Any) -> tuple[Any, Any]:
        chosen = trainable(network)
        if self.settings.lbfgs.freeze:
            branch = jax.tree.map(lambda _: False, network.parameter_branch)
            chosen = eqx.tree_at(lambda n: n.parameter_branch, chosen, branch)
        return eqx.partition(network, chosen)

    def step(self, state: State, objective: Objective, done: float) -> tuple[State, Step, dict[str, float]]:
        state, lbfgs, step, named = self._stepped(state, objective, self._optimizer, state.lbfgs, self._batch_key)
        return replace(state, lbfgs=lbfgs, evaluations=state.evaluations + step.evaluations), step, named

    def finished(self, state: State, done: float) -> bool:
        lbfgs = self.settings.lbfgs
        return state.stage_step >= lbfgs.steps or state.evaluations >= lbfgs.evaluations * lbfgs.steps

    def remedy(self, state: State) -> tuple[State, str]:
        return replace(state, lbfgs=self.init(state.network)), "L-BFGS starts afresh."


def require_branch(network: Any, setting: str) -> None:
    """Raise where a setting acts on the parameter branch and the network has none."""
    if not isinstance(network, ParamFNN):
        raise SettingsError(f"{setting} needs a parameter branch. Use network.kind=param-fnn, or leave it out.")


def _decayed(network: Any, value: Any, gradient: Any, decayed: str, rate: float) -> tuple[Any, Any]:
    """Value and gradient with the penalty rate/2 ‖weights‖² on the parameter branch, or on the whole network."""
    if decayed == "none":
        return value, gradient
    weights = eqx.filter(network, trainable(network)) if decayed == "global" else network.parameter_branch
    penalty = rate / 2 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(weights))
    if decayed == "global":
        return value + penalty, jax.tree.map(lambda g, w: g + rate * w, gradient, network)
    branch = jax.tree.map(lambda g, w: g + rate * w, gradient.parameter_branch, weights)
    return value + penalty, eqx.tree_at(lambda g: g.parameter_branch, gradient, branch)
