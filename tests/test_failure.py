"""What goes wrong in a run, and what the user is told: numerical failure, bad settings, bad input."""

import json
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from running import counters, lines, natural_for, settings_for
from small import Decay, Hopeless

import clpinn as cl
from clpinn.cli.app import main
from clpinn.errors import SettingsError
from clpinn.presets import natural, paper
from clpinn.runs.callbacks import Callbacks
from clpinn.runs.run import run
from clpinn.training.pool_loss import PoolLoss
from clpinn.training.rows import Rows
from clpinn.training.settings import override


def fail_at(monkeypatch, calls):
    """Make the loss NaN at some evaluations."""
    real, count = PoolLoss.objective, [0]

    def objective(self, *arguments):
        value, gradient, named = real(self, *arguments)
        count[0] += 1
        return (value * np.nan if calls(count[0]) else value), gradient, named

    monkeypatch.setattr(PoolLoss, "objective", objective)


@pytest.mark.parametrize("at", [23, 55])
def test_a_failure_is_survived(tmp_path, monkeypatch, at):
    fail_at(monkeypatch, lambda call: call == at)
    messages = []
    result = run(Decay(), settings_for(), tmp_path, callbacks=Callbacks(message=messages.append))
    assert result.outcome == "finished" and result.metrics["recoveries"] == 1
    assert ("smaller learning rate" if at == 23 else "starts afresh") in messages[0]


def test_a_lasting_failure_is_a_named_outcome(tmp_path, monkeypatch):
    fail_at(monkeypatch, lambda call: call > 22)
    result = run(Decay(), settings_for(), tmp_path)
    assert result.outcome == "diverged" and result.metrics["recoveries"] == 5
    assert result.metrics["outputs"]["u"]["rel_l2_macro"] is not None
    assert lines(tmp_path / "events.jsonl")[-1]["step"] == 20


def rows_fail_at(monkeypatch, calls):
    """Make the rows NaN at some steps."""
    real, count = Rows.linearised, [0]

    def linearised(self, *arguments):
        rows = real(self, *arguments)
        count[0] += 1
        return rows._replace(rows=rows.rows * np.nan) if calls(count[0]) else rows

    monkeypatch.setattr(Rows, "linearised", linearised)


def test_a_failure_under_natural_is_survived(tmp_path, monkeypatch):
    rows_fail_at(monkeypatch, lambda call: call == 15)
    messages = []
    result = run(Decay(), natural_for("acr", "steps=30"), tmp_path, callbacks=Callbacks(message=messages.append))
    assert result.outcome == "steps" and result.metrics["recoveries"] == 1 and result.metrics["steps"] == 30
    assert "outcome steps after 30 steps, 1 recovery," in repr(result)
    assert "<td>steps after 30 steps, 1 recovery</td>" in result.report().read_text()
    assert "back to step 10, shorter steps" in messages[0] and result.metrics["validation"] < 0.3
    assert counters(tmp_path)["rate"] == 0.5


def test_a_lasting_failure_under_natural_is_a_named_outcome(tmp_path, monkeypatch):
    rows_fail_at(monkeypatch, lambda call: call > 15)
    result = run(Decay(), natural_for("acr", "steps=30"), tmp_path)
    assert result.outcome == "diverged" and result.metrics["recoveries"] == 5
    assert result.metrics["steps"] == 10 and result.metrics["outputs"]["u"]["rel_l2_macro"] is not None


@pytest.mark.parametrize("remedies", [0, 2])
def test_the_number_of_remedies(tmp_path, monkeypatch, remedies):
    rows_fail_at(monkeypatch, lambda call: call > 15)
    messages = []
    settings = natural_for("acr", "steps=30", f"remedies={remedies}")
    result = run(Decay(), settings, tmp_path, callbacks=Callbacks(message=messages.append))
    assert (result.outcome, result.metrics["recoveries"], result.metrics["steps"]) == ("diverged", remedies, 10)
    assert sum("back to step 10" in text for text in messages) == remedies
    assert ("remedies=0 allows no remedy" if remedies == 0 else "the remedy did not help") in messages[-1]


@pytest.mark.parametrize(
    "changes, message",
    [
        (["tasks.active=1"], "capacity is 1"),
        (["lbfgs.freeze=true"], "needs a parameter branch"),
        (["adam.decay=branch"], "needs a parameter branch"),
        (["tasks.selector=fixed", "tasks.fixed=[[1.0], [2.0], [3.0], [4.0], [5.0]]"], "5 fixed tasks do not fit"),
        (["tasks.linear=[\"mu\"]"], "Unknown axis 'mu'"),
    ],
)  # fmt: skip
def test_settings_that_contradict_the_problem(tmp_path, changes, message):
    with pytest.raises(cl.ClpinnError, match=message):
        run(Decay(), settings_for("acr", *changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "settings, message",
    [
        (lambda: settings_for("acr", "until=0.001"), "until needs the natural optimiser"),
        (lambda: settings_for("acr", "tasks.selector=free"), "tasks.selector=free needs the natural optimiser"),
        (lambda: natural_for("free", "precision=single"), "needs precision=double"),
        (lambda: natural_for("free", "natural.momentum=1"), "momentum in \\[0, 1\\)"),
        (lambda: natural_for("free", "natural.damping=0"), "damping above 0"),
        (lambda: natural_for("free", "natural.rows=0"), "natural.rows must be at least 1"),
        (lambda: natural_for("free", "natural.last_step=0"), "natural.last_step must be above zero"),
        (lambda: natural_for("acr2-full"), "belong to Adam and L-BFGS"),
        (lambda: natural_for("uni", "points.interior=50"), "Set natural.rows, or use optimizer=adam-lbfgs"),
        (lambda: natural_for("uni", "batch_rows=50"), "Set natural.rows, or use optimizer=adam-lbfgs"),
        (lambda: settings_for("acr", "batch=0.5", "batch_rows=50"), "batch=0.5 and batch_rows=50 both say"),
        (lambda: settings_for("acr", "batch_rows=0"), "batch_rows must be at least 1"),
        (lambda: settings_for("acr", "points.interior=0"), "points.interior must be at least 1"),
        (lambda: paper(Decay(), "free"), "or free with the natural optimiser"),
        (lambda: natural(Decay(), "sgd"), "Unknown method 'sgd'"),
    ],
)
def test_settings_that_contradict_the_optimiser(tmp_path, settings, message):
    with pytest.raises(cl.ClpinnError, match=message):
        run(Decay(), settings(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_bad_setting_is_a_value_error():
    """So a caller who knows nothing of clpinn's exceptions can catch it."""
    with pytest.raises(ValueError, match="There is no setting 'adam.stepz'") as raised:
        override(natural(Decay()), ["adam.stepz=3"])
    assert isinstance(raised.value, SettingsError) and isinstance(raised.value, cl.ClpinnError)


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["burgers", "--method", "sgd"], 1, "acr2-full, standard, p2inn, hyperpinn, metapinn, or free with"),
        (["burgers", "--optimizer", "magic"], 1, "Unknown optimizer 'magic'"),
        (["burgers", "--set", "adam.stepz=3"], 1, "There is no setting 'adam.stepz'"),
        (["burgers", "--method", "acr", "--set", "tasks.active=1", "--steps", "1"], 1, "capacity is 1"),
        (["burgers", "--budget", "0.1"], 1, "--budget is a share of the paper's steps"),
        (["tests/small.py:Hopeless", "--steps", "5"], 3, "not finite"),
    ],
)
def test_bad_input_at_the_command_line(tmp_path, monkeypatch, capsys, arguments, code, message):
    monkeypatch.setattr("clpinn.cli.train.use_devices", lambda devices: None)
    monkeypatch.setattr(sys, "argv", ["clpinn", "train", *arguments, "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code and message in " ".join(capsys.readouterr().err.split())
    if code == 3:
        assert json.loads((tmp_path / "run" / "metrics.json").read_text())["outcome"] == "diverged"


class Scalar(Decay):
    """A slip: residual and constrain may return a scalar, a reference may not."""

    def reference(self, x, t, k):
        return jnp.exp(-k * t)


class Undefined(Decay):
    def reference(self, x, t, k):
        raise RuntimeError("no such solver")


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (Scalar(), "reference must return a dict"),
        (Undefined(), "reference failed: RuntimeError: no such solver .*line"),
    ],
)
def test_a_bad_reference_is_told_before_training(problem, message, tmp_path):
    with pytest.raises(cl.ProblemError, match=message):
        cl.train(problem, steps=3, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_surrogate_of_a_run_that_diverged_is_warned_of():
    with pytest.warns(UserWarning, match="Training diverged.*of residual.*roots, logarithms"):
        surrogate = cl.train(Hopeless(), steps=3)
    assert surrogate.record["outcome"] == "diverged"
