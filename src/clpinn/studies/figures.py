"""Figures of a study: each kind is a function from a table and one of its problems to a matplotlib Figure, or None.

dots      the first error of each row: seeds, their mean, and the paper's mean
errors    error over the parameters by row: curves, maps, or medians along each parameter
losses    validation loss by step and row
probes    errors along the run
scatter   adaptation: errors before and after at every target, the worst quarter marked
horizon   adaptation: error by optimiser steps
memory    peak memory beside time
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clpinn.drawing.colours import BLUE, GREY, ORANGE, RED
from clpinn.drawing.style import COLOURS, LINES, canvas, label, log_or_linear, scale, styled
from clpinn.formulation.problem import Problem
from clpinn.problems import load_problem
from clpinn.report.over_parameters import draw_map, log_colours
from clpinn.studies.tables import Entry, Table, column

PAPER_MARK: dict[str, Any] = {"marker": "D", "linestyle": "", "markersize": 6, "markerfacecolor": "none"}


def _style(i: int) -> dict[str, Any]:
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": LINES[i // len(COLOURS) % len(LINES)]}


@styled
def dots(table: Table, problem: str) -> Figure | None:
    rows = [row for row in table.rows if row.problem == problem]
    names = [name for name in table.columns[problem] if column(name).kind == "error"]
    shown = next((name for name in ("macro", "after", *names) if name in names), None)
    if shown is None or not any(row.entries[shown].by_seed for row in rows):
        return None
    figure, panels = canvas(1, 1, 5.2, 1.0 + 0.3 * len(rows))
    panel = panels[0][0]
    for i, row in enumerate(rows):
        _dots_of(panel, row.entries[shown], i, i == 0)
    finite = [value for row in rows for value in row.entries[shown].by_seed.values() if value > 0]
    if finite:
        panel.set_xscale("log")
    panel.set_yticks(range(len(rows)), [row.label for row in rows])
    panel.invert_yaxis()
    panel.set(xlabel=column(shown).title, title=problem)
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _dots_of(panel: Axes, entry: Entry, height: int, first: bool) -> None:
    """The seeds of a row, their mean and the paper's mean, at a height."""
    finite = [value for value in entry.by_seed.values() if math.isfinite(value)]
    seeds: dict[str, Any] = {"marker": ".", "linestyle": "", "color": BLUE, "alpha": 0.6, "markersize": 6}
    panel.plot(finite, [height] * len(finite), label="seeds" if first else None, **seeds)
    if finite:
        mean: dict[str, Any] = {"marker": "|", "linestyle": "", "color": BLUE, "markersize": 14, "markeredgewidth": 2}
        panel.plot([np.mean(finite)], [height], label="mean" if first else None, **mean)
    if entry.published is not None:
        panel.plot([entry.published[0]], [height], color=RED, **PAPER_MARK, label="paper" if first else None)


@styled
def errors(table: Table, problem: str) -> Figure | None:
    """Relative L2, the mean over outputs; with one parameter the mean squared error as well."""
    loaded = load_problem(problem)
    if len(loaded.parameters) == 0:
        return None
    by_row = _by_row(table, problem, loaded, "rel_l2")
    if not by_row:
        return None
    if len(loaded.parameters) == 1:
        squares = _by_row(table, problem, loaded, "mse")
        return _curves(loaded, problem, {"relative L2 error": by_row, "mean squared error": squares})
    means = {row: np.mean(values, axis=0) for row, values in by_row.items()}
    return _maps(loaded, problem, means) if len(loaded.parameters) == 2 else _medians(loaded, problem, means)


def _by_row(table: Table, problem: str, loaded: Problem, quantity: str) -> dict[str, list[np.ndarray]]:
    """By row, one array of errors at the candidates per seed; rows without any are left out."""
    by_row = {}
    for row, seeds in table.done(problem).items():
        found = [_mean_error(result.errors, quantity, loaded) for result in seeds.values()]
        known = [values for values in found if values is not None]
        if known:
            by_row[row] = known
    return by_row


def _mean_error(columns: dict[str, list[float]], quantity: str, problem: Problem) -> np.ndarray | None:
    """The mean over outputs at the candidates; None if a run was evaluated elsewhere."""
    names = [f"{quantity}_{output}" for output in problem.outputs]
    if any(len(columns.get(name, [])) != len(problem.candidates) for name in names):
        return None
    return np.mean([columns[name] for name in names], axis=0)


def _curves(problem: Problem, title: str, quantities: dict[str, dict[str, list[np.ndarray]]]) -> Figure:
    figure, panels = canvas(1, len(quantities), 4.2, 3.0)
    (name,), (axis,) = problem.parameters.names, problem.parameters.axes
    grid = problem.candidates.points[:, 0]
    for panel, (quantity, by_row) in zip(panels[0], quantities.items()):
        scale(panel, axis)
        log_or_linear(panel, *(values for rows in by_row.values() for values in rows))
        for i, (row, seeds) in enumerate(by_row.items()):
            if len(seeds) > 1:
                for values in seeds:
                    panel.plot(grid, values, linewidth=0.5, alpha=0.5, **_style(i))
            panel.plot(grid, np.mean(seeds, axis=0), label=row, **_style(i))
        panel.set(xlabel=label(problem, name), ylabel=quantity)
    panels[0][0].set_title(title)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _maps(problem: Problem, title: str, means: dict[str, np.ndarray]) -> Figure:
    across_page = min(3, len(means))
    figure, panels = canvas(-(-len(means) // across_page), across_page, 3.2, 2.6)
    norm = log_colours(*means.values())
    for panel in panels.flat[len(means) :]:
        panel.set_axis_off()
    drawn = [draw_map(panel, problem, values, norm, row) for panel, (row, values) in zip(panels.flat, means.items())]
    figure.colorbar(drawn[0], ax=panels.ravel().tolist(), label="relative L2 error")
    figure.suptitle(f"{title}, mean over seeds", fontsize=9)
    return figure


def _medians(problem: Problem, title: str, means: dict[str, np.ndarray]) -> Figure:
    shape = problem.candidates.shape
    figure, panels = canvas(1, len(shape), 2.6, 2.8)
    for i, (name, axis) in enumerate(zip(problem.parameters, problem.parameters.axes, strict=True)):
        panel, others = panels[0][i], tuple(j for j in range(len(shape)) if j != i)
        scale(panel, axis)
        log_or_linear(panel, *means.values())
        for k, (row, values) in enumerate(means.items()):
            panel.plot(
                problem.candidates.values[name], np.median(values.reshape(shape), axis=others), label=row, **_style(k)
            )
        panel.set_xlabel(label(problem, name))
    panels[0][0].set_ylabel("relative L2 error, median over all others")
    panels[0][0].set_title(title)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    return figure


@styled
def losses(table: Table, problem: str) -> Figure | None:
    figure, panels = canvas(1, 1, 5.6, 3.0)
    panel, drawn = panels[0][0], False
    panel.set_yscale("log")
    for i, (row, seeds) in enumerate(table.done(problem).items()):
        for j, result in enumerate(seeds.values()):
            points = [(r["step"], r["validation"]) for r in result.history if r.get("validation") is not None]
            if points:
                panel.plot(*zip(*points), linewidth=1.2, label=None if j else row, alpha=0.8, **_style(i))
                drawn = True
    if not drawn:
        return None
    panel.set(xlabel="step", ylabel="validation loss", title=problem)
    panel.legend(ncols=2)
    return figure


@styled
def probes(table: Table, problem: str) -> Figure | None:
    figure, panels = canvas(1, 2, 4.0, 3.0)
    drawn = False
    for panel, (key, quantity) in zip(panels[0], (("probe", "mean"), ("probe_worst", "worst"))):
        panel.set_yscale("log")
        for i, (row, seeds) in enumerate(table.done(problem).items()):
            for j, result in enumerate(seeds.values()):
                points = [(r["step"], np.mean(list(r[key].values()))) for r in result.history if r.get(key)]
                if points:
                    panel.plot(*zip(*points), label=None if j else row, **_style(i))
                    drawn = True
        panel.set(xlabel="step", ylabel=f"{quantity} relative L2 error of the probes")
    if not drawn:
        return None
    panels[0][0].set_title(problem)
    panels[0][0].legend()
    return figure


@styled
def scatter(table: Table, problem: str) -> Figure | None:
    pairs = [
        (result.metrics["checkpoints"][key]["targets_before"], result.metrics["checkpoints"][key]["targets_after"])
        for seeds in table.done(problem).values()
        for result in seeds.values()
        for key in list(result.metrics["checkpoints"])[-1:]
    ]
    if not pairs:
        return None
    before, after = (np.concatenate(values) for values in zip(*pairs))
    hard = np.zeros(len(before), bool)
    hard[np.argsort(before)[-math.ceil(len(before) / 4) :]] = True
    figure, panels = canvas(1, 1, 3.6, 3.4)
    panel = panels[0][0]
    panel.set(xscale="log", yscale="log", xlabel="relative L2 error before", ylabel="after", title=problem)
    ends = [min(before.min(), after.min()), max(before.max(), after.max())]
    panel.plot(ends, ends, color=GREY, linestyle="--", linewidth=1)
    looks: dict[str, Any] = {"linestyle": "", "marker": ".", "markersize": 5}
    panel.plot(before[~hard], after[~hard], color=BLUE, label="targets", **looks)
    panel.plot(before[hard], after[hard], color=ORANGE, label="worst quarter", **looks)
    panel.legend()
    return figure


@styled
def horizon(table: Table, problem: str) -> Figure | None:
    done = table.done(problem)
    figure, panels = canvas(1, 1, 4.6, 3.0)
    panel, drawn = panels[0][0], set[str]()
    for row, seeds in done.items():
        curves = []
        for result in seeds.values():
            steps = [int(key) for key in result.metrics["checkpoints"]]
            curves.append([result.metrics["checkpoints"][str(step)]["after"] for step in steps])
        known = repr(curves)  # rows of one trajectory have the same curve
        if curves and known not in drawn:
            name = None if len(steps) > 1 and row.isdigit() else row
            panel.plot(steps, np.mean(curves, axis=0), marker=".", label=name, **_style(len(drawn)))
            drawn.add(known)
    if not drawn:
        return None
    for row in table.rows:
        published = row.entries["after"].published if "after" in row.entries else None
        if row.problem == problem and published is not None and row.label.isdigit():
            panel.plot([int(row.label)], [published[0]], color=RED, **PAPER_MARK)
    panel.set(xscale="log", yscale="log", xlabel="steps", ylabel="mean relative L2 error", title=problem)
    if panel.get_legend_handles_labels()[0]:
        panel.legend()
    return figure


@styled
def memory(table: Table, problem: str) -> Figure | None:
    rows = [row for row in table.rows if row.problem == problem and row.entries["memory"].by_seed]
    if not rows:
        return None
    figure, panels = canvas(1, 1, 4.6, 3.0)
    panel = panels[0][0]
    for row in rows:
        at = [np.mean(list(row.entries[name].by_seed.values())) for name in ("seconds", "memory")]
        panel.plot(*([value] for value in at), marker="o", color=BLUE, linestyle="")
        panel.annotate(row.label, at, xytext=(4, 4), textcoords="offset points", fontsize=8)
    panel.set(xscale="log", xlabel="training, s", ylabel="peak memory, MiB", title=problem)
    return figure


KINDS: dict[str, Callable[[Table, str], Figure | None]] = {
    "dots": dots,
    "errors": errors,
    "losses": losses,
    "probes": probes,
    "scatter": scatter,
    "horizon": horizon,
    "memory": memory,
}
CAPTIONS = {
    "dots": "Each dot is a seed. The scale is logarithmic.",
    "errors": "Error over the parameters. Thin lines are seeds, thick ones their means.",
    "losses": "Physics loss on points that are not trained, along the run.",
    "probes": "Errors at a few thetas, along the run. Training does not know them.",
    "scatter": "Errors at each target before and after adaptation. Below the line it helps.",
    "horizon": "Error by optimiser steps of the adaptation. Diamonds are the paper's.",
    "memory": "Peak memory of the process beside training time, by rows per step.",
}
