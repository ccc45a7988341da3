"""What metrics.json says of a run."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from clpinn.errors import Outcome
from clpinn.estimation.estimate import Estimator
from clpinn.formulation.domain import Points
from clpinn.formulation.problem import Problem
from clpinn.formulation.thetas import coverage_hole
from clpinn.runs.directory import RunDirectory
from clpinn.runs.display import Display
from clpinn.runs.evaluate import Metrics, evaluate
from clpinn.runs.records import plain
from clpinn.surrogate.box_correction import at_theta
from clpinn.surrogate.error_map import ErrorMap, error_map
from clpinn.training.settings import Settings
from clpinn.training.state import State
from clpinn.training.trainer import Trainer


def evaluation_thetas(settings: Settings) -> Points | None:
    """The thetas that a run is evaluated at; None for all candidates. A standard PINN knows its own theta only."""
    return np.array(settings.tasks.fixed) if settings.network.kind == "standard" else None


def estimated_errors(
    problem: Problem, network: Any, settings: Settings, display: Display, seconds: float | None = None
) -> ErrorMap:
    """The map of a network's estimated errors at the thetas that a run is evaluated at."""
    return error_map(
        Estimator(problem),
        partial(at_theta, problem, network),
        seconds=seconds,
        progress=lambda done, total: display.evaluation("estimates", done, total),
        candidates=evaluation_thetas(settings),
    )


def run_metrics(
    trainer: Trainer,
    state: State,
    outcome: Outcome,
    errors: Metrics,
    elapsed: float,
    memory: float,
    directory: RunDirectory,
) -> dict[str, Any]:
    """The content of metrics.json. `elapsed` is in wall seconds, `memory` that of training in MiB."""
    problem, settings = trainer.problem, trainer.settings
    natural = settings.optimizer == "natural"
    summary = errors.summary()
    seconds = trainer.timing.seconds
    thetas = state.pool.thetas
    metrics = {
        "problem": directory.problem_label,
        "method": settings.method,
        "optimizer": settings.optimizer,
        "seed": settings.seed,
        "outcome": outcome.value,
        "steps": state.step,
        "lbfgs_steps": 0 if natural or state.stage == "adam" else state.stage_step,
        "lbfgs_evaluations": state.evaluations,
        "recoveries": state.recoveries,
        "wall_seconds": elapsed,
        "peak_memory_mib": memory,
        "compile_seconds": seconds.get("compilation", 0.0),
        "search_seconds": seconds.get("selection", 0.0) + seconds.get("queries", 0.0),
        "seconds": seconds,
        "queries": state.queries,
        "active": len(state.pool.active),
        "replay": len(state.pool.replay),
        "res_pde_macro": summary["res_pde_macro"],
        "outputs": summary["outputs"],
        "macro": summary["macro"],
        "has_reference": problem.reference is not None,
        "estimated": None,  # until errors have been estimated
        "correction": None,
        "forgetting": _forgetting(trainer, state, directory),
        "coverage_hole": coverage_hole(problem.candidates.points, thetas, trainer.box) if len(thetas) else None,
        "validation": state.validation if natural else None,
        "not_learnt": trainer.not_learnt(state),
    }
    return plain(metrics)


def corrected_metrics(
    metrics: Mapping[str, Any], correction: Mapping[str, Any] | None, errors: Metrics, estimated: ErrorMap
) -> dict[str, Any]:
    """What metrics.json says of a surrogate whose errors are estimated, and that may be corrected over the box.

    `correction` is what is known of the correction, `errors` and `estimated` are of the surrogate as it is now. The
    errors of the network alone are kept beside.
    """
    summary = errors.summary()
    if correction is not None:
        names = ("used", "reason", "thetas", "resolved")
        correction = {name: correction[name] for name in names} | {"network_outputs": metrics["outputs"]}
    return plain(
        {
            "res_pde_macro": summary["res_pde_macro"],
            "outputs": summary["outputs"],
            "macro": summary["macro"],
            "estimated": estimated.summary(),
            "correction": correction,
        }
    )


def ending_text(metrics: Mapping[str, Any]) -> str:
    """How a run ended: "finished after 200 steps, 1 recovery". A run that recovered looks like any other otherwise."""
    recoveries = metrics.get("recoveries")  # runs of before may have none
    text = f"{metrics['outcome']} after {metrics['steps']} steps"
    return f"{text}, {recoveries} {'recovery' if recoveries == 1 else 'recoveries'}" if recoveries else text


def not_learnt_text(metrics: Mapping[str, Any]) -> str | None:
    """What to tell the user if some residuals were not learnt."""
    names = metrics.get("not_learnt")  # runs of before have none
    if not names:
        return None
    return (
        f"NOT LEARNT: after {metrics['steps']} steps the residual of {', '.join(names)} is still as large as its own "
        "terms, so the answers cannot be trusted yet. Go on with --resume and a larger --seconds or --steps. If it "
        "stays so, docs/troubleshooting.md says what to look for."
    )


def displaced_thetas(event: dict[str, Any]) -> list[list[float]]:
    """The thetas that left the active set in an event, in the order of their logged errors."""
    moves = (event["moved_to_replay"], event["moved_dropped"])
    return [theta for theta in moves if theta is not None]


def _forgetting(trainer: Trainer, state: State, directory: RunDirectory) -> list[dict[str, Any]]:
    """Loss (and relative L2) of every displaced task when it was last displaced, and now."""
    problem = trainer.problem
    last = {tuple(row[:-2].tolist()): (row[-2], int(row[-1])) for row in state.displaced}
    if not last:
        return []
    errors_then: dict[tuple[float, ...], dict[str, float]] = {}
    for event in directory.events:
        by_output = event.get("displaced_rel_l2", {})
        for i, theta in enumerate(displaced_thetas(event)):
            errors_then[tuple(theta)] = {name: values[i] for name, values in by_output.items()}
    thetas = np.array(list(last))
    losses = trainer.task_losses(state, thetas)
    outputs = evaluate(problem, state.network, thetas=thetas).outputs
    return [
        {
            "theta": dict(zip(problem.parameters, theta)),
            "step": step,
            "loss_then": loss_then,
            "loss_now": losses[i],
            "rel_l2_then": errors_then.get(theta, {}),
            "rel_l2_now": {name: errors.rel_l2[i] for name, errors in outputs.items()},
        }
        for i, (theta, (loss_then, step)) in enumerate(last.items())
    ]
