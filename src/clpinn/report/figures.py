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

from matplotlib.figure import Figure

from clpinn.errors import PlotError
from clpinn.formulation.domain import Points
from clpinn.formulation.references import Progress
from clpinn.report.along_run import losses, tasks
from clpinn.report.fields import fields, is_flow, streamlines
from clpinn.report.heads import heads
from clpinn.report.over_parameters import errors, residuals
from clpinn.report.reader import Run


def plot(run: Run, kind: str, thetas: Points | None = None, progress: Progress | None = None) -> Figure:
    """A figure of a run; `thetas` (rows, parameters) are for kinds that show single ones."""
    why = reasons(run)
    possible = ", ".join(name for name in KINDS if why[name] is None)
    if kind not in KINDS:
        raise PlotError(f"There is no kind {kind!r}. Use one of {possible}.")
    if why[kind] is not None:
        raise PlotError(f"{kind} makes no sense for this run: {why[kind]}. Use one of {possible}.")
    return KINDS[kind](run, thetas, progress)


def reasons(run: Run) -> dict[str, str | None]:
    """Why a kind makes no sense for a run, by kind; None where it does."""
    unknown = run.why_no_problem()
    found: dict[str, str | None] = dict.fromkeys(KINDS, unknown) | {
        "tasks": None if run.events else "no task was selected while it ran",
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


KINDS: dict[str, Callable[[Run, Points | None, Progress | None], Figure]] = {
    "fields": fields,
    "errors": errors,
    "residuals": residuals,
    "tasks": tasks,
    "losses": losses,
    "streamlines": streamlines,
    "heads": heads,
}
