"""Errors of adaptations at target thetas, before, at checkpoints and after, as plain figures.

References give these figures and nothing else: no step, choice or stop depends on them.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from clpinn.errors import ProblemError
from clpinn.formulation.domain import Points
from clpinn.formulation.problem import Problem
from clpinn.keys import make_key
from clpinn.networks.make import make
from clpinn.presets import paper
from clpinn.runs.evaluate import evaluate
from clpinn.surrogate.adapt import Progress, trajectory
from clpinn.surrogate.adapt_settings import HEADS_BY_LM, AdaptSettings
from clpinn.surrogate.surrogate import Surrogate


def measured_adaptation(
    surrogate: Surrogate,
    thetas: Points,
    settings: AdaptSettings = HEADS_BY_LM,
    checkpoints: Sequence[int] = (),
    seed: int = 0,
    progress: Progress = lambda done, of: None,
) -> dict[str, Any]:
    """What adapting a surrogate's network at these thetas (thetas, parameters) gives and takes, in plain values.

    - `settings`, `seed`, `thetas`: what was asked for.
    - `trainable`: the number of parameters that are trained at each theta.
    - `compile_seconds`: of the fits. No other time contains them.
    - `results`: a list with an entry before the first step, one per checkpoint, and one at the end. Each has
        - `steps` and `used` by theta: steps of all optimisers so far, and whether the result answers;
        - `seconds`: wall time per theta of the fit up to there, without judgement and errors. Thetas that are fitted
          `together` share it; with `together=1` it is that of one theta alone;
        - `outputs`: `rel_l2`, `mse` and `max_abs` of each output, by theta;
        - `summary`, but for the first: the relative error, the mean over outputs, before and there. See `summary`.
    """
    problem, base = surrogate.problem, surrogate.network
    if problem.reference is None:
        raise ProblemError(
            f"Errors need a reference, and {type(problem).__name__} has none. Use adapt_many, which tells estimates."
        )
    fitted = trajectory(problem, base, thetas, make_key(seed), settings, checkpoints, progress)
    thetas = fitted.heads[0].thetas

    # By theta, then by result: a reference that keeps its last solution computes it once.
    networks = [[base, *(heads.network(problem, base, i) for heads in fitted.heads)] for i in range(len(thetas))]
    errors = [
        [_errors(problem, network, theta) for network in row] for theta, row in zip(thetas, networks, strict=True)
    ]
    count, results = len(thetas), []
    steps = [np.zeros(count), *(heads.steps for heads in fitted.heads)]
    used = [np.zeros(count, bool), *(heads.used for heads in fitted.heads)]
    for k, seconds in enumerate([0.0, *fitted.seconds.tolist()]):
        outputs = {
            name: {figure: [row[k][name][figure] for row in errors] for figure in ("rel_l2", "mse", "max_abs")}
            for name in problem.outputs
        }
        result = {"steps": steps[k].astype(int).tolist(), "used": used[k].tolist(), "seconds": seconds}
        results.append(result | {"outputs": outputs})
    _add_summaries(results)
    return {
        "settings": dataclasses.asdict(settings),
        "seed": seed,
        "thetas": [dict(zip(problem.parameters, theta.tolist())) for theta in thetas],
        "trainable": fitted.heads[0].trainable,
        "compile_seconds": fitted.compile_seconds,
        "results": results,
    }


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What `measured_adaptation` gave at several groups of thetas, as if it had been asked for all of them at once."""
    first, counts = parts[0], [len(part["thetas"]) for part in parts]
    results: list[dict[str, Any]] = []
    for same in zip(*(part["results"] for part in parts), strict=True):
        seconds = float(np.average([result["seconds"] for result in same], weights=counts))
        outputs = {
            name: {
                figure: [value for result in same for value in result["outputs"][name][figure]] for figure in figures
            }
            for name, figures in same[0]["outputs"].items()
        }
        by_theta = {key: [value for result in same for value in result[key]] for key in ("steps", "used")}
        results.append(by_theta | {"seconds": seconds, "outputs": outputs})
    _add_summaries(results)
    return first | {
        "thetas": [theta for part in parts for theta in part["thetas"]],
        "compile_seconds": sum(part["compile_seconds"] for part in parts),
        "results": results,
    }


def _add_summaries(results: list[dict[str, Any]]) -> None:
    """Compare all results with the first one, which is before the first step."""
    before, *later = map(_mean_over_outputs, results)
    for result, after in zip(results[1:], later, strict=True):
        result["summary"] = summary(before, after)


def summary(before: Float[np.ndarray, " targets"], after: Float[np.ndarray, " targets"]) -> dict[str, Any]:
    """Relative errors of the targets before and after, and of those that are difficult: the quarter worst before.

    A reduction is of the mean error, as a share of it. `difficult_factor` is the median of before / after.
    """
    difficult = difficult_quartile(before)
    hard_before, hard_after = before[difficult], after[difficult]
    return {
        "targets": len(before),
        "improved": int(np.sum(after < before)),
        "not_worse": int(np.sum(after <= before)),
        "before": float(before.mean()),
        "after": float(after.mean()),
        "reduction": float(1 - after.mean() / before.mean()),
        "median_before": float(np.median(before)),
        "median_after": float(np.median(after)),
        "worst_before": float(before.max()),
        "worst_after": float(after.max()),
        "difficult": len(difficult),
        "difficult_improved": int(np.sum(hard_after < hard_before)),
        "difficult_before": float(hard_before.mean()),
        "difficult_after": float(hard_after.mean()),
        "difficult_reduction": float(1 - hard_after.mean() / hard_before.mean()),
        "difficult_factor": float(np.median(hard_before / hard_after)),
    }


def difficult_quartile(before: Float[np.ndarray, " targets"]) -> Int[np.ndarray, " difficult"]:
    """Indices of the quarter of the targets with the largest errors before. As in the paper, 77 targets give 20."""
    return np.argsort(before, kind="stable")[-math.ceil(len(before) / 4) :]


def untrained_standard(problem: Problem, seed: int = 0) -> Surrogate:
    """A standard PINN before its first step. Adapted with way="full", it is trained from scratch at each theta."""
    return Surrogate(problem, make(problem, paper(problem, "standard").network, make_key(seed)))


def _errors(problem: Problem, network: Any, theta: Float[np.ndarray, " parameters"]) -> dict[str, dict[str, float]]:
    """Figures of each output at one theta."""
    outputs = evaluate(problem, network, thetas=theta[None]).outputs
    return {
        name: {figure: float(getattr(errors, figure)[0]) for figure in ("rel_l2", "mse", "max_abs")}
        for name, errors in outputs.items()
    }


def _mean_over_outputs(result: dict[str, Any]) -> Float[np.ndarray, " targets"]:
    """The relative error of each target. Outputs count alike, as in the paper."""
    return np.mean([figures["rel_l2"] for figures in result["outputs"].values()], axis=0)
