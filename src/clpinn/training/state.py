"""What changes in a run, how long its parts take, and how it reports."""

import math
import reprlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from clpinn.errors import Outcome
from clpinn.training.optimizers import Step
from clpinn.training.tasks import TaskPool

ARRAYS = ("network", "adam", "lbfgs", "natural", "pool", "weights", "losses", "displaced")


@dataclass(frozen=True)
class State:
    """Everything that changes in a run. A checkpoint holds `tree()` and `counters()`."""

    network: Any
    pool: TaskPool
    weights: np.ndarray
    """Shape (tasks,), in the order of `pool.thetas`."""
    losses: np.ndarray
    """Loss of each task at the last event, NaN where there was none."""
    displaced: np.ndarray
    """One row per displacement of a task: theta, loss, step. Shape (displacements, parameters + 2)."""
    stage: str
    """The name of the stage that makes the next step."""
    adam: Any = ()
    lbfgs: Any = ()
    natural: Any = ()
    """State of the natural gradient and the sizes of the residuals' terms. Like `adam` and `lbfgs`, empty in runs
    without that stage."""
    step: int = 0
    """Optimiser steps of the whole run."""
    stage_step: int = 0
    """Optimiser steps of this stage."""
    evaluations: int = 0
    """Function evaluations of the L-BFGS stage."""
    queries: int = 0
    recoveries: int = 0
    rate: float = 1.0
    """Factor of the learning rate or longest step: numerical failures, and the end of progress, reduce it."""
    events: int = 0
    event_step: int = 0
    """The step of the last event."""
    event_validation: float = math.inf
    """The validation loss at the last event."""
    validation: float = math.inf
    """The newest validation loss of the natural stage."""
    best: float = math.inf
    """A validation loss below 0.8 of this one counts as progress."""
    best_step: int = 0
    """The step at which progress was last made."""
    limit: float = 1.0
    """The longest step that validation allows: halved when the validation loss doubles, then raised again."""
    starts: int = 1
    """Fresh networks that training has started from."""
    growth: int = 1
    """Factor of the number of rows in a batch."""

    def tree(self) -> dict[str, Any]:
        """The arrays."""
        return {name: getattr(self, name) for name in ARRAYS}

    def counters(self) -> dict[str, Any]:
        """The plain values."""
        return {name: value for name, value in vars(self).items() if name not in ARRAYS}

    def misfit(self, tree: dict[str, Any], counters: Mapping[str, Any]) -> str | None:
        """What of a checkpoint does not fit this state of the same run, in words; None if all of it fits."""
        for name, value in self.counters().items():
            if name not in counters:
                return f"{name} is missing"
            given = counters[name]
            fits = isinstance(given, str) if isinstance(value, str) else _is_count(given)
            if isinstance(value, float):
                fits = isinstance(given, int | float) and not isinstance(given, bool)
            if not fits:
                return f"{name} is {reprlib.repr(given)}"
        for name in ("network", "adam", "lbfgs", "natural"):
            arrays = [jax.tree.leaves(part) for part in (getattr(self, name), tree[name])]
            if any(ours.shape != theirs.shape or ours.dtype != theirs.dtype for ours, theirs in zip(*arrays)):
                return f"{name} has arrays of another shape or type"
        pool, parameters = tree["pool"], self.pool.active.shape[1]
        active, tasks = len(np.atleast_1d(pool.active)), sum(len(np.atleast_1d(a)) for a in (pool.active, pool.replay))
        expected = [
            (pool.active, (active, parameters)),
            (pool.replay, (tasks - active, parameters)),
            (pool.kept, (active,)),
            (tree["weights"], (tasks,)),
            (tree["losses"], (tasks,)),
            (tree["displaced"], (len(np.atleast_1d(tree["displaced"])), parameters + 2)),
        ]
        return next(
            (f"an array of the pool has the shape {a.shape}" for a, shape in expected if a.shape != shape), None
        )


@dataclass
class Timing:
    """Wall seconds by activity."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, activity: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[activity] = self.seconds.get(activity, 0.0) + time.perf_counter() - start


def _ignore(*_: Any) -> None:
    return None


@dataclass(frozen=True)
class Hooks:
    """How the loop reports to the run that it is part of. All are optional."""

    history: Callable[[dict[str, Any]], None] = _ignore
    """Gets a row of the history as plain values."""
    event: Callable[[dict[str, Any], Any], None] = _ignore
    """Gets an event as plain values, and the network at that moment."""
    progress: Callable[[State, Step, Mapping[str, float], str], None] = _ignore
    """Gets the state after a step, what the step met, the loss by residual name, and the stage's status as text."""
    save: Callable[[State], None] = _ignore
    """Called after every step; decides itself when to write."""
    probe: Callable[[Any], dict[str, dict[str, float]]] | None = None
    """Errors of a network by figure and output: further entries of a history row, for the history only."""
    stop: Callable[[], Outcome | None] = _ignore
    """Returns an outcome to end the run with, or None to go on."""
    elapsed: Callable[[], float] = lambda: 0.0
    """Wall seconds of the run so far, those before a resume included."""
    message: Callable[[str], None] = _ignore


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62
