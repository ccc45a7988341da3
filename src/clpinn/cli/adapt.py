"""`clpinn adapt`: corrections or heads for single thetas, or a correction of the whole parameter box."""

from pathlib import Path
from typing import Annotated, Any

import typer

from clpinn.cli.display import Display
from clpinn.cli.options import CHANGED_PROBLEM, GIVEN_PROBLEM, JSON, RUN, load_given_problem, print_json
from clpinn.cli.tables import print_box, print_heads
from clpinn.errors import ClpinnError

CORRECTION = "correction"


def adapt(
    run: RUN,
    theta: Annotated[
        list[str] | None, typer.Argument(help="Parameter values: nu=0.0113, or several: nu=0.0113,0.02 rho=4.")
    ] = None,
    unseen: Annotated[
        bool, typer.Option("--unseen", help="Adapt to all candidate thetas that were not trained.")
    ] = False,
    box: Annotated[
        bool, typer.Option("--box", help="Correct the whole parameter box: errors at some thetas, interpolated.")
    ] = False,
    count: Annotated[
        int | None,
        typer.Option(
            "--thetas", help="With --box: thetas at most.", show_default="48, twice for each further parameter", min=1
        ),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="With --box: as many thetas as fit in this time, at most 400.")
    ] = None,
    most: Annotated[int | None, typer.Option(help="With --unseen: at most this many, drawn at random.", min=1)] = None,
    way: Annotated[
        str,
        typer.Option(
            help="correction: add the estimated error. Or what to train: head (the paper's), or for a rival's network "
            "svd (p2inn), target (hyperpinn, metapinn), full."
        ),
    ] = CORRECTION,
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="lm: Levenberg-Marquardt. adam: Adam with points and steps as in the paper.", show_default="lm"
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="Optimiser steps per fit.", show_default="at most 20 for lm, 500 for adam", min=1, max=10**6),
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(help="Width of a head's hidden layer.", show_default="half the base's last layer", min=1),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Learning rate of adam.", show_default="0.001")] = None,
    precision: Annotated[
        str | None, typer.Option(help="double or single: in what adam computes.", show_default="double")
    ] = None,
    lbfgs: Annotated[
        int | None, typer.Option(help="L-BFGS steps after adam, at most.", show_default="none", min=1)
    ] = None,
    always: Annotated[
        bool | None, typer.Option("--always", help="Use each head, whatever its judgement says, as the paper does.")
    ] = None,
    together: Annotated[
        int | None, typer.Option(help="Thetas fitted at once; fewer if memory is short.", show_default="8", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed for the heads' initial weights and all points.")] = 0,
    out: Annotated[Path | None, typer.Option(help="File for the surrogate.", show_default="RUN/adapted.clpinn")] = None,
    given_problem: GIVEN_PROBLEM = None,
    changed_problem: CHANGED_PROBLEM = False,
    as_json: JSON = False,
) -> None:
    """Improve a run's surrogate at single thetas: its estimated error is added, where the estimate is resolved.

    --box improves it at all thetas: estimated errors at some tens or hundreds of them are interpolated. --way head
    trains a small network per theta instead, as in the paper. All use the equations alone. If the problem has a
    reference, the true errors are shown as well. The options from --optimizer to --together are for training.
    """
    import numpy as np

    from clpinn.formulation.thetas import parse_thetas
    from clpinn.runs.directory import RunDirectory
    from clpinn.runs.evaluate import evaluate

    directory = RunDirectory(run, load_given_problem(given_problem), changed_problem)
    surrogate = directory.surrogate
    problem = surrogate.problem
    options = {
        "optimizer": optimizer,
        "steps": steps,
        "width": width,
        "rate": rate,
        "precision": precision,
        "lbfgs": lbfgs,
        "always": always,
        "together": together,
    }
    training = _training_settings(way, {name: value for name, value in options.items() if value is not None})
    if box:
        if theta or unseen or way != CORRECTION:
            raise ClpinnError("--box corrects all thetas: give it no thetas, no --unseen and no --way.")
        _adapt_box(surrogate, count, seconds, out or directory.adapted_file, as_json)
        return
    if count is not None or seconds is not None:
        raise ClpinnError("--thetas and --seconds are for --box.")
    if len(problem.parameters) and unseen == bool(theta):
        raise ClpinnError(
            "Give thetas to adapt to, such as nu=0.0113, --unseen for all that were not trained, or --box for the "
            "whole parameter box."
        )
    if len(problem.parameters) == 0:
        thetas = np.zeros((1, 0))
    else:
        thetas = surrogate.unseen(most, seed) if unseen else parse_thetas(problem.parameters, theta or [])
    with Display(quiet=as_json) as display:
        if training is None:
            adapted = surrogate.correct_many(thetas, lambda done, total: display.evaluation("corrections", done, total))
        else:
            adapted = surrogate.adapt_many(
                thetas, seed, lambda done, total: display.evaluation("heads", done, total), training
            )
        errors = {}
        if problem.reference is not None:
            errors = {
                when: evaluate(problem, model, thetas=thetas, progress=display.evaluation).outputs
                for when, model in (("before", surrogate), ("after", adapted))
            }
    file = out or directory.adapted_file
    adapted.save(file)
    rows = _rows(adapted, len(thetas), errors)
    if as_json:
        print_json({"file": str(file), "thetas": rows})
    else:
        print_heads(rows, list(problem.parameters), list(problem.outputs) if errors else [], file)


def _training_settings(way: str, given: dict[str, Any]) -> Any:
    """The settings of a training with the options that were given; None for corrections, which train nothing."""
    from clpinn.surrogate.adapt_settings import AdaptSettings

    if way == CORRECTION and given:
        names = ", ".join(f"--{name}" for name in given)
        raise ClpinnError(f"A correction trains nothing, but got {names}. Add --way head, or leave them out.")
    return None if way == CORRECTION else AdaptSettings(way=way, **given)  # pyright: ignore[reportArgumentType]


def _adapt_box(surrogate: Any, count: int | None, seconds: float | None, file: Path, as_json: bool) -> None:
    """Correct a surrogate over the box, write it, and show the estimated and true errors at the checks."""
    import numpy as np

    from clpinn.runs.evaluate import evaluate

    problem = surrogate.problem
    with Display(quiet=as_json) as display:
        adapted = surrogate.correct_box(count, seconds, lambda done, total: display.evaluation("thetas", done, total))
        summary = dict(adapted.record["box_correction"])
        checks = np.reshape(summary["checks"], (-1, len(problem.parameters)))
        if problem.reference is not None and len(checks):
            for when, model in (("true_before", surrogate), ("true_after", adapted)):
                for name, errors in evaluate(problem, model, checks, display.evaluation).outputs.items():
                    figures = {"macro": float(errors.rel_l2.mean()), "worst": float(errors.rel_l2.max())}
                    summary["outputs"][name][when] = figures
    adapted.save(file)
    if as_json:
        print_json({"file": str(file), **summary})
    else:
        print_box(summary, file)


def _rows(adapted: Any, count: int, errors: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per theta: whether its head or correction is used and why, estimates (losses, steps of heads), errors."""
    heads = adapted.heads
    rows = []
    before_these = len(heads.thetas) - count  # adapted by an earlier call
    for k in range(count):
        i = before_these + k
        theta = heads.thetas[i]
        row = dict(zip(adapted.problem.parameters, theta.tolist()))
        row |= {"used": bool(heads.used[i]), "reason": heads.reason(i)}
        if heads.way == CORRECTION:
            before = float(heads.error_before[i].max())
            row |= {"estimate_before": before, "estimate_after": before * float(heads.difference[i])}
        else:
            row |= {"steps": int(heads.steps[i])}
            row |= {name: float(getattr(heads, name)[i]) for name in ("loss_before", "loss_after")}
            row |= {f"estimate_{when}": float(getattr(heads, f"error_{when}")[i]) for when in ("before", "after")}
        for when, outputs in errors.items():
            row[f"rel_l2_{when}"] = {name: float(error.rel_l2[k]) for name, error in outputs.items()}
        rows.append(row)
    return rows
