"""Pictures of fields: prediction, reference and error at single thetas, and streamlines."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from clpinn.drawing.colours import ERRORS, OVER_FIELDS, VALUES, value_colours
from clpinn.drawing.fields import cut_out, draw_field, filled, panel_height, value_range
from clpinn.drawing.style import COLOURS, canvas, label, save, styled
from clpinn.formulation.domain import Points
from clpinn.formulation.geometry import placed
from clpinn.formulation.membership import is_inside
from clpinn.formulation.outlines import is_plane
from clpinn.formulation.problem import Problem
from clpinn.formulation.references import Progress, reference_at
from clpinn.formulation.thetas import theta_text
from clpinn.runs.directory import RunDirectory
from clpinn.surrogate.surrogate import Surrogate

Theta = dict[str, float]


@styled
def plot_reference(problem: Problem, path: Path) -> None:
    """The reference at three thetas (low corner, middle, high corner of the box), one row per output."""
    thetas = _spread(problem)
    figure, panels = canvas(len(problem.outputs), len(thetas), 3.3, panel_height(problem, 3.3, 2.6))
    for column, theta in enumerate(thetas):
        points, shape = _slice(problem)
        exact, physical = _reference(problem, points, theta), _physical(problem, points, theta)
        for row, name in enumerate(problem.outputs):
            panel = panels[row][column]
            colours = value_colours(*value_range(exact[name]))
            drawn = draw_field(panel, problem, physical, exact[name], shape, name, theta, **colours)
            if drawn is not None:
                figure.colorbar(drawn, ax=panel, label=label(problem, name))
            if row == 0:
                panel.set_title(theta_text(theta.keys(), theta.values(), digits=4))
    save(figure, path)


@styled
def fields(run: RunDirectory, thetas: Points | None = None, progress: Progress | None = None) -> Figure:
    """Prediction, reference and absolute error, one row per theta and output."""
    problem = run.problem
    chosen = _chosen(run, thetas, 3 if len(problem.outputs) == 1 else 1)
    pairs = [(theta, name) for theta in chosen for name in problem.outputs]
    columns = ["prediction"] if problem.reference is None else ["prediction", "reference", "absolute error"]
    points, shape = _slice(problem)
    if len(shape) == 1:
        return _curves(run, chosen, points)
    width = 2.7 if len(columns) > 1 else 4.0
    figure, panels = canvas(len(pairs), len(columns), width, panel_height(problem, width, 2.15))
    for row, (theta, name) in enumerate(pairs):
        predicted, physical = _prediction(run, points, theta)[name], _physical(problem, points, theta)
        shown = [predicted]
        if problem.reference is not None:
            exact = _reference(problem, points, theta)[name]
            shown += [exact, np.abs(predicted - exact)]
        colours = value_colours(*value_range(*shown[:2]))
        for column, values in enumerate(shown):
            panel = panels[row][column]
            style: dict[str, Any] = {"cmap": ERRORS, "vmin": 0.0} if column == 2 else colours
            drawn = draw_field(panel, problem, physical, values, shape, name, theta, **style)
            panel.set_title(f"{columns[column]}" + (f" of {name}" if len(problem.outputs) > 1 else ""))
            if column > 0:
                panel.set_ylabel("")
                panel.tick_params(labelleft=False)
            if column > 0 or len(columns) == 1:
                figure.colorbar(drawn, ax=panels[row][:2].tolist() if column == 1 else panel, pad=0.02)
        panels[row][0].annotate(
            theta_text(theta.keys(), theta.values(), digits=4),
            (0, 1) if is_plane(problem) else (0, 1.19),
            (0, 19) if is_plane(problem) else None,
            xycoords="axes fraction",
            textcoords="offset points" if is_plane(problem) else None,
            va="bottom",
            fontweight="bold",
            annotation_clip=False,
        )
        if progress:
            progress("fields", row + 1, len(pairs))
    return figure


def _curves(run: RunDirectory, thetas: list[Theta], points: Points) -> Figure:
    """Fields along a single coordinate: prediction and reference in one panel, the error below."""
    problem, axis = run.problem, run.problem.coordinates.names[0]
    rows = 1 if problem.reference is None else 2
    figure, panels = canvas(rows, len(problem.outputs), 3.6, 2.4)
    for column, name in enumerate(problem.outputs):
        for theta, colour in zip(thetas, COLOURS):
            predicted, x = _prediction(run, points, theta)[name], _physical(problem, points, theta)[axis]
            panels[0][column].plot(
                x, predicted, color=colour, label=theta_text(theta.keys(), theta.values(), digits=4) or None
            )
            if problem.reference is not None:
                exact = _reference(problem, points, theta)[name]
                panels[0][column].plot(x, exact, color="black", linestyle=":", linewidth=1)
                panels[1][column].semilogy(x, np.abs(predicted - exact), color=colour)
                panels[1][column].set_ylabel(f"absolute error of {name}")
        panels[0][column].set_ylabel(label(problem, name))
        panels[-1][column].set_xlabel(label(problem, axis))
        if thetas[0]:
            panels[0][column].legend()
    return figure


@styled
def streamlines(run: RunDirectory, thetas: Points | None = None, progress: Progress | None = None) -> Figure:
    """Streamlines over the speed, of the surrogate and of the reference below it."""
    problem = run.problem
    chosen = _chosen(run, thetas, 3)
    rows = ["surrogate"] + ["reference"] * (problem.reference is not None)
    points, shape = _slice(problem)
    x, y = (problem.coordinates[name].spaced(size) for name, size in zip("xy", shape))
    # Evenly spaced, as matplotlib's streamplot requires.
    points = np.stack([column.ravel() for column in np.meshgrid(x, y, indexing="ij")], axis=1)
    # Panels have about the domain's ratio of height to width.
    width = 2.6 if len(chosen) > 1 else 4.0
    height = float(np.clip(np.ptp(y) / np.ptp(x), 0.4, 1.6)) * width * 0.75 + 0.6
    figure, panels = canvas(len(rows), len(chosen), width, height)
    for column, theta in enumerate(chosen):
        flows = [_prediction(run, points, theta)]
        if problem.reference is not None:
            flows.append(_reference(problem, points, theta))
        speeds = [np.hypot(flow["u"], flow["v"]).reshape(shape).T for flow in flows]
        highest = value_range(*speeds)[1]
        for row, (flow, speed) in enumerate(zip(flows, speeds)):
            panel = panels[row][column]
            u, v = (flow[name].reshape(shape).T for name in "uv")
            colours: dict[str, Any] = {"cmap": VALUES, "vmin": 0, "vmax": highest}
            drawn = panel.pcolormesh(x, y, filled(speed), shading="gouraud", rasterized=True, **colours)
            if is_plane(problem):
                cut_out(panel, problem, theta, drawn)
            panel.streamplot(x, y, u, v, color=OVER_FIELDS, linewidth=0.6, arrowsize=0.6, density=1.1)
            panel.set(xlim=(x[0], x[-1]), ylim=(y[0], y[-1]), aspect="equal")
            panel.grid(False)
            panel.set_title(f"{rows[row]}, {theta_text(theta.keys(), theta.values(), digits=4)}")
            if row == len(rows) - 1:
                panel.set_xlabel(label(problem, "x"))
            if column == 0:
                panel.set_ylabel(label(problem, "y"))
            if row == len(rows) - 1:
                figure.colorbar(
                    drawn, ax=panels[:, column].tolist(), label="speed", location="bottom", pad=0.02, aspect=30
                )
        if progress:
            progress("streamlines", column + 1, len(chosen))
    return figure


def is_flow(problem: Problem) -> bool:
    return {"u", "v"} <= set(problem.outputs) and problem.coordinates.names == ("x", "y")


def _spread(problem: Problem) -> list[Theta]:
    """Low corner, middle and high corner of the box."""
    units = (0.0, 0.5, 1.0) if len(problem.parameters) else (0.0,)
    axes = list(zip(problem.parameters, problem.parameters.axes, strict=True))
    return [{name: float(axis.from_unit(np.array(unit))) for name, axis in axes} for unit in units]


def relative_errors(run: RunDirectory) -> dict[str, np.ndarray]:
    """Relative L2 errors of the outputs by name, one per evaluated theta; empty without a reference."""
    columns = {name: run.errors.get(f"rel_l2_{name}") for name in run.problem.outputs}
    return {name: column for name, column in columns.items() if column is not None}


def _chosen(run: RunDirectory, thetas: Points | None, most: int) -> list[Theta]:
    """The given thetas; by default at most `most` of those with the smallest, the median and the largest error.

    Without errors they are the box's low corner, middle and high corner.
    """
    names = run.problem.parameters.names
    if thetas is not None:
        return [dict(zip(names, theta.tolist())) for theta in thetas]
    columns = relative_errors(run)
    if not columns or not names:
        return _spread(run.problem)
    order = np.argsort(np.mean(list(columns.values()), axis=0))  # errors that are not finite come last
    ranks = sorted({0, len(order) // 2, len(order) - 1})[-most:]
    return [{name: float(run.errors[name][order[rank]]) for name in names} for rank in ranks]


def _slice(problem: Problem) -> tuple[Points, tuple[int, ...]]:
    """The evaluation grid over the first two coordinates, the others at the middle of their axis."""
    grid = problem.evaluation.values
    shown = list(grid)[:2]
    mesh = np.meshgrid(*(grid[name] for name in shown), indexing="ij")
    columns = []
    for name, axis in zip(problem.coordinates, problem.coordinates.axes, strict=True):
        middle = np.full(mesh[0].size, axis.from_unit(np.array(0.5)))
        columns.append(mesh[shown.index(name)].ravel() if name in shown else middle)
    return np.stack(columns, axis=1), mesh[0].shape


def _physical(problem: Problem, points: Points, theta: Theta) -> dict[str, np.ndarray]:
    given = dict(zip(problem.coordinates, points.T)) | theta
    with jax.enable_x64(True):
        return {name: np.broadcast_to(np.asarray(c, float), len(points)) for name, c in placed(problem, given).items()}


def absolute_errors(
    problem: Problem, theta: Theta, surrogates: Iterable[Surrogate]
) -> tuple[dict[str, np.ndarray], tuple[int, ...], list[dict[str, np.ndarray]]]:
    """Physical coordinates of the slice, its shape, and for each surrogate the absolute errors there by output."""
    points, shape = _slice(problem)
    exact, physical = _reference(problem, points, theta), _physical(problem, points, theta)
    errors = [
        {name: np.abs(value - exact[name]) for name, value in answers_inside(surrogate, points, theta).items()}
        for surrogate in surrogates
    ]
    return physical, shape, errors


def _prediction(run: RunDirectory, points: Points, theta: Theta) -> dict[str, np.ndarray]:
    return answers_inside(run.surrogate, points, theta)


def answers_inside(surrogate: Surrogate, points: Points, theta: Theta) -> dict[str, np.ndarray]:
    """The outputs by name at points of the box (points, coordinates); NaN outside a domain that is a shape."""
    problem = surrogate.problem
    inside = is_inside(problem, points, np.array(list(theta.values())))
    if inside.all():
        return surrogate(**_physical(problem, points, theta), **theta)
    outputs = {name: np.full(len(points), np.nan) for name in problem.outputs}
    for name, values in surrogate(**_physical(problem, points[inside], theta), **theta).items():
        outputs[name][inside] = values
    return outputs


def _reference(problem: Problem, points: Points, theta: Theta) -> dict[str, np.ndarray]:
    return dict(zip(problem.outputs, reference_at(problem, points, np.array(list(theta.values())))))
