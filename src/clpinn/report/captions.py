"""What stands above each figure of a page: a heading, and a sentence that says what this run's figure shows."""

from clpinn.report.estimates import true_errors
from clpinn.report.fields import relative_errors
from clpinn.runs.directory import RunDirectory
from clpinn.surrogate.corrections import Corrections
from clpinn.surrogate.error_map import NOTE


def heading(run: RunDirectory, kind: str) -> str:
    if kind == "errors" and not relative_errors(run):
        return "Residuals over the parameters"
    return {
        "fields": "Fields",
        "errors": "Errors over the parameters",
        "estimates": "Estimated errors over the parameters",
        "tasks": "Trained thetas by event",
        "losses": "Losses",
        "streamlines": "Streamlines",
        "heads": "Corrected thetas" if _is_corrected(run) else "Adapted thetas",
    }[kind]


def caption(run: RunDirectory, kind: str) -> str:
    """What the figure of this kind shows for this run."""
    if kind == "fields":
        return f"{_shown_fields(run)} {_where(run, 3 if len(run.problem.outputs) == 1 else 1)}"
    if kind == "streamlines":
        whose = "the surrogate" if run.problem.reference is None else "the surrogate and of the reference below it"
        return f"Streamlines of {whose}. Colours show the speed. {_where(run, 3)}"
    if kind == "errors" and not relative_errors(run):
        return (
            "Mean |residual| of the equations at every candidate theta. It is no error: the run has no reference to "
            "compare with."
        )
    if kind == "estimates":
        return _estimated(run)
    if kind == "heads" and run.problem.reference is None:
        return (
            "Each theta has a head of its own. The physics loss is shown, because the problem has no reference. "
            "Points below the line improved."
        )
    if kind == "heads" and _is_corrected(run):
        return (
            "Each theta is corrected: its estimated error is added. Points below the line improved. "
            "The fields are at the theta with the largest error before."
        )
    return {
        "errors": "Relative L2 error against the reference, at every candidate theta.",
        "tasks": "Dense tasks keep all their points, replayed tasks a share of them.",
        "losses": "The validation loss is computed all over the box, on points that were not trained. The loss is that "
        "of a step's batch. Where the problem has a time, late times count less in the loss at first.",
        "heads": "Each theta has a head of its own. Points below the line improved. "
        "The fields are at the theta with the largest error before.",
    }[kind]


def _is_corrected(run: RunDirectory) -> bool:
    return run.adapted is not None and isinstance(run.adapted.heads, Corrections)


def _shown_fields(run: RunDirectory) -> str:
    problem, others = run.problem, run.problem.coordinates.names[2:]
    if problem.reference is None:
        shown = "Prediction of the surrogate. The problem has no reference."
    elif len(problem.coordinates) == 1:
        shown = "Prediction (lines), reference (dotted) and, below, the absolute error."
    else:
        shown = "Prediction, reference and absolute error."
    return f"{shown} {', '.join(others)}: the middle of the axis." if others else shown


def _estimated(run: RunDirectory) -> str:
    """What the map of estimated errors is, and how many of its estimates are resolved."""
    errors = run.surrogate.errors
    assert errors is not None
    resolved, count = int(errors.resolved.sum()), len(errors.thetas)
    share = f"all {count} estimates are" if resolved == count else f"{resolved} of {count} estimates are"
    known = "" if resolved == count else " Nobody knows the error at the others; they do not enter."
    compared = (
        " The errors against the reference are shown to compare."
        if true_errors(run) and len(run.problem.parameters) < 3
        else ""
    )
    return f"{NOTE} Here {share} resolved: two resolutions agree.{known}{compared}"


def _where(run: RunDirectory, most: int) -> str:
    """Which thetas a figure of at most `most` thetas by error shows."""
    if not len(run.problem.parameters):
        return ""
    if not relative_errors(run):
        return "The thetas are the low corner, the middle and the high corner of the parameter box."
    count = len(run.errors["res_pde"])
    if count == 1:
        return "The theta is the only one that was evaluated."
    if most == 1:
        return "The theta is the one with the largest error."
    return f"The thetas are those with the smallest{', the median' if count > 2 else ''} and the largest error."
