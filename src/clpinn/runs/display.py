"""What a user sees while a run goes on, from Python and at the command line. All of it goes to standard error."""

import time
from html import escape as escape_html
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column
from rich.text import Text

LIVE_SECONDS, LINE_SECONDS, STUDY_SECONDS = 0.2, 10.0, 30.0
"""Time between updates: of the live line in a terminal or notebook, and of printed lines elsewhere, of a study too."""

console = Console(stderr=True)


class Display:
    """The progress of a run: a live line in a terminal, a bar in a notebook, a printed line now and then elsewhere.

    The last step of a run stays visible. Nothing is shown if quiet.
    """

    def __init__(self, quiet: bool, console: Console = console):
        self.quiet, self.console = quiet, console
        self.notebook = NotebookBar() if console.is_jupyter and not quiet else None
        in_terminal = console.is_terminal and not quiet and self.notebook is None
        self.live = in_terminal or self.notebook is not None
        bar = BarColumn(bar_width=8, table_column=Column(width=8))
        text = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
        self.bar = Progress(bar, text, console=console, transient=True, disable=not in_terminal)
        self.bar_tasks: dict[str, Any] = {}
        self.newest_theta: list[float] = []
        self.last_shown = time.monotonic()
        self.hidden_step: Any = None
        """The newest step, if the printed lines do not show it."""

    def __enter__(self) -> "Display":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()
        if self.hidden_step is None or self.quiet:
            return
        if self.notebook is not None:
            self.notebook.show(self._text(self.hidden_step), self.hidden_step.done)
        else:
            self.console.print(Text(self._text(self.hidden_step)), soft_wrap=True)

    def step(self, step: Any) -> None:
        """Show a `TrainingStep`, if enough time has passed since the last that was shown."""
        self.hidden_step = step
        now = time.monotonic()
        if self.quiet or now - self.last_shown < (LIVE_SECONDS if self.live else LINE_SECONDS):
            return
        self.last_shown = now
        if self.live:
            self._show("train", self._text(step), step.done)
        else:
            self.hidden_step = None
            self.console.print(Text(self._text(step)), soft_wrap=True)

    def compiling(self) -> None:
        """Say why the first step takes a while."""
        self.message("compiling")

    def event(self, record: dict[str, Any]) -> None:
        """Note the theta that an event added to the tasks."""
        self.newest_theta = record["moved_entered"] or self.newest_theta

    def evaluation(self, activity: str, done: int, total: int) -> None:
        """Show how far an evaluation is, in a terminal or notebook only."""
        if self.live:
            self._show(activity, f"evaluating: {activity} {done}/{total}", done / total)

    def study(self, text: str, fraction: float) -> None:
        """Show how far a study is, if enough time has passed since the last line that was shown."""
        now = time.monotonic()
        if self.quiet or now - self.last_shown < (LIVE_SECONDS if self.live else STUDY_SECONDS):
            return
        self.last_shown = now
        if self.live:
            self._show("study", text, fraction)
        else:
            self.console.print(Text(text), soft_wrap=True)

    def message(self, text: str) -> None:
        if not self.quiet:
            self.console.print(Text(text), soft_wrap=True)

    def _text(self, step: Any) -> str:
        """A step as one line: what matters most comes first, since a narrow terminal cuts off the rest."""
        left = f", {duration_text(step.seconds * (1 / step.done - 1))} left" if 0 < step.done < 1 else ""
        parts = [f"{duration_text(step.seconds)}{left}"]
        if step.validation is not None:
            parts.append(f"validation {step.validation:.2e}")
        parts += [f"{step.stage} {step.step}", f"loss {step.loss:.2e}"]
        if step.active + step.replay:
            parts.append(f"tasks {step.active}+{step.replay}")
        if self.newest_theta:
            parts.append("newest " + ", ".join(f"{value:.3g}" for value in self.newest_theta))
        if step.status:
            parts.append(step.status)
        parts.append("(" + ", ".join(f"{name} {loss:.1e}" for name, loss in step.terms.items()) + ")")
        return "  ".join(parts)

    def _show(self, activity: str, text: str, fraction: float) -> None:
        """Update the live line of an activity."""
        if self.notebook is not None:
            self.notebook.show(text, fraction)
            return
        shown = {"description": escape(text), "completed": min(fraction, 1.0)}
        if activity in self.bar_tasks:
            self.bar.update(self.bar_tasks[activity], **shown)
        else:
            self.bar_tasks[activity] = self.bar.add_task(total=1.0, **shown)


class NotebookBar:
    """A bar with a text in a notebook's output. It needs IPython only, where rich's own bar needs ipywidgets."""

    def __init__(self):
        self.shown: Any = None

    def show(self, text: str, fraction: float) -> None:
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        bar = f'<progress value="{min(fraction, 1.0):.3f}" max="1" style="width: 8em"></progress>'
        html = f'{bar} <code style="white-space: pre-wrap">{escape_html(text)}</code>'
        content = {"text/plain": text, "text/html": html}
        if self.shown is None:
            self.shown = display(content, raw=True, display_id=True)
        else:
            self.shown.update(content, raw=True)


def duration_text(seconds: float) -> str:
    """Seconds, minutes or hours, as short as possible."""
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 36_000 else f"{seconds / 3600:.0f} h"
