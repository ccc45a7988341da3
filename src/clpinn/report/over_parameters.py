"""Values over the parameters, and the figure of errors: a line, a heat map or slices over the candidate thetas."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from clpinn import protocol
from clpinn.drawing.colours import BLUE, ERRORS, GREY, RED
from clpinn.drawing.style import COLOURS, LINES, along_edge, canvas, label, log_or_linear, scale, styled
from clpinn.formulation.domain import Axis, Points
from clpinn.formulation.problem import Problem
from clpinn.formulation.references import Progress
from clpinn.report.fields import relative_errors
from clpinn.runs.directory import RunDirectory


@styled
def errors(run: RunDirectory, thetas: Points | None = None, progress: Progress | None = None) -> Figure:
    """Relative error over the parameters, or the mean residual where there is no reference."""
    outputs = relative_errors(run)
    columns, quantity = outputs, "relative L2 error"
    if not columns:
        columns, quantity = {"": run.errors["res_pde"]}, "mean |residual|"
    figure = over_parameters(run, columns, quantity)
    published = protocol.rel_l2(run.metrics["problem"], run.metrics["method"])
    if len(run.problem.parameters) == 1 and outputs and published:
        panel = figure.axes[0]
        for i, name in enumerate(outputs):
            panel.axhline(published[name], color=COLOURS[i % len(COLOURS)], linestyle=":", linewidth=1)
        panel.plot([], [], color=GREY, linestyle=":", linewidth=1, label="paper's mean")
        panel.legend()
    return figure


def over_parameters(run: RunDirectory, columns: dict[str, np.ndarray], quantity: str) -> Figure:
    """Values at the candidate thetas, drawn as the number of parameters allows."""
    draw = {1: _line, 2: _maps}.get(len(run.problem.parameters), _slices)
    return draw(run, columns, quantity)


def _line(run: RunDirectory, columns: dict[str, np.ndarray], quantity: str) -> Figure:
    (name,), (axis,) = run.problem.parameters.names, run.problem.parameters.axes
    figure, panels = canvas(1, 1, 4.6, 2.9)
    panel = panels[0][0]
    scale(panel, axis)
    log_or_linear(panel, *columns.values())
    for i, (output, values) in enumerate(columns.items()):
        style: dict[str, Any] = {"color": COLOURS[i % len(COLOURS)], "linestyle": LINES[i % len(LINES)]}
        if len(columns) == 1:
            style |= {"marker": ".", "markersize": 4}
        panel.plot(run.problem.candidates.points[:, 0], values, label=output or None, **style)
    if len(run.surrogate.tasks):
        trained = {"color": "black", "marker": "|", "linestyle": "", "markersize": 7, "clip_on": False}
        panel.plot(
            run.surrogate.tasks[:, 0],
            np.zeros(len(run.surrogate.tasks)),
            label="trained",
            transform=along_edge(panel),
            **trained,
        )
    if len(columns) > 1 or len(run.surrogate.tasks):
        panel.legend(ncols=2)
    panel.set(xlabel=label(run.problem, name), ylabel=quantity, title=run.name)
    return figure


def _maps(run: RunDirectory, columns: dict[str, np.ndarray], quantity: str) -> Figure:
    across_page = 2 if len(columns) in (2, 4) else min(3, len(columns))
    rows = -(-len(columns) // across_page)
    figure, panels = canvas(rows, across_page, 3.5 if len(columns) > 1 else 4.6, 2.9)
    for panel in panels.flat[len(columns) :]:
        panel.set_axis_off()
    for panel, (output, values) in zip(panels.flat, columns.items()):
        drawn = draw_map(panel, run.problem, values, log_colours(values), output)
        if len(run.surrogate.tasks):
            looks: dict[str, Any] = {"s": 16, "facecolor": "white", "edgecolor": "black", "linewidth": 0.8}
            panel.scatter(*run.surrogate.tasks.T, label="trained", clip_on=False, zorder=3, **looks)
        figure.colorbar(drawn, ax=panel, label=quantity)
    figure.suptitle(run.name, fontsize=9)
    if len(run.surrogate.tasks):
        figure.legend(*panels.flat[0].get_legend_handles_labels(), loc="outside lower center")
    return figure


def log_colours(*columns: np.ndarray) -> LogNorm | None:
    """The log scale of colours that several maps share; None where no value is positive."""
    values = np.concatenate(columns)
    positive = values[np.isfinite(values) & (values > 0)]
    return LogNorm(positive.min(), positive.max()) if len(positive) else None


def draw_map(panel: Axes, problem: Problem, values: np.ndarray, norm: LogNorm | None, title: str) -> QuadMesh:
    """Values at the candidates of two parameters, in colours; those that are not positive stay blank."""
    grid, shape = problem.candidates.values, problem.candidates.shape
    (first, second), (across, up) = problem.parameters.names, problem.parameters.axes
    scale(panel, across)
    scale(panel, up, "y")
    field = np.where(values > 0, values, np.nan).reshape(shape).T
    edges = _edges(across, grid[first]), _edges(up, grid[second])
    panel.grid(False)
    panel.set(xlabel=label(problem, first), ylabel=label(problem, second), title=title)
    return panel.pcolormesh(*edges, field, cmap=ERRORS, norm=norm, rasterized=True)


def _edges(axis: Axis, values: np.ndarray) -> np.ndarray:
    """Edges of the cells around grid values: midway between them on the axis' scale, and the ends of the box."""
    unit = axis.to_unit(values)
    return axis.from_unit(np.concatenate([[0.0], (unit[1:] + unit[:-1]) / 2, [1.0]]))


def _slices(run: RunDirectory, columns: dict[str, np.ndarray], quantity: str) -> Figure:
    """One panel per parameter: range and median over all other parameters, and the line through the worst theta."""
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
                panel.set_ylabel(f"{quantity} of {output}" if output else quantity)
            else:
                panel.sharey(panels[row][0])
                panel.tick_params(labelleft=False)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.suptitle(run.name, fontsize=9)
    return figure
