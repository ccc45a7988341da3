"""Two thousand damaged run files and two hundred odd flags: an answer or one clear error, never a traceback."""

import hashlib
import json
import random
import shutil
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from running import natural_for, settings_for
from small import Decay

from clpinn.errors import ClpinnError
from clpinn.report.figures import KINDS, plot
from clpinn.report.page import page
from clpinn.runs.directory import RunDirectory
from clpinn.runs.run import run
from clpinn.runs.session import Session
from clpinn.training.checkpoint import MAGIC
from clpinn.training.trainer import Trainer

FILES = 2000
TEXTS = ("config.json", "metrics.json", "history.jsonl", "events.jsonl", "errors.csv")
ODD = (None, True, -1, 0, 10**25, 1e308, float("nan"), float("inf"), -0.5, "", "ν\x00\x1b[31m", "nan", "free", [], [[]])
ODD += ({}, {"a": {"b": []}}, [1, "two", None], [[1e400]], "x" * 10_000, 2**31, 2**63, "../../etc/passwd", "burgers")
WHOLE = (b"", b"{}", b"[]", b"null", b"3", b'"text"', b"{" * 50_000, b"[" * 100_000, b"\xff\xfe\x00", b"1" * 10_000)
WHOLE += (b'{"a": ' * 20_000, b"\n" * 100, b"NaN", b'{"settings": {}}', b'{"settings": [1]}', b"a,b\r\n1,2\r\n")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run by the natural gradient and one as in the paper, both with tasks that were selected."""
    folder = tmp_path_factory.mktemp("sound")
    run(Decay(), replace(natural_for("acr"), steps=25), folder / "natural")
    run(Decay(), replace(settings_for("acr"), steps=22), folder / "paper")
    return folder


@pytest.fixture
def no_training(monkeypatch):
    """A resume reads everything, and a page draws nothing that takes long."""
    init = Trainer.init
    monkeypatch.setattr(Trainer, "init", lambda self, start=None, compile=False: init(self, start))
    monkeypatch.setattr(Session, "train", lambda self, state, resume: self._restored(state) if resume else None)
    monkeypatch.setattr("clpinn.report.page.explorer_html", lambda *_: "", raising=False)
    monkeypatch.setattr("clpinn.report.page.KINDS", {}, raising=False)


# Damage -------------------------------------------------------------------------------------------------------


def damaged(content: bytes, name: str, chance: random.Random) -> bytes:
    """A file with one kind of damage, drawn at random."""
    binary = name.endswith((".clpinn", ".checkpoint"))
    kinds = [truncated, flipped, replaced, inserted] + [resealed if binary else edited] * 6
    return chance.choice(kinds)(content, name, chance)


def truncated(content: bytes, name: str, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content))]


def flipped(content: bytes, name: str, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 3, 30))):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def replaced(content: bytes, name: str, chance: random.Random) -> bytes:
    return chance.choice(WHOLE)


def inserted(content: bytes, name: str, chance: random.Random) -> bytes:
    at = chance.randrange(len(content))
    return content[:at] + chance.choice(WHOLE) + content[at:]


def edited(content: bytes, name: str, chance: random.Random) -> bytes:
    """Well-formed text with one value replaced or removed."""
    if name.endswith(".csv"):
        cells = [line.split(",") for line in content.decode().splitlines()]
        row = chance.choice(cells)
        row[chance.randrange(len(row))] = str(chance.choice(ODD))
        return "\r\n".join(",".join(row) for row in cells).encode()
    if name.endswith(".json"):
        value = json.loads(content)
        edit(value, chance)
        return json.dumps(value).encode()
    rows = [json.loads(line) for line in content.splitlines()]
    edit(chance.choice(rows), chance)
    return "\n".join(map(json.dumps, rows)).encode()


def edit(value, chance: random.Random) -> None:
    """Replace or remove one entry, at any depth."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = chance.choice(keys)
    if isinstance(value[key], dict | list) and value[key] and chance.random() < 0.75:
        edit(value[key], chance)
    elif chance.random() < 0.25:
        del value[key]
    else:
        value[key] = chance.choice(ODD)


def resealed(content: bytes, name: str, chance: random.Random) -> bytes:
    """A checkpoint or surrogate whose header or arrays were tampered with, and its checksum made right again."""
    start = len(MAGIC) + 8
    end = start + int.from_bytes(content[len(MAGIC) : start], "little")
    header, arrays = json.loads(content[start:end]), content[end:-32]
    kind = chance.randrange(5)
    if kind == 0:
        leaf = chance.choice(header["leaves"])
        leaf["shape"] = chance.choice(([], [10**12], [-1], [0], [1] * 40, leaf["shape"][::-1], [*leaf["shape"], 1]))
    elif kind == 1:
        values = np.frombuffer(arrays, np.uint8).copy()
        at = chance.randrange(max(1, len(values) - 8))
        values[at : at + 8] = np.frombuffer(np.array([chance.choice((np.nan, 1e300, -1.0))]).tobytes(), np.uint8)
        arrays = values.tobytes()
    else:
        edit(header["description"] if kind < 4 else header, chance)
    text = json.dumps(header).encode()
    body = MAGIC + len(text).to_bytes(8, "little") + text + arrays
    return body + hashlib.sha256(body).digest()


# Reading ------------------------------------------------------------------------------------------------------


def uses(folder: Path, name: str):
    """What the commands do with a run, as far as it reads the file."""

    def directory():
        return RunDirectory(folder, Decay())

    def resume():
        return run(Decay(), replace(natural_for(), steps=30), folder, resume=True)

    def answer():
        surrogate = directory().surrogate
        surrogate(x=0.5, t=0.5, k=1.0)
        return surrogate.tasks, surrogate.unseen(2), surrogate.provenance()

    if name.endswith(".clpinn"):
        return [answer]
    if name.endswith(".checkpoint"):
        return [lambda: directory().network, resume]
    if name == "config.json":
        return [lambda: RunDirectory(folder).problem, lambda: directory().settings, lambda: page([directory()]), resume]
    if name == "metrics.json":
        return [lambda: page([directory()]), resume]
    kinds = {"history.jsonl": ["losses"], "events.jsonl": ["tasks", "losses"], "errors.csv": ["errors", "fields"]}
    drawn = [lambda kind=kind: plot(directory(), kind) for kind in kinds[name] if kind != "fields"]
    return [*drawn, lambda: directory().cut_logs(10)] if name.endswith(".jsonl") else drawn


def test_damaged_files_end_in_an_answer_or_in_one_clear_error(runs, tmp_path, no_training):
    assert set(KINDS) >= {"losses", "tasks", "errors"}
    chance, ends = random.Random(19), Counter()
    sound = [path for path in runs.rglob("*") if path.is_file() and path.name != ".lock"]
    assert {path.name for path in sound} >= {*TEXTS, "model.clpinn"}
    surprises = []
    for name in ("natural", "paper"):
        shutil.copytree(runs / name, tmp_path / name)
    for i in range(FILES):
        original = sound[i % len(sound)]
        folder = tmp_path / original.relative_to(runs).parts[0]
        target = tmp_path / original.relative_to(runs)
        content = damaged(original.read_bytes(), original.name, chance)
        for number, use in enumerate(uses(folder, original.name)):
            target.write_bytes(content)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    use()
                ends["answer"] += 1
            except (ClpinnError, OSError) as error:
                ends["error"] += 1
                if not str(error):
                    surprises.append((i, original.name, number, "no message"))
            except Exception as error:
                surprises.append((i, original.name, number, repr(error)[:200], where(error)))
        target.write_bytes(original.read_bytes())
        config = original.relative_to(runs).parts[0] + "/config.json"
        (tmp_path / config).write_bytes((runs / config).read_bytes())  # a resume writes it
    assert not surprises, "\n".join(map(str, surprises[:20])) + f"\n{len(surprises)} of {FILES}"
    assert ends["error"] > FILES / 4 and ends["answer"] > FILES / 10


def where(error: BaseException) -> str:
    import traceback

    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "clpinn" in frame.filename]
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[:-6:-1])
