"""One stretch of training in a run directory: restore, train with logs and checkpoints, evaluate, write the result."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from clpinn.errors import CheckpointError, Outcome
from clpinn.machine import peak_memory
from clpinn.runs.callbacks import Observer, TrainingStep
from clpinn.runs.directory import RunDirectory
from clpinn.runs.error_goal import ErrorGoal
from clpinn.runs.evaluate import Metrics, evaluate
from clpinn.runs.metrics import (
    corrected_metrics,
    displaced_thetas,
    ending_text,
    estimated_errors,
    evaluation_thetas,
    not_learnt_text,
    run_metrics,
)
from clpinn.runs.records import plain
from clpinn.shown import html_table
from clpinn.surrogate.correct_box import BoxResult
from clpinn.surrogate.surrogate import Surrogate
from clpinn.training.optimizers import Step
from clpinn.training.settings import Settings
from clpinn.training.state import Hooks, State
from clpinn.training.trainer import DONE, Trainer

SHORTEST = 10.0
"""Errors are estimated at the end of a run if training took so many seconds. `clpinn evaluate` always does it."""
SHARE, LONG, LONG_SHARE = 0.5, 60.0, 0.1
"""Estimates and corrections at the end take at most the first share of the training time. If that is more than so many
seconds, they take at most so many or the last share."""


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run: its surrogate, the content of metrics.json, and its directory."""

    surrogate: Surrogate
    metrics: dict[str, Any]
    folder: Path

    @property
    def network(self) -> Any:
        return self.surrogate.network

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.metrics["outcome"])

    def report(self, out: Path | str | None = None) -> Path:
        """Write the HTML page of the run, by default report.html in its directory, and return the page's path."""
        from clpinn.report.page import write_page  # a later room: this method only hands over

        path = self.folder / "report.html" if out is None else Path(out)
        write_page([RunDirectory(self.folder, self.surrogate.problem)], path)
        return path

    def __repr__(self) -> str:
        return f"Result: {', '.join(f'{name} {text}' for name, text in self._facts().items())}"

    def _repr_html_(self) -> str:
        return html_table("Result", self._facts())

    def _facts(self) -> dict[str, str]:
        metrics = self.metrics
        facts = {"problem": str(metrics["problem"]), "outcome": ending_text(metrics)}
        for name, errors in metrics["outputs"].items():
            macro, worst = (_figure(errors[key]) for key in ("rel_l2_macro", "rel_l2_worst"))
            facts[f"relative L2 error of {name}"] = f"{macro} (worst {worst})"
        if metrics.get("validation") is not None:
            facts["validation loss"] = _figure(metrics["validation"])
        return facts | {"mean |residual|": _figure(metrics["res_pde_macro"]), "directory": str(self.folder)}


def _figure(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.1e}"


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
        elif state.step == 0:
            for text in trainer.undefined(state):
                observer.message(text)
        directory.cut_logs(state.step)
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
            if self.stop_requested() or observer.stop_requested:
                return Outcome.STOPPED
            if settings.seconds is not None and elapsed() >= settings.seconds:
                return Outcome.TIME
            if goal is None:
                return None
            with trainer.timing.measure("error goal"):
                return Outcome.ERROR if goal.reached(newest_network, elapsed()) else None

        def event(record: dict[str, Any], network: Any) -> None:
            """Log the event, with the errors of the tasks that it displaces (if the problem has a reference)."""
            thetas = displaced_thetas(record)
            if thetas and problem.reference is not None:
                with trainer.timing.measure("evaluation"):
                    outputs = evaluate(problem, network, thetas=np.array(thetas)).outputs
                record["displaced_rel_l2"] = {name: plain(errors.rel_l2.tolist()) for name, errors in outputs.items()}
            directory.append_event(record)
            observer.event(record)

        goal = None
        if settings.error is not None:
            goal = ErrorGoal(problem, settings.error, evaluation_thetas(settings), settings.correct)
        newest_network = state.network
        validation = state.validation

        def history(row: dict[str, Any]) -> None:
            nonlocal validation
            validation = row["validation"]
            row |= {"seconds": round(elapsed(), 3)}
            directory.append_history(row)
            observer.validation(row)

        def progress(state: State, step: Step, terms: Mapping[str, float], status: str) -> None:
            nonlocal newest_network
            newest_network = state.network
            newest, seconds = state.validation if math.isfinite(state.validation) else validation, elapsed()
            observer.step(
                TrainingStep(
                    state.step,
                    state.stage,
                    float(step.value),
                    dict(terms),
                    newest if math.isfinite(newest) else None,
                    seconds,
                    _share_done(settings, state.step, seconds),
                    len(state.pool.active),
                    len(state.pool.replay),
                    status,
                )
            )

        hooks = Hooks(
            history=history,
            event=event,
            progress=progress,
            save=save,
            probe=self._probe if settings.probe else None,
            stop=stop,
            elapsed=elapsed,
            message=observer.message,
        )
        first_step = state.step
        state, outcome = trainer.run(state, hooks)
        if resume and state.step == first_step and outcome is not Outcome.STOPPED:
            observer.message(f"No step was made. {outcome.advice}")
        if goal is not None and outcome is not Outcome.ERROR:
            observer.message(goal.text())
        save(state, now=True)
        return self.finish(state, Outcome(outcome), elapsed, None if goal is None else goal.result)

    def finish(
        self, state: State, outcome: Outcome, elapsed: Callable[[], float], correction: BoxResult | None = None
    ) -> Result:
        """Evaluate the network and write the result of the run. A `correction` over the box may be there already."""
        trainer, directory = self.trainer, self.directory
        seconds, memory = elapsed(), peak_memory()
        with trainer.timing.measure("evaluation"):
            thetas = evaluation_thetas(trainer.settings)
            errors: Metrics = evaluate(trainer.problem, state.network, thetas, self.observer.display.evaluation)
        metrics = run_metrics(trainer, state, outcome, errors, elapsed(), memory, directory)
        surrogate = Surrogate(trainer.problem, state.network, record=self._record(state, metrics))
        directory.write_result(surrogate, metrics, errors.table())  # before estimates: they may take a while
        if correction is not None:
            surrogate = surrogate.corrected_by(correction)
        elif seconds >= SHORTEST and outcome not in (Outcome.STOPPED, Outcome.DIVERGED):
            surrogate = self._estimated(surrogate, end_seconds(seconds))
        if surrogate.errors is not None:
            record = surrogate.record.get("box_correction")
            if record is not None and record["used"]:
                with trainer.timing.measure("evaluation"):
                    errors = evaluate(trainer.problem, surrogate, thetas, self.observer.display.evaluation)
            metrics |= corrected_metrics(metrics, record, errors, surrogate.errors)
            metrics |= {"seconds": plain(trainer.timing.seconds), "wall_seconds": elapsed()}
            surrogate = replace(surrogate, record={**surrogate.record, "outputs": metrics["outputs"]})
            directory.write_result(surrogate, metrics, errors.table())
        text = not_learnt_text(metrics)
        if text is not None and outcome not in (Outcome.STOPPED, Outcome.DIVERGED):  # these speak for themselves
            self.observer.message(text)
        return Result(surrogate, metrics, directory.folder)

    def _estimated(self, surrogate: Surrogate, seconds: float) -> Surrogate:
        """The surrogate with a map of its estimated errors, and corrected over the box if the settings say so."""
        settings, display = self.trainer.settings, self.observer.display
        if not settings.correct:
            with self.trainer.timing.measure("evaluation"):
                errors = estimated_errors(surrogate.problem, surrogate.network, settings, display, seconds)
            return surrogate.with_errors(errors)
        with self.trainer.timing.measure("correction"):
            return surrogate.correct_box(
                seconds=seconds,
                progress=lambda done, total: display.evaluation("correction", done, total),
                stop=self.stop_requested,
            )

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

    def _probe(self, network: Any) -> dict[str, dict[str, float]]:
        """Mean and worst errors at a few thetas spread over the candidates; at its own theta for a standard PINN."""
        problem, settings = self.trainer.problem, self.trainer.settings
        thetas = evaluation_thetas(settings)
        if thetas is None:
            candidates = problem.candidates.points
            thetas = candidates[np.unique(np.linspace(0, len(candidates) - 1, settings.probe).round().astype(int))]
        outputs = evaluate(problem, network, thetas=thetas).summary()["outputs"]
        return {
            "probe": {name: errors["rel_l2_macro"] for name, errors in outputs.items()},
            "probe_worst": {name: errors["rel_l2_worst"] for name, errors in outputs.items()},
        }

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


def end_seconds(training: float) -> float:
    """The time that estimates and corrections may take at the end of so many seconds of training."""
    return min(SHARE * training, max(LONG, LONG_SHARE * training))


def may_reopen(settings: Settings) -> bool:
    """Whether a run whose progress had ended goes on: a bound on steps or time tells it to."""
    return settings.optimizer == "natural" and (settings.steps is not None or settings.seconds is not None)


def _share_done(settings: Settings, step: int, seconds: float) -> float:
    """The share of a run that is over, by the bound that is closest; 0 without bounds."""
    total = settings.adam.steps + settings.lbfgs.steps if settings.optimizer == "adam-lbfgs" else math.inf
    by_steps = step / min(total, settings.steps or total)
    by_time = seconds / settings.seconds if settings.seconds else 0.0
    return min(1.0, max(by_steps, by_time))
