"""The directory of a run: the one place that knows its files, and writes and reads them.

config.json      everything needed to repeat the run, with versions
history.jsonl    losses by name, validation loss and set sizes, along the run
events.jsonl     each event: thetas queried, scores, newcomer, moves, weights
metrics.json     the outcome: errors, queries, wall time by activity, forgetting, coverage
errors.csv       errors per theta
model.clpinn     the surrogate, in one file, corrected over the box if that is better
adapted.clpinn   the surrogate with heads, written by `clpinn adapt`
checkpoint/      what is needed to resume
tasks/           Meta-PINN only: one run directory per task
"""

import csv
import fcntl
import io
import json
import platform
import reprlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from clpinn.errors import BusyError, CheckpointError, ClpinnError, RunError
from clpinn.files import is_temporary, sync, write_text
from clpinn.formulation.fingerprint import check_unchanged, fingerprint
from clpinn.formulation.problem import Problem, describe
from clpinn.problems import BENCHMARKS, load_problem
from clpinn.runs.records import (
    CONFIG,
    CONFIG_FORM,
    EVENT_FORM,
    HISTORY_FORM,
    METRICS_FORM,
    OPTIONAL_METRICS,
    count,
    event_thetas,
    figures_by_name,
    misfit,
    number,
    plain,
    read_config,
    read_json,
    read_log,
    read_table,
)
from clpinn.runs.register import record_problem, recorded_problem
from clpinn.surrogate.box_correction import without_box_correction
from clpinn.surrogate.error_map import ErrorMap
from clpinn.surrogate.file import MODEL
from clpinn.surrogate.provenance import digest
from clpinn.surrogate.surrogate import Surrogate, load
from clpinn.training import checkpoint
from clpinn.training.settings import Settings, from_dict, to_dict
from clpinn.training.state import State
from clpinn.training.trainer import Trainer

METRICS, HISTORY, EVENTS = "metrics.json", "history.jsonl", "events.jsonl"
ERRORS, ADAPTED = "errors.csv", "adapted.clpinn"
CHECKPOINT, TASKS, LOCK = "checkpoint", "tasks", ".lock"
LIBRARIES = ("clpinn", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "scikit-learn")
"""Libraries whose versions config.json records."""


@dataclass(frozen=True)
class Restored:
    """A run as its newest usable checkpoint has it."""

    state: State
    elapsed: float
    """Wall seconds of the run until then."""
    seconds: dict[str, float]
    """The same by activity."""
    damaged: list[str]
    """One message for each newer checkpoint that could not be used."""


@dataclass(frozen=True)
class RunDirectory:
    """A run directory. Files are read when first asked for, and what is written is known without reading it back."""

    folder: Path
    given_problem: Problem | None = None
    """The run's problem, where it cannot be found from config.json."""
    changed_problem: bool = False
    """Whether the problem may differ from the one that the run was trained on."""

    # Reading -----------------------------------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        return self._path(CONFIG).exists()

    @property
    def ended(self) -> bool:
        """Whether it has metrics; a run that was stopped has them, too."""
        return self._path(METRICS).exists()

    @property
    def is_empty(self) -> bool:
        """Whether a run can start: there is no directory, or only what a start leaves that ended before config.json."""
        if not self.folder.exists():
            return True
        return all(path.name == LOCK or is_temporary(path) for path in self.folder.iterdir())

    @cached_property
    def config(self) -> dict[str, Any]:
        return read_config(self.folder, CONFIG_FORM)

    @property
    def settings(self) -> Settings:
        return from_dict(self.config["settings"])

    def settings_to_resume(self, resume: bool) -> Settings | None:
        """The settings of the run that goes on; None if a new run starts, with or without `resume`."""
        return self.settings if resume and self.started else None

    @cached_property
    def metrics(self) -> dict[str, Any]:
        if not self.ended:
            self.config  # noqa: B018  raises the better error where this is no run at all
            raise self._not_ended()
        return read_json(self._path(METRICS), METRICS_FORM, dict.fromkeys(OPTIONAL_METRICS))

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        return read_log(self._path(HISTORY), HISTORY_FORM)

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """Events that moved a task, or could have. They are read as far as their thetas are those of the problem."""
        rows = read_log(self._path(EVENTS), EVENT_FORM)
        with suppress(ClpinnError):
            parameters = len(self.problem.parameters)
            rows = list(takewhile(lambda row: all(len(theta) == parameters for theta in event_thetas(row)), rows))
        return [event for event in rows if event["newcomer"] is not None]

    @cached_property
    def errors(self) -> dict[str, np.ndarray]:
        """Columns of errors.csv by name."""
        return read_table(self._path(ERRORS), ["res_pde", *self.problem.parameters])

    @cached_property
    def problem(self) -> Problem:
        """The problem that was given, a benchmark, or the one in the file that this user's own training recorded."""
        problem = self._stated_problem() if self.given_problem is None else self.given_problem
        if self.started and not self.changed_problem:
            check_unchanged(problem, self.config["fingerprint"], f"the run in {self.folder}")
        return problem

    def _stated_problem(self) -> Problem:
        name, description = self.config["problem"], self.config["description"]
        if name is not None:
            own = name if name in BENCHMARKS else recorded_problem(self.folder, self.config.get("token"))
            if own is not None:
                return load_problem(own, paper=self.settings.optimizer == "adam-lbfgs")
            raise RunError(
                f"The run in {self.folder} is of a problem in a Python file, {name}. clpinn runs such a file only if "
                "you name it, or where your own training in this directory found it, because a run may come from "
                f"somebody else. If you trust the file: --problem my_pde.py:{description['class']}."
            )
        for kind in BENCHMARKS.values():
            if kind.__name__ == description["class"]:
                problem = self._benchmark(kind)
                if describe(problem) == description:
                    return problem
        raise RunError(
            f"The run in {self.folder} was started from Python with a problem of its own, {description['class']}. "
            f"Pass that problem, or at the command line --problem my_pde.py:{description['class']}."
        )

    def _benchmark(self, kind: type[Problem]) -> Problem:
        options = self.config["description"]["options"]
        try:
            return kind(**options)
        except TypeError:
            raise RunError(
                f"{self._path(CONFIG)} is damaged ({kind.__name__} has no options {reprlib.repr(options)}). Restore "
                "it, or train again."
            ) from None

    @cached_property
    def surrogate(self) -> Surrogate:
        """The surrogate of a run that has ended."""
        problem = self.problem
        if not self._path(MODEL).exists():
            raise self._not_ended()
        return load(self._path(MODEL), problem, self.changed_problem)

    @property
    def adapted_file(self) -> Path:
        """Where `clpinn adapt` puts the surrogate with heads."""
        return self._path(ADAPTED)

    @cached_property
    def adapted(self) -> Surrogate | None:
        """The surrogate with heads, if `clpinn adapt` has written one."""
        exists = self.adapted_file.is_file()
        return load(self.adapted_file, self.problem, self.changed_problem) if exists else None

    @property
    def network(self) -> Any:
        """The network of a run, ended or not, as its last checkpoint has it."""
        problem, settings = self.problem, self.settings
        with jax.enable_x64(settings.precision == "double"):
            start = Trainer(problem, settings).init()
            loaded = checkpoint.load(self._path(CHECKPOINT), start.tree())
            if loaded is None and self._path(MODEL).exists():  # Meta-PINN has no checkpoint of its own
                return self.surrogate.network
            if loaded is None:
                raise RunError(
                    f"The run in {self.folder} has no checkpoint yet. Train it first, or wait for the first one."
                )
            wrong = start.misfit(loaded.tree, start.counters())
            if wrong:
                raise _tampered(self._path(CHECKPOINT), wrong)
            return jax.tree.map(jax.numpy.asarray, loaded.tree["network"])

    @property
    def answering_network(self) -> Any:
        """The network of the last checkpoint, with the correction over the box that model.clpinn has for it."""
        network = self.network
        with suppress(ClpinnError):  # there is no file yet, or it is of another problem
            if digest(without_box_correction(self.surrogate.network)) == digest(network):
                return self.surrogate.network
        return network

    @property
    def problem_label(self) -> str:
        """The problem's name at the command line, or the name of its class."""
        return self.config["problem"] or self.config["description"]["class"]

    @property
    def problem_name(self) -> str:
        """The problem's name without its file."""
        return str(self.metrics["problem"]).rpartition(":")[2]

    @property
    def name(self) -> str:
        """The title of its figures: problem, method, seed."""
        return f"{self.problem_name}, {self.metrics['method']}, seed {self.metrics['seed']}"

    def why_no_problem(self) -> str | None:
        """Why the problem or the surrogate cannot be loaded; None if they can."""
        try:
            self.surrogate  # noqa: B018
        except (ClpinnError, OSError) as error:
            return str(error)
        return None

    def task(self, index: int) -> "RunDirectory":
        """The directory of one task of a Meta-PINN."""
        return RunDirectory(self._path(TASKS) / f"{index:03d}", self.given_problem, self.changed_problem)

    # Writing -----------------------------------------------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the directory, and keep other processes out of it. The lock ends with the process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._path(LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyError(
                    f"Another process is working in {self.folder}. Wait for it, or choose another directory."
                ) from None
            yield

    def write_config(self, problem: Problem, settings: Settings, name: str | None) -> None:
        """Record the start of a run. `name` is the problem's name at the command line."""
        token = secrets.token_hex(16)
        record_problem(self.folder, name, token)
        self._write_config(
            {
                "problem": name,
                "token": token,
                "started_in": str(Path.cwd()),
                "description": describe(problem),
                "fingerprint": fingerprint(problem),
                "settings": to_dict(settings),
                "versions": {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES},
                "devices": [str(device) for device in jax.devices()],
            }
        )

    def write_resumed(self, problem: Problem, settings: Settings, name: str | None) -> None:
        """Record that a run goes on: the bounds may be new, and the problem if the user accepts that it changed."""
        token = self.config.get("token") or secrets.token_hex(16)
        record_problem(self.folder, name, token)
        now = {"description": describe(problem), "fingerprint": fingerprint(problem)}
        self._write_config(self.config | now | {"settings": to_dict(settings), "token": token})

    def _write_config(self, config: dict[str, Any]) -> None:
        self.__dict__["config"] = config
        write_text(self._path(CONFIG), json.dumps(config, indent=2))

    def append_history(self, row: dict[str, Any]) -> None:
        self._append(HISTORY, row)
        self.__dict__.pop("history", None)

    def append_event(self, record: dict[str, Any]) -> None:
        self._append(EVENTS, record)
        self.__dict__.pop("events", None)

    def cut_logs(self, step: int) -> None:
        """Drop log rows after a step, and a row that was written in part: the run will write them again."""
        for name in (HISTORY, EVENTS):
            path = self._path(name)
            if not path.exists():
                continue
            kept = [json.dumps(row) + "\n" for row in read_log(path, {"step": count}) if row["step"] <= step]
            write_text(path, "".join(kept))
        self.__dict__.pop("history", None)
        self.__dict__.pop("events", None)

    def save_checkpoint(self, state: State, elapsed: float, seconds: dict[str, float]) -> None:
        for log in (self._path(HISTORY), self._path(EVENTS)):
            if log.exists():
                sync(log)  # a checkpoint must not outlast the rows before it
        description = state.counters() | {"elapsed": elapsed, "seconds": seconds}
        checkpoint.save(self._path(CHECKPOINT), state.step, state.tree(), description)

    def restored(self, start: State) -> Restored | None:
        """The run at its newest usable checkpoint, or None without one. `start` has the run's structure."""
        loaded = checkpoint.load(self._path(CHECKPOINT), start.tree())
        if loaded is None:
            return None
        clock = {"elapsed": number, "seconds": figures_by_name}
        wrong = start.misfit(loaded.tree, loaded.description) or misfit(loaded.description, clock)
        if wrong:
            raise _tampered(self._path(CHECKPOINT), wrong)
        counters = {name: loaded.description[name] for name in start.counters()}
        state = replace(start, **jax.tree.map(_on_device_like, start.tree(), loaded.tree), **counters)
        return Restored(state, loaded.description["elapsed"], loaded.description["seconds"], loaded.damaged)

    def write_result(self, surrogate: Surrogate, metrics: dict[str, Any], errors: list[dict[str, float]]) -> None:
        """Write the result of a run: `errors` has one row per theta. The metrics come last, so they mark the end."""
        table = io.StringIO(newline="")
        writer = csv.DictWriter(table, fieldnames=list(errors[0]))
        writer.writeheader()
        writer.writerows(errors)
        write_text(self._path(ERRORS), table.getvalue())
        surrogate.save(self._path(MODEL))
        write_text(self._path(METRICS), json.dumps(metrics, indent=2))
        for name in ("errors", "surrogate", "metrics"):
            self.__dict__.pop(name, None)

    def keep_errors(self, network: Any, errors: ErrorMap) -> None:
        """Keep a map of estimated errors in the surrogate's file and in the metrics, if the file has that network."""
        try:
            surrogate = self.surrogate
        except ClpinnError:  # there is no file, or it is of another problem than the one that was evaluated
            return
        if self.changed_problem or digest(surrogate.network) != digest(network):  # the file is of what was before
            return
        surrogate.with_errors(errors).save(self._path(MODEL))
        if self.ended:
            metrics = self.metrics | {"estimated": plain(errors.summary())}
            write_text(self._path(METRICS), json.dumps(metrics, indent=2))
        for name in ("surrogate", "metrics"):
            self.__dict__.pop(name, None)

    # Helpers -----------------------------------------------------------------------------------------------------

    def _path(self, name: str) -> Path:
        return self.folder / name

    def _append(self, name: str, row: dict[str, Any]) -> None:
        with self._path(name).open("a") as file:
            file.write(json.dumps(plain(row)) + "\n")

    def _not_ended(self) -> RunError:
        return RunError(f"The run in {self.folder} has not ended yet. Let it end, or resume it: --resume.")


def load_network(folder: Path | str, problem: Problem | None = None, changed_problem: bool = False) -> Any:
    """The network of a run, ended or not, as its last checkpoint has it. `changed_problem` is as in `clpinn.load`."""
    return RunDirectory(Path(folder), problem, changed_problem).network


def _tampered(folder: Path, wrong: str) -> CheckpointError:
    return CheckpointError(
        f"The newest checkpoint in {folder} makes no sense ({wrong}), although its checksum is right. Remove it to go "
        "on from the one before, or train again."
    )


def _on_device_like(array_before: Any, array: np.ndarray) -> Any:
    """A loaded array on the device if the run keeps it there, otherwise on the host."""
    return jax.numpy.asarray(array) if isinstance(array_before, jax.Array) else array
