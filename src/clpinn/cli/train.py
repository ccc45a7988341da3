"""`clpinn train` and `clpinn evaluate`."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from clpinn.cli.display import Display
from clpinn.cli.options import GIVEN_PROBLEM, PROBLEM, load_given_problem, print_json
from clpinn.cli.tables import print_metrics
from clpinn.errors import ClpinnError


def train(
    problem: PROBLEM,
    out: Annotated[Path | None, typer.Option(help="Run directory.", show_default="runs/PROBLEM-METHOD-SEED")] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="free: thetas are drawn over the whole box (natural only). The paper's methods: uni, fix, ag, ac, "
            "acr, acr2, acr2-full. To compare with: standard (one theta), p2inn, hyperpinn, metapinn.",
            show_default="free; acr with adam-lbfgs",
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(help="With --method standard, its theta: --at nu=0.0113.", show_default="the centre of the box"),
    ] = None,
    optimizer: Annotated[
        str, typer.Option(help="natural: natural gradient. adam-lbfgs: Adam, then L-BFGS, as in the paper.")
    ] = "natural",
    seed: Annotated[int, typer.Option(help="Random seed for the network's initial weights and all points.")] = 0,
    budget: Annotated[
        float | None,
        typer.Option(
            help="With adam-lbfgs, the fraction of the paper's steps to do: 1 is all.",
            show_default="0.02 if there is no other bound",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Stop after this wall time of training.",
            show_default="no bound; 120 with adam-lbfgs if there is no other bound",
        ),
    ] = None,
    until: Annotated[float | None, typer.Option(help="Stop at this validation loss (natural only).")] = None,
    steps: Annotated[int | None, typer.Option(help="Stop after this many optimiser steps.")] = None,
    probe: Annotated[int, typer.Option(help="Record errors at this many thetas along the run.")] = 0,
    assign: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting: --set adam.learning_rate=3e-4.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Repeat the run of this config.json. Its settings replace --method, --optimizer and --seed."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in the run directory.")
    ] = False,
    checkpoint_seconds: Annotated[float, typer.Option(help="Wall time between checkpoints.")] = 30.0,
    devices: Annotated[int | None, typer.Option(help="CPU devices to use.", show_default="one per core")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print metrics.json and nothing else.")] = False,
) -> None:
    """Train one network for a whole family of PDEs, then show its errors over the parameter grid.

    Training ends when progress ends, or at --seconds, --steps or --until. Ctrl-C stops after the current step and
    leaves a checkpoint; --resume goes on from there.
    """
    use_devices(devices)
    from clpinn import presets
    from clpinn.problems import load_problem
    from clpinn.runs.directory import RunDirectory
    from clpinn.runs.records import read_config
    from clpinn.runs.run import run
    from clpinn.runs.session import Observer
    from clpinn.training.settings import from_dict, override

    if optimizer not in ("natural", "adam-lbfgs"):
        raise ClpinnError(f"Unknown optimizer {optimizer!r}. Use natural or adam-lbfgs.")
    settings = None
    if config is not None:
        settings = from_dict(read_config(config)["settings"])
        method, optimizer, seed = settings.method, settings.optimizer, settings.seed
    method = method or ("free" if optimizer == "natural" else "acr")
    folder = out or Path("runs") / f"{Path(problem.replace(':', '-')).name}-{method}-{seed}"
    stored = RunDirectory(folder).settings_to_resume(resume)
    if stored is not None:  # a run goes on as it began, whatever the other options say
        optimizer = stored.optimizer
    loaded = load_problem(problem, paper=optimizer == "adam-lbfgs")
    if stored is not None:
        settings = stored
    else:
        if settings is None:
            preset = presets.natural if optimizer == "natural" else presets.paper
            settings = replace(preset(loaded, method), seed=seed)
        if at:
            settings = _at_theta(settings, loaded, at)
        if budget is not None and optimizer == "natural":
            raise ClpinnError(
                "--budget is a share of the paper's steps. With natural give --seconds, --steps or --until."
            )
        if optimizer == "adam-lbfgs" and config is None and (seconds, steps, budget) == (None, None, None):
            seconds, budget = 120.0, 0.02  # two minutes, with events that fit into them
        if budget is not None:
            settings = presets.scaled(settings, budget)
        if probe:
            settings = replace(settings, probe=probe)
    if (seconds, steps, until) != (None, None, None):  # new bounds replace all those of a resumed run
        settings = replace(settings, seconds=seconds, steps=steps, until=until)
    settings = override(settings, [] if stored is not None else assign or [])
    with Display(settings, quiet=as_json) as display:
        observer = Observer(
            display.progress, display.event, display.message, display.evaluation, display.compiling, display.begin
        )
        result = run(loaded, settings, folder, resume, problem, checkpoint_seconds, observer)
    if as_json:
        print_json(result.metrics)
    else:
        print_metrics(result.metrics, folder)
    if result.outcome.exit_code:
        sys.exit(result.outcome.exit_code)


def _at_theta(settings: Any, problem: Any, words: list[str]) -> Any:
    """The settings of a standard PINN at the theta that --at gives."""
    if settings.method != "standard":
        raise ClpinnError("--at is the theta of a standard PINN. Use --method standard, or leave it out.")
    from clpinn.formulation.thetas import parse_thetas

    thetas = parse_thetas(problem.parameters, words)
    problem.parameters.check(thetas, True)
    return replace(settings, tasks=replace(settings.tasks, fixed=tuple(map(tuple, thetas.tolist()))))


def evaluate(
    run: Annotated[Path, typer.Argument(help="The directory of a run, ended or not.")],
    given_problem: GIVEN_PROBLEM = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics and nothing else.")] = False,
) -> None:
    """Show the errors of a run's network over the parameter grid, from its last checkpoint."""
    from clpinn.runs.directory import RunDirectory
    from clpinn.runs.evaluate import evaluate as evaluate_network
    from clpinn.runs.metrics import evaluation_thetas
    from clpinn.runs.records import plain

    directory = RunDirectory(run, load_given_problem(given_problem))
    problem, settings = directory.problem, directory.settings
    with Display(None, quiet=as_json) as display:
        errors = evaluate_network(problem, directory.network, evaluation_thetas(settings), display.evaluation)
    name = given_problem or directory.problem_label
    metrics = {"problem": name, "method": settings.method, "seed": settings.seed}
    metrics |= plain(errors.summary()) | {"has_reference": problem.reference is not None}
    if as_json:
        print_json(metrics)
    else:
        print_metrics(metrics, run)


def use_devices(count: int | None) -> None:
    """Give JAX one CPU device per core, over which it divides the rows. Must come before JAX starts."""
    import jax

    from clpinn.machine import cores

    if count is not None and count < 1:
        raise ClpinnError(f"--devices needs at least 1, but got {count}.")
    jax.config.update("jax_num_cpu_devices", count or cores())
