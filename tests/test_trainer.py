"""The loop: it knows stages only by their interface; decay and freezing of the paper's stages."""

import math
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from running import settings_for
from small import Decay

from clpinn.errors import Outcome
from clpinn.training.optimizers import Step
from clpinn.training.stages import Stage
from clpinn.training.state import Hooks
from clpinn.training.trainer import DONE, Trainer


class Counting(Stage):
    """A stage that only counts; `bad` steps give a loss that is not finite."""

    history_steps = 2

    def __init__(self, name: str, steps: int, bad: tuple[int, ...] = (), event_every: int = 0, stops_at: int = 0):
        self.name, self.steps, self.bad, self.event_every, self.stops_at = name, steps, bad, event_every, stops_at  # pyright: ignore
        self.calls: list[str] = []

    def init(self, network):
        return ()

    def enter(self, state):
        self.calls.append("enter")
        return state

    def objective(self, state):
        self.calls.append(f"objective {state.step}")
        return f"{self.name} with {len(state.pool.thetas)} tasks"

    def step(self, state, objective, done):
        assert objective == f"{self.name} with {len(state.pool.thetas)} tasks" and 0 <= done <= 1
        state = replace(state, step=state.step + 1, stage_step=state.stage_step + 1)
        value = math.nan if state.step in self.bad else 1 / state.step
        self.bad = tuple(step for step in self.bad if step != state.step or step < 0)
        return state, Step(value, 1.0, 1, state.step == self.stops_at, "enough"), {"residual": value}  # pyright: ignore

    def check(self, state, done, message):
        return replace(state, validation=100.0 / state.step)

    def finished(self, state, done):
        return state.stage_step >= self.steps

    def event_due(self, state, done):
        return self.event_every > 0 and state.step % self.event_every == 0

    def remedy(self, state):
        return replace(state, rate=state.rate / 2), "half as fast."

    def task_losses(self, state, thetas):
        return np.arange(len(thetas), dtype=float)

    def validation_loss(self, state):
        return state.validation

    def status(self, state, step):
        return f"at {state.step}"


def trainer_of(*stages: Stage, **bounds) -> Trainer:
    trainer = Trainer(Decay(), replace(settings_for("acr"), **bounds))
    trainer.stages = {stage.name: stage for stage in stages}
    return trainer


def run(trainer: Trainer, start=None, **callbacks):
    logged = SimpleNamespace(history=[], events=[], progress=[], messages=[], saved=[])
    state, outcome = trainer.run(
        start or trainer.init(),
        Hooks(
            history=logged.history.append,
            event=lambda record, network: logged.events.append(record),
            progress=lambda state, step, named, status: logged.progress.append((state.stage, dict(named), status)),
            save=lambda state: logged.saved.append(state.step),
            message=logged.messages.append,
            **callbacks,
        ),
    )
    return state, outcome, logged


def test_stages_follow_each_other_and_the_run_finishes():
    first, second = Counting("adam", 3), Counting("lbfgs", 2)
    state, outcome, logged = run(trainer_of(first, second))
    assert outcome is Outcome.FINISHED and state.stage == DONE and (state.step, state.stage_step) == (5, 2)
    assert [stage for stage, *_ in logged.progress] == ["adam"] * 3 + ["lbfgs"] * 2
    assert logged.progress[1][1:] == ({"residual": 0.5}, "at 2") and logged.saved == [1, 2, 3, 4, 5]
    assert first.calls == ["enter", "objective 0"] and second.calls == ["objective 3"]
    assert [(row["step"], row["loss"], row["validation"]) for row in logged.history] == [
        (2, 0.5, 50.0),
        (4, 0.25, 25.0),
    ]


def test_a_stage_without_steps_is_passed_over():
    state, outcome, _ = run(trainer_of(Counting("adam", 2), Counting("lbfgs", 0)))
    assert outcome is Outcome.FINISHED and state.step == 2 and state.stage == DONE


@pytest.mark.parametrize(
    ("bounds", "callbacks", "steps", "expected"),
    [
        ({"steps": 4}, {}, 4, Outcome.STEPS),
        ({}, {"stop": lambda: Outcome.STOPPED}, 0, Outcome.STOPPED),
        ({"until": 30.0}, {}, 4, Outcome.UNTIL),
    ],
)
def test_bounds_end_a_run(bounds, callbacks, steps, expected):
    until = bounds.pop("until", None)
    trainer = trainer_of(Counting("adam", 9), **bounds)
    trainer.settings = replace(trainer.settings, until=until)
    state, outcome, _ = run(trainer, **callbacks)
    assert (state.step, outcome) == (steps, expected)


def test_a_loss_that_is_not_finite_goes_back_to_the_last_good_state():
    state, outcome, logged = run(trainer_of(Counting("adam", 8, bad=(6,), event_every=4)))
    assert outcome is Outcome.FINISHED and (state.step, state.recoveries, state.rate) == (8, 1, 0.5)
    assert logged.messages == ["The loss is not finite at step 6: back to step 4, half as fast."]
    assert logged.saved == [1, 2, 3, 4, 5, 5, 6, 7, 8]


def test_a_failure_that_lasts_ends_the_run_as_diverged():
    class Broken(Counting):
        def step(self, state, objective, done):
            state = replace(state, step=state.step + 1, stage_step=state.stage_step + 1)
            return state, Step(math.inf, 1.0, 1), {"residual": 1.0, "start": math.inf}  # pyright: ignore

    for bounds, remedies in (({}, 5), ({"remedies": 2}, 2), ({"remedies": 0}, 0)):
        state, outcome, logged = run(trainer_of(Broken("adam", 8), **bounds))
        assert outcome is Outcome.DIVERGED and state.step == 0 and len(logged.messages) == remedies + 1
        assert "not finite (of start)" in logged.messages[-1] and state.rate == 0.5**remedies


def test_an_optimiser_that_stops_by_itself_ends_the_run():
    state, outcome, logged = run(trainer_of(Counting("lbfgs", 9, stops_at=3)))
    assert outcome is Outcome.FINISHED and state.step == 3 and state.stage == DONE
    assert logged.messages == ["L-BFGS stopped after 3 steps: enough."] and logged.saved == [1, 2, 3]


def test_events_change_the_pool_and_renew_the_objective():
    stage = Counting("adam", 4, event_every=2)
    trainer = trainer_of(stage)
    before = len(trainer.init().pool.thetas)
    state, _, logged = run(trainer)
    assert [record["step"] for record in logged.events] == [2, 4] and state.events == 2
    assert len(state.pool.thetas) == before + 2 == len(state.weights) == len(state.losses)
    assert state.queries == logged.events[-1]["queries"] > 0
    assert stage.calls == ["enter", "objective 0", "objective 2", "objective 4"]


def test_a_state_that_was_done_is_reopened_in_its_last_stage():
    trainer = trainer_of(Counting("adam", 2), Counting("lbfgs", 2))
    state, _, _ = run(trainer)
    assert run(trainer, start=state)[1] is Outcome.FINISHED
    reopened = trainer.reopened(replace(state, rate=0.1))
    assert (reopened.stage, reopened.rate, reopened.best_step) == ("lbfgs", 1.0, state.step)


def test_decay_and_freezing():
    trainer = Trainer(Decay(), settings_for("acr2-full", "adam.decay_rate=0.1"))
    plain = Trainer(Decay(), settings_for("acr2"))
    state, key = trainer.init(), jax.random.key(0)
    adam, lbfgs, adam_plain = trainer.stages["adam"], trainer.stages["lbfgs"], plain.stages["adam"]
    value, gradient, _ = adam.objective(state)(*adam.partition(state.network), key)
    value_plain, gradient_plain, _ = adam_plain.objective(state)(*adam_plain.partition(state.network), key)
    branch = state.network.parameter_branch
    penalty = 0.05 * sum(float(np.sum(np.asarray(leaf) ** 2)) for leaf in jax.tree.leaves(branch))
    assert np.isclose(value - value_plain, penalty, rtol=1e-4)
    more = gradient.parameter_branch.weight - gradient_plain.parameter_branch.weight
    assert np.allclose(more, 0.1 * branch.weight, atol=1e-5)
    assert np.allclose(gradient.output.weight, gradient_plain.output.weight, rtol=1e-4, atol=1e-6)
    objective = lbfgs.objective(state)
    after, _, _ = lbfgs.step(replace(state, stage="lbfgs"), objective, 0.0)
    assert np.array_equal(after.network.parameter_branch.weight, branch.weight)
    assert not np.array_equal(after.network.output.weight, state.network.output.weight)
    assert np.isclose(objective(*lbfgs.partition(state.network), key)[0], value_plain, rtol=1e-5)


def test_points_and_batches_by_number():
    """Adam draws rows; L-BFGS and the losses of tasks take all of them."""
    settings = settings_for("acr", "points.interior=40", "batch_rows=20")
    stages = Trainer(Decay(), settings).stages
    losses = stages["adam"].losses
    assert stages["adam"].loss is losses.sampled is not losses.full is stages["lbfgs"].loss
    for loss, rows in ((losses.sampled, 20), (losses.full, None), (losses.validation, None)):
        points = loss._points
        assert (points["interior"].dense, points["start"].dense, loss._batch_rows) == (40, 8, rows)
    assert losses.full._points["interior"].sparse == 4
    plain = Trainer(Decay(), settings_for("acr")).stages["adam"].losses
    assert plain.sampled is plain.full and plain.full._points["interior"].dense == 64


def test_adam_has_half_of_the_time():
    trainer = Trainer(Decay(), replace(settings_for("uni", "adam.steps=1000", "lbfgs.steps=1000"), seconds=10.0))
    stages: list[str] = []
    trainer.run(
        trainer.init(),
        Hooks(
            elapsed=lambda: float(len(stages)),  # each step takes a second
            progress=lambda state, *_: stages.append(state.stage),
            stop=lambda: Outcome.TIME if len(stages) == 10 else None,
        ),
    )
    assert stages == ["adam"] * 6 + ["lbfgs"] * 4  # at exactly half of the time Adam still makes a step
