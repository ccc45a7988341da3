"""`--force` removes a run, and nothing else, before a new one starts in its directory."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from running import natural_for, settings_for
from small import Decay
from typer.testing import CliRunner

import clpinn as cl
from clpinn.cli.app import app
from clpinn.errors import ClpinnError, RunError, SettingsError
from clpinn.runs.directory import RunDirectory
from clpinn.runs.removal import remove_run
from clpinn.runs.run import run

SETTINGS = replace(natural_for(), steps=2)


@pytest.fixture
def folder(tmp_path):
    run(Decay(), SETTINGS, tmp_path / "run")
    return tmp_path / "run"


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_run_is_replaced_and_what_was_removed_is_said(folder):
    (folder / "report.html").write_text("an old report")
    (folder / "notes.txt").write_text("precious")
    (folder / "checkpoint" / "notes.txt").write_text("precious")
    before, messages = files(folder), []
    run(Decay(), replace(SETTINGS, seed=1), folder, force=True, callbacks=cl.Callbacks(message=messages.append))
    assert RunDirectory(folder).metrics["seed"] == 1
    (said,) = [message for message in messages if "--force removed" in message]
    kept = {".lock", "notes.txt", "checkpoint/notes.txt"}
    assert all(name in said for name in set(before) - kept) and "notes" not in said and ".lock" not in said
    assert set(files(folder)) == set(before) - {"report.html"}
    assert (folder / "notes.txt").read_text() == (folder / "checkpoint" / "notes.txt").read_text() == "precious"


def test_the_tasks_of_a_metapinn_are_removed_too(folder):
    task = RunDirectory(folder).task(0)
    task.write_config(Decay(), settings_for(), None)
    (folder / "tasks" / "mine").mkdir()
    (folder / "tasks" / "mine" / "notes.txt").write_text("precious")
    run(Decay(), SETTINGS, folder, force=True)
    assert not task.folder.exists() and (folder / "tasks" / "mine" / "notes.txt").exists()


def test_without_force_nothing_is_removed(folder):
    before = files(folder)
    with pytest.raises(RunError, match="or remove it .--force."):
        run(Decay(), SETTINGS, folder)
    assert files(folder) == before


def test_what_is_no_run_is_refused(tmp_path):
    (tmp_path / "metrics.json").write_text("somebody's own")
    with pytest.raises(RunError, match="is not a run.*--force removes runs only"):
        run(Decay(), SETTINGS, tmp_path, force=True)
    assert files(tmp_path) == ["metrics.json"]


def test_links_are_not_followed(folder, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "step-0000000001.checkpoint").write_text("precious")
    (folder / "model.clpinn").unlink()
    (folder / "model.clpinn").symlink_to(outside / "step-0000000001.checkpoint")
    os.rename(folder / "checkpoint", folder / "elsewhere")
    (folder / "checkpoint").symlink_to(outside, target_is_directory=True)
    remove_run(RunDirectory(folder))
    assert (outside / "step-0000000001.checkpoint").read_text() == "precious"


def test_settings_that_make_no_sense_remove_nothing(folder):
    before = files(folder)
    with pytest.raises((SettingsError, ClpinnError)):
        run(Decay(), natural_for("acr", "tasks.active=0"), folder, force=True)
    assert files(folder) == before


HOLD = """
import sys
from pathlib import Path
from clpinn.runs.directory import RunDirectory
with RunDirectory(Path(sys.argv[1])).locked():
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_run_that_another_process_works_in_is_refused(folder):
    before = files(folder)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None and holder.stdout is not None
    with holder.stdin, holder.stdout:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(RunError, match="Another process is working"):
            run(Decay(), SETTINGS, folder, force=True)
    holder.wait()
    assert files(folder) == before


def test_force_at_the_command_line(folder, monkeypatch):
    monkeypatch.setattr("clpinn.cli.train.use_devices", lambda devices: None)
    words = ["train", "tests/small.py:Decay", "--out", str(folder), "--steps", "1", "--set", "network.width=4"]
    words += ["--set", "network.depth=1", "--set", "natural.rows=32"]
    done = CliRunner().invoke(app, [*words[:4], "--force", "--resume"])
    assert isinstance(done.exception, RunError) and "Choose one of them" in str(done.exception)
    done = CliRunner().invoke(app, [*words, "--force", "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["steps"] == 1


def test_a_damaged_run_is_removed(folder):
    (folder / "config.json").write_text("")
    run(Decay(), SETTINGS, folder, force=True)
    assert RunDirectory(folder).metrics["steps"] == 2


def test_force_on_a_new_directory_starts(tmp_path):
    assert run(Decay(), SETTINGS, tmp_path / "new", force=True).metrics["steps"] == 2
