"""Runs from problem to metrics: every method on every benchmark, resume, damage, failure, bad input."""

import csv
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from small import Decay, Hopeless
from typer.testing import CliRunner

import clpinn as cl
from clpinn.cli.app import app, main
from clpinn.errors import RunError, SettingsError
from clpinn.formulation.problem import describe
from clpinn.networks.architecture import count
from clpinn.presets import natural, paper, scaled
from clpinn.problems import BENCHMARKS, PAPER_FORMS, load_problem
from clpinn.protocol import METHODS
from clpinn.runs.directory import RunDirectory, load_network
from clpinn.runs.run import run
from clpinn.runs.session import Observer, Result
from clpinn.training import checkpoint, trainer
from clpinn.training.rows import Rows
from clpinn.training.settings import from_dict, override
from clpinn.training.stages.natural import EVENTS_UNTIL, VALIDATION_STEPS
from clpinn.training.trainer import RECOVERIES, Trainer

FILES = {"config.json", "history.jsonl", "metrics.json", "errors.csv", "checkpoint", "model.clpinn"}
QUICK = ["network.width=5", "network.depth=1", "tasks.active=4", "tasks.evaluations=2"]


def lines(path: Path) -> list[dict]:
    """A log without the wall times, which no two runs share; empty where there is none."""
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def arrays(folder: Path, problem=None) -> list[np.ndarray]:
    """Everything a run's last checkpoint holds."""
    problem = problem or Decay()
    settings = from_dict(json.loads((folder / "config.json").read_text())["settings"])
    with jax.enable_x64(settings.precision == "double"):
        loaded = checkpoint.load(folder / "checkpoint", Trainer(problem, settings).init().tree())
    assert loaded is not None
    return jax.tree.leaves(loaded.tree)


def same(a: Path, b: Path) -> None:
    """Two run directories hold the same run, bit for bit."""
    left, right = arrays(a), arrays(b)
    assert len(left) == len(right) and all(np.array_equal(x, y, equal_nan=True) for x, y in zip(left, right))
    assert lines(a / "history.jsonl") == lines(b / "history.jsonl")
    assert lines(a / "events.jsonl") == lines(b / "events.jsonl")


def settings_for(method="acr", *more, problem=None):
    return override(
        paper(problem or Decay(), method), [*QUICK, "adam.steps=40", "tasks.interval=5", "lbfgs.steps=20", *more]
    )


def small(name):
    """A benchmark with few points and thetas."""
    problem = PAPER_FORMS.get(name) or BENCHMARKS[name]()
    side = 6 if len(problem.parameters) == 1 else 3
    candidates = {
        key: values[np.linspace(0, len(values) - 1, side).astype(int)]
        for key, values in problem.candidates.values.items()
    }
    grids = {
        "interior": cl.Interior(36, sampler=problem.interior.sampler),
        "candidates": cl.Grid(**candidates),
        "evaluation": cl.Grid(**{key: values[[0, 30, 60, -1]] for key, values in problem.evaluation.values.items()}),
        "reference_version": None,
    }
    kind = type(type(problem).__name__, (type(problem),), grids)
    return kind(hard=False) if name == "burgers" else kind()


# The other methods leave out parts of this one, or differ in a setting that nothing of a benchmark changes.
PAIRS = [(m, name) for m in METHODS for name in BENCHMARKS if m == "acr2" or name == "burgers"]


@pytest.mark.parametrize(("method", "name"), PAIRS)
def test_every_method_on_every_benchmark(method, name, tmp_path):
    problem = small(name)
    corners = 2 ** len(problem.parameters)
    settings = scaled(paper(problem, method), 1e-9)
    assert settings.tasks.interval == 1
    size = [f"tasks.active={corners + 2}", "tasks.evaluations=2", "adam.steps=4", "lbfgs.steps=2"]
    settings = override(settings, ["network.width=4", "network.depth=1", *size])
    if method == "fix":
        settings = dataclasses.replace(
            settings, tasks=dataclasses.replace(settings.tasks, fixed=settings.tasks.fixed[: corners + 2])
        )
    result = run(problem, settings, tmp_path / "run")
    found = {path.name for path in (tmp_path / "run").iterdir()} - {".lock"}
    searching = method not in ("uni", "fix")
    assert found == FILES | ({"events.jsonl"} if searching else set())
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["outcome"] == "finished" and metrics["steps"] == 6 and metrics == result.metrics
    assert set(metrics["outputs"]) == set(problem.outputs)
    assert metrics["active"] == corners + 2
    assert (metrics["queries"] > 0) == searching
    assert {
        "problem",
        "method",
        "optimizer",
        "seed",
        "wall_seconds",
        "search_seconds",
        "replay",
        "res_pde_macro",
    } <= set(metrics)
    if searching:
        events = lines(tmp_path / "run" / "events.jsonl")
        assert [event["step"] for event in events] == [1, 2, 3, 4]
        assert events[-1]["queries"] == metrics["queries"]
        assert np.isclose(sum(events[-1]["weights"]), metrics["active"] + metrics["replay"])


def test_training_learns(tmp_path):
    settings = settings_for(
        "acr", "adam.steps=300", "tasks.interval=50", "lbfgs.steps=200", "network.width=10", "network.depth=2"
    )
    result = run(Decay(), settings, tmp_path)
    assert result.metrics["outputs"]["u"]["rel_l2_worst"] < 0.02
    history = lines(tmp_path / "history.jsonl")
    assert history[-1]["validation"] < 1e-2 * history[0]["validation"]
    assert set(history[0]["terms"]) == {"residual", "start"}
    assert np.isclose(sum(history[0]["terms"].values()), history[0]["loss"], rtol=1e-5)
    assert result.metrics["lbfgs_steps"] == result.metrics["steps"] - 300
    displaced = result.metrics["forgetting"]
    assert displaced and all(task["loss_now"] < task["loss_then"] for task in displaced)
    assert all(task["rel_l2_then"]["u"] > 0 and task["rel_l2_now"]["u"] > 0 for task in displaced)
    assert 0 <= result.metrics["coverage_hole"] <= 1


def test_replay_rules_reach_the_trainer(tmp_path):
    """With room for one replay task the sets fill and stay within bounds; without replay a task is dropped."""
    longer = ["adam.steps=200", "tasks.interval=20"]
    run(Decay(), settings_for("acr", "tasks.replay=1", *longer), tmp_path / "acr")
    events = lines(tmp_path / "acr" / "events.jsonl")
    assert max(len(event["active"]) for event in events) == 4 and max(len(event["replay"]) for event in events) == 1
    record = run(Decay(), settings_for("ac"), tmp_path / "ac").surrogate.record
    events = lines(tmp_path / "ac" / "events.jsonl")
    dropped = [event["moved_dropped"] for event in events if event["moved_dropped"]]
    assert record["displaced"] == list(map(list, dict.fromkeys(map(tuple, dropped)))) != []
    assert record["tasks"] == events[-1]["active"]
    assert all(event["replay"] == [] for event in events) and any(event["moved_dropped"] for event in events)
    run(Decay(), settings_for("acr", "tasks.replay=None", *longer), tmp_path / "all")
    assert len(lines(tmp_path / "all" / "events.jsonl")[-1]["replay"]) > 1


def test_dynamic_weights_without_selection(tmp_path):
    """The ablation fixed + weights: a fixed pool is queried for its weights."""
    result = run(Decay(), settings_for("uni", "weights.kind=dynamic"), tmp_path)
    events = lines(tmp_path / "events.jsonl")
    assert len(events) == 8 and events[0]["newcomer"] is None and len(set(events[-1]["weights"])) > 1
    assert result.metrics["queries"] == 8 * 4


def test_decay_and_freezing():
    settings = settings_for("acr2-full", "adam.decay_rate=0.1")
    trainer = Trainer(Decay(), settings)
    state = trainer.init()
    objective = trainer._objective(state)
    value, gradient = objective(trainer._trainable(state.network, "adam")[0])
    plain = Trainer(Decay(), settings_for("acr2"))
    value_plain, gradient_plain = plain._objective(state)(plain._trainable(state.network, "adam")[0])
    branch = state.network.parameter_branch
    penalty = 0.05 * sum(float(np.sum(np.asarray(leaf) ** 2)) for leaf in jax.tree.leaves(branch))
    assert np.isclose(value - value_plain, penalty, rtol=1e-4)
    more = gradient.parameter_branch.weight - gradient_plain.parameter_branch.weight
    assert np.allclose(more, 0.1 * branch.weight, atol=1e-5)
    assert np.allclose(gradient.output.weight, gradient_plain.output.weight, rtol=1e-4, atol=1e-6)
    frozen = dataclasses.replace(state, stage="lbfgs")
    after, _ = trainer._step(frozen, trainer._objective(frozen), 0.0)
    assert np.array_equal(after.network.parameter_branch.weight, branch.weight)
    assert not np.array_equal(after.network.output.weight, state.network.output.weight)
    assert np.isclose(trainer._objective(frozen)(trainer._trainable(state.network, "lbfgs")[0])[0], value_plain)


def test_double_precision_batches_and_probe(tmp_path):
    settings = settings_for("ac", "precision=double", "batch=0.5", "probe=2", "lbfgs.line_search=true")
    result = run(Decay(), settings, tmp_path)
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(result.network))
    assert set(lines(tmp_path / "history.jsonl")[-1]["probe"]) == {"u"}
    assert not jax.config.jax_enable_x64


def test_the_probe_touches_nothing(tmp_path):
    run(Decay(), settings_for(), tmp_path / "without")
    run(Decay(), settings_for("acr", "probe=3"), tmp_path / "with")
    left, right = arrays(tmp_path / "without"), arrays(tmp_path / "with")
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(left, right))


def test_two_runs_are_bit_identical_and_seeds_differ(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(Decay(), settings_for("acr", f"seed={seed}"), tmp_path / name)
    same(tmp_path / "a", tmp_path / "b")
    first, other = (load_network(tmp_path / name, Decay()).output.weight for name in ("a", "c"))
    assert not np.array_equal(first, other)


def test_stop_at_steps_and_resume(tmp_path):
    """In both stages; the end is that of a run that never stopped."""
    run(Decay(), settings_for(), tmp_path / "whole")
    for steps, after in ((17, 17), (None, 17), (48, 48), (10**6, 60)):
        bound = dataclasses.replace(settings_for(), steps=steps)
        result = run(Decay(), bound, tmp_path / "parts", resume=True)
        assert result.metrics["steps"] == after
        assert result.outcome == ("finished" if after == 60 else "steps")
    same(tmp_path / "whole", tmp_path / "parts")
    said = []
    run(Decay(), settings_for(), tmp_path / "parts", resume=True, observer=Observer(message=said.append))
    assert "Nothing is left to do" in said[0]
    assert np.array_equal(load_network(tmp_path / "parts", Decay()).output.weight, result.network.output.weight)


def test_a_bound_in_seconds(tmp_path):
    result = run(Decay(), settings_for("uni", "adam.steps=1000000", "lbfgs.steps=1000000", "seconds=4"), tmp_path)
    assert result.outcome == "time" and result.metrics["lbfgs_steps"] > 0


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    run(Decay(), settings_for(), tmp_path / "whole")
    half = dataclasses.replace(settings_for(), steps=33)
    run(Decay(), half, tmp_path / "parts", checkpoint_seconds=0)
    more = dataclasses.replace(settings_for(), steps=10**6)
    newest = sorted((tmp_path / "parts" / "checkpoint").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    said = []
    run(Decay(), more, tmp_path / "parts", resume=True, observer=Observer(message=said.append))
    assert newest.name in said[0] and "Going on from step 32" in said[1]
    same(tmp_path / "whole", tmp_path / "parts")


def fail_at(monkeypatch, calls):
    """Make the loss NaN at some evaluations."""
    real, count = Loss.objective, [0]

    def objective(self, *arguments):
        value, gradient, named = real(self, *arguments)
        count[0] += 1
        return (value * np.nan if calls(count[0]) else value), gradient, named

    monkeypatch.setattr(Loss, "objective", objective)


@pytest.mark.parametrize("at", [23, 55])
def test_a_failure_is_survived(tmp_path, monkeypatch, at):
    fail_at(monkeypatch, lambda call: call == at)
    said = []
    result = run(Decay(), settings_for(), tmp_path, observer=Observer(message=said.append))
    assert result.outcome == "finished" and result.metrics["recoveries"] == 1
    assert ("smaller learning rate" if at == 23 else "starts afresh") in said[0]


def test_a_lasting_failure_is_a_named_outcome(tmp_path, monkeypatch):
    fail_at(monkeypatch, lambda call: call > 22)
    result = run(Decay(), settings_for(), tmp_path)
    assert result.outcome == "diverged" and result.metrics["recoveries"] == 5
    assert result.metrics["outputs"]["u"]["rel_l2_macro"] is not None
    assert lines(tmp_path / "events.jsonl")[-1]["step"] == 20


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


def test_directories_are_respected(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("precious")
    with pytest.raises(RunError, match="is not empty"):
        run(Decay(), settings_for(), tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.txt"]
    run(Decay(), settings_for(), tmp_path / "run")
    before = (tmp_path / "run" / "metrics.json").read_bytes()
    with pytest.raises(RunError, match="is of another problem: Decay, not Burgers. Nothing was changed"):
        run(small("burgers"), settings_for(), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "metrics.json").read_bytes() == before
    with pytest.raises(RunError, match="is not a run"):
        load_network(tmp_path / "full", Decay())


def test_a_full_disk_is_one_clear_message(tmp_path, monkeypatch):
    run(Decay(), dataclasses.replace(settings_for(), steps=10), tmp_path)
    kept = sorted((tmp_path / "checkpoint").iterdir())

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(cl.ClpinnError, match="checkpoint"):
        run(Decay(), dataclasses.replace(settings_for(), steps=20), tmp_path, resume=True, checkpoint_seconds=0)
    assert sorted((tmp_path / "checkpoint").iterdir()) == kept


# Real processes ----------------------------------------------------------------------------------------------

COMMON = [
    "--optimizer",
    "adam-lbfgs",
    "--set",
    "network.width=5",
    "--set",
    "network.depth=1",
    "--set",
    "tasks.active=4",
    "--set",
    "tasks.evaluations=2",
]


def command(*arguments):
    return [sys.executable, "-m", "clpinn", "train", "tests/small.py:Decay", "--devices", "1", *COMMON, *arguments]


def test_killed_at_random_moments_a_run_ends_the_same(tmp_path):
    """SIGKILL in both stages; then the end is bit-identical to a run that was left alone."""
    size = ["--set", "adam.steps=120", "--set", "tasks.interval=15", "--set", "lbfgs.steps=120", "--steps", "240"]
    subprocess.run(command(*size, "--out", str(tmp_path / "whole")), check=True, capture_output=True)
    killed = tmp_path / "killed"
    resume = command(*size, "--out", str(killed), "--resume", "--checkpoint-seconds", "0")
    chance, stages = random.Random(7), set()
    for target in (60, 170):
        process = subprocess.Popen(resume, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and newest(killed) < target:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.wait()
        stages.add("adam" if newest(killed) < 120 else "lbfgs")
    assert stages == {"adam", "lbfgs"}
    done = subprocess.run(resume, check=True, capture_output=True, text=True)
    assert "Going on from step" in done.stderr
    same(tmp_path / "whole", killed)


def newest(folder: Path) -> int:
    names = sorted(path.name for path in (folder / "checkpoint").glob("step-*.checkpoint"))
    return int(names[-1].split("-")[1].split(".")[0]) if names else -1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_a_checkpoint(tmp_path, number):
    out = tmp_path / "run"
    process = subprocess.Popen(
        command("--out", str(out), "--set", "adam.steps=1000000", "--checkpoint-seconds", "0", "--steps", "900000"),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while newest(out) < 3:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 130
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["outcome"] == "stopped" and metrics["steps"] == newest(out)


def test_the_command_line_runs_a_method(tmp_path):
    out = tmp_path / "run"
    options = ["adam.steps=6", "tasks.interval=2", "lbfgs.steps=3"]
    more = ["--method", "acr", *(word for option in options for word in ("--set", option)), "--steps", "9"]
    done = subprocess.run(command("--out", str(out), "--json", *more), capture_output=True, text=True, check=True)
    metrics = json.loads(done.stdout)
    assert metrics == json.loads((out / "metrics.json").read_text())
    assert metrics["method"] == "acr" and metrics["steps"] == 9
    shown = CliRunner().invoke(app, ["evaluate", str(out), "--json"], catch_exceptions=False)
    assert json.loads(shown.stdout)["outputs"] == metrics["outputs"]
    again = subprocess.run(
        command("--config", str(out / "config.json"), "--out", str(tmp_path / "again")), capture_output=True, text=True
    )
    assert again.returncode == 0 and "macro rel. L2" in again.stdout and "run: " in again.stdout
    same(out, tmp_path / "again")


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["burgers", "--method", "sgd"], 1, "Unknown method 'sgd'. Use one of uni"),
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


def test_a_run_directory_is_locked(tmp_path):
    out = tmp_path / "run"
    process = subprocess.Popen(
        command("--out", str(out), "--set", "adam.steps=1000000", "--checkpoint-seconds", "0", "--steps", "900000"),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while newest(out) < 1:
            assert process.poll() is None
            time.sleep(0.05)
        settings = settings_for("acr", "adam.steps=1000000")
        with pytest.raises(RunError, match="Another process is working"):
            run(Decay(), settings, out, resume=True, name="tests/small.py:Decay")
    finally:
        process.kill()
        process.wait()


# Natural gradient --------------------------------------------------------------------------------------------

TINY = ["network.width=5", "network.depth=1", "natural.rows=48", "tasks.active=4", "tasks.evaluations=2"]
TINY += ["tasks.interval=10"]


def natural_for(method="free", *more, problem=None):
    return override(natural(problem or Decay(), method), [*TINY, *more])


@pytest.mark.parametrize("method", ["free", "uni", "ag", "acr", "acr2"])
def test_every_method_under_natural(method, tmp_path):
    result = run(Decay(), natural_for(method, "steps=40"), tmp_path)
    metrics, searching = result.metrics, method not in ("free", "uni")
    found = {path.name for path in tmp_path.iterdir()} - {".lock"}
    assert found == FILES | ({"events.jsonl"} if searching else set())
    assert (metrics["outcome"], metrics["steps"], metrics["optimizer"]) == ("steps", 40, "natural")
    assert metrics == json.loads((tmp_path / "metrics.json").read_text())
    history = lines(tmp_path / "history.jsonl")
    assert [row["step"] for row in history] == list(range(VALIDATION_STEPS, 41, VALIDATION_STEPS))
    assert all(np.isfinite(row["validation"]) and row["stage"] == "natural" for row in history)
    assert metrics["validation"] == history[-1]["validation"] < 0.1  # a network at its start has about 1
    assert all(set(row["terms"]) == {"residual", "start"} for row in history)
    assert all(row["loss"] == pytest.approx(sum(row["terms"].values())) for row in history)
    assert metrics["active"] == (0 if method == "free" else 4 if method == "uni" else metrics["active"])
    events = lines(tmp_path / "events.jsonl")
    assert (metrics["queries"] > 0) == searching == bool(events)
    if searching:
        # None after the share of a run that is theirs, and the first brings a newcomer to the corners.
        assert [event["step"] for event in events] == [10, 20] and EVENTS_UNTIL == 0.7
        assert events[0]["newcomer"] is not None and len(events[0]["active"]) == 3
        assert events[0]["newcomer"] in events[0]["active"] and 0 < metrics["coverage_hole"] < 1


def test_natural_gradient_learns(tmp_path):
    """Over five seeds the worst error was below 6e-4."""
    size = ["network.width=10", "network.depth=2", "natural.rows=128"]
    result = run(Decay(), natural_for("free", *size, "steps=150"), tmp_path)
    assert result.metrics["outputs"]["u"]["rel_l2_worst"] < 2e-3
    assert result.metrics["outputs"]["u"]["rel_l2_macro"] < 1e-3
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(result.network))
    assert not jax.config.jax_enable_x64


def test_outputs_and_conditions_of_very_different_size_are_all_learned(tmp_path):
    """An output of size 1e-4 beside one of size 1; over two seeds both errors were below 6e-4."""
    problem = load_problem("examples/trace.py:Trace")
    chosen = natural(problem)
    chosen = dataclasses.replace(
        chosen,
        network=dataclasses.replace(chosen.network, width=16, depth=2),
        natural=dataclasses.replace(chosen.natural, rows=300),
        steps=300,
    )
    metrics = run(problem, chosen, tmp_path).metrics
    assert metrics["outputs"]["u"]["rel_l2_macro"] < 0.005 and metrics["outputs"]["w"]["rel_l2_macro"] < 0.01


def test_a_path_that_leaves_the_solution_early_is_not_taken(tmp_path):
    """Without causal weights prey grows without predators: errors of 1.8 and 0.9 after as many steps."""
    problem = load_problem("examples/predator_prey.py:PredatorPrey")
    size = ["network.width=14", "network.depth=3", "natural.rows=400", "steps=120"]
    outputs = run(problem, override(natural(problem), size), tmp_path).metrics["outputs"]
    assert all(error["rel_l2_macro"] < 0.02 for error in outputs.values())


@pytest.mark.parametrize("size", [1e6, 0.0])
def test_an_output_of_any_size_is_learned_beside_another(tmp_path, size):
    """u of size 1, w of size 1e6 or zero: nothing but the equations says so."""

    class Sizes(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        parameters = cl.Box(a=(1, 2))
        outputs = ("u", "w")
        conditions = (cl.Condition("ends", lambda d: {"u": d.u, "w": d.w}, on=cl.boundary("x"), points=2),)
        candidates = parameters.grid(a=3)
        evaluation = coordinates.grid(x=51)

        def residual(self, d, x, a):
            return {"first": d.u_xx + 4 * a * jnp.cos(2 * x), "second": d.w_xx + 8 * size}

        def reference(self, x, a):
            bump = np.cos(2 * x) - 1 + x * (1 - np.cos(2))
            return {"u": a * bump, "w": 4 * size * x * (1 - x) + 0 * a}

    options = ["network.width=10", "network.depth=2", "natural.rows=128", "steps=200"]
    metrics = run(Sizes(), override(natural(Sizes()), options), tmp_path).metrics
    assert metrics["outputs"]["u"]["rel_l2_macro"] < 0.05
    assert metrics["outputs"]["w"]["max_abs"] < 0.05 * (size or 1)


@pytest.mark.parametrize("size", [1e-4, 0.5, 1e5])
def test_a_new_amplitude_changes_no_function(size):
    """Neither the network's nor that of a step along its momentum."""
    with jax.enable_x64(True):
        chosen = Trainer(Decay(), natural_for())
        state = chosen.init()
        network = eqx.tree_at(lambda n: n.output.weight, state.network, size * state.network.output.weight)
        optimizer, scales = state.natural
        phi = np.linspace(-1e-5, 1e-5, optimizer.momentum.size) * size
        phi[-1] = 0  # the amplitude's own
        state = dataclasses.replace(state, network=network, natural=(optimizer._replace(momentum=phi), scales))
        after = chosen._rescaled(state)
        inputs = jnp.full(Decay().coordinates.feature_count, 0.3), jnp.full(Decay().parameters.feature_count, -0.7)
        assert (after is state) == (size == 0.5)
        np.testing.assert_allclose(after.network(*inputs), network(*inputs), rtol=1e-12)
        norm = np.linalg.norm(after.network.output.weight)
        assert norm == pytest.approx(1.0) or after is state
        np.testing.assert_allclose(after.network.output.amplitude * norm, np.linalg.norm(network.output.weight))
        step = ravel_pytree(network.output)[0].size
        moved, wanted = after.natural[0].momentum[-step:], phi[-step:]
        np.testing.assert_allclose(moved[:-1] * after.network.output.amplitude, wanted[:-1], rtol=1e-12)


def test_two_runs_under_natural_are_bit_identical(tmp_path):
    for name in ("a", "b"):
        run(Decay(), natural_for("acr", "steps=30"), tmp_path / name)
    same(tmp_path / "a", tmp_path / "b")


def test_natural_runs_go_on_where_they_stopped(tmp_path):
    """With a new bound, which decides how long its steps are from there on."""
    run(Decay(), natural_for("free", "steps=12"), tmp_path)
    result = run(Decay(), natural_for("free", "steps=25"), tmp_path, resume=True)
    assert result.metrics["steps"] == 25
    assert [row["step"] for row in lines(tmp_path / "history.jsonl")] == [10, 20]


def test_killed_under_natural_a_run_ends_the_same(tmp_path):
    """SIGKILL, early and between events; then the end is bit-identical to a run that was left alone."""
    size = [part for setting in TINY for part in ("--set", setting)]
    arguments = [sys.executable, "-m", "clpinn", "train", "tests/small.py:Decay", "--devices", "1", "--method", "acr"]
    arguments += ["--steps", "60", *size]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    whole = [*arguments, "--out", str(tmp_path / "whole"), "--json"]
    done = subprocess.run(whole, check=True, capture_output=True, text=True, env=environment)
    assert json.loads(done.stdout)["optimizer"] == "natural"
    killed = tmp_path / "killed"
    resume = [*arguments, "--out", str(killed), "--resume", "--checkpoint-seconds", "0"]
    chance = random.Random(3)
    for target in (1, 35):
        process = subprocess.Popen(resume, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        while process.poll() is None and newest(killed) < target:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert target <= newest(killed) < 60
    done = subprocess.run(resume, check=True, capture_output=True, text=True, env=environment)
    assert "Going on from step" in done.stderr
    same(tmp_path / "whole", killed)
    assert lines(killed / "events.jsonl")


def rows_fail_at(monkeypatch, calls):
    """Make the rows NaN at some steps."""
    real, count = Rows.jacobian, [0]

    def jacobian(self, *arguments):
        found = real(self, *arguments)
        count[0] += 1
        return found._replace(rows=found.rows * np.nan) if calls(count[0]) else found

    monkeypatch.setattr(Rows, "jacobian", jacobian)


def test_a_failure_under_natural_is_survived(tmp_path, monkeypatch):
    rows_fail_at(monkeypatch, lambda call: call == 15)
    said = []
    result = run(Decay(), natural_for("acr", "steps=30"), tmp_path, observer=Observer(message=said.append))
    assert result.outcome == "steps" and result.metrics["recoveries"] == 1 and result.metrics["steps"] == 30
    assert "back to step 10, shorter steps" in said[0] and result.metrics["validation"] < 0.3
    assert counters(tmp_path)["rate"] == 0.5


def test_a_lasting_failure_under_natural_is_a_named_outcome(tmp_path, monkeypatch):
    rows_fail_at(monkeypatch, lambda call: call > 15)
    result = run(Decay(), natural_for("acr", "steps=30"), tmp_path)
    assert result.outcome == "diverged" and result.metrics["recoveries"] == RECOVERIES
    assert result.metrics["steps"] == 10 and result.metrics["outputs"]["u"]["rel_l2_macro"] is not None


def counters(folder: Path) -> dict:
    """The counters of a run's last checkpoint."""
    settings = from_dict(json.loads((folder / "config.json").read_text())["settings"])
    with jax.enable_x64(True):
        loaded = checkpoint.load(folder / "checkpoint", Trainer(Decay(), settings).init().tree())
    assert loaded is not None
    return loaded.description


def test_a_run_stops_at_a_validation_loss(tmp_path):
    result = run(Decay(), natural_for("free", "steps=400", "until=0.01"), tmp_path)
    assert result.outcome == "until" and result.metrics["steps"] < 400
    history = lines(tmp_path / "history.jsonl")
    assert history[-1]["validation"] == result.metrics["validation"] <= 0.01
    assert all(row["validation"] > 0.01 for row in history[:-1])
    # It can go on from there to a smaller one.
    smaller = result.metrics["validation"] / 4
    further = run(Decay(), natural_for("free", f"until={smaller}"), tmp_path, resume=True)
    assert further.outcome == "until" and further.metrics["validation"] <= smaller
    assert further.metrics["steps"] > result.metrics["steps"]


def test_without_bounds_a_run_ends_when_its_progress_does(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "PATIENCE", 20)
    monkeypatch.setattr(trainer, "SHORTEST", 0.5)
    result = run(Decay(), natural_for(), tmp_path)
    assert result.outcome == "finished" and result.metrics["validation"] < 1e-2
    assert counters(tmp_path)["rate"] == 0.5
    # The last twenty steps brought less than a fifth.
    validations = [row["validation"] for row in lines(tmp_path / "history.jsonl")]
    assert len(validations) > 4 and min(validations[-2:]) > 0.8 * min(validations[:-2])


def test_a_problem_without_parameters_under_natural(tmp_path):
    class Alone(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        conditions = (cl.Condition("start", lambda d: d.u - 1, on=cl.at(x=0), points=1),)

        def residual(self, d):
            return d.u_x + d.u

        def reference(self, x):
            return {"u": np.exp(-x)}

    result = run(Alone(), natural_for("free", "steps=40", problem=Alone()), tmp_path)
    assert result.metrics["outputs"]["u"]["rel_l2_worst"] < 0.02 and result.metrics["coverage_hole"] is None


@pytest.mark.parametrize(
    "settings, message",
    [
        (lambda: settings_for("acr", "until=0.001"), "until needs the natural optimiser"),
        (lambda: settings_for("acr", "tasks.selector=free"), "tasks.selector=free needs the natural optimiser"),
        (lambda: natural_for("free", "precision=single"), "needs precision=double"),
        (lambda: natural_for("free", "natural.momentum=1"), "momentum in \\[0, 1\\)"),
        (lambda: natural_for("free", "natural.damping=0"), "damping above 0"),
        (lambda: natural_for("free", "natural.rows=0"), "natural.rows must be at least 1"),
        (lambda: natural_for("free", "natural.last_step=0"), "natural.last_step above 0"),
        (lambda: natural_for("acr2-full"), "belong to Adam and L-BFGS"),
        (lambda: paper(Decay(), "free"), "or free with the natural optimiser"),
        (lambda: natural(Decay(), "sgd"), "Unknown method 'sgd'"),
    ],
)
def test_settings_that_contradict_the_optimiser(tmp_path, settings, message):
    with pytest.raises(cl.ClpinnError, match=message):
        run(Decay(), settings(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_settings_error_is_a_value_error():
    assert issubclass(SettingsError, ValueError)


def test_a_start_that_gets_nowhere_is_followed_by_another(tmp_path, monkeypatch):
    monkeypatch.setattr("clpinn.training.trainer.START_STEPS", 10)
    told: list[str] = []
    run(Decay(), natural_for("free", "steps=90"), tmp_path / "good", observer=Observer(message=told.append))
    assert not told
    monkeypatch.setattr("clpinn.training.trainer.NOTHING_LEARNT", 0.0)
    result = run(Decay(), natural_for("free", "steps=90"), tmp_path / "bad", observer=Observer(message=told.append))
    # Five starts at most, none in the second half of a run.
    assert len(told) == 4 and all("another start" in text for text in told)
    with jax.enable_x64(True):
        loaded = checkpoint.load(tmp_path / "bad" / "checkpoint", Trainer(Decay(), natural_for()).init().tree())
    assert loaded is not None and loaded.description["starts"] == 5
    assert result.metrics["steps"] == 90 and np.isfinite(result.metrics["validation"])


def test_patience_waits_for_another_start(tmp_path, monkeypatch):
    """A run without bounds: what is stuck is begun again, with full steps, before progress is asked for."""
    for name, value in (("START_STEPS", 20), ("STARTS", 3), ("PATIENCE", 10), ("NOTHING_LEARNT", 0.0)):
        monkeypatch.setattr(trainer, name, value)
    told: list[str] = []
    rates: list[tuple[int, float]] = []
    observer = Observer(lambda state, *_: rates.append((state.step, state.rate)), message=told.append)
    run(Decay(), natural_for(), tmp_path, observer=observer)
    assert len(told) == 2 and all(rate == 1 for step, rate in rates if step <= 40)
    assert rates[-1][1] < 1


def test_new_bounds_take_the_place_of_the_old_ones(tmp_path):
    """All of them, and they are kept; a run that ended by itself goes on with them."""

    def again(**bounds):
        return run(Decay(), dataclasses.replace(natural_for(), **bounds), tmp_path / "a", resume=True)

    assert again(until=1e9).outcome == "until"
    assert again(steps=12).metrics["steps"] == 12
    stored = json.loads((tmp_path / "a" / "config.json").read_text())["settings"]
    assert (stored["steps"], stored["until"]) == (12, None)
    assert again().metrics["steps"] == 12
    whole = run(Decay(), dataclasses.replace(natural_for(), steps=12), tmp_path / "whole")
    assert eqx.tree_equal(whole.network, again().network)


def test_a_run_that_ended_by_itself_goes_on_with_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "PATIENCE", 10)
    monkeypatch.setattr(trainer, "SHORTEST", 0.5)
    ended = run(Decay(), natural_for(), tmp_path)
    steps = ended.metrics["steps"]
    assert ended.outcome == "finished"
    further = run(Decay(), dataclasses.replace(natural_for(), steps=steps + 5), tmp_path, resume=True)
    assert (further.outcome, further.metrics["steps"]) == ("steps", steps + 5)


def test_an_equation_that_overflows_at_its_sources_size_is_begun_with_less(tmp_path):
    class PoissonBoltzmann(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        parameters = cl.Box(S=cl.log(1e4, 1e5))
        candidates = parameters.grid(S=2)

        def constrain(self, raw, x):
            return x * (1 - x) * raw

        def residual(self, d, S):
            return d.u_xx - jnp.sinh(d.u) + S

    problem = PoissonBoltzmann()
    result = run(problem, natural_for("free", "steps=40", problem=problem), tmp_path)
    assert result.outcome == "steps" and result.metrics["recoveries"] == 0
    assert 1 < float(result.network.output.amplitude[0]) < 200


def test_batches_grow_up_to_the_number_of_parameters(tmp_path, monkeypatch):
    """Twofold after so many steps, and not late in a run."""
    monkeypatch.setattr("clpinn.training.trainer.GROW_STEPS", 10)
    met: list[int] = []
    draw = Rows.draw

    def counted(self, *arguments, **named):
        batch = draw(self, *arguments, **named)
        met.append(sum(part.scale.size for part in batch.values()))
        return batch

    monkeypatch.setattr("clpinn.training.rows.Rows.draw", counted)
    settings = natural_for("free", "steps=30", "natural.rows=40", "network.width=5", "network.depth=2")
    result = run(Decay(), settings, tmp_path)
    assert 2 * 40 <= count(result.network) < 4 * 40
    assert [size // met[0] for size in met] == [1] * 10 + [2] * 20
    with jax.enable_x64(True):
        trained = Trainer(Decay(), settings)
        state = dataclasses.replace(trained.init(), step=10)
        assert [trained._grown(state, done).growth for done in (0.0, 0.8, 0.81)] == [2, 2, 1]
        monkeypatch.setattr("clpinn.training.trainer.memory", lambda: 1e4)
        assert trained._grown(state, 0.0).growth == 1


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
    with warnings.catch_warnings(record=method == "standard") as told:  # elsewhere a warning is an error
        warnings.simplefilter("error" if method != "standard" else "always")
        loaded(x=0.5, t=0.5, k=Decay().parameters.centre[0])
        assert not told
        loaded(x=0.5, t=0.5, k=0.5)
    assert method != "standard" or "trained at k = 1.25 alone" in str(told[0].message)


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
    assert lines(tmp_path / "history.jsonl")[-1]["probe"] == {"u": result.metrics["outputs"]["u"]["rel_l2_macro"]}


def test_a_rival_by_adam_alone(tmp_path):
    chosen = override(paper(Decay(), "hyperpinn"), ["network.width=4", "adam.steps=5"])
    metrics = run(Decay(), chosen, tmp_path).metrics
    assert (metrics["steps"], metrics["lbfgs_steps"], metrics["outcome"]) == (5, 0, "finished")


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


def test_numbers_of_numpy_will_do(tmp_path):
    seed, steps, width = np.arange(3)[1], np.int64(2), np.int64(4)
    chosen = dataclasses.replace(natural_for(), seed=seed, steps=steps)
    chosen = dataclasses.replace(chosen, network=dataclasses.replace(chosen.network, width=width))
    run(Decay(), chosen, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["settings"]["seed"] == 1


OWN = """
import clpinn as cl

class Own(cl.Problem):
    coordinates = cl.Box(x=(0, 1))
    parameters = cl.Box(a=(1, 2))
    candidates = parameters.grid(a=3)

    def residual(self, d, a):
        return d.u_x + a * d.u
"""


def test_a_run_from_python_is_used_at_the_command_line(tmp_path, monkeypatch):
    """With its problem named, or found where it was started, or of a benchmark."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    problem = load_problem("own.py:Own")
    settings = override(natural(problem, "free"), ["steps=2", "network.width=4", "natural.rows=16"])
    run(problem, settings, "python")
    run(problem, settings, "command", name="own.py:Own")
    asked = ["predict", "python", "a=1.5", "x=0.5"]
    with pytest.raises(RunError, match="--problem my_pde.py:Own"):
        CliRunner().invoke(app, asked, catch_exceptions=False)
    assert "u = " in CliRunner().invoke(app, [*asked, "--problem", "own.py:Own"]).output
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert type(RunDirectory(Path("../command")).problem).__name__ == "Own"
    config = {"problem": None, "description": describe(cl.problems.Burgers(hard=False)), "settings": {}}
    Path("config.json").write_text(json.dumps(config))
    assert not RunDirectory(Path(".")).problem.hard
