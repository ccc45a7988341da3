"""A run from problem to result: `train` for a surrogate, `run` for full control."""

import json
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from clpinn.errors import ClpinnError, Outcome, RunError, SettingsError
from clpinn.formulation.problem import Problem, describe
from clpinn.formulation.references import reference_at
from clpinn.formulation.validation import undetermined, user_error, validate
from clpinn.machine import STOP_SIGNALS
from clpinn.presets import natural
from clpinn.programs import kept_programs
from clpinn.runs.callbacks import Callbacks, Observer
from clpinn.runs.directory import RunDirectory
from clpinn.runs.display import Display
from clpinn.runs.metapinn import train_metapinn
from clpinn.runs.removal import remove_run
from clpinn.runs.session import Result, Session, may_reopen
from clpinn.surrogate.surrogate import Surrogate
from clpinn.training.settings import Settings, from_dict, to_dict
from clpinn.training.trainer import Trainer

BOUNDS = ("steps", "seconds", "until", "error")
"""The settings that a resumed run may change."""


def train(
    problem: Problem,
    seconds: float | None = None,
    seed: int = 0,
    method: str = "free",
    steps: int | None = None,
    until: float | None = None,
    error: float | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    progress: bool = True,
    callbacks: Callbacks | None = None,
) -> Surrogate:
    """Train a problem by the natural gradient and return its surrogate.

    Without a bound, training ends when progress ends. Bounds are `seconds`, `steps`, `until` (a validation loss) and
    `error` (the worst estimated error over the box). With `out` the run is kept in that directory and can be resumed.
    `progress` and `callbacks`, and all other settings: see `run`.
    """
    settings = replace(natural(problem, method), seed=seed, seconds=seconds, steps=steps, until=until, error=error)
    messages: list[str] = []
    given = callbacks or Callbacks()

    def message(text: str) -> None:
        messages.append(text)
        given.message(text)

    callbacks = replace(given, message=message)
    with tempfile.TemporaryDirectory() as folder:
        resume = resume and out is not None
        result = run(problem, settings, out or folder, resume, progress=progress, callbacks=callbacks)
    if result.outcome is Outcome.DIVERGED:
        warnings.warn(" ".join(["Training diverged, so the surrogate is of no use.", *messages[-1:]]), stacklevel=2)
    return result.surrogate


def run(
    problem: Problem,
    settings: Settings,
    out: Path | str,
    resume: bool = False,
    name: str | None = None,
    checkpoint_seconds: float = 30.0,
    progress: bool = True,
    callbacks: Callbacks | None = None,
    start: Any = None,
    changed_problem: bool = False,
    force: bool = False,
) -> Result:
    """Train a problem with these settings in the directory `out`, which must be empty or new unless `resume`.

    `name` is the problem's name at the command line. `start` is a network to start from, in place of a fresh one.

    Progress is shown on standard error: a live line in a terminal, a bar in a notebook, a line every ten seconds
    elsewhere. `progress=False` shows nothing. `callbacks` are functions to call while the run goes on.

    With `resume`, a run goes on from its last checkpoint with the settings it was started with. Only `steps`,
    `seconds`, `until` and `error` may be given anew; they replace all bounds that it had. A run without a checkpoint
    starts. A finished run is left as it is, except under natural if `steps` or `seconds` are given. A problem that
    computes something else than the one the run was started with is an error, unless `changed_problem`.

    With `force`, a run that is in the directory is removed first. Only the files of a run are removed.
    """
    if force and resume:
        raise RunError("A run is either removed (--force) or resumed (--resume). Choose one of them.")
    directory = RunDirectory(Path(out), problem, changed_problem)
    callbacks = callbacks or Callbacks()
    with kept_programs(), Display(quiet=not progress) as display:
        observer = Observer(display, callbacks)
        result = _run(problem, settings, directory, resume, name, checkpoint_seconds, observer, start, force=force)
    callbacks.end(result)
    return result


def _run(
    problem: Problem,
    settings: Settings,
    directory: RunDirectory,
    resume: bool,
    name: str | None,
    checkpoint_seconds: float,
    observer: Observer,
    start: Any,
    stop_requested: Callable[[], bool] | None = None,
    force: bool = False,
) -> Result:
    """As `run`. `stop_requested` is given if the caller listens to signals already."""
    validate(problem)
    settings = from_dict(to_dict(settings))  # turns NumPy's numbers into plain ones
    stored = directory.settings_to_resume(resume)
    if stored is not None:
        _check_same_problem(directory, problem, name)
        _warn_of_other_devices(directory, observer)
        settings = _with_new_bounds(stored, settings)
        if directory.ended and not _goes_on(Outcome(directory.metrics["outcome"]), settings):
            outcome = directory.metrics["outcome"]
            observer.message(f"The run in {directory.folder} has ended ({outcome}). Nothing is left to do.")
            return Result(directory.surrogate, directory.metrics, directory.folder)
    elif not directory.is_empty and not (force and directory.started):
        if force:
            raise RunError(
                f"The directory {directory.folder} is not a run: it has no config.json. --force removes runs only. "
                "Choose another directory with --out."
            )
        raise RunError(
            f"The directory {directory.folder} is not empty. Choose another with --out, go on with the run there "
            "(--resume), or remove it (--force)."
        )
    if settings.correct and (len(problem.parameters) == 0 or settings.network.kind == "standard"):
        raise SettingsError(
            "correct=true corrects a surrogate over a box of parameters, and this one has a single theta. Leave it "
            "out, and correct the result there: surrogate.correct(), clpinn adapt."
        )
    _check_reference(problem)
    if (text := undetermined(problem)) is not None:
        observer.message(text)
    with jax.enable_x64(settings.precision == "double"):
        trainer = Trainer(problem, settings)
        observer.display.compiling()
        state = trainer.init(start, compile=True)  # settings that make no sense fail here, before anything is written
        signals = nullcontext(stop_requested) if stop_requested is not None else stop_signals()
        with directory.locked(), signals as stop_requested:
            if force and directory.started:
                observer.message(f"--force removed from {directory.folder}: {', '.join(remove_run(directory))}")
            if stored is not None:
                directory.write_resumed(problem, settings, name)
            else:
                directory.write_config(problem, settings, name)
            session = Session(trainer, directory, observer, checkpoint_seconds, stop_requested)
            if settings.network.kind != "metapinn":
                return session.train(state, resume)

            def run_task(settings: Settings, task: RunDirectory, start: Any) -> Result:
                return _run(
                    problem, settings, task, task.started, name, checkpoint_seconds, observer, start, stop_requested
                )

            return train_metapinn(session, run_task)


def _check_same_problem(directory: RunDirectory, problem: Problem, name: str | None) -> None:
    if directory.changed_problem:
        return
    stated, given = directory.config["description"], json.loads(json.dumps(describe(problem)))
    if stated["class"] == given["class"]:
        directory.problem  # noqa: B018  raises an error that says what differs
    if stated != given:
        raise RunError(
            f"The run in {directory.folder} is of another problem: {directory.problem_label}, not "
            f"{name or type(problem).__name__}. Nothing was changed. Resume it with its own problem, or choose another "
            "directory."
        )


def _warn_of_other_devices(directory: RunDirectory, observer: Observer) -> None:
    before, now = len(directory.config["devices"]), len(jax.devices())
    if before and before != now:
        observer.message(
            f"warning: the run was started on {before} devices and goes on with {now}. Its result will not be bit for "
            f"bit that of an uninterrupted run. For that, use --devices {before}."
        )


def _with_new_bounds(stored: Settings, given: Settings) -> Settings:
    """The settings a run was started with; the given bounds, if there are any, replace all of its own."""
    bounds = {name: getattr(given, name) for name in BOUNDS}
    return replace(stored, **bounds) if any(bounds.values()) else stored


def _goes_on(outcome: Outcome, settings: Settings) -> bool:
    """Whether a run that ended in this way has more to do."""
    if outcome is Outcome.FINISHED:
        return may_reopen(settings)
    return outcome is not Outcome.DIVERGED


def _check_reference(problem: Problem) -> None:
    """Ask the reference for two points, so that an error in it is known before training, not after."""
    if problem.reference is None:
        return
    try:
        reference_at(problem, problem.evaluation.points[:2], problem.parameters.centre)
    except ClpinnError:
        raise
    except Exception as error:
        raise user_error("reference", error) from error


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Ctrl-C, SIGTERM and SIGUSR1 end a run after the current step, with a checkpoint. A second Ctrl-C ends it at once.

    A cluster's scheduler sends SIGUSR1 or SIGTERM, or one after the other, before the time of a job is over.
    """
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def handle(number: int, _: Any) -> None:
        if signals and number == signal.SIGINT:
            raise KeyboardInterrupt
        signals.append(number)

    before = {number: signal.signal(number, handle) for number in STOP_SIGNALS}
    try:
        yield lambda: bool(signals)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
