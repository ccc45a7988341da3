"""Figures for papers and pages: each kind is a function from a run to a matplotlib Figure.

fields       prediction, reference and error at chosen thetas
errors       error over the parameters: a line, a heat map, or slices for more than two
estimates    estimated error over the parameters; it needs no reference
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
from clpinn.report.estimates import estimates
from clpinn.report.fields import fields, is_flow, streamlines
from clpinn.report.heads import heads
from clpinn.report.over_parameters import errors
from clpinn.runs.directory import RunDirectory
from clpinn.surrogate.corrections import Corrections

NO_MAP = "it has no map of estimated errors. clpinn evaluate RUN makes one"
"""Why a run has no figure of estimates."""


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
            why_not |= dict.fromkeys(("errors", "estimates"), "the problem has no parameters")
        elif len(run.errors["res_pde"]) != len(problem.candidates):  # such as those of a standard PINN
            why_not["errors"] = "its errors are not those at the problem's candidates"
        elif problem.reference is None and run.surrogate.errors is not None:
            why_not["errors"] = "it has no reference. Its estimated errors are the kind estimates"
        if len(problem.parameters):
            why_not["estimates"] = _why_no_estimates(run)
        if not is_flow(problem):
            why_not["streamlines"] = "the problem is no flow with the outputs u, v on the coordinates x, y"
        elif problem.place is not None:
            why_not["streamlines"] = "its geometry moves (place), and streamlines need a rectangle"
        if run.adapted is None or run.adapted.heads is None:
            why_not["heads"] = "it is not adapted to single thetas (clpinn adapt)"
        elif problem.reference is None and isinstance(run.adapted.heads, Corrections):
            why_not["heads"] = "it is corrected, and without a reference there is nothing to compare with"
    return why_not


def _why_no_estimates(run: RunDirectory) -> str | None:
    """Why a run has no map of estimated errors to draw."""
    errors = run.surrogate.errors
    if errors is None:
        return NO_MAP
    if len(errors.thetas) == 1:
        return "its error is estimated at a single theta"
    return None if errors.resolved.any() else "none of its estimates is resolved, so that nobody knows its error"


KINDS: dict[str, Callable[[RunDirectory, Points | None, Progress | None], Figure]] = {
    "fields": fields,
    "errors": errors,
    "estimates": estimates,
    "tasks": tasks,
    "losses": losses,
    "streamlines": streamlines,
    "heads": heads,
}
