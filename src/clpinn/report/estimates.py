"""The figure of estimated errors over the parameters, beside the true errors where there is a reference."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from clpinn.drawing.colours import GREY, OVER_FIELDS
from clpinn.drawing.style import COLOURS, LINES, canvas, label, log_or_linear, scale, styled
from clpinn.formulation.domain import Points
from clpinn.formulation.references import Progress
from clpinn.report.fields import relative_errors
from clpinn.report.over_parameters import draw_map, log_colours, over_parameters
from clpinn.runs.directory import RunDirectory
from clpinn.surrogate.error_map import ErrorMap

QUANTITY = "relative L2 error"


@styled
def estimates(run: RunDirectory, thetas: Points | None = None, progress: Progress | None = None) -> Figure:
    """Estimated relative L2 errors over the parameters, drawn as the number of parameters allows."""
    errors = run.surrogate.errors
    assert errors is not None
    count = len(run.problem.parameters)
    if count == 1:
        return _line(run, errors)
    columns = {name: middle for name, (_, middle, _) in errors.over(run.problem.candidates.points).items()}
    if count == 2:
        return _maps(run, errors, columns)
    return over_parameters(
        run, columns if len(columns) > 1 else {"": next(iter(columns.values()))}, f"estimated {QUANTITY}"
    )


def true_errors(run: RunDirectory) -> dict[str, np.ndarray]:
    """Relative L2 errors against the reference at every candidate theta, by output; empty where they are not known."""
    return {name: column for name, column in relative_errors(run).items() if len(column) == len(run.problem.candidates)}


def _line(run: RunDirectory, errors: ErrorMap) -> Figure:
    """One line per output with its 90 % band; dots are estimates, hollow ones are not resolved."""
    (name,), (axis,) = run.problem.parameters.names, run.problem.parameters.axes
    figure, panels = canvas(1, 1, 5.2, 3.1)
    panel, at = panels[0][0], run.problem.candidates.points[:, 0]
    exact, resolved = true_errors(run), errors.resolved
    scale(panel, axis)
    log_or_linear(panel, errors.relative_l2)
    dots: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 3.5}
    for i, (output, (low, middle, high)) in enumerate(errors.over(run.problem.candidates.points).items()):
        colour, several = COLOURS[i % len(COLOURS)], len(run.problem.outputs) > 1
        estimated = errors.relative_l2[:, i]
        panel.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
        panel.plot(at, middle, color=colour, linestyle=LINES[i % 3], label=output if several else "estimated")
        panel.plot(errors.thetas[resolved, 0], estimated[resolved], color=colour, **dots)
        panel.plot(errors.thetas[~resolved, 0], estimated[~resolved], color=colour, markerfacecolor="none", **dots)
        if output in exact:
            panel.plot(at, exact[output], color=colour if several else "black", linestyle=":", linewidth=1, zorder=3)
    if exact:
        panel.plot([], [], color="black", linestyle=":", linewidth=1, label="against the reference")
    panel.fill_between([], [], [], color=GREY, alpha=0.3, linewidth=0, label="90 % band")
    panel.plot([], [], color=GREY, label="estimate", **dots)
    if not resolved.all():
        panel.plot([], [], color=GREY, markerfacecolor="none", label="not resolved", **dots)
    panel.set(xlabel=label(run.problem, name), ylabel=QUANTITY, title=run.name)
    panel.legend(ncols=2)
    return figure


def _maps(run: RunDirectory, errors: ErrorMap, columns: dict[str, np.ndarray]) -> Figure:
    """One row per output: the estimated error, and beside it the true one in the same colours."""
    exact, several = true_errors(run), len(columns) > 1
    across = 2 if exact else 1
    figure, panels = canvas(len(columns), across, 3.5 if exact else 4.6, 2.9)
    marks: dict[str, Any] = {
        "color": OVER_FIELDS,
        "edgecolor": "black",
        "linewidth": 0.6,
        "zorder": 3,
        "clip_on": False,
    }
    for row, (output, values) in enumerate(columns.items()):
        shown = {"estimated": values} | ({"against the reference": exact[output]} if output in exact else {})
        norm = log_colours(*shown.values())
        for panel, (title, column) in zip(panels[row], shown.items()):
            drawn = draw_map(panel, run.problem, column, norm, f"{title}, {output}" if several else title)
        panel = panels[row][0]
        panel.scatter(*errors.thetas[errors.resolved].T, s=12, marker="o", label="estimate", **marks)
        if not errors.resolved.all():
            panel.scatter(*errors.unresolved.T, s=34, marker="X", label="not resolved", **marks)
        figure.colorbar(drawn, ax=panels[row].tolist(), label=QUANTITY)
    figure.suptitle(run.name, fontsize=9)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
