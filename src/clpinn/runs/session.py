"""One stretch of training in a run directory: restore, train with logs and checkpoints, evaluate, write the result."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clpinn.errors import CheckpointError, Outcome
from clpinn.formulation.references import Progress
from clpinn.runs.directory import RunDirectory
from clpinn.runs.evaluate import Metrics, evaluate
from clpinn.runs.metrics import displaced_thetas, evaluation_thetas, run_metrics
from clpinn.runs.records import plain
from clpinn.surrogate.surrogate import Surrogate
from clpinn.training.optimizers import Step
from clpinn.training.settings import Settings
from clpinn.training.state import Callbacks, State
from clpinn.training.trainer import DONE, Trainer


@dataclass(frozen=True)
class Observer:
    """Functions to call while a run goes on. By default they do nothing."""

    progress: Callable[[State, Step, Mapping[str, float], str], None] = lambda *_: None
    event: Callable[[dict[str, Any]], None] = lambda _: None
    message: Callable[[str], None] = lambda _: None
    evaluation: Progress | None = None
    compiling: Callable[[], None] = lambda: None
    """Called before the programs of the run are compiled."""
    begin: Callable[[], None] = lambda: None
    """Called when all is compiled and the clock of the run starts."""


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    surrogate: Surrogate
    metrics: dict[str, Any]
    folder: Path

    @property
    def network(self) -> Any:
        return self.surrogate.network

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.metrics["outcome"])


@dataclass(frozen=True)
class Session:
    """A trainer at work in a locked run directory."""

    trainer: Trainer
    directory: RunDirectory
    observer: Observer
    checkpoint_seconds: float
    stop_requested: Callable[[], bool]
    """Whether the user asked the run to stop."""

    def train(self, state: State, resume: bool) -> Result:
        """Train from a fresh state, or from the newest checkpoint if `resume`, to the end."""
        trainer, directory, observer = self.trainer, self.directory, self.observer
        problem, settings = trainer.problem, trainer.settings
        elapsed_before = 0.0
        if resume:
            state, elapsed_before = self._restored(state)
        directory.cut_logs(state.step)
        observer.begin()
        start = time.perf_counter()
        last_save = start

        def elapsed() -> float:
            return elapsed_before + time.perf_counter() - start

        def save(state: State, now: bool = False) -> None:
            nonlocal last_save
            if now or time.perf_counter() - last_save >= self.checkpoint_seconds:
                with trainer.timing.measure("checkpoint"):
                    directory.save_checkpoint(state, elapsed(), trainer.timing.seconds)
                last_save = time.perf_counter()

        def stop() -> Outcome | None:
            if self.stop_requested():
                return Outcome.STOPPED
            return Outcome.TIME if settings.seconds is not None and elapsed() >= settings.seconds else None

        def event(record: dict[str, Any], network: Any) -> None:
            """Log the event, with the errors of the tasks that it displaces (if the problem has a reference)."""
            thetas = displaced_thetas(record)
            if thetas and problem.reference is not None:
                with trainer.timing.measure("evaluation"):
                    outputs = evaluate(problem, network, thetas=np.array(thetas)).outputs
                record["displaced_rel_l2"] = {name: plain(errors.rel_l2.tolist()) for name, errors in outputs.items()}
            directory.append_event(record)
            observer.event(record)

        callbacks = Callbacks(
            history=lambda row: directory.append_history(row | {"seconds": round(elapsed(), 3)}),
            event=event,
            progress=observer.progress,
            save=save,
            probe=self._probe if settings.probe else None,
            stop=stop,
            elapsed=elapsed,
            message=observer.message,
        )
        state, outcome = trainer.run(state, callbacks)
        save(state, now=True)
        return self.finish(state, Outcome(outcome), elapsed)

    def finish(self, state: State, outcome: Outcome, elapsed: Callable[[], float]) -> Result:
        """Evaluate the network and write the result of the run."""
        trainer, directory = self.trainer, self.directory
        with trainer.timing.measure("evaluation"):
            thetas = evaluation_thetas(trainer.settings)
            errors: Metrics = evaluate(trainer.problem, state.network, thetas, self.observer.evaluation)
        metrics = run_metrics(trainer, state, outcome, errors, elapsed(), directory)
        surrogate = Surrogate(trainer.problem, state.network, record=self._record(state, metrics))
        directory.write_result(surrogate, metrics, errors.table())
        return Result(surrogate, metrics, directory.folder)

    def _restored(self, start: State) -> tuple[State, float]:
        """The state to go on from, and the wall seconds of the run until then."""
        message = self.observer.message
        restored = self.directory.restored(start)
        if restored is None:
            message(f"There is no checkpoint in {self.directory.folder} yet: the run starts from the beginning.")
            return start, 0.0
        if restored.state.stage not in (*self.trainer.stages, DONE):
            raise CheckpointError(
                f"A checkpoint in {self.directory.folder} is of the stage {restored.state.stage!r}, but the run has "
                f"{', '.join(self.trainer.stages)}. Train again, or restore the run."
            )
        for text in restored.damaged:
            message(text)
        self.trainer.timing.seconds.update(restored.seconds)
        message(f"Going on from step {restored.state.step}.")
        state = restored.state
        if state.stage == DONE and may_reopen(self.trainer.settings):
            state = self.trainer.reopened(state)
        return state, restored.elapsed

    def _probe(self, network: Any) -> dict[str, float]:
        """Errors at a few thetas spread over the candidates; at its own theta for a standard PINN."""
        problem, settings = self.trainer.problem, self.trainer.settings
        thetas = evaluation_thetas(settings)
        if thetas is None:
            candidates = problem.candidates.points
            thetas = candidates[np.unique(np.linspace(0, len(candidates) - 1, settings.probe).round().astype(int))]
        summary = evaluate(problem, network, thetas=thetas).summary()
        return {name: errors["rel_l2_macro"] for name, errors in summary["outputs"].items()}

    def _record(self, state: State, metrics: dict[str, Any]) -> dict[str, Any]:
        """How a surrogate was trained.

        `tasks` are the thetas in the pool at the end (none where thetas were free), `displaced` all that ever left the
        active set.
        """
        config = self.directory.config
        names = ("outcome", "steps", "wall_seconds", "validation", "outputs")
        return {
            "settings": config["settings"],
            "versions": config["versions"],
            "tasks": state.pool.thetas.tolist(),
            "displaced": [list(theta) for theta in dict.fromkeys(map(tuple, state.displaced[:, :-2].tolist()))],
            **{name: metrics[name] for name in names},
        }


def may_reopen(settings: Settings) -> bool:
    """Whether a run whose progress had ended goes on: a bound on steps or time tells it to."""
    return settings.optimizer == "natural" and (settings.steps is not None or settings.seconds is not None)
