"""What a user sees while a run goes on: in a terminal, in a log file, or not at all."""

import io
import json
import re
from types import SimpleNamespace

import pytest
from rich.console import Console
from running import natural_for, same, settings_for
from small import Decay

import clpinn as cl
from clpinn.errors import Outcome
from clpinn.runs import display
from clpinn.runs.callbacks import Callbacks, TrainingStep
from clpinn.runs.display import Display
from clpinn.runs.run import run
from clpinn.runs.session import _share_done


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is told to go on."""
    now = SimpleNamespace(time=100.0)
    monkeypatch.setattr(display.time, "monotonic", lambda: now.time)
    return now


def recorded(terminal: bool = False, width: int = 300) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, force_interactive=terminal)


def shown(console: Console) -> list[str]:
    """The printed lines, without colours and cursor movements."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", console.file.getvalue())
    return [line.rstrip() for line in re.split(r"[\r\n]+", text) if line.strip()]


def step(number: int, seconds: float, done: float = 0.0, **more) -> TrainingStep:
    terms = {"residual": 0.1, "start": 0.025}
    return TrainingStep(number, "adam", 0.125, **{"terms": terms, "validation": 0.5} | more, seconds=seconds, done=done)


def test_a_log_file_gets_a_line_every_ten_seconds_with_the_time_left(clock):
    console = recorded()
    with Display(quiet=False, console=console) as view:
        clock.time += 9
        view.step(step(6, 9, 0.1))
        assert shown(console) == []  # too early
        clock.time += 6
        view.step(step(15, 15, 0.25, active=3, replay=1))
        clock.time += 1
        view.step(step(16, 16, 0.3))  # too early again
        clock.time += 14
        view.step(step(45, 30, 0.75, status="rows 48"))
    assert shown(console) == [
        "15 s, 45 s left  validation 5.00e-01  adam 15  loss 1.25e-01  tasks 3+1  (residual 1.0e-01, start 2.5e-02)",
        "30 s, 10 s left  validation 5.00e-01  adam 45  loss 1.25e-01  rows 48  (residual 1.0e-01, start 2.5e-02)",
    ]


def test_the_last_step_is_shown_at_the_end(clock):
    console = recorded()
    with Display(quiet=False, console=console) as view:
        view.step(step(1, 0.1, 0.5, validation=None))
        view.step(step(2, 1200, 1.0, validation=None))
    assert shown(console) == ["20 min  adam 2  loss 1.25e-01  (residual 1.0e-01, start 2.5e-02)"]


@pytest.mark.parametrize(
    ("bounds", "share"),
    [
        ({"steps": 40}, 0.5),
        ({"seconds": 50}, 0.8),
        ({"steps": 25, "seconds": 50}, 0.8),  # the bound that comes first
        ({"steps": 10}, 1.0),
        ({}, 0.0),  # nobody knows
    ],
)
def test_the_share_that_is_done_follows_the_closest_bound(bounds, share):
    words = [f"{name}={value}" for name, value in bounds.items()]
    assert _share_done(natural_for("free", *words), 20, 40.0) == share
    if not bounds:
        assert _share_done(settings_for(), 15, 40.0) == 0.25  # 60 steps of Adam and L-BFGS in all


def test_the_newest_task_is_named_after_its_event(clock):
    console = recorded()
    view = Display(quiet=False, console=console)
    for number, entered in ((10, [0.01234, 4.0]), (20, None)):  # an event without a newcomer keeps the one before
        view.event({"moved_entered": entered})
        clock.time += 20
        view.step(step(number, 20))
    assert ["  newest 0.0123, 4  " in line for line in shown(console)] == [True, True]


def test_a_terminal_has_one_live_line_and_evaluation_is_shown(clock):
    console = recorded(terminal=True)
    with Display(quiet=False, console=console) as view:
        assert view.live
        clock.time += 0.1
        view.step(step(3, 0.1))
        assert not view.bar.tasks  # too early
        clock.time += 0.2
        view.step(step(30, 0.3, 0.5))
        view.evaluation("errors", 1, 4)
        training, evaluation = view.bar.tasks
        assert training.completed == 0.5 and "adam 30  loss 1.25e-01  (residual" in training.description
        assert evaluation.completed == 0.25 and evaluation.description == "evaluating: errors 1/4"
        view.evaluation("errors", 4, 4)
        assert len(view.bar.tasks) == 2 and view.bar.tasks[1].completed == 1
        view.bar.refresh()
    assert any("adam 30  loss 1.25e-01" in line for line in shown(console))
    assert any("evaluating: errors 4/4" in line for line in shown(console))


def test_a_terminal_of_80_columns_shows_time_left_and_validation_on_one_line(clock):
    console = recorded(terminal=True, width=80)
    with Display(quiet=False, console=console) as view:
        clock.time += 1
        view.step(step(30, 100, 0.5, active=12, replay=4, terms={f"condition {i}": 0.1 for i in range(9)}))
        view.bar.refresh()
        lines = [line for line in shown(console) if "adam" in line]
    assert lines and all(len(line) <= 80 and line.endswith("…") for line in lines)
    assert "━━" in console.file.getvalue()  # the text leaves room for the bar
    assert all("100 s, 100 s left  validation 5.00e-01  adam 30" in line for line in lines)


def test_names_that_look_like_markup_are_shown_as_they_are(clock):
    console = recorded(terminal=True)
    with Display(quiet=False, console=console) as view:
        clock.time += 1
        view.step(step(3, 1, terms={"[bold]u[/bold]": 1.0}))
        view.message("[red]careful[/red]")
        view.bar.refresh()
    text = "\n".join(shown(console))
    assert "[bold]u[/bold] 1.0e+00" in text and "[red]careful[/red]" in text


@pytest.mark.parametrize("terminal", [False, True])
def test_quiet_shows_nothing(clock, terminal):
    console = recorded(terminal)
    with Display(quiet=True, console=console) as view:
        clock.time += 100
        view.step(step(30, 100))
        view.evaluation("errors", 1, 4)
        view.message("Going on from step 3.")
    assert not view.live and shown(console) == []


def test_messages_are_shown_elsewhere_than_in_a_terminal_too_but_evaluation_is_not(clock):
    console = recorded()
    with Display(quiet=False, console=console) as view:
        view.evaluation("errors", 1, 4)
        view.message("Going on from step 3.")
    assert shown(console) == ["Going on from step 3."]


def test_python_is_not_silent_and_progress_false_silences_it(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(display, "LINE_SECONDS", -1.0)
    run(Decay(), natural_for("acr", "steps=20"), tmp_path / "shown")
    out, err = capfd.readouterr()
    first, *lines = err.splitlines()
    assert out == "" and first.startswith("compiling") and len(lines) == 20
    assert all(re.match(r"\d+ s(, \d+ s left)?  validation \S+  natural \d+  loss \d", line) for line in lines)
    assert all(re.search(r"tasks \d\+\d  .*step \S+  damping \S+  rows 48  \(residual", line) for line in lines)
    assert "newest" not in lines[8] and "newest" in lines[-1]
    run(Decay(), natural_for("acr", "steps=20"), tmp_path / "silent", progress=False)
    assert capfd.readouterr() == ("", "")
    same(tmp_path / "shown", tmp_path / "silent")


def test_train_shows_progress_too(capfd):
    cl.train(Decay(), steps=1)
    err = capfd.readouterr().err.splitlines()
    assert err[0].startswith("compiling") and any("  natural 1  loss" in line for line in err[1:])
    cl.train(Decay(), steps=1, progress=False)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("settings", [natural_for("acr", "steps=20"), settings_for("acr", "steps=45")])
def test_callbacks_get_what_the_run_directory_records(tmp_path, settings):
    steps, rows, events, results = [], [], [], []
    callbacks = Callbacks(steps.append, rows.append, events.append, end=results.append)
    result = run(Decay(), settings, tmp_path, callbacks=callbacks)
    assert [step.step for step in steps] == list(range(1, settings.steps + 1)) and steps[-1].done == 1
    assert all(step.loss > 0 and set(step.terms) == {"residual", "start"} for step in steps)
    assert rows == [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()] != []
    assert events == [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()] != []
    delay = 0 if settings.optimizer == "natural" else 1  # rows of adam-lbfgs are computed after their step is told
    rows = [row for row in rows if row["step"] + delay <= settings.steps]
    assert all(steps[row["step"] + delay - 1].validation == row["validation"] for row in rows)
    assert results == [result] and steps[-1].active == result.metrics["active"]


@pytest.mark.parametrize("kind", ["step", "validation", "event", "message"])
def test_a_callback_stops_a_run_like_ctrl_c(tmp_path, kind):
    settings = natural_for("acr", "steps=30")
    run(Decay(), settings, tmp_path / "whole", progress=False)

    def stop(_):
        raise KeyboardInterrupt

    if kind == "message":  # a run says nothing unless it is resumed
        run(Decay(), settings, tmp_path / "parts", callbacks=Callbacks(step=stop))
    result = run(Decay(), settings, tmp_path / "parts", kind == "message", callbacks=Callbacks(**{kind: stop}))
    assert result.outcome is Outcome.STOPPED and result.metrics["steps"] < 30
    run(Decay(), settings, tmp_path / "parts", resume=True)
    same(tmp_path / "whole", tmp_path / "parts")


def test_another_exception_of_a_callback_reaches_the_caller(tmp_path):
    def fail(step):
        if step.step == 3:
            raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        run(Decay(), natural_for("acr", "steps=30"), tmp_path, callbacks=Callbacks(step=fail))


def test_warnings_are_shown_once_each(monkeypatch):
    import warnings

    from clpinn.cli import display

    console = recorded()
    monkeypatch.setattr(display, "console", console)
    with display.shown_warnings():
        for _ in range(2):
            warnings.warn("k is 3, outside its box", stacklevel=1)
        warnings.warn("another", stacklevel=1)
    assert shown(console) == ["warning: k is 3, outside its box", "warning: another"]
