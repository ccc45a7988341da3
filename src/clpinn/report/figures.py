"""Figures for papers and pages: each kind is a function from a run to a matplotlib Figure.

fields       prediction, reference and error at chosen thetas
errors       error over the parameters: a line, a heat map, or slices for more than two
residuals    residual norms over the parameters; they need no reference
tasks        which thetas were trained, by event: newly selected, dense, replayed, restored
losses       losses along the run, with the change of the optimiser
streamlines  streamlines of a flow
heads        after `clpinn adapt`: errors before and after, and error fields at the worst theta
"""

from collections.abc import Callable

from matplotlib.figure import Figure

from clpinn.errors import PlotError
from clpinn.formulation.domain import Points
from clpinn.formulation.references import Progress
from clpinn.report.along_run import losses, tasks
from clpinn.report.fields import fields, is_flow, streamlines
from clpinn.report.heads import heads
from clpinn.report.over_parameters import errors, residuals
from clpinn.runs.directory import RunDirectory


def plot(run: RunDirectory, kind: str, thetas: Points | None = None, progress: Progress | None = None) -> Figure:
    """A figure of a run; `thetas` (rows, parameters) are for kinds that show single thetas."""
    why = reasons(run)
    possible = ", ".join(name for name in KINDS if why[name] is None)
    if kind not in KINDS:
        raise PlotError(f"There is no kind {kind!r}. Use one of {possible}.")
    if why[kind] is not None:
        raise PlotError(f"{kind} makes no sense for this run: {why[kind]}. Use one of {possible}.")
    return KINDS[kind](run, thetas, progress)


def reasons(run: RunDirectory) -> dict[str, str | None]:
    """By kind, why it makes no sense for a run; None where it makes sense."""
    unknown = run.why_no_problem()
    why_not: dict[str, str | None] = dict.fromkeys(KINDS, unknown) | {
        "tasks": unknown if run.events else "no task was selected while it ran",
        "losses": None if run.history else "it was too short to record losses",
    }
    if unknown is None:
        problem = run.problem
        if len(problem.parameters) == 0:
            why_not |= dict.fromkeys(("errors", "residuals"), "the problem has no parameters")
        elif len(run.errors["res_pde"]) != len(problem.candidates):  # such as those of a standard PINN
            why_not["errors"] = "its errors are not those at the problem's candidates"
        if not is_flow(problem):
            why_not["streamlines"] = "the problem is no flow with the outputs u, v on the coordinates x, y"
        elif problem.place is not None:
            why_not["streamlines"] = "its geometry moves (place), and streamlines need a rectangle"
        if run.adapted is None or run.adapted.heads is None:
            why_not["heads"] = "it has no adapted.clpinn, which clpinn adapt writes"
    return why_not


KINDS: dict[str, Callable[[RunDirectory, Points | None, Progress | None], Figure]] = {
    "fields": fields,
    "errors": errors,
    "residuals": residuals,
    "tasks": tasks,
    "losses": losses,
    "streamlines": streamlines,
    "heads": heads,
}
