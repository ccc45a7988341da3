"""Figures along a run: the pool of thetas by event, and losses by step."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from clpinn.drawing.colours import BLUE, GREEN, GREY, ORANGE, RED
from clpinn.drawing.style import COLOURS, LINES, along_edge, canvas, label, scale, styled
from clpinn.formulation.domain import Points
from clpinn.formulation.references import Progress
from clpinn.runs.directory import RunDirectory


@styled
def tasks(run: RunDirectory, thetas: Points | None = None, progress: Progress | None = None) -> Figure:
    """The pool of thetas by event, one panel per parameter."""
    problem, events = run.problem, run.events
    count = len(problem.parameters)
    figure, panels = canvas(count, 1, 5.6, 2.6 if count < 3 else 1.8)
    states: dict[str, Callable[[dict[str, Any]], list[list[float]]]] = {
        "dense": lambda event: event["active"],
        "replayed": lambda event: event["replay"],
        "newly selected": lambda event: [event["moved_entered"]] if event["moved_entered"] else [],
        "restored": lambda event: [event["moved_restored"]] if event["moved_restored"] else [],
    }
    looks: dict[str, dict[str, Any]] = {
        "dense": {"marker": "s", "color": BLUE, "markersize": 3.5},
        "replayed": {"marker": "o", "color": ORANGE, "markersize": 4.5, "markerfacecolor": "none"},
        "newly selected": {"marker": "*", "color": RED, "markersize": 9, "markeredgecolor": "white"},
        "restored": {"marker": "D", "color": GREEN, "markersize": 5.5, "markeredgecolor": "white"},
    }
    for i, (name, axis) in enumerate(zip(problem.parameters, problem.parameters.axes, strict=True)):
        panel = panels[i][0]
        for state, thetas_of in states.items():
            points = [(event["event"], theta[i]) for event in events for theta in thetas_of(event)]
            x, y = zip(*points) if points else ((), ())
            style = {"linestyle": "", "markeredgewidth": 0.8, "label": state} | looks[state]
            panel.plot(x, y, **style)
        scale(panel, axis, "y")
        panel.set_ylabel(label(problem, name))
        panel.set_xlim(0.5, events[-1]["event"] + 0.5)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    panels[-1][0].set_xlabel("event")
    panels[0][0].set_title(run.name)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


@styled
def losses(run: RunDirectory, thetas: Points | None = None, progress: Progress | None = None) -> Figure:
    """Loss, its terms and the validation loss by step; a line where the optimiser changes, ticks at events."""
    history = run.history
    step = np.array([row["step"] for row in history])

    def column(values: list[Any]) -> np.ndarray:
        return np.array([np.nan if value is None else value for value in values], float)

    figure, panels = canvas(1, 1, 5.6, 3.0)
    panel = panels[0][0]
    panel.set_yscale("log")
    panel.plot(step, column([row["loss"] for row in history]), color="black", linewidth=1, label="loss")
    names = list(history[0]["terms"])
    for i, name in enumerate(names if len(names) > 1 else []):
        style = {"color": COLOURS[i % len(COLOURS)], "linestyle": LINES[1 + i % 3], "linewidth": 0.9}
        panel.plot(step, column([row["terms"].get(name) for row in history]), label=name, **style)
    validation = column([row["validation"] for row in history])
    panel.plot(step, validation, color=RED, linewidth=1.8, label="validation")
    if run.events:
        event_steps = [event["step"] for event in run.events]
        ticks = {"color": GREY, "marker": "|", "linestyle": "", "markersize": 6}
        panel.plot(event_steps, np.full(len(event_steps), 0.015), transform=along_edge(panel), label="events", **ticks)
    optimisers = {"adam": "Adam", "lbfgs": "L-BFGS", "natural": "natural gradient"}
    for before, after in pairwise(history):
        if after["stage"] in optimisers and after["stage"] != before["stage"]:
            panel.axvline(before["step"], color=GREY, linestyle="--", linewidth=1)
            name = optimisers[after["stage"]]
            panel.annotate(name, (before["step"], 1.01), xycoords=along_edge(panel), va="bottom", color=GREY)
    panel.set(xlabel="step", ylabel="loss", title=run.name)
    panel.legend(ncols=2)
    return figure
