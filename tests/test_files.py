"""Files are written as a whole or not at all, and damage is noticed."""

import errno
import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from clpinn.files import is_intact, is_temporary, replacing, write_checked, write_json, write_text


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "new folder" / "log.txt"
    write_text(path, "old ν")
    assert path.read_bytes() == "old ν".encode()

    def write(temporary):
        assert temporary.parent == path.parent and temporary.suffix == ".txt"
        temporary.write_text("half")
        assert path.read_text(encoding="utf-8") == "old ν"
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        replacing(path, write)
    assert path.read_text(encoding="utf-8") == "old ν" and list(path.parent.iterdir()) == [path]


def test_temporary_files_of_dead_processes_are_removed(tmp_path, monkeypatch):
    """Not those of a process that lives, of another machine, or of anybody else."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    monkeypatch.setattr("clpinn.files.platform.node", lambda: "this-host")
    kept = [
        f"a.thishost-{os.getpid()}-1.temporary.txt",
        f"a.other-{dead.pid}-1.temporary.txt",
        "a.temporary",
        "a-1-2.txt",
    ]
    for name in (*kept, f"a.thishost-{dead.pid}-1.temporary.txt", f"b.thishost-{10**30}-1.temporary"):
        (tmp_path / name).write_text("half")
    write_text(tmp_path / "log.txt", "")
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "log.txt"}
    assert [is_temporary(tmp_path / name) for name in kept] == [True, True, False, False]


def test_a_file_is_synced_before_it_has_its_name_and_then_its_folder(tmp_path, monkeypatch):
    path, order = tmp_path / "log.txt", []
    fsync, replace = os.fsync, os.replace

    def synced(handle):
        order.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda *paths: (order.append("name"), replace(*paths)))
    write_checked(path, [b"text"])
    assert order == ["file", "name", "folder"] and is_intact(path)


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device: .*log.txt"):
        write_text(tmp_path / "log.txt", "")
    assert list(tmp_path.iterdir()) == []


def test_threads_do_not_share_a_temporary_file(tmp_path):
    path = tmp_path / "shared.txt"
    texts = [str(i) * 200_000 for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: write_text(path, text), texts))
    assert path.read_text() in texts and list(tmp_path.iterdir()) == [path]


def test_json(tmp_path):
    write_json(tmp_path / "a.json", {"nu": [0.5, None]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"nu": [0.5, None]}


def test_checksum_notices_every_kind_of_damage(tmp_path):
    path = tmp_path / "table.bin"
    write_checked(path, (part for part in (b"head", b"x" * 3_000_000)))
    content = path.read_bytes()
    assert is_intact(path) and content[:-32] == b"head" + b"x" * 3_000_000
    flipped = content[:100] + bytes([content[100] ^ 1]) + content[101:]
    for damaged in (b"", content[:20], content[:-1], content + b"x", flipped, content[-32:]):
        path.write_bytes(damaged)
        assert not is_intact(path)
