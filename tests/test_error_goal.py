"""A run to a given estimated error: which thetas are looked at, in which order, and how much time that may take."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

import clpinn as cl
from clpinn.errors import Outcome
from clpinn.formulation.thetas import spread_thetas
from clpinn.problems import Burgers, PoissonBoltzmann
from clpinn.runs import error_goal
from clpinn.runs.error_goal import ErrorGoal


class Growth(cl.Problem):
    """Decay at a rate: easy to solve to a thousandth."""

    coordinates = cl.Box(t=(0, 1))
    parameters = cl.Box(rate=(0.5, 1.0))
    candidates = parameters.grid(rate=5)

    def residual(self, d, rate):
        return d.u_t + rate * d.u

    def constrain(self, raw, t):
        return 1 + t * raw

    def reference(self, t, rate):
        return {"u": np.exp(-rate * t)}


class FakeEstimator:
    """Errors by theta, and a record of what was asked."""

    def __init__(self, errors, resolved=True):
        self.errors, self.resolved, self.asked = dict(errors), resolved, []

    def at(self, network, theta):
        self.asked.append(float(theta[0]))
        error = self.errors[float(theta[0])]
        return SimpleNamespace(relative_l2={"u": error}, resolved=self.resolved, reason="Too few splines.")


def goal_with(errors, goal=1e-3, resolved=True):
    made = ErrorGoal(Growth(), goal, np.array([[theta] for theta in errors]))
    made._estimator = FakeEstimator(errors, resolved)
    return made


def test_thetas_are_candidates_with_the_corners_first():
    thetas = spread_thetas(Burgers(), 16)
    assert thetas.shape == (16, 1)
    assert set(thetas[:2, 0]) == {0.01, 1.0}
    assert len(np.unique(thetas)) == 16
    four = spread_thetas(PoissonBoltzmann(), 16)
    assert four.shape == (16, 4)
    assert len(np.unique(four, axis=0)) == 16


def test_a_goal_is_reached_only_if_every_theta_is_below():
    assert goal_with({0.1: 1e-4, 0.2: 9e-4}).reached(None, 1e6)
    above = goal_with({0.1: 1e-4, 0.2: 2e-3})
    assert not above.reached(None, 1e6)
    assert "2.0e-03 at rate = 0.2" in above.text()


def test_candidates_between_are_looked_at_before_the_goal_counts_as_reached():
    errors = {round(0.5 + 0.02 * i, 2): 1e-4 for i in range(26)}

    class Fine(Growth):
        candidates = cl.Grid(rate=list(errors))

    goal = ErrorGoal(Fine(), 1e-3)
    first = set(goal._look.thetas[:, 0].tolist())
    assert len(first) == 16
    goal._estimator = FakeEstimator(errors)
    assert goal.reached(None, 1e6)
    assert len(goal._estimator.asked) == 24 and len(set(goal._estimator.asked)) == 24
    goal = ErrorGoal(Fine(), 1e-3)
    goal._estimator = FakeEstimator(errors | dict.fromkeys(set(errors) - first, 5e-3))
    assert not goal.reached(None, 1e6)
    assert len(goal._look.thetas) == 17  # the one above stays among those that are looked at
    assert "5.0e-03" in goal.text()


def test_what_is_not_resolved_is_not_below():
    unresolved = goal_with({0.1: 1e-9}, resolved=False)
    assert not unresolved.reached(None, 1e6)
    assert "Too few splines." in unresolved.text()
    assert not goal_with({0.1: math.nan}).reached(None, 1e6)


def test_the_worst_theta_is_looked_at_first_and_ends_a_look():
    goal = goal_with({0.1: 1e-4, 0.2: 5e-3, 0.3: 1e-5})
    assert not goal.reached(None, 1e6)
    assert goal._estimator.asked == [0.1, 0.2]
    goal._estimator.asked.clear()
    assert not goal.reached(None, 1e6)  # 0.3 is not known yet, so it counts as worst
    assert goal._estimator.asked == [0.3, 0.2]
    goal._estimator.asked.clear()
    assert not goal.reached(None, 1e6)
    assert goal._estimator.asked == [0.2]


def test_looking_takes_at_most_its_share_of_the_time(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(error_goal.time, "perf_counter", lambda: clock.now)
    goal = goal_with({0.1: 5e-3, 0.2: 5e-3})
    at = goal._estimator.at

    def slow(network, theta):
        clock.now += 1.0
        return at(network, theta)

    goal._estimator.at = slow
    elapsed = 0.0
    while elapsed < 1000:
        goal.reached(None, elapsed)
        elapsed += 1.0
        spent = len(goal._estimator.asked)
        assert elapsed < 20 or spent <= 0.1 * elapsed + 1
    assert len(goal._estimator.asked) > 50
    assert not goal.reached(None, 1.0)


class Corrections:
    """Stands in for correct_box: networks that are good from the n-th correction on."""

    def __init__(self, good_from, monkeypatch, clock):
        self.good_from, self.clock, self.seconds = good_from, clock, []
        monkeypatch.setattr(error_goal, "correct_box", self)

    def __call__(self, estimator, network, seconds):
        self.seconds.append(seconds)
        self.clock.now += seconds
        errors = SimpleNamespace(over=lambda thetas: {"u": np.zeros((3, len(thetas)))})
        network = "good" if len(self.seconds) >= self.good_from else "bad"
        return SimpleNamespace(used=True, network=network, errors=errors, checks=np.zeros(12), after=np.array([[1e-4]]))


class ByNetwork(FakeEstimator):
    """A corrected network that is good has small errors."""

    def at(self, network, theta):
        estimate = super().at(network, theta)
        small = estimate.relative_l2["u"] / 100
        return SimpleNamespace(**vars(estimate) | {"relative_l2": {"u": small}}) if network == "good" else estimate


def test_a_correction_may_reach_the_goal(monkeypatch):
    """Corrections take at most a quarter of the time, and each twice as long as the one before."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(error_goal.time, "perf_counter", lambda: clock.now)
    corrections = Corrections(3, monkeypatch, clock)
    goal = ErrorGoal(Growth(), 1e-3, np.array([[0.5], [0.6]]), correct=True)
    goal._estimator = ByNetwork({0.5: 5e-3, 0.6: 5e-3})
    for elapsed in range(10_000):
        if goal.reached("network", elapsed):
            break
        assert (goal.result is None and "5.0e-03" in goal.text()) or elapsed < error_goal.FIRST_SECONDS
        assert sum(corrections.seconds) <= 0.25 * elapsed
    assert corrections.seconds == [5, 10, 20] and goal.result.network == "good" and elapsed == 180


def test_a_correction_is_not_tried_without_hope_or_if_not_asked_for(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    corrections = Corrections(1, monkeypatch, clock)
    for errors, correct in ((5e-3, False), (0.5, True), (math.nan, True)):
        goal = ErrorGoal(Growth(), 1e-3, np.array([[0.5]]), correct)
        goal._estimator = ByNetwork({0.5: errors})
        assert not any(goal.reached("network", elapsed) for elapsed in range(0, 2000, 50))
    assert corrections.seconds == []


@pytest.mark.slow
def test_a_run_that_a_correction_ends(tmp_path, monkeypatch):
    """The correction with which the goal was reached is that of the surrogate."""
    for name in ("FIRST_SECONDS", "FIRST_CORRECTION"):
        monkeypatch.setattr(error_goal, name, 0.0)
    monkeypatch.setattr(error_goal, "CORRECTION_SECONDS", 1e6)
    monkeypatch.setattr(error_goal.ErrorGoal, "_reached_alone", looked_at_once)
    result = cl.run(Growth(), cl.Settings(error=1e-4, steps=3000), tmp_path / "run", progress=False)
    assert result.outcome is Outcome.ERROR and result.metrics["correction"]["used"]
    assert result.metrics["outputs"]["u"]["rel_l2_worst"] < 1.25e-4
    assert result.metrics["correction"]["network_outputs"]["u"]["rel_l2_worst"] > 1e-4


def looked_at_once(goal, network, elapsed):
    """A look at the network alone, which never is enough."""
    goal._look.below(goal._estimator, lambda theta: network)
    return False


def test_a_run_ends_at_its_error(tmp_path):
    result = cl.run(Growth(), cl.Settings(error=1e-3, steps=3000), tmp_path / "run", progress=False)
    assert result.outcome is Outcome.ERROR
    assert result.metrics["outputs"]["u"]["rel_l2_worst"] < 1.25e-3


def test_a_run_that_does_not_get_there_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(error_goal, "FIRST_SECONDS", 0.0)
    said = []
    callbacks = cl.Callbacks(message=said.append)
    settings = cl.Settings(error=1e-15, steps=5)
    result = cl.run(Growth(), settings, tmp_path / "run", progress=False, callbacks=callbacks)
    assert result.outcome is Outcome.STEPS
    assert any("above 1e-15" in text for text in said)


@pytest.mark.parametrize("error", [0.0, -1.0])
def test_an_error_must_be_above_zero(error, tmp_path):
    with pytest.raises(cl.ClpinnError, match="error"):
        cl.run(Growth(), cl.Settings(error=error), tmp_path / "run", progress=False)
