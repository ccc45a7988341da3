"""The clpinn command."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from clpinn.errors import ClpinnError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Parameterized physics-informed neural networks: one network for a whole family of PDEs.",
)
console = Console(stderr=True)


@app.callback()
def _root() -> None:
    """Keeps `clpinn` a command with verbs even while there is only one."""


@app.command()
def problems(
    name: Annotated[str | None, typer.Argument(help="A benchmark, or a file of your own: my_pde.py:Heat.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the reference at three thetas to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """What there is to solve: all benchmarks, or one problem in detail."""
    from clpinn.problems import BENCHMARKS, load_problem

    if name is None:
        if plot is not None:
            raise typer.BadParameter("--plot needs the name of a problem.")
        described = {key: describe(make()) for key, make in BENCHMARKS.items()}
        if as_json:
            print(json.dumps(described, indent=2))
        else:
            _print_all(described)
        return
    problem = load_problem(name)
    described = describe(problem)
    if plot is not None:
        from clpinn.report.figures import plot_reference

        if problem.reference is None:
            raise ClpinnError(f"{name} has no reference to draw. Give the class a method `reference`.")
        plot_reference(problem, plot)
        described["plot"] = str(plot)
    if as_json:
        print(json.dumps({name: described}, indent=2))
    else:
        _print_one(name, described)


def describe(problem: Any) -> dict[str, Any]:
    """A problem in plain values."""
    from clpinn.problem import Data, data_points

    def axes(box: Any) -> dict[str, Any]:
        return {
            name: {"low": axis.low, "high": axis.high, "scale": axis.scale}
            for name, axis in zip(box, box.axes, strict=True)
        }

    points = {"interior": problem.interior.count}
    for condition in problem.conditions:
        rows = len(data_points(problem, condition)[0]) if isinstance(condition, Data) else condition.points
        points[condition.name] = rows
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


def _interval(axis: dict[str, Any]) -> str:
    scale = "" if axis["scale"] == "linear" else f" {axis['scale']}"
    return f"[{axis['low']:g}, {axis['high']:g}]{scale}"


def _box(axes: dict[str, Any], between: str = "\n") -> str:
    return between.join(f"{name} ∈ {_interval(axis)}" for name, axis in axes.items())


def _times(shape: list[int]) -> str:
    return "×".join(map(str, shape)) or "1"


def _print_all(described: dict[str, dict[str, Any]]) -> None:
    table = Table(title="Problems", show_lines=True)
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("equation, parameter box, evaluation")
    for name, about in described.items():
        grids = f"{_times(about['candidates'])} thetas on a {_times(about['evaluation_grid'])} grid"
        lines = [
            about["equation"],
            _box(about["parameters"], ", "),
            f"{grids}; reference: {about['reference'] or 'none'}",
        ]
        table.add_row(name, "\n".join(lines))
    Console().print(table)
    Console().print("More of one: clpinn problems NAME. Your own: clpinn problems my_pde.py:MyProblem", highlight=False)


def _print_one(name: str, about: dict[str, Any]) -> None:
    table = Table(title=name, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("equation", about["equation"] or "–")
    table.add_row("coordinates", _box(about["coordinates"]))
    table.add_row("parameters", _box(about["parameters"]) or "none")
    table.add_row("outputs", ", ".join(about["outputs"]))
    table.add_row("hard conditions", "yes" if about["hard_conditions"] else "no")
    table.add_row("points per task", ", ".join(f"{count} {key}" for key, count in about["points_per_task"].items()))
    table.add_row("candidate thetas", _times(about["candidates"]))
    table.add_row("evaluation grid", _times(about["evaluation_grid"]))
    table.add_row("reference", about["reference"] or "none: evaluation reports residuals only")
    if "plot" in about:
        table.add_row("picture", about["plot"])
    Console().print(table)


def progress_bar() -> Progress:
    """A progress bar with time left, on standard error; plain where that is not a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )


def main() -> None:
    """Entry point: an error of clpinn's own is one clear message and exit code 1."""
    try:
        app()
    except ClpinnError as error:
        console.print(f"[bold red]error:[/] {error}", highlight=False, soft_wrap=True)
        sys.exit(1)
