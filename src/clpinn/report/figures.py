"""Pictures for papers and pages, each from a run directory: a function that gives a matplotlib Figure.

fields       prediction, reference and error at chosen thetas
errors       error over the parameters: a line, a heat map, or slices for more than two
residuals    the same of the residual norms, which need no reference
tasks        which thetas were trained, by event: newly selected, dense, replayed, restored
losses       losses along the run, with the change of the optimiser
streamlines  those of a flow
heads        after `clpinn adapt`: errors before against after, and their fields at the worst theta
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import xarray
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from clpinn import protocol
from clpinn.formulation.domain import Axis, Points
from clpinn.formulation.references import Progress
from clpinn.report.fields import fields, is_flow, streamlines
from clpinn.report.heads import heads
from clpinn.report.style import (
    BLUE,
    COLOURS,
    ERRORS,
    GREEN,
    GREY,
    LINES,
    ORANGE,
    RED,
    PlotError,
    canvas,
    label,
    log_or_linear,
    scale,
    styled,
)
from clpinn.runs.directory import RunDirectory


def plot(run: RunDirectory, kind: str, thetas: Points | None = None, progress: Progress | None = None) -> Figure:
    """A figure of a run; `thetas` (rows, parameters) are for kinds that show single ones."""
    why = reasons(run)
    possible = ", ".join(name for name in KINDS if why[name] is None)
    if kind not in KINDS:
        raise PlotError(f"There is no kind {kind!r}. Use one of {possible}.")
    if why[kind] is not None:
        raise PlotError(f"{kind} makes no sense for this run: {why[kind]}. Use one of {possible}.")
    return KINDS[kind](run, thetas, progress)


def reasons(run: RunDirectory) -> dict[str, str | None]:
    """Why a kind makes no sense for a run, by kind; None where it does."""
    unknown = run.why_no_problem()
    found: dict[str, str | None] = dict.fromkeys(KINDS, unknown) | {
        "tasks": unknown or (None if run.events else "no task was selected while it ran"),
        "losses": None if run.history else "it was too short to record losses",
    }
    if unknown is None:
        problem = run.problem
        if len(problem.parameters) == 0:
            found |= dict.fromkeys(("errors", "residuals"), "the problem has no parameters")
        elif len(run.errors["res_pde"]) != len(problem.candidates):  # of a standard PINN, say
            found["errors"] = "its errors are not those at the problem's candidates"
        if not is_flow(problem):
            found["streamlines"] = "the problem is no flow with the outputs u, v on the coordinates x, y"
        elif problem.place is not None:
            found["streamlines"] = "its geometry moves (place), and streamlines need a rectangle"
        if run.adapted is None or run.adapted.heads is None:
            found["heads"] = "it has no adapted.clpinn, which clpinn adapt writes"
    return found


# Over the parameters ----------------------------------------------------------------------------------------


@styled
def errors(run: RunDirectory, thetas: Points | None = None, progress: Progress | None = None) -> Figure:
    """Relative error over the parameters, or the mean residual where there is no reference."""
    outputs = [name for name in run.problem.outputs if f"rel_l2_{name}" in run.errors]
    columns = {f"{name}": run.errors[f"rel_l2_{name}"] for name in outputs}
    what = "relative L2 error"
    if not columns:
        columns, what = {"": run.errors["res_pde"]}, "mean |residual|"
    figure = _over_parameters(run, run.problem.candidates.points, columns, what)
    published = protocol.rel_l2(run.metrics["problem"], run.metrics["method"])
    if len(run.problem.parameters) == 1 and outputs and published:
        panel = figure.axes[0]
        for i, name in enumerate(outputs):
            panel.axhline(published[name], color=COLOURS[i % len(COLOURS)], linestyle=":", linewidth=1)
        panel.plot([], [], color=GREY, linestyle=":", linewidth=1, label="paper's mean")
        panel.legend()
    return figure


@styled
def residuals(run: RunDirectory, thetas: Points | None = None, progress: Progress | None = None) -> Figure:
    """Residual norms over the parameters, relative to the equations' own terms."""
    found = run.surrogate.trust(progress)
    assert isinstance(found, xarray.Dataset)
    names = [str(name) for name in found] if len(run.problem.parameters) < 3 else ["norm"]
    columns = {name.removeprefix("norm_") if name != "norm" else "total": found[name].values.ravel() for name in names}
    if len(columns) == 1:
        columns = {"": columns["total"]}
    return _over_parameters(run, run.problem.candidates.points, columns, "residual norm")


def _over_parameters(run: RunDirectory, thetas: Points, columns: dict[str, np.ndarray], what: str) -> Figure:
    """Figures by theta, drawn by the number of parameters."""
    axes = dict(zip(run.problem.parameters, run.problem.parameters.axes, strict=True))
    draw = {1: _line, 2: _maps}.get(len(axes), _slices)
    return draw(run, thetas, columns, what)


def _line(run: RunDirectory, thetas: Points, columns: dict[str, np.ndarray], what: str) -> Figure:
    (name,), (axis,) = run.problem.parameters.names, run.problem.parameters.axes
    figure, panels = canvas(1, 1, 4.6, 2.9)
    panel = panels[0][0]
    scale(panel, axis)
    log_or_linear(panel, *columns.values())
    for i, (output, values) in enumerate(columns.items()):
        style: dict[str, Any] = {"color": COLOURS[i % len(COLOURS)], "linestyle": LINES[i % len(LINES)]}
        if output == "total":
            style = {"color": "black", "linewidth": 2}
        if len(columns) == 1:
            style |= {"marker": ".", "markersize": 4}
        panel.plot(thetas[:, 0], values, label=output or None, **style)
    if len(run.surrogate.tasks):
        trained = {"color": "black", "marker": "|", "linestyle": "", "markersize": 7, "clip_on": False}
        panel.plot(
            run.surrogate.tasks[:, 0],
            np.zeros(len(run.surrogate.tasks)),
            label="trained",
            transform=_rug(panel),
            **trained,
        )
    if len(columns) > 1 or len(run.surrogate.tasks):
        panel.legend(ncols=2)
    panel.set(xlabel=label(run.problem, name), ylabel=what, title=run.name)
    return figure


def _rug(panel: Axes) -> Any:
    """Values along the axis below, at the panel's lower edge."""
    return panel.get_xaxis_transform()


def _maps(run: RunDirectory, thetas: Points, columns: dict[str, np.ndarray], what: str) -> Figure:
    problem = run.problem
    grid, shape = problem.candidates.values, problem.candidates.shape
    (first, second), (across, up) = problem.parameters.names, problem.parameters.axes
    across_page = 2 if len(columns) in (2, 4) else min(3, len(columns))
    rows = -(-len(columns) // across_page)
    figure, panels = canvas(rows, across_page, 3.5 if len(columns) > 1 else 4.6, 2.9)
    for panel in panels.flat[len(columns) :]:
        panel.set_axis_off()
    for panel, (output, values) in zip(panels.flat, columns.items()):
        scale(panel, across)
        scale(panel, up, "y")
        field = np.where(values > 0, values, np.nan).reshape(shape).T
        norm = LogNorm() if np.isfinite(field).any() else None
        edges = _edges(across, grid[first]), _edges(up, grid[second])
        drawn = panel.pcolormesh(*edges, field, cmap=ERRORS, norm=norm, rasterized=True)
        if len(run.surrogate.tasks):
            looks: dict[str, Any] = {"s": 16, "facecolor": "white", "edgecolor": "black", "linewidth": 0.8}
            panel.scatter(*run.surrogate.tasks.T, label="trained", clip_on=False, zorder=3, **looks)
        panel.grid(False)
        panel.set(xlabel=label(problem, first), ylabel=label(problem, second), title=output)
        figure.colorbar(drawn, ax=panel, label=what)
    figure.suptitle(run.name, fontsize=9)
    if len(run.surrogate.tasks):
        figure.legend(*panels.flat[0].get_legend_handles_labels(), loc="outside lower center")
    return figure


def _edges(axis: Axis, values: np.ndarray) -> np.ndarray:
    """Where the cells of grid values meet on an axis' own scale; the outer ones end with the box."""
    unit = axis.to_unit(values)
    return axis.from_unit(np.concatenate([[0.0], (unit[1:] + unit[:-1]) / 2, [1.0]]))


def _slices(run: RunDirectory, thetas: Points, columns: dict[str, np.ndarray], what: str) -> Figure:
    """A panel a parameter: the range over all others, the median, and the line through the worst theta."""
    problem, shape = run.problem, run.problem.candidates.shape
    figure, panels = canvas(len(columns), len(shape), 2.4, 2.5)
    for row, (output, values) in enumerate(columns.items()):
        table = values.reshape(shape)
        worst = np.unravel_index(np.nanargmax(table) if np.isfinite(table).any() else 0, shape)
        for i, (name, axis) in enumerate(zip(problem.parameters, problem.parameters.axes, strict=True)):
            panel, others = panels[row][i], tuple(j for j in range(len(shape)) if j != i)
            grid = problem.candidates.values[name]
            scale(panel, axis)
            log_or_linear(panel, values)
            low, middle, high = (f(table, axis=others) for f in (np.nanmin, np.nanmedian, np.nanmax))
            panel.fill_between(grid, low, high, color=BLUE, alpha=0.18, linewidth=0, label="range over all others")
            panel.plot(grid, middle, color=BLUE, marker=".", label="median")
            line = table[tuple(slice(None) if j == i else worst[j] for j in range(len(shape)))]
            panel.plot(grid, line, color=RED, linestyle="--", label="through the worst")
            panel.set_xlabel(label(problem, name))
            if i == 0:
                panel.set_ylabel(f"{what} of {output}" if output else what)
            else:
                panel.sharey(panels[row][0])
                panel.tick_params(labelleft=False)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.suptitle(run.name, fontsize=9)
    return figure


# Along the run ----------------------------------------------------------------------------------------------


@styled
def tasks(run: RunDirectory, thetas: Points | None = None, progress: Progress | None = None) -> Figure:
    """The pool of thetas by event, a panel a parameter."""
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
        for state, of in states.items():
            points = [(event["event"], theta[i]) for event in events for theta in of(event)]
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
    """Loss, its parts and the validation loss by step; a line where the optimiser changes, ticks at events."""
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
        at_events = [event["step"] for event in run.events]
        ticks = {"color": GREY, "marker": "|", "linestyle": "", "markersize": 6}
        panel.plot(at_events, np.full(len(at_events), 0.015), transform=_rug(panel), label="events", **ticks)
    names_of = {"adam": "Adam", "lbfgs": "L-BFGS", "natural": "natural gradient"}
    for before, after in pairwise(history):
        if after["stage"] in names_of and after["stage"] != before["stage"]:
            panel.axvline(before["step"], color=GREY, linestyle="--", linewidth=1)
            text = f"{names_of[after['stage']]}"
            panel.annotate(text, (before["step"], 1.01), xycoords=_rug(panel), va="bottom", color=GREY)
    panel.set(xlabel="step", ylabel="loss", title=run.name)
    panel.legend(ncols=2)
    return figure


KINDS: dict[str, Callable[[RunDirectory, Points | None, Progress | None], Figure]] = {
    "fields": fields,
    "errors": errors,
    "residuals": residuals,
    "tasks": tasks,
    "losses": losses,
    "streamlines": streamlines,
    "heads": heads,
}
