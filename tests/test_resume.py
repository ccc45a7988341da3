"""Runs that end early and go on: bounds, signals, kills, damaged checkpoints."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time

import equinox as eqx
import numpy as np
import pytest
from running import TINY, command, lines, natural_for, newest, same, settings_for
from small import Decay

from clpinn.runs.callbacks import Callbacks
from clpinn.runs.directory import load_network
from clpinn.runs.run import run
from clpinn.training.stages import natural as natural_stage


def test_stop_at_steps_and_resume(tmp_path):
    """In both stages; the end is that of a run that never stopped."""
    run(Decay(), settings_for(), tmp_path / "whole")
    for steps, after in ((17, 17), (None, 17), (48, 48), (10**6, 60)):
        bound = dataclasses.replace(settings_for(), steps=steps)
        result = run(Decay(), bound, tmp_path / "parts", resume=True)
        assert result.metrics["steps"] == after
        assert result.outcome == ("finished" if after == 60 else "steps")
    same(tmp_path / "whole", tmp_path / "parts")
    messages = []
    run(Decay(), settings_for(), tmp_path / "parts", resume=True, callbacks=Callbacks(message=messages.append))
    assert "Nothing is left to do" in messages[0]
    assert np.array_equal(load_network(tmp_path / "parts", Decay()).output.weight, result.network.output.weight)


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    run(Decay(), settings_for(), tmp_path / "whole")
    half = dataclasses.replace(settings_for(), steps=33)
    run(Decay(), half, tmp_path / "parts", checkpoint_seconds=0)
    more = dataclasses.replace(settings_for(), steps=10**6)
    newest = sorted((tmp_path / "parts" / "checkpoint").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    messages = []
    run(Decay(), more, tmp_path / "parts", resume=True, callbacks=Callbacks(message=messages.append))
    assert newest.name in messages[0] and "Going on from step 32" in messages[1]
    same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.slow
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
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


def test_natural_runs_go_on_where_they_stopped(tmp_path):
    """With a new bound, which decides how long its steps are from there on."""
    run(Decay(), natural_for("free", "steps=12"), tmp_path)
    result = run(Decay(), natural_for("free", "steps=25"), tmp_path, resume=True)
    assert result.metrics["steps"] == 25
    assert [row["step"] for row in lines(tmp_path / "history.jsonl")] == [10, 20]


@pytest.mark.slow
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
    monkeypatch.setattr(natural_stage, "PATIENCE", 10)
    monkeypatch.setattr(natural_stage, "SHORTEST", 0.5)
    ended = run(Decay(), natural_for(), tmp_path)
    steps = ended.metrics["steps"]
    assert ended.outcome == "finished"
    further = run(Decay(), dataclasses.replace(natural_for(), steps=steps + 5), tmp_path, resume=True)
    assert (further.outcome, further.metrics["steps"]) == ("steps", steps + 5)
