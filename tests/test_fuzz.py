"""Two thousand damaged run files and two hundred odd flags: an answer or one clear error, never a traceback."""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import traceback
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from running import natural_for, settings_for
from small import Decay
from typer.testing import CliRunner

import clpinn as cl
from clpinn.cli.app import app
from clpinn.cli.train import use_devices
from clpinn.errors import ClpinnError, RunError
from clpinn.formulation.validation import validate
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
    monkeypatch.setattr("clpinn.report.page.explorer_html", lambda *_, **__: "")
    monkeypatch.setattr("clpinn.report.page.KINDS", {})


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


@pytest.mark.slow
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
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "clpinn" in frame.filename]
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[:-6:-1])


# Flags --------------------------------------------------------------------------------------------------------

INTEGERS = ("-3", "0", "1" * 20, "9" * 400, "nan", "1.5", "", "ν", "1e3")
NUMBERS = ("-5", "0", "nan", "inf", "1e400", "", "ν", "1e-400")
WORDS = (
    "",
    "ν",
    "a b",
    "../..",
    "x" * 300,
    "=",
    "k=",
    "k=nan",
    "k=1e400",
    "k=1,",
    "k=1,2,x",
    "k==1",
    "K=1",
    "\x1b[31m",
)
SETTINGS = """network.width=0 network.width=-1 network.width=1e9 network.width=1000000 network.depth=0
network.depth=99999 network.kind= network.kind=ν network=3 network.width=null network.width=[]
network.width={} natural.rows=0 natural.rows=100000000000 tasks.active=-1 tasks.fixed=[[1]]
tasks.fixed=[["a"]] tasks.fixed=[[1,2]] tasks.linear=["zz"] chunk=0 batch=0 batch=2 precision=half
seed=abc seed=11111111111111111111 steps=-1 = =1 a network. .width=1 ν=1 network..width=1
natural.momentum=2 natural.damping=NaN natural.damping=-1 weights.kind=dynamic tasks.interval=0
probe=-1 network.hyper=0 network.support=0""".split()


def flags(folder: Path) -> list[list[str]]:
    """Odd commands: some train, on a run directory that does not exist, and some use a sound run."""
    new, sound = str(folder / "new"), str(folder / "natural")
    train = ["train", "tests/small.py:Decay", "--out", new]
    own = ["--problem", "tests/small.py:Decay"]
    adapt = ["adapt", sound, *own, "--out", str(folder / "adapted.clpinn")]
    odd = [[*train, flag, value] for flag in ("--seed", "--probe", "--steps") for value in INTEGERS]
    odd += [[*train, flag, value] for flag in ("--seconds", "--until", "--checkpoint-seconds") for value in NUMBERS]
    odd += [[*train, "--optimizer", "adam-lbfgs", "--budget", value] for value in NUMBERS]
    odd += [[*train, "--set", setting] for setting in SETTINGS]
    odd += [[*train, flag, word] for flag in ("--method", "--optimizer", "--at", "--config") for word in WORDS[:4]]
    odd += [[*train, "--method", "standard", "--at", word] for word in WORDS]
    odd += [[*adapt, "k=1", flag, value] for flag in ("--steps", "--together") for value in INTEGERS[:2]]
    odd += [
        [*adapt, "k=1", "--steps", INTEGERS[2]],
        [*adapt, "--unseen", "--most", "-3"],
        [*adapt, "k=1", "--way", "ν"],
    ]
    odd += [["predict", sound, "k=1", *own, "--points", value] for value in (*INTEGERS, "1000000")]
    odd += [["predict", sound, word, *own] for word in WORDS] + [["predict", word, "k=1"] for word in WORDS[:5]]
    odd += [[command, word] for command in ("evaluate", "report", "problems") for word in WORDS[:5]]
    odd += [["plot", sound, word, *own] for word in WORDS[:4]] + [
        ["export", sound, word, "k=1", *own] for word in WORDS[:5]
    ]
    return odd + [["predict", sound, "k=1", "--problem", word] for word in WORDS]


def test_odd_flags_end_in_an_answer_or_in_one_clear_error(runs, tmp_path, no_training, monkeypatch):
    def far_enough(*_):
        raise ClpinnError("far enough")

    monkeypatch.setattr(Session, "train", far_enough)
    monkeypatch.setattr("clpinn.cli.train.use_devices", lambda devices: None)
    shutil.copytree(runs / "natural", tmp_path / "natural")
    commands, surprises, trained = flags(tmp_path), [], 0
    assert len(commands) >= 200
    for words in commands:
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            done = CliRunner().invoke(app, words)
        error = done.exception
        trained += str(error) == "far enough"
        if error is not None and not (isinstance(error, ClpinnError | OSError | SystemExit) and str(error)):
            surprises.append((words, repr(error)[:200], where(error)))
    assert not surprises, "\n".join(map(str, surprises))
    assert trained < len(commands) / 5  # most of them are wrong


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "1" * 20], "seed must be at most 9.22337e+18, but got 1111"),
        (["--seconds", "-5"], "seconds must be above zero, but got -5.0"),
        (["--seconds", "nan"], "seconds must be a number, but got nan"),
        (["--steps", "0"], "steps must be at least 1, but got 0"),
        (["--probe", "-3"], "probe must be at least 0, but got -3"),
        (["--set", "network.width=0"], "network.width must be at least 1, but got 0"),
        (["--set", "network.width=9999", "--set", "network.depth=99"], "Choose a smaller network"),
    ],
)
def test_a_number_out_of_range_is_named(words, message, tmp_path, monkeypatch):
    monkeypatch.setattr("clpinn.cli.train.use_devices", lambda devices: None)
    done = CliRunner().invoke(app, ["train", "burgers", "--out", str(tmp_path / "run"), *words])
    assert isinstance(done.exception, ClpinnError) and message in str(done.exception)
    assert not (tmp_path / "run").exists()


def test_a_field_that_does_not_fit_into_memory_is_refused(runs):
    words = ["predict", str(runs / "natural"), "k=1", "--problem", "tests/small.py:Decay", "--points", "1000000"]
    with pytest.raises(ClpinnError, match="1.0e.12 points needs about .* GB of memory, but .* Ask for fewer points"):
        CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.mark.parametrize("count", [0, -1, 10**9])
def test_a_number_of_devices_out_of_range_is_refused(count):
    with pytest.raises(ClpinnError, match="--devices needs a number from 1 to 1024"):
        use_devices(count)


# Logs, problems and machines ----------------------------------------------------------------------------------


def test_a_damaged_log_is_read_as_far_as_it_goes(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs / "paper", folder)
    whole = RunDirectory(folder).history
    assert len(whole) > 2
    text = (folder / "history.jsonl").read_text()
    for cut in (text[: len(text) // 2], text.replace('"loss"', '"los', 1), text + "\x00\x00"):
        (folder / "history.jsonl").write_text(cut)
        rows = RunDirectory(folder).history
        assert rows == whole[: len(rows)] and (len(rows) < len(whole) or cut.endswith("\x00"))
        plot(RunDirectory(folder, Decay()), "losses") if rows else None


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"problem": 3}'])
def test_damaged_metrics_are_named(runs, tmp_path, text):
    folder = tmp_path / "run"
    shutil.copytree(runs / "natural", folder)
    (folder / "metrics.json").write_text(text)
    with pytest.raises(RunError, match="metrics.json is damaged .* Restore it, or train again"):
        page([RunDirectory(folder, Decay())])


class Unaware(Decay):
    def residual(self, d, k):
        return k - 1.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Unaware, "residual does not use d.*Write it with d.u"),
        (lambda: cl.Box(**{"": (0, 1)}), "An axis needs a name such as x or nu"),
        (
            lambda: type("Big", (Decay,), {"interior": cl.Interior(10**10)})(),
            "at most 1e.08 points, but got 10000000000",
        ),
        (lambda: type("Nameless", (Decay,), {"outputs": ("",)})(), "an output called ''"),
    ],
)
def test_a_problem_that_makes_no_sense_is_told(make, message):
    with pytest.raises(ClpinnError, match=message):
        validate(make())


def command(*words: str, **environment: str) -> subprocess.CompletedProcess:
    environment = os.environ | environment
    return subprocess.run([sys.executable, *words], capture_output=True, env=environment, timeout=300)


def test_a_platform_that_is_not_there_is_one_line(tmp_path):
    words = ["-m", "clpinn", "train", "burgers", "--steps", "1", "--out", str(tmp_path / "run")]
    done = command(*words, JAX_PLATFORMS="cuda")
    if done.returncode == 0:
        pytest.skip("this machine has a GPU")
    lines = done.stderr.decode().splitlines()
    assert "JAX cannot start on JAX_PLATFORMS=cuda" in lines[-1] and "Traceback" not in done.stderr.decode()
    assert done.returncode == 1 and not (tmp_path / "run").exists()


def test_an_ascii_terminal_gets_its_tables():
    done = command("-m", "clpinn", "problems", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and b"burgers" in done.stdout and max(done.stdout) < 128


INTERRUPTED = """
import os, signal, sys
from clpinn.__main__ import main
module = sys.argv[1]
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
sys.argv = ["clpinn", "problems", "burgers", "--json"]
main()
"""
"""Sends Ctrl-C to itself when the command imports a module."""


@pytest.mark.parametrize("module", ["clpinn.cli.app", "jax", "jax.numpy", "clpinn.problems"])
def test_an_interrupt_while_importing_is_one_line(module):
    done = command("-c", INTERRUPTED, module)
    assert done.returncode == 130 and done.stderr.decode().strip() == "stopped" and done.stdout == b""
