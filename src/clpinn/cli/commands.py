"""The clpinn command."""

import dataclasses
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from clpinn.errors import ClpinnError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Parameterized physics-informed neural networks: one network for a whole family of PDEs.",
)
console = Console(stderr=True)

PROBLEM = Annotated[
    str | None,
    typer.Option("--problem", help="The run's problem, my_pde.py:Heat, where it was started from Python or moved."),
]


def _stated(problem: str | None) -> Any:
    """The problem that a command names, if it does."""
    from clpinn.problems import load_problem

    return None if problem is None else load_problem(problem)


@app.command()
def problems(
    name: Annotated[str | None, typer.Argument(help="A benchmark, or a file of your own: my_pde.py:Heat.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the reference at three thetas to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """What there is to solve: all benchmarks, or one problem in detail."""
    import jax

    from clpinn.problems import BENCHMARKS, load_problem
    from clpinn.runs.evaluate import reference_residual

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
    described["reference_residual"] = reference_residual(problem, jax.random.key(0))
    if plot is not None:
        from clpinn.report.fields import plot_reference

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
    import jax

    from clpinn.formulation.problem import Data, data_points

    def axes(box: Any) -> dict[str, Any]:
        return {
            name: {"low": axis.low, "high": axis.high, "scale": axis.scale}
            for name, axis in zip(box, box.axes, strict=True)
        }

    points, key = {"interior": problem.interior.count}, jax.random.key(0)
    for condition in problem.conditions:
        rows = (
            len(data_points(problem, condition)[0])
            if isinstance(condition, Data)
            else len(condition.sample(problem.coordinates, key))
        )
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
        table.add_row(Text(name), Text("\n".join(lines)))
    Console().print(table)
    Console().print("More of one: clpinn problems NAME. Your own: clpinn problems my_pde.py:MyProblem", highlight=False)


def _print_one(name: str, about: dict[str, Any]) -> None:
    rows = {
        "equation": about["equation"] or "–",
        "coordinates": _box(about["coordinates"]),
        "parameters": _box(about["parameters"]) or "none",
        "outputs": ", ".join(about["outputs"]),
        "hard conditions": "yes" if about["hard_conditions"] else "no",
        "points per task": ", ".join(f"{count} {key}" for key, count in about["points_per_task"].items()),
        "candidate thetas": _times(about["candidates"]),
        "evaluation grid": _times(about["evaluation_grid"]),
        "reference": about["reference"] or "none: evaluation reports residuals only",
    }
    if about["reference_residual"] is not None:
        found = ", ".join(f"{key} {value:.1e}" for key, value in about["reference_residual"].items())
        rows["reference put into\nthe equation"] = f"largest residual: {found}"
    if "plot" in about:
        rows["picture"] = about["plot"]
    table = Table(title=Text(name), show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for key, value in rows.items():
        table.add_row(key, Text(value))
    Console().print(table)


@app.command()
def train(
    problem: Annotated[str, typer.Argument(help="A benchmark, or a file of your own: my_pde.py:Heat.")],
    out: Annotated[Path | None, typer.Option(help="Run directory. [default: runs/PROBLEM-METHOD-SEED]")] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="free (thetas over the whole box, natural only), uni, fix, ag, ac, acr, acr2 or acr2-full; to compare "
            "with: standard (one theta), p2inn, hyperpinn, metapinn. [default: free; acr with adam-lbfgs]"
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(help="With --method standard, its theta: --at nu=0.0113. [default: the centre of the box]"),
    ] = None,
    optimizer: Annotated[
        str, typer.Option(help="natural: natural gradient. adam-lbfgs: Adam, then L-BFGS, all as in the paper.")
    ] = "natural",
    seed: Annotated[int, typer.Option(help="Decides the network's start and all points.")] = 0,
    budget: Annotated[
        float | None,
        typer.Option(
            help="Share of the paper's steps, with adam-lbfgs: 1 is all. [default: 0.02 if there is no other bound]"
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Wall time for training. [default: until progress ends; with adam-lbfgs 120 without other bounds]"
        ),
    ] = None,
    until: Annotated[float | None, typer.Option(help="Stop at this validation loss (natural).")] = None,
    steps: Annotated[int | None, typer.Option(help="Stop after that many optimiser steps.")] = None,
    probe: Annotated[int, typer.Option(help="Record errors at that many thetas along the run.")] = 0,
    assign: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: --set adam.learning_rate=3e-4.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Repeat the run of this config.json (its settings, not --method, --seed).")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in --out.")] = False,
    checkpoint_seconds: Annotated[float, typer.Option(help="Time between checkpoints.")] = 30.0,
    devices: Annotated[int | None, typer.Option(help="CPU devices to use. [default: one a core]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print metrics.json and nothing else.")] = False,
) -> None:
    """Train one network for a whole family of PDEs, then report its errors over the parameter grid.

    Ctrl-C stops after the current step and leaves a checkpoint; --resume goes on from there.
    """
    _use_devices(devices)
    import numpy as np

    from clpinn import presets
    from clpinn.problems import load_problem
    from clpinn.runs.directory import RunDirectory, read_config
    from clpinn.runs.run import run
    from clpinn.runs.session import Observer
    from clpinn.training.settings import from_dict, override

    if optimizer not in ("natural", "adam-lbfgs"):
        raise ClpinnError(f"Unknown optimizer {optimizer!r}. Use natural or adam-lbfgs.")
    if resume and out is not None and RunDirectory(out).started:
        config = out  # it goes on as it began, by whatever optimiser
    if config is not None:
        chosen = from_dict(read_config(config)["settings"])
        stated = load_problem(problem, paper=chosen.optimizer == "adam-lbfgs")
    elif optimizer == "natural":
        if budget is not None:
            raise ClpinnError(
                "--budget is a share of the paper's steps. With natural give --seconds, --steps or --until."
            )
        stated = load_problem(problem)
        chosen = dataclasses.replace(presets.natural(stated, method or "free"), seed=seed)
    else:
        stated = load_problem(problem, paper=True)
        chosen = dataclasses.replace(presets.paper(stated, method or "acr"), seed=seed)
    if at:
        if chosen.method != "standard":
            raise ClpinnError("--at is the theta of a standard PINN. Use --method standard, or leave it out.")
        fixed = tuple(map(tuple, _thetas(stated, at).tolist()))
        stated.parameters.check(np.array(fixed), True)
        chosen = dataclasses.replace(chosen, tasks=dataclasses.replace(chosen.tasks, fixed=fixed))
    folder = out or Path("runs") / f"{Path(problem.replace(':', '-')).name}-{chosen.method}-{chosen.seed}"
    goes_on = resume and RunDirectory(folder).started
    unbounded = seconds is None and budget is None and steps is None and config is None and not goes_on
    if unbounded and optimizer == "adam-lbfgs":
        # Two minutes, with events that fit into them.
        seconds, budget = 120.0, 0.02
    if budget is not None:
        chosen = presets.scaled(chosen, budget)
    bounds = {"seconds": seconds, "steps": steps, "until": until}
    if any(value is not None for value in bounds.values()):  # in place of all that a resumed run had
        chosen = dataclasses.replace(chosen, **bounds)
    if probe:
        chosen = dataclasses.replace(chosen, probe=probe)
    chosen = override(chosen, assign or [])
    with Display(chosen, quiet=as_json) as display:
        observer = Observer(display.progress, display.event, display.message, display.evaluation)
        result = run(stated, chosen, folder, resume, problem, checkpoint_seconds, observer)
    if as_json:
        print(json.dumps(result.metrics, indent=2))
    else:
        _print_metrics(result.metrics, folder)
    if result.outcome.exit_code:
        sys.exit(result.outcome.exit_code)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="The directory of a run.")],
    stated: PROBLEM = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics and nothing else.")] = False,
) -> None:
    """Errors of a run's network over the parameter grid, by its last checkpoint."""
    from clpinn.runs.directory import RunDirectory, plain
    from clpinn.runs.evaluate import evaluate as errors
    from clpinn.runs.metrics import evaluation_thetas

    directory = RunDirectory(run, _stated(stated))
    problem, settings = directory.problem, directory.settings
    with Display(None, quiet=as_json) as display:
        found = errors(problem, directory.network, evaluation_thetas(settings), display.evaluation).summary()
    name = stated or directory.problem_label
    about = {"problem": name, "method": settings.method, "seed": settings.seed}
    about |= plain(found) | {"has_reference": problem.reference is not None}
    if as_json:
        print(json.dumps(about, indent=2))
    else:
        _print_metrics(about, run)


@app.command()
def adapt(
    run: Annotated[Path, typer.Argument(help="The directory of a run that has ended.")],
    theta: Annotated[
        list[str] | None, typer.Argument(help="Parameter values: nu=0.0113, or several: nu=0.0113,0.02 rho=4.")
    ] = None,
    unseen: Annotated[bool, typer.Option("--unseen", help="All candidate thetas that were not trained.")] = False,
    most: Annotated[int | None, typer.Option(help="With --unseen: no more than that many, drawn at random.")] = None,
    way: Annotated[
        str,
        typer.Option(
            help="What is trained: head, or of a rival's network what belongs to it: svd (p2inn), target (hyperpinn, "
            "metapinn), full."
        ),
    ] = "head",
    optimizer: Annotated[str, typer.Option(help="lm: Levenberg-Marquardt. adam: Adam steps as in the paper.")] = "lm",
    steps: Annotated[int | None, typer.Option(help="Steps of a fit. [default: at most 20 of lm, 500 of adam]")] = None,
    together: Annotated[int, typer.Option(help="Thetas fitted at once; fewer where memory is short.")] = 8,
    seed: Annotated[int, typer.Option(help="Decides the heads' start and all points.")] = 0,
    out: Annotated[Path | None, typer.Option(help="File for the surrogate. [default: RUN/adapted.clpinn]")] = None,
    stated: PROBLEM = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Sharpen a run's surrogate at single thetas: a small head each, used only where it is found to be better.

    Nothing but the equations is fitted to. Where the problem has a reference, the true errors are shown, too.
    """
    import numpy as np

    from clpinn.runs.directory import RunDirectory, plain
    from clpinn.runs.evaluate import evaluate as errors

    directory = RunDirectory(run, _stated(stated))
    surrogate = directory.surrogate
    problem = surrogate.problem
    if unseen == bool(theta):
        raise ClpinnError("Give thetas to adapt to, such as nu=0.0113, or --unseen for all that were not trained.")
    thetas = surrogate.unseen(most, seed) if unseen else _thetas(problem, theta or [])
    with Display(None, quiet=as_json) as display:
        adapted = surrogate.adapt_many(
            thetas,
            seed,
            lambda done, of: display.evaluation("heads", done, of),
            way=way,  # pyright: ignore[reportArgumentType]
            optimizer=optimizer,  # pyright: ignore[reportArgumentType]
            steps=steps,
            together=together,
        )
        found = {}
        if problem.reference is not None:
            found = {
                name: errors(problem, one, thetas=thetas, progress=display.evaluation).outputs
                for name, one in (("before", surrogate), ("after", adapted))
            }
    heads = adapted.heads
    assert heads is not None
    file = out or directory.adapted_file
    adapted.save(file)
    rows = []
    for i, row in enumerate(heads.thetas):
        about = dict(zip(problem.parameters, row.tolist())) | {"used": bool(heads.used[i]), "reason": heads.reason(i)}
        about |= {name: float(getattr(heads, name)[i]) for name in ("loss_before", "loss_after")}
        about |= {f"estimate_{when}": float(getattr(heads, f"error_{when}")[i]) for when in ("before", "after")}
        for when, outputs in found.items():
            about[f"rel_l2_{when}"] = {name: float(error.rel_l2[i]) for name, error in outputs.items()}
        rows.append(about)
    if as_json:
        print(json.dumps({"file": str(file), "thetas": plain(rows)}, indent=2))
        return
    table = Table(title=Text(f"heads at {len(rows)} thetas, {int(np.sum(heads.used))} of them used"))
    columns = [
        *problem.parameters,
        "physics loss",
        "estimated error",
        *(f"error of {name}" for name in problem.outputs),
    ]
    for header in [*columns[: None if found else len(problem.parameters) + 2], "answers"]:
        table.add_column(header, justify="right")
    for about in rows:
        cells = [f"{about[name]:.6g}" for name in problem.parameters]
        cells += [f"{about[f'{what}_before']:.1e} → {about[f'{what}_after']:.1e}" for what in ("loss", "estimate")]
        if found:
            before, after = about["rel_l2_before"], about["rel_l2_after"]
            cells += [f"{before[name]:.2e} → {after[name]:.2e}" for name in problem.outputs]
        table.add_row(*cells, "head" if about["used"] else "base")
    Console().print(table)
    Console().print(Text(f"surrogate with heads: {file}"))


def _values(given: list[str]) -> dict[str, Any]:
    """Rows of values by name, from words such as nu=0.01,0.02 and rho=4."""
    import numpy as np

    values: dict[str, Any] = {}
    for word in given:
        name, equals, text = word.partition("=")
        try:
            values[name] = np.array([float(part) for part in text.split(",")])
        except ValueError:
            equals = ""
        if not equals:
            raise ClpinnError(f"A theta is given as name=value, such as nu=0.0113, but got {word!r}.")
    return values


def _thetas(problem: Any, given: list[str]) -> Any:
    """Thetas, shape (rows, parameters), from words such as nu=0.01,0.02 and rho=4."""
    import numpy as np

    values = _values(given)
    problem.parameters.require(values, complete=True)
    try:
        return np.stack(np.broadcast_arrays(*(values[name] for name in problem.parameters)), axis=1)
    except ValueError:
        counts = ", ".join(f"{len(part)} of {name}" for name, part in values.items())
        raise ClpinnError(f"Give as many values of each parameter, or a single one, but got {counts}.") from None


RUN = Annotated[Path, typer.Argument(help="The directory of a run that has ended, or a surrogate's file in one.")]
WORDS = Annotated[
    list[str] | None,
    typer.Argument(help="Parameters by name, nu=0.03 or several: nu=0.01,0.02; coordinates too, if not all: t=0.5."),
]
POINTS = Annotated[int | None, typer.Option(help="Values on each coordinate. [default: the evaluation grid]")]


@app.command()
def predict(
    run: RUN,
    given: WORDS = None,
    out: Annotated[Path | None, typer.Option(help="File for the field: .nc, .csv or .vtk.")] = None,
    points: POINTS = None,
    trust: Annotated[bool, typer.Option(help="Tell how well the equations hold at that theta.")] = True,
    stated: PROBLEM = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """The solution at a theta: a field for a file, or values at single points."""
    import numpy as np

    from clpinn.exports.export import write_field
    from clpinn.surrogate.trust import Trust

    surrogate, values = _surrogate(run, stated), _single(_values(given or []))
    with _warnings_told():
        field = surrogate.field(points, **values)
        theta = {name: values[name] for name in surrogate.problem.parameters}
        trusted = surrogate.trust(**theta) if trust and all(np.ndim(part) == 0 for part in theta.values()) else None
    about: dict[str, Any] = {"grid": {str(name): size for name, size in field.sizes.items()}}
    about["outputs"] = {
        str(name): {"min": float(part.min()), "max": float(part.max()), "mean": float(part.mean())}
        for name, part in field.data_vars.items()
    }
    if field[surrogate.problem.outputs[0]].size <= 100:
        about["values"] = {str(name): part.values.tolist() for name, part in field.data_vars.items()}
    if isinstance(trusted, Trust):
        about["trust"] = trusted.summary()
    if out is not None:
        write_field(field, out)
        about["file"] = str(out)
    if as_json:
        print(json.dumps(about, indent=2))
        return
    shown = Table(title=Text(f"{surrogate.problem.__class__.__name__}, {' '.join(given or [])}"))
    for header in ("output", "lowest", "mean", "highest"):
        shown.add_column(header, justify="left" if header == "output" else "right")
    for name, part in about["outputs"].items():
        shown.add_row(Text(name), *(f"{part[key]:.6g}" for key in ("min", "mean", "max")))
    screen = Console()
    screen.print(shown)
    if len(about["grid"]) < 2 and "values" in about:
        for name, part in about["values"].items():
            row = " ".join(f"{value:.10g}" for value in np.atleast_1d(part))
            screen.print(Text(f"{name} = {row}"), soft_wrap=True)
    if trusted is not None:
        screen.print(Text(str(trusted)))
    if out is not None:
        screen.print(Text(f"field: {out}"))


@app.command()
def export(
    run: RUN,
    file: Annotated[
        Path,
        typer.Argument(help="The surrogate: .onnx, .stablehlo, .mlir. A field at a theta: .nc, .csv, .vtk."),
    ],
    given: WORDS = None,
    points: POINTS = None,
    stated: PROBLEM = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Write a run's surrogate, or a field of it, in a form that other programs read."""
    from clpinn.exports.export import export as write

    with _warnings_told():
        write(_surrogate(run, stated), file, points, **_single(_values(given or [])))
    if as_json:
        print(json.dumps({"file": str(file), "bytes": file.stat().st_size}))
    else:
        Console().print(Text(f"written: {file} ({file.stat().st_size / 1e3:.0f} kB)"))


@app.command()
def plot(
    run: Annotated[Path, typer.Argument(help="The directory of a run that has ended.")],
    kind: Annotated[str, typer.Argument(help="fields, errors, residuals, tasks, losses, streamlines or heads.")],
    theta: Annotated[
        list[str] | None, typer.Argument(help="Thetas for fields and streamlines: nu=0.01,0.1. [default: by error]")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Picture: .png, .svg, .pdf. [default: RUN/KIND.png]")] = None,
    stated: PROBLEM = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Draw one figure of a run."""
    from clpinn.report.figures import plot as draw
    from clpinn.report.style import save
    from clpinn.runs.directory import RunDirectory

    read = RunDirectory(run, _stated(stated))
    file = out or run / f"{kind}.png"
    with Display(None, quiet=as_json) as display, _warnings_told():
        thetas = _thetas(read.problem, theta) if theta else None
        save(draw(read, kind, thetas, display.evaluation), file)
    if as_json:
        print(json.dumps({"file": str(file)}))
    else:
        Console().print(Text(f"picture: {file}"))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs that have ended, side by side.")],
    out: Annotated[
        Path | None, typer.Option(help="The page. [default: RUN/report.html, or report.html for several]")
    ] = None,
    stated: PROBLEM = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """One self-contained HTML page about one run or several: errors, figures, how to repeat them."""
    from clpinn.report.page import write_page
    from clpinn.runs.directory import RunDirectory

    file = out or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    problem = _stated(stated)
    with Display(None, quiet=as_json) as display, _warnings_told():
        write_page([RunDirectory(run, problem) for run in runs], file, display.evaluation)
    if as_json:
        print(json.dumps({"file": str(file), "bytes": file.stat().st_size}))
    else:
        Console().print(Text(f"report: {file} ({file.stat().st_size / 1e3:.0f} kB)"))


def _surrogate(run: Path, stated: str | None) -> Any:
    """The surrogate of a run, or one in a file beside it (adapted.clpinn)."""
    from clpinn.runs.directory import RunDirectory
    from clpinn.surrogate.surrogate import load

    problem = _stated(stated)
    if not run.is_file():
        return RunDirectory(run, problem).surrogate
    beside = RunDirectory(run.parent, problem)
    return load(run, beside.problem if problem is not None or beside.started else None)


def _single(values: dict[str, Any]) -> dict[str, Any]:
    """Rows of one value as that value."""
    return {name: row[0] if len(row) == 1 else row for name, row in values.items()}


@contextmanager
def _warnings_told() -> Iterator[None]:
    """Warnings as one clear line each on standard error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for text in dict.fromkeys(str(one.message) for one in caught):
        console.print(Text.assemble(("warning: ", "bold yellow"), text), soft_wrap=True)


def _use_devices(count: int | None) -> None:
    """One JAX device a core: rows are dealt out over them. Must come before JAX starts."""
    import jax

    if count is not None and count < 1:
        raise ClpinnError(f"--devices needs at least 1, but got {count}.")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    jax.config.update("jax_num_cpu_devices", count or cores)


def _print_metrics(metrics: dict[str, Any], folder: Path) -> None:
    def figure(value: float | None) -> str:
        return "not finite" if value is None else f"{value:.3e}"

    table = Table(title=Text(f"{metrics['problem']}, {metrics['method']}, seed {metrics['seed']}"))
    for header in ("output", "macro rel. L2", "worst rel. L2", "worst at", "MSE", "largest"):
        table.add_column(header, justify="left" if header in ("output", "worst at") else "right")
    for name, errors in metrics["outputs"].items():
        macro, worst, mse, largest = (figure(errors[key]) for key in ("rel_l2_macro", "rel_l2_worst", "mse", "max_abs"))
        worst_at = ", ".join(f"{key} = {value:.4g}" for key, value in errors.get("worst_at", {}).items())
        table.add_row(name, macro, worst, worst_at, mse, largest)
    screen = Console()
    if metrics["has_reference"]:
        screen.print(table)
    else:
        screen.print("The problem has no reference: residuals only.")
    loss = metrics.get("validation")  # of the natural gradient
    validation = "" if loss is None else f", validation loss {loss:.1e}"
    screen.print(f"mean |residual| {figure(metrics['res_pde_macro'])}{validation}", highlight=False)
    if "outcome" in metrics:
        line = f"{metrics['outcome']} after {metrics['steps']} steps, {metrics['wall_seconds']:.0f} s"
        if metrics["method"] != "free":
            line += f"; {metrics['active']} active and {metrics['replay']} replay tasks, {metrics['queries']} queries"
        screen.print(line, highlight=False)
    screen.print(Text(f"run: {folder}"))


class Display:
    """Where a run stands: a live line in a terminal, plain lines now and then elsewhere, nothing if quiet."""

    def __init__(self, settings: Any, quiet: bool):
        self.settings, self.quiet = settings, quiet
        self.live = console.is_terminal and not quiet
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeRemainingColumn())
        self.bar = Progress(*columns, console=console, transient=True, disable=not self.live)
        self.tasks: dict[str, Any] = {}
        self.newest: list[float] = []
        self.started = self.last = time.monotonic()

    def __enter__(self) -> "Display":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def progress(self, state: Any, met: Any, named: dict[str, float]) -> None:
        settings, now = self.settings, time.monotonic()
        if now - self.last < (0.2 if self.live else 10):
            return
        self.last = now
        total = settings.adam.steps + settings.lbfgs.steps if settings.optimizer == "adam-lbfgs" else math.inf
        done = state.step / min(total, settings.steps or total)
        if settings.seconds:
            done = max(done, (now - self.started) / settings.seconds)
        parts = ", ".join(f"{name} {part:.1e}" for name, part in named.items())
        text = f"{state.stage} {state.step}  loss {float(met.value):.2e} ({parts})"
        if state.natural:
            text += f"  validation {state.validation:.2e}  step {met.length:.2g}"
            text += f"  damping {float(state.natural[0].damping):.0e}  rows {state.growth * settings.natural.rows}"
        if len(state.pool.thetas):
            text += f"  tasks {len(state.pool.active)}+{len(state.pool.replay)}"
        if self.newest:
            text += "  newest " + ", ".join(f"{part:.3g}" for part in self.newest)
        self._show("train", text, done)

    def event(self, record: dict[str, Any]) -> None:
        self.newest = record["moved_entered"] or self.newest

    def evaluation(self, what: str, done: int, total: int) -> None:
        if self.live:
            self._show(what, f"evaluating: {what} {done}/{total}", done / total)

    def _show(self, key: str, text: str, share: float) -> None:
        if self.live:
            if key not in self.tasks:
                self.tasks[key] = self.bar.add_task(text, total=1.0)
            self.bar.update(self.tasks[key], description=escape(text), completed=min(share, 1.0))
        elif not self.quiet:
            seconds = time.monotonic() - self.started
            left = f", {max(0.0, seconds * (1 / share - 1)):.0f} s left" if share > 0 else ""
            console.print(Text(f"{seconds:5.0f} s{left}  {text}"), soft_wrap=True)

    def message(self, text: str) -> None:
        if not self.quiet:
            console.print(Text(text), soft_wrap=True)


def main() -> None:
    """Entry point: an error of clpinn's own, or of the file system, is one clear message and an exit code."""
    try:
        app()
    except (ClpinnError, OSError) as error:
        console.print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
        sys.exit(getattr(error, "exit_code", 1))
