"""What a user sees while a command works: progress, messages, warnings. All of it goes to standard error."""

import math
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

LIVE_SECONDS, LINE_SECONDS = 0.2, 10.0
"""Time between updates: of the live line in a terminal, and of printed lines elsewhere."""

console = Console(stderr=True)


class Display:
    """The progress of a run: a live line in a terminal, a printed line now and then elsewhere, nothing if quiet."""

    def __init__(self, settings: Any, quiet: bool, console: Console = console):
        self.settings, self.quiet, self.console = settings, quiet, console
        self.live = console.is_terminal and not quiet
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeRemainingColumn())
        self.bar = Progress(*columns, console=console, transient=True, disable=not self.live)
        self.bar_tasks: dict[str, Any] = {}
        self.newest_theta: list[float] = []
        self.started = self.last_shown = time.monotonic()

    def __enter__(self) -> "Display":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def progress(self, state: Any, step: Any, losses: Mapping[str, float], status: str = "") -> None:
        """Show a step of training, with its losses by name, if enough time has passed since the last."""
        now = time.monotonic()
        if now - self.last_shown < (LIVE_SECONDS if self.live else LINE_SECONDS):
            return
        self.last_shown = now
        terms = ", ".join(f"{name} {loss:.1e}" for name, loss in losses.items())
        text = f"{state.stage} {state.step}  loss {float(step.value):.2e} ({terms})"
        if status:
            text += f"  {status}"
        if len(state.pool.thetas):
            text += f"  tasks {len(state.pool.active)}+{len(state.pool.replay)}"
        if self.newest_theta:
            text += "  newest " + ", ".join(f"{value:.3g}" for value in self.newest_theta)
        self._show("train", text, self._fraction_done(state.step, now))

    def compiling(self) -> None:
        """Say why the first step takes a while."""
        self.message("compiling; the next run of this problem starts faster")

    def begin(self) -> None:
        """Start the clock: the first step comes now."""
        self.started = time.monotonic()

    def event(self, record: dict[str, Any]) -> None:
        """Note the theta that an event added to the tasks."""
        self.newest_theta = record["moved_entered"] or self.newest_theta

    def evaluation(self, activity: str, done: int, total: int) -> None:
        """Show how far an evaluation is, in a terminal only."""
        if self.live:
            self._show(activity, f"evaluating: {activity} {done}/{total}", done / total)

    def message(self, text: str) -> None:
        if not self.quiet:
            self.console.print(Text(text), soft_wrap=True)

    def _fraction_done(self, step: int, now: float) -> float:
        """How much of the run is done, by the bound that is closest; 0 without bounds."""
        settings = self.settings
        total = settings.adam.steps + settings.lbfgs.steps if settings.optimizer == "adam-lbfgs" else math.inf
        by_steps = step / min(total, settings.steps or total)
        by_time = (now - self.started) / settings.seconds if settings.seconds else 0.0
        return max(by_steps, by_time)

    def _show(self, activity: str, text: str, fraction: float) -> None:
        if self.live:
            if activity not in self.bar_tasks:
                self.bar_tasks[activity] = self.bar.add_task(text, total=1.0)
            self.bar.update(self.bar_tasks[activity], description=escape(text), completed=min(fraction, 1.0))
        elif not self.quiet:
            seconds = time.monotonic() - self.started
            left = f", {max(0.0, seconds * (1 / fraction - 1)):.0f} s left" if fraction > 0 else ""
            self.console.print(Text(f"{seconds:5.0f} s{left}  {text}"), soft_wrap=True)


@contextmanager
def shown_warnings() -> Iterator[None]:
    """Show each warning as one line on standard error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        console.print(Text.assemble(("warning: ", "bold yellow"), text), soft_wrap=True)
