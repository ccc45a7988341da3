"""Training: the loop, top to bottom.

A run goes through stages (see `stages`). With `adam-lbfgs` they are Adam and L-BFGS, with `natural` there is one. The
trainer knows neither optimisers nor files: it gets hooks, and a `State` is all there is to save.
"""

import math
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from clpinn.errors import Outcome
from clpinn.formulation.domain import Box, Points
from clpinn.formulation.problem import Problem
from clpinn.keys import make_key, split
from clpinn.networks.make import make
from clpinn.programs import compiling
from clpinn.training.events import Events
from clpinn.training.settings import Settings
from clpinn.training.stages import Stage
from clpinn.training.stages.natural import NaturalStage
from clpinn.training.state import Hooks, State, Timing

DONE = "done"
"""The stage of a state after the last stage."""
SNAPSHOT_STEPS = 100
"""Steps between two states that a run can go back to after a failure."""


class Trainer:
    """What stays the same through a run: the problem, its settings and all that follows from them."""

    def __init__(self, problem: Problem, settings: Settings):
        self.problem, self.settings = problem, settings
        self.dtype = jnp.float64 if settings.precision == "double" else jnp.float32
        self.timing = Timing()
        names = ["network", "points", "validation", "tasks", "batches"]
        keys = dict(zip(names, split(make_key(settings.seed), len(names)), strict=True))
        self._network_key = keys["network"]
        self.events = Events(problem, settings, keys["tasks"], self.timing)
        self.stages: dict[str, Stage] = {}
        if settings.optimizer == "natural":
            self.stages["natural"] = NaturalStage(problem, settings, keys, self.dtype, self.timing)
        else:
            from clpinn.training.stages.adam_lbfgs import (  # Optax takes long to import
                AdamStage,
                LBFGSStage,
                PoolLosses,
            )

            losses = PoolLosses.of(problem, settings, keys["points"], keys["validation"], self.dtype)
            self.stages["adam"] = AdamStage(losses, settings, keys["batches"])
            self.stages["lbfgs"] = LBFGSStage(losses, settings, keys["batches"])

    @property
    def box(self) -> Box:
        """The box on whose scale tasks are spread and their distances measured."""
        return self.events.box

    def init(self, network: Any = None, compile: bool = False) -> State:
        """The state before the first step, of a given network or a fresh one.

        With `compile` the programs of the first stage are compiled on the way, and the state is validated.
        """
        pool = self.events.first_pool()
        network = network or make(self.problem, self.settings.network, self._network_key, self.dtype)
        first = next(iter(self.stages.values()))
        with self.timing.measure("compilation"), compiling(first.lowerings(network) if compile else []):
            state = State(
                network=network,
                pool=pool,
                weights=self.events.first_weights(pool),
                losses=np.full(len(pool.thetas), np.nan),
                displaced=np.zeros((0, len(self.problem.parameters) + 2)),
                stage=next(iter(self.stages)),
                **{name: stage.init(network) for name, stage in self.stages.items()},
            )
            # The first validation needs no Jacobian, which takes longest to compile.
            return first.enter(state) if compile else state

    def reopened(self, state: State) -> State:
        """The state of a run that had ended, ready to go on in its last stage."""
        return replace(state, stage=list(self.stages)[-1], rate=1.0, best_step=state.step)

    def task_losses(self, state: State, thetas: Points) -> np.ndarray:
        """The complete loss of each theta; under natural of scaled residuals."""
        return next(iter(self.stages.values())).task_losses(state, thetas)

    def undefined(self, state: State) -> list[str]:
        """One message for each term whose residuals are not defined at some points."""
        return next(iter(self.stages.values())).undefined(state)

    def not_learnt(self, state: State) -> list[str]:
        """Names of the residuals that are still as large as their own terms."""
        return next(iter(self.stages.values())).not_learnt(state)

    # The loop ------------------------------------------------------------------------------------------------------

    def run(self, state: State, hooks: Hooks) -> tuple[State, Outcome]:
        """Train until the end, a bound or a stop. Returns the last state and how the run ended."""
        stage = None
        if state.stage != DONE:
            stage = self.stages[state.stage]
            state = stage.enter(state)
            objective, good = stage.objective(state), state
        while True:
            done = self._done(state.step, hooks.elapsed())
            while stage is not None and stage.finished(state, done):
                state = self._advanced(state)
                stage = self.stages.get(state.stage)
                if stage is not None:
                    objective, good = stage.objective(state), state
            if stage is None:
                return state, Outcome.FINISHED
            outcome = self._bound_reached(state) or hooks.stop()
            if outcome is not None:
                return state, outcome

            with self.timing.measure(stage.name):
                state, step, named = stage.step(state, objective, done)
                value = float(step.value)
            if not (math.isfinite(value) and math.isfinite(float(step.gradient_norm))):
                if good.recoveries >= self.settings.remedies:
                    hooks.message(_diverged(named, good.recoveries))
                    return good, Outcome.DIVERGED
                good, remedy = stage.remedy(replace(good, recoveries=good.recoveries + 1))
                hooks.message(f"The loss is not finite at step {state.step}: back to step {good.step}, {remedy}")
                state, objective = good, stage.objective(good)
                continue
            state = stage.check(state, done, hooks.message)
            if step.finished:
                hooks.message(f"L-BFGS stopped after {state.stage_step} steps: {step.reason}.")
                state = replace(state, stage=DONE)
            if stage.event_due(state, done):
                state = self._event(state, stage, hooks)
                objective, good = stage.objective(state), state
            elif state.stage_step % SNAPSHOT_STEPS == 0:
                good = state
            hooks.progress(state, step, named, stage.status(state, step))
            if state.step % stage.history_steps == 0:
                hooks.history(self._history(state, stage, value, named, hooks))
            hooks.save(state)
            if state.stage == DONE:
                stage = None

    def _done(self, step: int, elapsed: float) -> float:
        """The share of a bounded run that is over, by its steps or its time; zero without bounds."""
        steps, seconds = self.settings.steps, self.settings.seconds
        return min(1.0, max(step / steps if steps else 0.0, elapsed / seconds if seconds else 0.0))

    def _advanced(self, state: State) -> State:
        """The state in the stage after its own, or done."""
        names = list(self.stages)
        later = names[names.index(state.stage) + 1 :]
        return replace(state, stage=later[0], stage_step=0) if later else replace(state, stage=DONE)

    def _bound_reached(self, state: State) -> Outcome | None:
        settings = self.settings
        if settings.until is not None and state.validation <= settings.until:
            return Outcome.UNTIL
        return Outcome.STEPS if settings.steps is not None and state.step >= settings.steps else None

    def _event(self, state: State, stage: Stage, hooks: Hooks) -> State:
        network = state.network
        state, record = self.events.hold(state, lambda thetas, before=state: stage.task_losses(before, thetas))
        if record is not None:
            hooks.event(record, network)
        return state

    def _history(
        self, state: State, stage: Stage, value: float, named: dict[str, float], hooks: Hooks
    ) -> dict[str, Any]:
        with self.timing.measure("validation"):
            validation = stage.validation_loss(state)
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
        if hooks.probe is not None:
            with self.timing.measure("evaluation"):
                row |= hooks.probe(state.network)
        return row


def _diverged(named: dict[str, float], recoveries: int) -> str:
    names = [name for name, value in named.items() if not math.isfinite(value)]
    tried = "the remedy did not help" if recoveries else "remedies=0 allows no remedy"
    return (
        f"The loss is not finite (of {', '.join(names) or 'its derivatives'}) and {tried}. The run ends here. "
        f"{Outcome.DIVERGED.advice.partition('. ')[2]}"
    )
