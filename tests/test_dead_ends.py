"""A full disk or a kill at any write of a run leaves a directory that starts again or resumes, to the same end."""

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from running import natural_for, same
from small import Decay

from clpinn.errors import ClpinnError, RunError
from clpinn.runs.directory import RunDirectory
from clpinn.runs.run import run

SETTINGS = replace(natural_for(), steps=3)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(Decay(), SETTINGS, folder)
    return folder


class Faults:
    """Calls `fault` in place of the call number `at` of everything that writes to the disk."""

    def __init__(self, monkeypatch, fault, at):
        self.calls, self.fault, self.at = 0, fault, at
        for owner, name in ((os, "mkdir"), (os, "fsync"), (os, "replace"), (RunDirectory, "_append")):
            monkeypatch.setattr(owner, name, self.counted(getattr(owner, name)))

    def counted(self, function):
        def call(*arguments, **named):
            self.calls += 1
            if self.calls == self.at:
                self.fault()
            return function(*arguments, **named)

        return call


def full():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.slow
def test_a_full_disk_at_every_write(whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        writes = Faults(patch, full, at=0)
        run(Decay(), SETTINGS, tmp_path / "counted", checkpoint_seconds=0)
    assert writes.calls > 15
    failures = 0
    for at in range(1, writes.calls + 1):
        folder = tmp_path / str(at) / "run"
        folder.parent.mkdir()
        with monkeypatch.context() as patch:
            Faults(patch, full, at)
            try:
                run(Decay(), SETTINGS, folder, checkpoint_seconds=0)
            except (ClpinnError, OSError) as error:
                failures += 1
                assert "No space left on device" in str(error) and "\n" not in str(error)
        directory = RunDirectory(folder)
        assert directory.is_empty or directory.started
        result = run(Decay(), SETTINGS, folder, resume=directory.started)
        assert result.outcome == "steps"
        same(folder, whole)
    assert failures > 10  # not every file system can sync a folder, so such a failure is passed over


KILLED = """
import os, signal, sys
sys.path.insert(0, "tests")
import pytest
from test_dead_ends import SETTINGS, Faults
from small import Decay
from clpinn.runs.run import run
with pytest.MonkeyPatch.context() as patch:
    Faults(patch, lambda: os.kill(os.getpid(), signal.SIGKILL), int(sys.argv[2]))
    run(Decay(), SETTINGS, sys.argv[1], checkpoint_seconds=0)
"""


@pytest.mark.parametrize("at", [2, 3, 4, 6, 9])
def test_a_kill_at_a_write(whole, tmp_path, at):
    folder = tmp_path / "run"
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(at)], capture_output=True, timeout=300)
    assert done.returncode == -9, done.stderr.decode()
    directory = RunDirectory(folder)
    assert directory.is_empty or directory.started
    run(Decay(), SETTINGS, folder, resume=directory.started)
    same(folder, whole)
    assert not [path for path in folder.rglob("*") if "temporary" in path.name]


def test_a_start_that_ended_before_config_counts_as_empty_and_nothing_else_does(tmp_path):
    folder = tmp_path / "run"
    with RunDirectory(folder).locked():
        pass
    (folder / "config.host-1-1.temporary.json").write_text('{"pro')
    assert RunDirectory(folder).is_empty
    (folder / "thesis.txt").write_text("precious")
    with pytest.raises(RunError, match="is not empty"):
        run(Decay(), SETTINGS, folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        ".lock", "config.host-1-1.temporary.json", "thesis.txt"
    ]  # fmt: skip


def test_a_resume_of_nothing_starts(tmp_path, whole):
    folder = tmp_path / "run"
    with RunDirectory(folder).locked():
        pass
    run(Decay(), SETTINGS, folder, resume=True)
    same(Path(folder), whole)
