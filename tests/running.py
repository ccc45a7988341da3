"""Runs of small problems, and how to look at them: shared by the tests of runs."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
from small import Decay

import clpinn as cl
from clpinn.presets import natural, paper
from clpinn.problems import load_problem
from clpinn.training import checkpoint
from clpinn.training.settings import from_dict, override
from clpinn.training.trainer import Trainer

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


def small_benchmark(name):
    """A benchmark with few points and thetas."""
    problem = load_problem(name, paper=True)
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


def newest(folder: Path) -> int:
    names = sorted(path.name for path in (folder / "checkpoint").glob("step-*.checkpoint"))
    return int(names[-1].split("-")[1].split(".")[0]) if names else -1


TINY = ["network.width=5", "network.depth=1", "natural.rows=48", "tasks.active=4", "tasks.evaluations=2"]
TINY += ["tasks.interval=10"]


def natural_for(method="free", *more, problem=None):
    return override(natural(problem or Decay(), method), [*TINY, *more])


def counters(folder: Path) -> dict:
    """The counters of a run's last checkpoint."""
    settings = from_dict(json.loads((folder / "config.json").read_text())["settings"])
    with jax.enable_x64(True):
        loaded = checkpoint.load(folder / "checkpoint", Trainer(Decay(), settings).init().tree())
    assert loaded is not None
    return loaded.description
