"""A run directory: what it holds, who may use it, and how its problem is found."""

import dataclasses
import json
import subprocess
import time
from pathlib import Path

import pytest
from running import command, newest, settings_for, small_benchmark
from small import Decay
from typer.testing import CliRunner

import clpinn as cl
from clpinn.cli.app import app
from clpinn.errors import RunError
from clpinn.formulation.problem import describe
from clpinn.presets import natural
from clpinn.problems import load_problem
from clpinn.runs.directory import RunDirectory, load_network
from clpinn.runs.run import run
from clpinn.training import checkpoint
from clpinn.training.settings import override


def test_directories_are_respected(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("precious")
    with pytest.raises(RunError, match="is not empty"):
        run(Decay(), settings_for(), tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.txt"]
    run(Decay(), settings_for(), tmp_path / "run")
    before = (tmp_path / "run" / "metrics.json").read_bytes()
    with pytest.raises(RunError, match="is of another problem: Decay, not Burgers. Nothing was changed"):
        run(small_benchmark("burgers"), settings_for(), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "metrics.json").read_bytes() == before
    with pytest.raises(RunError, match="is not a run"):
        load_network(tmp_path / "full", Decay())


def test_a_full_disk_is_one_clear_message(tmp_path, monkeypatch):
    run(Decay(), dataclasses.replace(settings_for(), steps=10), tmp_path)
    kept = sorted((tmp_path / "checkpoint").iterdir())

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_checked", full)
    with pytest.raises(cl.ClpinnError, match="checkpoint"):
        run(Decay(), dataclasses.replace(settings_for(), steps=20), tmp_path, resume=True, checkpoint_seconds=0)
    assert sorted((tmp_path / "checkpoint").iterdir()) == kept


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
    """With its problem named, or found where it was recorded, or of a benchmark."""
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


def test_what_is_written_is_known_without_reading_it_back(tmp_path):
    directory = RunDirectory(tmp_path / "run", Decay())
    assert not directory.started and not directory.ended and directory.is_empty
    with directory.locked():
        directory.write_config(Decay(), settings_for(), "tests/small.py:Decay")
    assert directory.started and not directory.is_empty
    (tmp_path / "run" / "config.json").unlink()
    assert directory.problem_label == "tests/small.py:Decay" and directory.settings == settings_for()
    with pytest.raises(RunError, match="has no config.json"):
        RunDirectory(tmp_path / "run").config  # noqa: B018


def test_settings_to_resume_are_those_of_a_run_that_was_started(tmp_path):
    directory = RunDirectory(tmp_path, Decay())
    assert directory.settings_to_resume(True) is None
    directory.write_config(Decay(), settings_for(), None)
    assert directory.settings_to_resume(True) == settings_for() and directory.settings_to_resume(False) is None
    assert directory.problem_label == "Decay"


def test_logs_are_cut_at_a_step_and_at_a_row_written_in_part(tmp_path):
    directory = RunDirectory(tmp_path)
    for step in (1, 2, 3):
        row = {"step": step, "stage": "adam", "loss": float("nan"), "terms": {}, "validation": None}
        directory.append_history(row)
        moves = dict.fromkeys(("moved_entered", "moved_to_replay", "moved_restored", "moved_dropped"))
        event = {"step": step, "event": step, "newcomer": None if step == 1 else [0.5], "active": [], "replay": []}
        directory.append_event(event | moves)
    assert [row["step"] for row in directory.history] == [1, 2, 3] and directory.history[0]["loss"] is None
    assert [event["step"] for event in directory.events] == [2, 3]  # those that could move a task
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    assert [row["step"] for row in RunDirectory(tmp_path).history] == [1, 2, 3]  # read as far as it goes
    directory.cut_logs(2)
    assert [row["step"] for row in directory.history] == [1, 2]
    assert [event["step"] for event in directory.events] == [2]


def test_a_run_without_an_end_has_no_metrics_and_no_surrogate(tmp_path):
    directory = RunDirectory(tmp_path / "run", Decay())
    with pytest.raises(RunError, match="is not a run: it has no config.json"):
        directory.metrics  # noqa: B018
    with directory.locked():
        directory.write_config(Decay(), settings_for(), None)
    for name in ("metrics", "surrogate"):
        with pytest.raises(RunError, match="has not ended yet. Let it end, or resume it: --resume"):
            getattr(directory, name)
    with pytest.raises(RunError, match="has no checkpoint yet"):
        directory.network  # noqa: B018
    (tmp_path / "run" / "config.json").write_text("{")
    with pytest.raises(RunError, match="config.json is damaged"):
        RunDirectory(tmp_path / "run").config  # noqa: B018
