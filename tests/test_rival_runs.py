"""Runs of the networks to compare with: standard PINN, P2INN, HyperPINN, Meta-PINN."""

import csv
import os
import signal
import sys
import warnings

import equinox as eqx
import jax
import numpy as np
import pytest
from running import lines
from small import Decay

import clpinn as cl
from clpinn.cli.app import main
from clpinn.errors import RunError
from clpinn.presets import natural, paper
from clpinn.runs.directory import load_network
from clpinn.runs.run import run
from clpinn.runs.session import Result
from clpinn.training.settings import override


@pytest.mark.parametrize("method", ["standard", "p2inn", "hyperpinn", "metapinn"])
def test_rivals_train_and_end_in_a_surrogate(method, tmp_path):
    chosen = override(natural(Decay(), method), ["network.width=5", "natural.rows=48", "steps=24"])
    if method == "metapinn":
        chosen = override(chosen, ["network.support=2", "network.depth=2"])
    result = run(Decay(), chosen, tmp_path)
    assert (result.metrics["method"], result.metrics["steps"]) == (method, 24)
    loaded = cl.load(tmp_path / "model.clpinn", Decay())
    assert eqx.tree_equal(jax.tree.map(np.asarray, loaded.network), jax.tree.map(np.asarray, result.network))
    with (tmp_path / "errors.csv").open() as file:
        rows = len(list(csv.DictReader(file)))
    assert rows == (1 if method == "standard" else len(Decay().candidates.points))
    assert eqx.tree_equal(load_network(tmp_path, Decay()), result.network)
    with warnings.catch_warnings(record=method == "standard") as caught:  # elsewhere a warning is an error
        warnings.simplefilter("error" if method != "standard" else "always")
        loaded(x=0.5, t=0.5, k=Decay().parameters.centre[0])
        assert not caught
        loaded(x=0.5, t=0.5, k=0.5)
    assert method != "standard" or "trained at k = 1.25 alone" in str(caught[0].message)


def tasks_end_with(monkeypatch, folder, outcome, before=lambda: None):
    """Let every training end at once with an outcome; returns the list of trained thetas, which grows."""
    trained = []

    def train(session, state, resume):
        before()
        trained.append(session.trainer.settings.tasks.fixed[0])
        return Result(cl.Surrogate(Decay(), None), {"outcome": outcome, "steps": 0}, folder)

    monkeypatch.setattr("clpinn.runs.session.Session.train", train)
    return trained


def test_a_task_of_meta_pinn_that_diverges_gives_the_exit_code(tmp_path, monkeypatch):
    tasks_end_with(monkeypatch, tmp_path, "diverged")
    with pytest.raises(RunError, match="Training of the centre diverged.*holds that run.*logarithms") as raised:
        run(Decay(), natural(Decay(), "metapinn"), tmp_path)
    assert raised.value.exit_code == 3


@pytest.mark.parametrize(
    ("outcome", "interrupt"), [("stopped", False), ("steps", True)], ids=["in training", "after training"]
)
def test_a_meta_pinn_that_is_stopped_exits_so_and_names_resume(outcome, interrupt, tmp_path, monkeypatch, capsys):
    """A signal that comes while a task is evaluated ends the run, too: the next task does not start."""
    before = (lambda: os.kill(os.getpid(), signal.SIGINT)) if interrupt else (lambda: None)
    trained = tasks_end_with(monkeypatch, tmp_path, outcome, before)
    monkeypatch.setattr("clpinn.cli.train.use_devices", lambda devices: None)
    words = ["train", "tests/small.py:Decay", "--method", "metapinn", "--out", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["clpinn", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130 and trained == [(1.25,)]
    shown = " ".join(capsys.readouterr().err.split())
    assert "stopped: Training of a Meta-PINN stopped at the centre. To go on from there, use --resume." in shown
    assert "error" not in shown


def test_a_standard_pinn_is_probed_at_its_own_theta(tmp_path):
    chosen = override(natural(Decay(), "standard"), ["network.width=5", "natural.rows=48", "steps=20", "probe=3"])
    result = run(Decay(), chosen, tmp_path)
    row, error = lines(tmp_path / "history.jsonl")[-1], result.metrics["outputs"]["u"]["rel_l2_macro"]
    assert row["probe"] == row["probe_worst"] == {"u": error}


def test_a_rival_by_adam_alone(tmp_path):
    chosen = override(paper(Decay(), "hyperpinn"), ["network.width=4", "adam.steps=5"])
    metrics = run(Decay(), chosen, tmp_path).metrics
    assert (metrics["steps"], metrics["lbfgs_steps"], metrics["outcome"]) == (5, 0, "finished")
