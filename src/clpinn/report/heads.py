"""Pictures of an adaptation: errors before and after, and error fields at the worst theta."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clpinn.drawing.colours import BLUE, ERRORS, GREY
from clpinn.drawing.fields import draw_field, panel_height, value_range
from clpinn.drawing.style import canvas, styled
from clpinn.formulation.domain import Points
from clpinn.formulation.references import Progress
from clpinn.formulation.thetas import theta_text
from clpinn.report.fields import absolute_errors
from clpinn.runs.directory import RunDirectory
from clpinn.runs.evaluate import evaluate
from clpinn.surrogate.adaptations import Heads


@styled
def heads(run: RunDirectory, thetas: Points | None = None, progress: Progress | None = None) -> Figure:
    """Errors before and after at every adapted theta, and error fields at the worst; losses without a reference."""
    adapted, problem = run.adapted, run.problem
    assert adapted is not None and adapted.heads is not None
    trained = adapted.heads
    if problem.reference is None and isinstance(trained, Heads):
        figure, panels = canvas(1, 1, 3.4, 3.2)
        after = np.where(trained.used, trained.loss_after, trained.loss_before)
        _scatter(panels[0][0], trained.loss_before, after, trained.used, "head")
        panels[0][0].set(xlabel="physics loss before", ylabel="after", title=run.name)
        return figure
    before, after = (evaluate(problem, s, trained.thetas, progress).outputs for s in (run.surrogate, adapted))
    figure, panels = canvas(len(problem.outputs), 3, 3.0, max(2.6, panel_height(problem, 3.0, 2.6)))
    for row, name in enumerate(problem.outputs):
        old, new = before[name].rel_l2, after[name].rel_l2
        _scatter(panels[row][0], old, new, trained.used, "head" if isinstance(trained, Heads) else "corrected")
        panels[row][0].set(xlabel=f"relative error of {name} before", ylabel="after")
        worst = dict(zip(problem.parameters, trained.thetas[int(np.nanargmax(old))].tolist()))
        physical, shape, fields = absolute_errors(problem, worst, (run.surrogate, adapted))
        highest = value_range(*(errors[name] for errors in fields))[1]
        for panel, errors, when in zip(panels[row][1:], fields, ("before", "after")):
            limits: dict[str, Any] = {"cmap": ERRORS, "vmin": 0.0, "vmax": highest} if len(shape) > 1 else {}
            drawn = draw_field(panel, problem, physical, errors[name], shape, name, worst, **limits)
            panel.set_title(f"|error| {when}, {theta_text(worst.keys(), worst.values(), digits=4)}")
            if drawn is not None and when == "after":
                figure.colorbar(drawn, ax=panels[row][1:].tolist())
    panels[0][0].set_title(run.name)
    return figure


def _scatter(panel: Axes, before: np.ndarray, after: np.ndarray, used: np.ndarray, name: str) -> None:
    """Values before and after at each theta. `name` says what answers where it is used; the base answers elsewhere."""
    low, high = (end(np.concatenate([before, after])) for end in (np.nanmin, np.nanmax))
    panel.plot([low, high], [low, high], color=GREY, linestyle="--", linewidth=1)
    dots: dict[str, Any] = {"linestyle": "", "marker": ".", "markersize": 5}
    panel.plot(before[used], after[used], color=BLUE, label=name, **dots)
    panel.plot(before[~used], after[~used], color=GREY, label=None if used.all() else "base kept", **dots)
    if low > 0:
        panel.set(xscale="log", yscale="log")
        panel.tick_params(axis="x", which="minor", labelrotation=60, labelsize=6)
    panel.legend()
