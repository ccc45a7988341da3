"""Pictures for papers and pages."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from clpinn.domain import Points
from clpinn.problem import Problem, placed
from clpinn.references import reference_at


def plot_reference(problem: Problem, path: Path) -> None:
    """The reference at three thetas (low corner, middle, high corner of the box), a row an output."""
    thetas = [np.array([axis.from_unit(np.array(u)) for axis in problem.parameters.axes]) for u in (0.0, 0.5, 1.0)]
    if len(problem.parameters) == 0:
        thetas = thetas[:1]
    points, shape = _slice(problem)
    rows = len(problem.outputs)
    figure = Figure(figsize=(3.6 * len(thetas), 2.9 * rows), layout="constrained")
    panels = figure.subplots(rows, len(thetas), squeeze=False)
    for column, theta in enumerate(thetas):
        fields = reference_at(problem, points, theta)
        physical = placed(problem, dict(zip(problem.axes, (*points.T, *theta))))
        for row, name in enumerate(problem.outputs):
            panel = panels[row][column]
            _draw(figure, panel, problem, {k: np.asarray(v) for k, v in physical.items()}, fields[row], shape, name)
            if row == 0:
                values = ", ".join(f"{p} = {v:.3g}" for p, v in zip(problem.parameters, theta))
                panel.set_title(values, fontsize=10)
    if not path.suffix:
        raise ValueError("a picture's name needs an ending, such as .png, .svg or .pdf")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


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


def _draw(
    figure: Figure, panel, problem: Problem, physical: dict, field: np.ndarray, shape: tuple[int, ...], label: str
) -> None:
    names = problem.coordinates.names
    if len(shape) == 1:
        panel.plot(physical[names[0]], field, color="#0072b2")
        panel.set_xlabel(names[0])
        panel.set_ylabel(label)
        return
    # Time, where there is one, runs to the right.
    across, up = (names[1], names[0]) if names[1] == "t" else names[:2]
    x, y = (np.broadcast_to(physical[name], field.shape).reshape(shape) for name in (across, up))
    mesh = panel.pcolormesh(x, y, field.reshape(shape), cmap="viridis", shading="gouraud", rasterized=True)
    panel.set_xlabel(across)
    panel.set_ylabel(up)
    figure.colorbar(mesh, ax=panel, label=label)
