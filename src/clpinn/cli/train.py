"""`clpinn train` and `clpinn evaluate`."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from clpinn.cli.display import Display
from clpinn.cli.options import CHANGED_PROBLEM, GIVEN_PROBLEM, PROBLEM, load_given_problem, print_json
from clpinn.cli.tables import print_metrics
from clpinn.errors import ClpinnError

MOST_DEVICES = 1024


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
        str | None,
        typer.Option(
            help="natural: natural gradient. adam-lbfgs: Adam, then L-BFGS, as in the paper.", show_default="natural"
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Random seed for the network's initial weights and all points.", show_default="0"),
    ] = None,
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
    error: Annotated[
        float | None, typer.Option(help="Stop when the worst estimated error over the parameters is below this: 1e-3.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Stop after this many optimiser steps.")] = None,
    probe: Annotated[
        int | None, typer.Option(help="Record errors at this many thetas along the run.", show_default="0")
    ] = None,
    assign: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting: --set adam.learning_rate=3e-4.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Repeat the run of this config.json. Its settings replace --method, --optimizer and --seed."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on from the last checkpoint in the run directory. Only the bounds may be new."
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Remove the run that is in the run directory, then start.")
    ] = False,
    changed_problem: CHANGED_PROBLEM = False,
    checkpoint_seconds: Annotated[float, typer.Option(help="Wall time between checkpoints.")] = 30.0,
    devices: Annotated[int | None, typer.Option(help="CPU devices to use.", show_default="one per core")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print metrics.json and nothing else.")] = False,
) -> None:
    """Train one network for a whole family of PDEs, then show its errors over the parameter grid.

    Training ends when progress ends, or at --seconds, --steps, --until or --error. Then the surrogate is corrected by
    its own estimated error, if that is better (--set correct=false leaves it out). Ctrl-C stops after the current step
    and leaves a checkpoint; --resume goes on from there.
    """
    use_devices(devices)
    from clpinn import presets
    from clpinn.problems import load_problem
    from clpinn.runs.directory import RunDirectory
    from clpinn.runs.records import read_config
    from clpinn.runs.run import run
    from clpinn.training.settings import from_dict, override

    if optimizer not in ("natural", "adam-lbfgs", None):
        raise ClpinnError(f"Unknown optimizer {optimizer!r}. Use natural or adam-lbfgs.")
    given = {"method": method, "optimizer": optimizer, "seed": seed, "probe": probe}
    settings = None if config is None else from_dict(read_config(config)["settings"])
    if settings is not None:
        method, optimizer, seed = settings.method, settings.optimizer, settings.seed
    method = method or ("acr" if optimizer == "adam-lbfgs" else "free")
    folder = out or Path("runs") / f"{Path(problem.replace(':', '-')).name}-{method}-{seed or 0}"
    stored = RunDirectory(folder).settings_to_resume(resume)
    optimizer = stored.optimizer if stored is not None else optimizer or "natural"
    loaded = load_problem(problem, paper=optimizer == "adam-lbfgs")
    if budget is not None and optimizer == "natural":
        raise ClpinnError("--budget is a share of the paper's steps. With natural give --seconds, --steps or --until.")
    if stored is not None:
        _require_same(stored, loaded, given, settings, at, budget, assign or [])
        settings = stored
    else:
        if settings is None:
            preset = presets.natural if optimizer == "natural" else presets.paper
            settings = replace(preset(loaded, method), seed=seed or 0)
        if at:
            settings = _at_theta(settings, loaded, at)
        if optimizer == "adam-lbfgs" and config is None and (seconds, steps, budget) == (None, None, None):
            seconds, budget = 120.0, 0.02  # two minutes, with events that fit into them
        if budget is not None:
            settings = presets.scaled(settings, budget)
        if probe:
            settings = replace(settings, probe=probe)
    if (seconds, steps, until, error) != (None, None, None, None):  # new bounds replace all those of a resumed run
        settings = replace(settings, seconds=seconds, steps=steps, until=until, error=error)
    settings = settings if stored is not None else override(settings, assign or [])
    result = run(
        loaded,
        settings,
        folder,
        resume,
        problem,
        checkpoint_seconds,
        progress=not as_json,
        changed_problem=changed_problem,
        force=force,
    )
    if as_json:
        print_json(result.metrics)
    else:
        print_metrics(result.metrics, folder)
    if result.outcome.exit_code:
        sys.exit(result.outcome.exit_code)


def _require_same(
    stored: Any,
    problem: Any,
    given: dict[str, Any],
    config: Any,
    at: list[str] | None,
    budget: float | None,
    assign: list[str],
) -> None:
    """Raise an error that names each flag that differs from the settings of the run that is to go on.

    `given` holds flags that are settings, by name, None where the user gave none; `config` the settings of --config.
    """
    from clpinn import presets
    from clpinn.training.settings import override

    differences = [
        f"--{name} {value} (the run has {getattr(stored, name)})"
        for name, value in given.items()
        if value is not None and value != getattr(stored, name)
    ]
    if at and _at_theta(stored, problem, at) != stored:
        differences.append(f"--at {' '.join(at)}")
    if budget is not None or config is not None:
        fresh = config or presets.paper(problem, stored.method)
        fresh = override(fresh if budget is None else presets.scaled(fresh, budget), assign)
        numbers = [(each.adam.steps, each.lbfgs.steps, each.tasks.interval) for each in (fresh, stored)]
        if budget is not None and numbers[0] != numbers[1]:
            differences.append(f"--budget {budget} (the run has {stored.adam.steps} Adam steps)")
        same = {name: getattr(stored, name) for name in ("steps", "seconds", "until", "error", "probe")}
        fresh = replace(fresh, **same, tasks=replace(fresh.tasks, fixed=stored.tasks.fixed))
        if config is not None and fresh != stored:
            differences.append("--config (the run has other settings)")
    differences += [f"--set {assignment}" for assignment in assign if override(stored, [assignment]) != stored]
    if differences:
        raise ClpinnError(
            f"The run was started with other settings. What differs: {'; '.join(differences)}. A run goes on as it "
            "began, and only --seconds, --steps, --until and --error may be new. Leave these flags out, or choose "
            "another --out."
        )


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
    changed_problem: CHANGED_PROBLEM = False,
    error: Annotated[bool, typer.Option(help="Estimate errors over the parameters.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics and nothing else.")] = False,
) -> None:
    """Show the errors of a run over the parameter grid, true and estimated, from its last checkpoint.

    If the run has ended, its surrogate is shown, correction included, and the map of estimated errors is kept in its
    model.clpinn, for the report.
    """
    from clpinn.runs.directory import RunDirectory
    from clpinn.runs.evaluate import evaluate as evaluate_network
    from clpinn.runs.metrics import estimated_errors, evaluation_thetas
    from clpinn.runs.records import plain

    directory = RunDirectory(run, load_given_problem(given_problem), changed_problem)
    problem, settings = directory.problem, directory.settings
    with Display(quiet=as_json) as display:
        network = directory.answering_network
        errors = evaluate_network(problem, network, evaluation_thetas(settings), display.evaluation)
        estimated = estimated_errors(problem, network, settings, display) if error else None
    name = given_problem or directory.problem_label
    metrics = {"problem": name, "method": settings.method, "seed": settings.seed}
    metrics |= plain(errors.summary()) | {"has_reference": problem.reference is not None}
    metrics["estimated"] = None if estimated is None else plain(estimated.summary())
    if as_json:
        print_json(metrics)
    else:
        print_metrics(metrics, run)
    if estimated is not None:
        directory.keep_errors(network, estimated)


def use_devices(count: int | None) -> None:
    """Give JAX one CPU device per core, over which it divides the rows. Must come before JAX starts."""
    import jax

    from clpinn.machine import cores

    if count is not None and not 1 <= count <= MOST_DEVICES:
        raise ClpinnError(f"--devices needs a number from 1 to {MOST_DEVICES}, but got {count}.")
    jax.config.update("jax_num_cpu_devices", count or cores())
