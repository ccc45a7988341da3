"""Events of a run: what its settings do to the selection of tasks and to their weights."""

from dataclasses import replace

import numpy as np
import pytest
from running import lines, natural_for, same, settings_for
from small import Decay

from clpinn.errors import ClpinnError, SettingsError
from clpinn.runs.run import run
from clpinn.training.trainer import Trainer


class Stated(Decay):
    """With a prior."""

    def prior(self, k):
        return 4 * k


def events_of(*more, problem=None, method="acr"):
    trainer = Trainer(problem or Stated(), settings_for(method, *more, problem=problem or Stated()))
    return trainer.events, trainer.init()


# The prior --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [1, 0, -1, 0.5])
def test_the_exponent_of_the_prior_in_the_training_weights(exponent):
    _, state = events_of(f"weights.prior={exponent}")
    expected = (4 * state.pool.thetas[:, 0]) ** exponent  # losses are alike, so nothing else is left
    assert state.weights == pytest.approx(expected * len(expected) / expected.sum(), rel=1e-12)


@pytest.mark.parametrize("exponent", [1, -1, 0.5])
def test_the_exponent_of_the_prior_in_the_scores_of_the_search(exponent):
    events, state = events_of(f"tasks.search_prior={exponent}")
    _, record = events.hold(state, lambda thetas: 1 + thetas[:, 0])
    assert record is not None
    losses, thetas = np.array(record["losses"]), np.array(record["queried"])[:, 0]
    assert np.array(record["scores"]) == pytest.approx(losses * (4 * thetas) ** exponent, rel=1e-12)
    without, state = events_of("tasks.search_prior=0")
    _, record = without.hold(state, lambda thetas: 1 + thetas[:, 0])
    assert record is not None and record["scores"] == record["losses"]


def test_a_power_of_the_prior_that_overflows_is_named():
    class Steep(Decay):
        def prior(self, k):
            return 1e-200 * k

    with pytest.raises(SettingsError, match="weights.prior=-2 must be finite, but overflows at k = 0.5"):
        events_of("weights.prior=-2", problem=Steep())


# Held-out thetas --------------------------------------------------------------------------------------------

HELD_OUT = "tasks.exclude=[[1.0000000000001], [1.5]]"


@pytest.mark.parametrize("method", ["ag", "ac", "acr"])
def test_held_out_thetas_are_never_tasks(method, tmp_path):
    longer = ("tasks.active=5", "adam.steps=60", "lbfgs.steps=0")
    tasks = {}
    for name, more in (("all", ()), ("less", (HELD_OUT,))):
        run(Decay(), settings_for(method, *longer, *more), tmp_path / name)
        events = lines(tmp_path / name / "events.jsonl")
        tasks[name] = {theta for event in events for (theta,) in [*event["active"], *event["replay"]]}
        if method == "ag":
            assert events[0]["queries"] == 8  # all candidates, held out or not, and the newcomer
    assert tasks["all"] & {1.0, 1.5} and tasks["less"] and not tasks["less"] & {1.0, 1.5}


@pytest.mark.parametrize(
    ("method", "more", "message"),
    [
        ("fix", ["tasks.fixed=[[0.7], [1.5]]", HELD_OUT], "A task at k = 1.5 .*tasks.selector=fixed starts with"),
        ("uni", [HELD_OUT], "A task at k = 1 .*tasks.selector=uniform"),  # 0.5, 1, 1.5, 2
        ("ac", ["tasks.exclude=[[2]]"], "A task at k = 2 is to be trained, but tasks.exclude holds it out"),
        ("acr", ["tasks.exclude=[[1.0, 2.0]]"], r"one value for each of k per theta, such as \[\[1.25\]\], but got"),
        ("acr", ["tasks.exclude=[[3.0]]"], "outside"),
        ("acr", ["tasks.uncapped=true"], "needs replay without a limit"),
    ],
)
def test_tasks_that_cannot_be_held_out(method, more, message):
    with pytest.raises(ClpinnError, match=message):
        events_of(*more, problem=Decay(), method=method)


def test_thetas_cannot_be_held_out_of_the_whole_box():
    with pytest.raises(SettingsError, match="tasks.selector=free has none"):
        Trainer(Decay(), natural_for("free", HELD_OUT))


def test_a_meta_pinn_refuses_held_out_thetas_before_it_trains(tmp_path):
    with pytest.raises(SettingsError, match="A task at k = 1.25"):  # the centre
        run(Decay(), settings_for("metapinn", "tasks.exclude=[[1.25]]", "network.support=2"), tmp_path)
    assert not (tmp_path / "tasks").exists()


# Tasks that were dropped ------------------------------------------------------------------------------------


def test_a_dropped_task_does_not_come_back_also_after_a_resume(tmp_path):
    """By default it may: today's rule."""
    shape = ["tasks.active=3", "adam.steps=60", "tasks.interval=5", "lbfgs.steps=0"]

    def entered(name):
        return [event["moved_entered"] for event in lines(tmp_path / name / "events.jsonl") if event["moved_entered"]]

    run(Decay(), settings_for("ag", *shape), tmp_path / "again")
    back = entered("again")
    assert len(back) == 12 > len(set(map(tuple, back)))
    once = settings_for("ag", *shape, "tasks.readmit=false")
    run(Decay(), once, tmp_path / "once")
    assert len(entered("once")) == len(set(map(tuple, entered("once")))) == 5  # every candidate but the corners
    events = lines(tmp_path / "once" / "events.jsonl")
    assert [event["queries"] for event in events[:6]] == [8, 16, 24, 32, 40, 47]  # without a newcomer, no last query
    run(Decay(), replace(once, steps=18), tmp_path / "parts")
    run(Decay(), replace(once, steps=1000), tmp_path / "parts", resume=True)
    same(tmp_path / "once", tmp_path / "parts")


def test_an_uncapped_run_keeps_every_task(tmp_path):
    shape = ["tasks.active=3", "tasks.replay=None", "adam.steps=25", "tasks.interval=5", "lbfgs.steps=0"]
    result = run(Decay(), settings_for("acr", *shape, "tasks.uncapped=true"), tmp_path)
    assert all(event["moved_entered"] for event in lines(tmp_path / "events.jsonl"))
    assert result.metrics["active"] == 3 and result.metrics["replay"] == 4
