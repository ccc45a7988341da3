"""The natural stage: what the validation loss is, and what it tells of a run."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from running import natural_for
from small import Decay

import clpinn as cl
from clpinn.problems import load_problem
from clpinn.training.stages.natural import capped_loss, mean_squares

WEIGHTS = {"interior": 1.0, "start": 1.0}


def test_a_validation_residual_counts_at_most_as_its_terms():
    rows = {"interior": np.sqrt([[0.5 / 2], [100.0]]), "start": np.sqrt([[0.25 / 4]] * 4)}
    assert capped_loss(rows, WEIGHTS) == pytest.approx((0.5 + 1) / 2 + 0.25)
    assert mean_squares(rows, WEIGHTS)["interior"] == pytest.approx(0.75)
    assert mean_squares(rows, WEIGHTS | {"start": 0.5})["start"] == pytest.approx(0.5)
    rows["interior"][0] = np.nan  # counts as the most
    assert capped_loss(rows, WEIGHTS) == pytest.approx(1 + 0.25)
    assert mean_squares(rows, WEIGHTS)["interior"] == 1


def trained(problem, steps, folder):
    """What a short run has not learnt, and its messages."""
    messages: list[str] = []
    settings = dataclasses.replace(natural_for(problem=problem), steps=steps)
    callbacks = cl.Callbacks(message=messages.append)
    return cl.run(problem, settings, folder, callbacks=callbacks).metrics["not_learnt"], messages


def test_a_run_that_learnt_nothing_says_so(tmp_path):
    not_learnt, messages = trained(load_problem("examples/predator_prey.py:PredatorPrey"), 2, tmp_path / "short")
    assert "prey" in not_learnt
    assert any("NOT LEARNT: after 2 steps" in text and "--resume" in text for text in messages)
    not_learnt, messages = trained(Decay(), 60, tmp_path / "long")
    assert not_learnt == [] and not any("NOT LEARNT" in text for text in messages)


def test_a_condition_whose_terms_vanish_is_learnt(tmp_path):
    """u = 1 everywhere, so u_x is nothing but what is left of it."""

    class Constant(cl.Problem):
        coordinates = cl.Box(x=(0, 1), t=(0, 1))
        parameters = cl.Box(k=(0.5, 2.0))
        conditions = (
            cl.Condition("start", lambda d: d.u - 1, on=cl.at(t=0)),
            cl.Condition("flux", lambda d: d.u_x, on=cl.boundary("x")),
        )
        candidates = parameters.grid(k=3)
        evaluation = coordinates.grid(x=5, t=5)

        def residual(self, d, k):
            return d.u_t - k * (d.u - 1)

    assert trained(Constant(), 60, tmp_path)[0] == []


def test_undefined_residuals_are_named_before_training(tmp_path):
    class Root(Decay):
        def residual(self, d, x, k):
            return d.u_t + k * d.u + d.u_x * jnp.sqrt(x - 0.25) / jnp.sqrt(x - 0.25)

    not_learnt, messages = trained(Root(), 60, tmp_path)
    (text,) = [text for text in messages if "not defined" in text]
    assert "The residual of the equation is not defined at 26 % of its points" in text
    assert "x between" in text and "t between" not in text
    assert not_learnt == []
