"""What a user sees while a run goes on: in a terminal, in a log file, or not at all."""

import io
import re
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from running import natural_for, settings_for
from small import Decay

from clpinn.cli import display
from clpinn.cli.display import Display
from clpinn.runs.run import run
from clpinn.runs.session import Observer


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is told to go on."""
    now = SimpleNamespace(time=100.0)
    monkeypatch.setattr(display.time, "monotonic", lambda: now.time)
    return now


def recorded(terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=300, force_interactive=terminal)


def shown(console: Console) -> list[str]:
    """The printed lines, without colours and cursor movements."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", console.file.getvalue())
    return [line.rstrip() for line in re.split(r"[\r\n]+", text) if line.strip()]


def state(step: int, stage: str = "adam", active: int = 3, replay: int = 1) -> SimpleNamespace:
    pool = SimpleNamespace(thetas=np.zeros((active + replay, 1)), active=[0] * active, replay=[0] * replay)
    return SimpleNamespace(step=step, stage=stage, pool=pool, natural=(), validation=np.inf)


STEP = SimpleNamespace(value=0.125, length=0.5)
LOSSES = {"residual": 0.1, "start": 0.025}


def test_a_log_file_gets_a_line_every_ten_seconds_with_the_time_left(clock):
    console = recorded()
    with Display(settings_for(), quiet=False, console=console) as view:  # 60 steps in all
        clock.time += 9
        view.progress(state(6), STEP, LOSSES)
        assert shown(console) == []  # too early
        clock.time += 6
        view.progress(state(15), STEP, LOSSES)
        clock.time += 1
        view.progress(state(16), STEP, LOSSES)  # too early again
        clock.time += 14
        view.progress(state(45), STEP, LOSSES)
    assert shown(console) == [
        "   15 s, 45 s left  adam 15  loss 1.25e-01 (residual 1.0e-01, start 2.5e-02)  tasks 3+1",
        "   30 s, 10 s left  adam 45  loss 1.25e-01 (residual 1.0e-01, start 2.5e-02)  tasks 3+1",
    ]


@pytest.mark.parametrize(
    ("bounds", "left"),
    [
        (["steps=100"], ", 60 s left"),  # 40 of 100 steps after 40 s
        (["seconds=50"], ", 10 s left"),
        (["steps=100", "seconds=50"], ", 10 s left"),  # the bound that comes first
        ([], ""),  # nobody knows
    ],
)
def test_the_time_left_follows_the_closest_bound(clock, bounds, left):
    console = recorded()
    view = Display(natural_for("free", *bounds), quiet=False, console=console)
    clock.time += 40
    view.progress(state(40, "natural", 0, 0), STEP, LOSSES)
    assert shown(console) == [f"   40 s{left}  natural 40  loss 1.25e-01 (residual 1.0e-01, start 2.5e-02)"]


def test_the_newest_task_is_named_after_its_event(clock):
    console = recorded()
    view = Display(settings_for(), quiet=False, console=console)
    for step, entered in ((10, [0.01234, 4.0]), (20, None)):  # an event without a newcomer keeps the one before
        view.event({"moved_entered": entered})
        clock.time += 20
        view.progress(state(step), STEP, LOSSES)
    assert [line.endswith("  tasks 3+1  newest 0.0123, 4") for line in shown(console)] == [True, True]


def test_a_terminal_has_one_live_line_and_evaluation_is_shown(clock):
    console = recorded(terminal=True)
    with Display(settings_for(), quiet=False, console=console) as view:
        assert view.live
        clock.time += 0.1
        view.progress(state(3), STEP, LOSSES)
        assert not view.bar.tasks  # too early
        clock.time += 0.2
        view.progress(state(30), STEP, LOSSES)
        view.evaluation("errors", 1, 4)
        training, evaluation = view.bar.tasks
        assert training.completed == 0.5 and training.description.startswith("adam 30  loss 1.25e-01 (residual")
        assert evaluation.completed == 0.25 and evaluation.description == "evaluating: errors 1/4"
        view.evaluation("errors", 4, 4)
        assert len(view.bar.tasks) == 2 and view.bar.tasks[1].completed == 1
        view.bar.refresh()
    assert any("adam 30  loss 1.25e-01" in line for line in shown(console))
    assert any("evaluating: errors 4/4" in line for line in shown(console))


def test_names_that_look_like_markup_are_shown_as_they_are(clock):
    console = recorded(terminal=True)
    with Display(settings_for(), quiet=False, console=console) as view:
        clock.time += 1
        view.progress(state(3), STEP, {"[bold]u[/bold]": 1.0})
        view.message("[red]careful[/red]")
        view.bar.refresh()
    text = "\n".join(shown(console))
    assert "[bold]u[/bold] 1.0e+00" in text and "[red]careful[/red]" in text


@pytest.mark.parametrize("terminal", [False, True])
def test_quiet_shows_nothing(clock, terminal):
    console = recorded(terminal)
    with Display(settings_for(), quiet=True, console=console) as view:
        clock.time += 100
        view.progress(state(30), STEP, LOSSES)
        view.evaluation("errors", 1, 4)
        view.message("Going on from step 3.")
    assert not view.live and shown(console) == []


def test_messages_are_shown_elsewhere_than_in_a_terminal_too_but_evaluation_is_not(clock):
    console = recorded()
    with Display(None, quiet=False, console=console) as view:
        view.evaluation("errors", 1, 4)
        view.message("Going on from step 3.")
    assert shown(console) == ["Going on from step 3."]


def test_a_run_under_natural_shows_its_validation_loss_and_rows(tmp_path, monkeypatch):
    """With the states of a real run."""
    monkeypatch.setattr(display, "LINE_SECONDS", -1.0)
    console, settings = recorded(), natural_for("acr", "steps=20")
    with Display(settings, quiet=False, console=console) as view:
        observer = Observer(view.progress, view.event, view.message, view.evaluation)
        run(Decay(), settings, tmp_path, observer=observer)
    lines = shown(console)
    assert len(lines) == 20 and all(re.match(r" *\d+ s, \d+ s left  natural \d+  loss \d", line) for line in lines)
    assert all(re.search(r"validation \S+  step \S+  damping \S+  rows 48  tasks \d\+\d", line) for line in lines)
    assert "newest" not in lines[8] and "newest" in lines[-1]


def test_warnings_are_shown_once_each(monkeypatch):
    import warnings

    console = recorded()
    monkeypatch.setattr(display, "console", console)
    with display.shown_warnings():
        for _ in range(2):
            warnings.warn("k is 3, outside its box", stacklevel=1)
        warnings.warn("another", stacklevel=1)
    assert shown(console) == ["warning: k is 3, outside its box", "warning: another"]
