"""Runs from problem to metrics by Adam and L-BFGS: every method on every benchmark."""

import dataclasses
import json
import subprocess

import jax
import numpy as np
import pytest
from running import FILES, arrays, command, lines, natural_for, same, settings_for, small_benchmark
from small import Decay
from typer.testing import CliRunner

from clpinn.cli.app import app
from clpinn.presets import paper, scaled
from clpinn.problems import BENCHMARKS
from clpinn.protocol import METHODS
from clpinn.runs.directory import load_network
from clpinn.runs.evaluate import evaluate
from clpinn.runs.run import run
from clpinn.training.settings import override

# The other methods leave out parts of this one, or differ in a setting that nothing of a benchmark changes.
PAIRS = [(m, name) for m in METHODS for name in BENCHMARKS if m == "acr2" or name == "burgers"]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "name"), PAIRS)
def test_every_method_on_every_benchmark(method, name, tmp_path):
    problem = small_benchmark(name)
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
    names = {path.name for path in (tmp_path / "run").iterdir()} - {".lock"}
    searching = method not in ("uni", "fix")
    assert names == FILES | ({"events.jsonl"} if searching else set())
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
    errors = result.metrics["outputs"]["u"]
    assert result.metrics["macro"] == {name: errors[name] for name in ("mse", "rel_l2_macro", "rel_l2_worst")}
    assert 0 < errors["max_abs_mean"] < errors["max_abs"] and 100 < result.metrics["peak_memory_mib"] < 1e5
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


@pytest.mark.slow
def test_double_precision_batches_and_probe(tmp_path):
    settings = settings_for("ac", "precision=double", "batch=0.5", "probe=2", "lbfgs.line_search=true")
    result = run(Decay(), settings, tmp_path / "half")
    assert {leaf.dtype for leaf in jax.tree.leaves(result.network)} == {np.dtype(np.float64)}
    rows = lines(tmp_path / "half" / "history.jsonl")
    assert len(rows) == 60 and all(row["probe"]["u"] > 0 and set(row["probe"]) == {"u"} for row in rows)
    ends = evaluate(Decay(), result.network, [[0.5], [2.0]]).outputs["u"].rel_l2
    assert rows[-1]["probe"]["u"] == pytest.approx(ends.mean()) and rows[-1]["step"] == result.metrics["steps"]
    assert rows[-1]["probe_worst"]["u"] == pytest.approx(ends.max())
    # A line search evaluates more often than it steps; a whole batch leads elsewhere.
    assert result.metrics["lbfgs_evaluations"] > result.metrics["lbfgs_steps"] > 0
    whole = run(Decay(), override(settings, ["batch=1.0"]), tmp_path / "whole")
    assert not np.array_equal(whole.network.output.weight, result.network.output.weight)
    assert not jax.config.jax_enable_x64


def test_the_probe_touches_nothing(tmp_path):
    run(Decay(), settings_for(), tmp_path / "without")
    run(Decay(), settings_for("acr", "probe=3"), tmp_path / "with")
    left, right = arrays(tmp_path / "without"), arrays(tmp_path / "with")
    assert len(left) == len(right) > 0
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(left, right, strict=True))
    history = lines(tmp_path / "with" / "history.jsonl")
    assert all(row.pop("probe") and row.pop("probe_worst") for row in history)
    assert history == lines(tmp_path / "without" / "history.jsonl")


def test_two_runs_are_bit_identical_and_seeds_differ(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(Decay(), settings_for("acr", f"seed={seed}"), tmp_path / name)
    same(tmp_path / "a", tmp_path / "b")
    first, other = (load_network(tmp_path / name, Decay()).output.weight for name in ("a", "c"))
    assert not np.array_equal(first, other)


def test_a_bound_in_seconds(tmp_path):
    # Large and in double precision, so that L-BFGS does not converge before the time is over.
    steps = ["adam.steps=1000000", "lbfgs.steps=1000000", "network.width=40", "network.depth=4", "precision=double"]
    result = run(Decay(), settings_for("uni", "seconds=4", *steps), tmp_path)
    assert result.outcome == "time" and result.metrics["wall_seconds"] >= 4
    assert result.metrics["steps"] > 0  # how many are Adam's: see test_trainer, with a clock that counts


@pytest.mark.slow
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


def test_numbers_of_numpy_will_do(tmp_path):
    seed, steps, width = np.arange(3)[1], np.int64(2), np.int64(4)
    chosen = dataclasses.replace(natural_for(), seed=seed, steps=steps)
    chosen = dataclasses.replace(chosen, network=dataclasses.replace(chosen.network, width=width))
    run(Decay(), chosen, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["settings"]["seed"] == 1
