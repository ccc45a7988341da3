"""`clpinn problems`: what there is to solve."""

from pathlib import Path
from typing import Annotated, Any

import typer

from clpinn.cli.options import JSON, print_json
from clpinn.cli.tables import print_problem, print_problems
from clpinn.errors import ClpinnError


def problems(
    name: Annotated[str | None, typer.Argument(help="A benchmark, or your own problem: my_pde.py:Heat.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the reference at three thetas to this file.")] = None,
    as_json: JSON = False,
) -> None:
    """List all benchmarks, or describe one problem in detail."""
    from clpinn.problems import BENCHMARKS

    if name is None:
        if plot is not None:
            raise typer.BadParameter("--plot needs the name of a problem.")
        descriptions = {key: description(make()) for key, make in BENCHMARKS.items()}
        (print_json if as_json else print_problems)(descriptions)
        return
    described = _described(name, plot)
    if as_json:
        print_json({name: described})
    else:
        print_problem(name, described)
    if any(check["verdict"] == "does not agree" for check in described["reference_checks"]):
        raise ClpinnError("The reference does not agree with the problem. One of them has a mistake: see above.")


def _described(name: str, plot: Path | None) -> dict[str, Any]:
    """One problem in detail; its reference is drawn to the file `plot`."""

    from clpinn.formulation.agreement import check_reference
    from clpinn.keys import make_key
    from clpinn.problems import load_problem

    problem = load_problem(name)
    described = description(problem)
    checks = check_reference(problem, make_key(0))
    described["reference_checks"] = [
        {"term": check.term, "residual": check.residual, "verdict": check.verdict}
        | (
            {"largest": check.largest, "relative": check.relative, "worst_at": dict(check.worst)}
            if check.checked
            else {}
        )
        for check in checks
    ]
    described["reference_text"] = [str(check) for check in checks]
    if plot is not None:
        from clpinn.report.fields import plot_reference

        if problem.reference is None:
            raise ClpinnError(f"{name} has no reference to draw. Give the class a method `reference`.")
        plot_reference(problem, plot)
        described["plot"] = str(plot)
    return described


def description(problem: Any) -> dict[str, Any]:
    """A problem in plain values."""

    from clpinn.formulation.geometry import data_points
    from clpinn.formulation.problem import Data, Integral
    from clpinn.keys import make_key

    def axes(box: Any) -> dict[str, Any]:
        return {
            name: {"low": axis.low, "high": axis.high, "scale": axis.scale}
            for name, axis in zip(box, box.axes, strict=True)
        }

    points, key = {"interior": problem.interior.count}, make_key(0)
    for condition in problem.conditions:
        if isinstance(condition, Data):
            points[condition.name] = len(data_points(problem, condition)[0])
        elif isinstance(condition, Integral):
            points[condition.name] = 1
        else:
            whole = problem.domain is not None
            points[condition.name] = condition.points if whole else len(condition.sample(problem.coordinates, key))
    return {
        "equation": problem.equation or (type(problem).__doc__ or "").strip().split("\n")[0],
        "coordinates": axes(problem.coordinates),
        "parameters": axes(problem.parameters),
        "outputs": list(problem.outputs),
        "hard_conditions": problem.constrain is not None,
        "points_per_task": points,
        "candidates": list(problem.candidates.shape),
        "evaluation_grid": list(problem.evaluation.shape),
        "reference": (problem.reference_kind or "given") if problem.reference is not None else None,
    }
