"""Files that were written at commit e227ff8, before the code moved into rooms, still load and resume.

`data/e227ff8` holds two runs that were stopped by their steps (natural gradient; Adam and L-BFGS), surrogates of all
kinds of networks, two with heads, and what they answered then.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

import clpinn as cl
from clpinn.runs.directory import RunDirectory

OLD = Path(__file__).parent / "data" / "e227ff8"
ANSWERS = json.loads((OLD / "answers.json").read_text())
X, T = np.linspace(-0.9, 0.9, 5), np.linspace(0, 1, 5)


@pytest.mark.parametrize("name", ANSWERS)
def test_surrogates_answer_as_they_did(name):
    surrogate = cl.load(OLD / name)
    for nu, expected in zip((0.0113, 0.3), ANSWERS[name], strict=True):
        np.testing.assert_allclose(surrogate(x=X, t=T, nu=nu)["u"], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["natural", "paper"])
def test_what_their_metrics_did_not_say_is_none(name):
    metrics = RunDirectory(OLD / name).metrics
    assert metrics["macro"] is None and metrics["peak_memory_mib"] is None and metrics["outputs"]["u"]["max_abs"] > 0


def test_heads_are_still_used():
    heads = cl.load(OLD / "natural" / "adapted.clpinn").heads
    assert heads.thetas.tolist() == [[0.0113], [0.3]] and heads.used.shape == (2,)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "hard", "steps"), [("natural", True, 35), ("paper", False, 20)])
def test_runs_resume_as_they_did(name, hard, steps, tmp_path):
    shutil.copytree(OLD / name, tmp_path / name)
    problem = cl.problems.Burgers(hard=hard)
    settings = replace(cl.natural(problem), steps=steps)  # the others are those the run was started with
    result = cl.run(problem, settings, tmp_path / name, resume=True, name="burgers")
    assert result.metrics["steps"] == steps and result.outcome == "steps"
    expected = cl.load(OLD / f"{name}-resumed.clpinn").network
    for ours, theirs in zip(jax.tree.leaves(result.network), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_run_that_has_ended_is_evaluated(tmp_path):
    network = cl.load_network(OLD / "natural")
    expected = cl.load(OLD / "natural" / "model.clpinn").network
    for ours, theirs in zip(jax.tree.leaves(network), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)
