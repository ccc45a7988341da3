"""A run from problem to result, and its directory.

config.json      everything needed to repeat it, with versions
history.jsonl    losses by name, validation loss, set sizes, along the run
events.jsonl     each event: thetas queried, scores, newcomer, moves, weights
metrics.json     the outcome: errors, queries, wall time by part, forgetting, coverage
errors.csv       errors by theta
model.clpinn     the surrogate, in one file
checkpoint/      what is needed to resume
"""

import csv
import fcntl
import json
import math
import platform
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from clpinn.errors import ClpinnError, RunError
from clpinn.exports.export import replacing
from clpinn.formulation.domain import Points
from clpinn.formulation.problem import Problem, failed, theta_features, validate
from clpinn.formulation.references import Progress, reference_at
from clpinn.networks import MetaPINN
from clpinn.presets import natural
from clpinn.problems import BENCHMARKS, load_problem
from clpinn.runs.evaluate import Metrics, evaluate
from clpinn.surrogate.surrogate import Surrogate, describe, load
from clpinn.training import checkpoint
from clpinn.training.optimizers import Step
from clpinn.training.selection import Uniform
from clpinn.training.settings import Settings, from_dict, to_dict
from clpinn.training.tasks import TaskPool, coverage_hole
from clpinn.training.trainer import DONE, NATURAL, Callbacks, State, Trainer

BOUNDS = ("steps", "seconds", "until")
EXIT_CODES = {"diverged": 3, "stopped": 130}
"""What the command ends with after these outcomes; 0 after all others."""
LIBRARIES = ("clpinn", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "scikit-learn")


@dataclass(frozen=True)
class Observer:
    """Who watches a run: a display, or nobody."""

    progress: Callable[[State, Step, dict[str, float]], None] = lambda *_: None
    event: Callable[[dict[str, Any]], None] = lambda _: None
    message: Callable[[str], None] = lambda _: None
    evaluation: Progress | None = None


@dataclass(frozen=True)
class Result:
    """What a run ends with."""

    surrogate: Surrogate
    metrics: dict[str, Any]
    folder: Path

    @property
    def network(self) -> Any:
        return self.surrogate.network

    @property
    def outcome(self) -> str:
        return self.metrics["outcome"]


def train(
    problem: Problem,
    seconds: float | None = None,
    seed: int = 0,
    method: str = "free",
    steps: int | None = None,
    until: float | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    observer: Observer | None = None,
) -> Surrogate:
    """Train a problem by the natural gradient and give back its surrogate.

    Without `seconds`, `steps` or a validation loss to train `until` it ends when progress ends. With `out` the run is
    kept in that directory, and can be resumed. For all other settings see `run`.
    """
    settings = replace(natural(problem, method), seed=seed, seconds=seconds, steps=steps, until=until)
    told: list[str] = []
    if observer is None:
        observer = Observer(message=told.append)
    with tempfile.TemporaryDirectory() as folder:
        result = run(problem, settings, out or folder, resume and out is not None, observer=observer)
    if result.outcome == "diverged":
        warnings.warn(" ".join(["Training diverged, so the surrogate is of no use.", *told[-1:]]), stacklevel=2)
    return result.surrogate


def run(
    problem: Problem,
    settings: Settings,
    out: Path | str,
    resume: bool = False,
    name: str | None = None,
    checkpoint_seconds: float = 30.0,
    observer: Observer | None = None,
    start: Any = None,
) -> Result:
    """Train a problem with these settings in the directory `out`, which must be empty or new unless `resume`.

    `name` is how the command line calls the problem. With `resume`, a run goes on where its last checkpoint was, with
    the settings it was started with; only `steps`, `seconds` and `until` may be given anew, and take the place of all
    bounds that it had. One without a checkpoint starts. A finished one is left as it is, but under natural goes on if
    `steps` or `seconds` are given. `start` is a network to start from, in place of a fresh one.
    """
    validate(problem)
    settings = from_dict(to_dict(settings))  # NumPy's numbers as plain ones
    observer = observer or Observer()
    folder = Path(out)
    started = (folder / "config.json").exists()
    if resume and started:
        settings = _same_run(folder, problem, name, settings)
        if (folder / "metrics.json").exists():
            metrics = json.loads((folder / "metrics.json").read_text())
            goes_on = ["stopped", "time", "steps", "until"] + ["finished"] * _may_go_on(settings)
            if metrics["outcome"] not in goes_on:
                observer.message(f"The run in {folder} has ended ({metrics['outcome']}). Nothing is left to do.")
                return Result(load_surrogate(folder, problem), metrics, folder)
    elif folder.exists() and any(folder.iterdir()):
        raise RunError(
            f"The directory {folder} is not empty. Choose another with --out, or go on with what is there: --resume."
        )
    _check_reference(problem)
    with jax.enable_x64(settings.precision == "double"):
        trainer = Trainer(problem, settings)
        state = trainer.init(start)  # settings that make no sense fail here, before anything is written
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder), _stop_signals() as stopped:
            if started:  # the bounds may be new
                config = read_config(folder) | {"settings": to_dict(settings)}
                _write(folder / "config.json", json.dumps(config, indent=2))
            else:
                _write_config(folder, problem, settings, name)
            if settings.network.kind == "metapinn":
                return _train_meta(trainer, folder, checkpoint_seconds, observer)
            return _train(trainer, state, folder, resume, checkpoint_seconds, observer, stopped)


def _check_reference(problem: Problem) -> None:
    """Ask the reference for two points: what is wrong with it is better known before training than after."""
    if problem.reference is None:
        return
    try:
        reference_at(problem, problem.evaluation.points[:2], problem.parameters.centre)
    except ClpinnError:
        raise
    except Exception as error:
        raise failed("reference", error) from error


def _train(
    trainer: Trainer,
    state: State,
    folder: Path,
    resume: bool,
    checkpoint_seconds: float,
    observer: Observer,
    stopped: Callable[[], bool],
) -> Result:
    problem, settings, before = trainer.problem, trainer.settings, 0.0
    if resume:
        state, before = _restored(folder, trainer, state, observer)
        if state.stage == DONE and _may_go_on(settings):
            state = replace(state, stage=NATURAL, rate=1.0, best_step=state.step)
    _cut(folder / "history.jsonl", state.step)
    _cut(folder / "events.jsonl", state.step)
    start = time.perf_counter()
    saved = [start]

    def elapsed() -> float:
        return before + time.perf_counter() - start

    def save(state: State, now: bool = False) -> None:
        if now or time.perf_counter() - saved[0] >= checkpoint_seconds:
            with trainer.timing.measure("checkpoint"):
                description = state.counters() | {"elapsed": elapsed(), "seconds": trainer.timing.seconds}
                checkpoint.save(folder / "checkpoint", state.step, state.tree(), description)
            saved[0] = time.perf_counter()

    def stop() -> str | None:
        if stopped():
            return "stopped"
        return "time" if settings.seconds is not None and elapsed() >= settings.seconds else None

    def event(record: dict[str, Any], network: Any) -> None:
        """Log the event, with the error of a task at the moment it is displaced (where there is a reference)."""
        moved = _displaced(record)
        if moved and problem.reference is not None:
            with trainer.timing.measure("evaluation"):
                found = evaluate(problem, network, thetas=np.array(moved))
            record["displaced_rel_l2"] = {name: plain(e.rel_l2.tolist()) for name, e in found.outputs.items()}
        _append(folder / "events.jsonl", record)
        observer.event(record)

    callbacks = Callbacks(
        history=lambda row: _append(folder / "history.jsonl", row | {"seconds": round(elapsed(), 3)}),
        event=event,
        progress=observer.progress,
        save=save,
        probe=_probe(problem, settings) if settings.probe else None,
        stop=stop,
        elapsed=elapsed,
        message=observer.message,
    )
    state, outcome = trainer.run(state, callbacks)
    save(state, now=True)
    with trainer.timing.measure("evaluation"):
        found = evaluate(problem, state.network, evaluated(settings), observer.evaluation)
    metrics = _metrics(problem, settings, trainer, state, outcome, found, elapsed(), folder)
    return _finished(trainer, state, metrics, found, folder)


def _finished(trainer: Trainer, state: State, metrics: dict[str, Any], found: Metrics, folder: Path) -> Result:
    """Write what a run ends with."""
    _write_errors(folder / "errors.csv", found)
    surrogate = Surrogate(trainer.problem, state.network, record=_record(folder, state, metrics))
    surrogate.save(folder / "model.clpinn")
    _write(folder / "metrics.json", json.dumps(metrics, indent=2))
    return Result(surrogate, metrics, folder)


def _train_meta(trainer: Trainer, folder: Path, checkpoint_seconds: float, observer: Observer) -> Result:
    """Meta-PINN: a network at the centre of the box, from it one at each support theta, then the regression of weights.

    Each of them is a run of its own below the run's directory, so a killed one goes on where it was. Bounds on steps
    and time are shared out evenly.
    """
    problem, settings = trainer.problem, trainer.settings
    network = settings.network
    key = jax.random.fold_in(jax.random.key(settings.seed), 1)
    support = Uniform().initial(trainer.box, network.support or 1, key)
    thetas = np.concatenate([trainer.box.centre[None], support])
    parts, networks = [], []
    for i, theta in enumerate(thetas):
        share = 1 / len(thetas)
        one = replace(
            settings,
            method="standard",
            network=replace(network, kind="standard", support=None),
            tasks=replace(settings.tasks, selector="fixed", active=1, fixed=(tuple(theta.tolist()),)),
            steps=settings.steps and math.ceil(settings.steps * share),
            seconds=settings.seconds and settings.seconds * share,
        )
        about = "the centre" if i == 0 else f"support task {i} of {len(support)}"
        observer.message(
            f"Meta-PINN: {about}, {', '.join(f'{n} = {v:.4g}' for n, v in zip(problem.parameters, theta))}"
        )
        start = networks[0] if networks else None
        path = folder / "tasks" / f"{i:03d}"
        begun = (path / "config.json").exists()
        found = run(problem, one, path, begun, read_config(folder)["problem"], checkpoint_seconds, observer, start)
        parts.append(found.metrics)
        networks.append(found.network)
        if found.outcome in EXIT_CODES:
            error = RunError(
                f"Training of {about} {found.outcome}. Go on with --resume, or look at {path}, which holds that run."
            )
            error.exit_code = EXIT_CODES[found.outcome]
            raise error
    features = np.stack([np.asarray(theta_features(problem, theta)) for theta in support])
    state = replace(trainer.init(), network=MetaPINN.fitted(networks[1:], features), pool=TaskPool.fixed(support))
    state = replace(state, step=sum(part["steps"] for part in parts))
    with trainer.timing.measure("evaluation"):
        found = evaluate(problem, state.network, progress=observer.evaluation)
    elapsed = sum(part["wall_seconds"] for part in parts)
    metrics = _metrics(problem, settings, trainer, state, "finished", found, elapsed, folder)
    return _finished(trainer, state, metrics, found, folder)


def _record(folder: Path, state: State, metrics: dict[str, Any]) -> dict[str, Any]:
    """How a surrogate was trained; `tasks` are the thetas that were trained at the end, none where they were free."""
    config = read_config(folder)
    told = ("outcome", "steps", "wall_seconds", "validation", "outputs")
    return {
        "settings": config["settings"],
        "versions": config["versions"],
        "tasks": state.pool.thetas.tolist(),
        **{name: metrics[name] for name in told},
    }


def _restored(folder: Path, trainer: Trainer, start: State, observer: Observer) -> tuple[State, float]:
    """The state of the newest usable checkpoint, and the seconds spent until then."""
    loaded = checkpoint.load(folder / "checkpoint", start.tree())
    if loaded is None:
        observer.message(f"There is no checkpoint in {folder} yet: the run starts from the beginning.")
        return start, 0.0
    for message in loaded.damaged:
        observer.message(message)
    counters = {name: loaded.description[name] for name in start.counters()}
    state = replace(start, **jax.tree.map(_as_it_was, start.tree(), loaded.tree), **counters)
    trainer.timing.seconds.update(loaded.description["seconds"])
    observer.message(f"Going on from step {state.step}.")
    return state, loaded.description["elapsed"]


def _as_it_was(like: Any, array: np.ndarray) -> Any:
    """A loaded array on the device where the run keeps it there, on the host otherwise."""
    return jax.numpy.asarray(array) if isinstance(like, jax.Array) else array


def load_surrogate(folder: Path | str, problem: Problem | None = None) -> Surrogate:
    """The surrogate of a run that has ended."""
    folder = Path(folder)
    problem = problem or problem_of(folder)
    if not (folder / "model.clpinn").exists():
        raise RunError(f"The run in {folder} has not ended yet. Let it end, or resume it: --resume.")
    return load(folder / "model.clpinn", problem)


def load_network(folder: Path | str, problem: Problem | None = None) -> Any:
    """The network of a run, ended or not, as its last checkpoint has it."""
    folder = Path(folder)
    config = read_config(folder)
    problem = problem or problem_of(folder)
    settings = from_dict(config["settings"])
    with jax.enable_x64(settings.precision == "double"):
        start = Trainer(problem, settings).init()
        loaded = checkpoint.load(folder / "checkpoint", start.tree())
        if loaded is None and (folder / "model.clpinn").exists():  # Meta-PINN is fitted at once, when its tasks end
            return load_surrogate(folder, problem).network
        if loaded is None:
            raise RunError(f"The run in {folder} has no checkpoint yet. Train it first, or wait for the first one.")
        return jax.tree.map(jax.numpy.asarray, loaded.tree["network"])


def evaluated(settings: Settings) -> Points | None:
    """The thetas that a run is evaluated at, None for all candidates: a standard PINN knows its own alone."""
    return np.array(settings.tasks.fixed) if settings.network.kind == "standard" else None


def read_config(folder: Path) -> dict[str, Any]:
    """A run's config.json, given its directory or the file itself."""
    path = folder if folder.is_file() else folder / "config.json"
    if not path.is_file():
        raise RunError(f"{folder} is not a run: it has no config.json. Give the directory of a run.")
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise RunError(f"{path} is damaged ({error}). Restore it, or train again.") from None


def problem_of(folder: Path | str) -> Problem:
    """The problem of a run that was started from the command line, or is of a benchmark."""
    config = read_config(Path(folder))
    name, about = config["problem"], config["description"]
    if name is None:
        for kind in BENCHMARKS.values():
            if kind.__name__ == about["class"] and describe(problem := kind(**about["options"])) == about:
                return problem
        raise RunError(
            f"The run in {folder} was started from Python with a problem of its own, {about['class']}: give that, "
            f"--problem my_pde.py:{about['class']} at the command line."
        )
    file = name if name.endswith(".py") else name.rpartition(":")[0]
    there = Path(config.get("started_in", "")) / file
    if file and not Path(file).is_file() and there.is_file():
        name = f"{there}{name[len(file) :]}"
    return load_problem(name, paper=from_dict(config["settings"]).optimizer == "adam-lbfgs")


def _write_config(folder: Path, problem: Problem, settings: Settings, name: str | None) -> None:
    config = {
        "problem": name,
        "started_in": str(Path.cwd()),
        "description": describe(problem),
        "settings": to_dict(settings),
        "versions": {"python": platform.python_version()} | {library: version(library) for library in LIBRARIES},
        "devices": [str(device) for device in jax.devices()],
    }
    _write(folder / "config.json", json.dumps(config, indent=2))


def _same_run(folder: Path, problem: Problem, name: str | None, settings: Settings) -> Settings:
    """The settings a run was started with, with new bounds if given; an error if it is another problem's."""
    config = read_config(folder)
    if config["description"] != json.loads(json.dumps(describe(problem))):
        was, now = config["problem"] or config["description"]["class"], name or type(problem).__name__
        raise RunError(
            f"The run in {folder} is of another problem: {was}, not {now}. Nothing was changed. Resume it with its own "
            "problem, or choose another directory."
        )
    given = {name: getattr(settings, name) for name in BOUNDS}
    stored = from_dict(config["settings"])
    return replace(stored, **given) if any(given.values()) else stored


def _may_go_on(settings: Settings) -> bool:
    """Whether a run that has ended by itself has more to do: a bound of time or steps gives it that."""
    return settings.optimizer == NATURAL and (settings.steps is not None or settings.seconds is not None)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Only one process at a time works in a run directory; the lock goes with the process."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"Another process is working in {folder}. Wait for it, or choose another directory."
            ) from None
        yield


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM end a run after the current step, with a checkpoint; a second one at once."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def note(number: int, _: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _probe(problem: Problem, settings: Settings) -> Callable[[Any], dict[str, float]]:
    """Errors at a few thetas spread over the candidates."""
    candidates = problem.candidates.points
    chosen = candidates[np.unique(np.linspace(0, len(candidates) - 1, settings.probe).round().astype(int))]

    def probe(network: Any) -> dict[str, float]:
        found = evaluate(problem, network, thetas=chosen).summary()
        return {name: errors["rel_l2_macro"] for name, errors in found["outputs"].items()}

    return probe


def _metrics(
    problem: Problem,
    settings: Settings,
    trainer: Trainer,
    state: State,
    outcome: str,
    found: Metrics,
    elapsed: float,
    folder: Path,
) -> dict[str, Any]:
    config = read_config(folder)
    summary = found.summary()
    seconds = trainer.timing.seconds
    metrics = {
        "problem": config["problem"] or config["description"]["class"],
        "method": settings.method,
        "optimizer": settings.optimizer,
        "seed": settings.seed,
        "outcome": outcome,
        "steps": state.step,
        "lbfgs_steps": 0 if state.stage == "adam" or trainer.rows else state.stage_step,
        "lbfgs_evaluations": state.evaluations,
        "recoveries": state.recoveries,
        "wall_seconds": elapsed,
        "search_seconds": seconds.get("selection", 0.0) + seconds.get("queries", 0.0),
        "seconds": seconds,
        "queries": state.queries,
        "active": len(state.pool.active),
        "replay": len(state.pool.replay),
        "res_pde_macro": summary["res_pde_macro"],
        "outputs": summary["outputs"],
        "has_reference": problem.reference is not None,
        "forgetting": _forgetting(problem, trainer, state, folder),
        "coverage_hole": coverage_hole(problem.candidates.points, state.pool.thetas, trainer.box)
        if len(state.pool.thetas)
        else None,
        "validation": state.validation if trainer.rows else None,
    }
    return plain(metrics)


def _displaced(record: dict[str, Any]) -> list[list[float]]:
    """The thetas that left the active set in an event, in the order of their logged errors."""
    return [record[way] for way in ("moved_to_replay", "moved_dropped") if record[way] is not None]


def _forgetting(problem: Problem, trainer: Trainer, state: State, folder: Path) -> list[dict[str, Any]]:
    """Loss (and relative L2) of every displaced task when it was displaced last, and now."""
    last = {tuple(row[:-2].tolist()): (row[-2], int(row[-1])) for row in state.displaced}
    if not last:
        return []
    errors_then: dict[tuple[float, ...], dict[str, float]] = {}
    for line in (folder / "events.jsonl").read_text().splitlines():
        record = json.loads(line)
        for i, theta in enumerate(_displaced(record)):
            by_output = record.get("displaced_rel_l2", {})
            errors_then[tuple(theta)] = {name: values[i] for name, values in by_output.items()}
    thetas = np.array(list(last))
    losses = trainer.task_losses(state, thetas)
    outputs = evaluate(problem, state.network, thetas=thetas).outputs
    return [
        {
            "theta": dict(zip(problem.parameters, theta)),
            "step": step,
            "loss_then": then,
            "loss_now": losses[i],
            "rel_l2_then": errors_then.get(theta, {}),
            "rel_l2_now": {name: errors.rel_l2[i] for name, errors in outputs.items()},
        }
        for i, (theta, (then, step)) in enumerate(last.items())
    ]


# Files -------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Plain values for JSON; what is not finite becomes null."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value


def _append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(plain(row)) + "\n")


def _write(path: Path, text: str) -> None:
    replacing(path, lambda temporary: temporary.write_text(text))


def _cut(path: Path, step: int) -> None:
    """Drop what was logged after a step, or half written: it will be written again."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except (json.JSONDecodeError, KeyError):
            break
    _write(path, "".join(kept))


def _write_errors(path: Path, found: Metrics) -> None:
    rows = found.table()
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
