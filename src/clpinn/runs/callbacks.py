"""What a run tells while it goes on: to functions of the user, and to the display."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from clpinn.runs.display import Display


@dataclass(frozen=True)
class TrainingStep:
    """One optimiser step of a run, as plain values."""

    step: int
    """The number of the step in the whole run."""
    stage: str
    """The stage that made it: natural, adam or lbfgs."""
    loss: float
    """The loss of this step's points."""
    terms: Mapping[str, float]
    """The parts of that loss, by the names of residuals and conditions."""
    validation: float | None
    """The newest validation loss; None before the first."""
    seconds: float
    """Wall seconds of training so far, those before a resume included."""
    done: float
    """The share of the run that is over, from 0 to 1, by the bound that is closest; 0 without bounds."""
    active: int = 0
    """Tasks in the active set; 0 if thetas are drawn over the whole box."""
    replay: int = 0
    """Tasks in the replay set."""
    status: str = ""
    """What else the stage tells, as text."""


def _ignore(_: Any) -> None:
    return None


@dataclass(frozen=True)
class Callbacks:
    """Functions that a run calls while it goes on. All are optional.

        losses = []
        cl.train(problem, steps=100, callbacks=cl.Callbacks(step=lambda step: losses.append(step.loss)))

    - `step(training_step)`: after every optimiser step, with a `TrainingStep`.
    - `validation(row)`: with every row of `history.jsonl`, a dict. Its keys are step, stage, loss, terms, validation,
      active, replay, queries and seconds.
    - `event(record)`: with every record of `events.jsonl`, a dict: which thetas were queried, which task entered.
    - `message(text)`: with every message of the run, such as a recovery or the step that a resumed run goes on from.
    - `end(result)`: once, with the `Result`, after all files of the run are written.

    A callback may stop the run: it raises KeyboardInterrupt. This is the same as Ctrl-C. The run ends after the current
    step with a checkpoint, a result and the outcome `stopped`, and it can be resumed. Any other exception ends the run
    at once and reaches the caller. Then the run can be resumed from its last checkpoint.

    Callbacks get copies of numbers. They do not change what is trained.
    """

    step: Callable[[TrainingStep], None] = _ignore
    validation: Callable[[dict[str, Any]], None] = _ignore
    event: Callable[[dict[str, Any]], None] = _ignore
    message: Callable[[str], None] = _ignore
    end: Callable[[Any], None] = _ignore


class Observer:
    """Passes what happens in a run to the display and to the user's callbacks."""

    def __init__(self, display: Display, callbacks: Callbacks):
        self.display, self.callbacks = display, callbacks
        self.stop_requested = False
        """Whether a callback asked the run to stop."""

    def step(self, step: TrainingStep) -> None:
        self.display.step(step)
        self._call(self.callbacks.step, step)

    def validation(self, row: dict[str, Any]) -> None:
        self._call(self.callbacks.validation, row)

    def event(self, record: dict[str, Any]) -> None:
        self.display.event(record)
        self._call(self.callbacks.event, record)

    def message(self, text: str) -> None:
        self.display.message(text)
        self._call(self.callbacks.message, text)

    def _call(self, callback: Callable[[Any], None], argument: Any) -> None:
        try:
            callback(argument)
        except KeyboardInterrupt:
            if self.stop_requested:
                raise
            self.stop_requested = True
