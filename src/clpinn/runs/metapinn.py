"""The run of a Meta-PINN: one standard PINN per support theta, then a regression of their weights on theta."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from clpinn.errors import Outcome, RunError
from clpinn.formulation.pointwise import theta_features
from clpinn.formulation.thetas import theta_text
from clpinn.keys import fold_in, make_key
from clpinn.networks.metapinn import MetaPINN
from clpinn.runs.directory import RunDirectory
from clpinn.runs.session import Result, Session
from clpinn.training.selection import Uniform
from clpinn.training.settings import Settings
from clpinn.training.tasks import TaskPool


def train_metapinn(session: Session, run_task: Callable[[Settings, RunDirectory, Any], Result]) -> Result:
    """Train a network at the centre of the box, from it one at each support theta, then fit the Meta-PINN.

    `run_task(settings, directory, start)` trains one of them from the network `start`. Each is a run of its own below
    the run's directory, so a killed Meta-PINN goes on where it was. Bounds on steps and time are divided evenly.
    """
    trainer, directory = session.trainer, session.directory
    problem, settings = trainer.problem, trainer.settings
    key = fold_in(make_key(settings.seed), 1)
    support = Uniform().initial(trainer.box, settings.network.support or 1, key)
    thetas = np.concatenate([trainer.box.centre[None], support])
    trainer.events.check_tasks(thetas)
    results: list[Result] = []
    for i, theta in enumerate(thetas):
        label = "the centre" if i == 0 else f"support task {i} of {len(support)}"
        place = theta_text(problem.parameters, theta, digits=4)
        session.observer.message(f"Meta-PINN: {label}, {place}")
        start = results[0].network if results else None
        result = run_task(_task_settings(settings, theta, 1 / len(thetas)), directory.task(i), start)
        if result.outcome is Outcome.DIVERGED:
            raise _failure(
                result.outcome,
                f"Training of {label} diverged. {directory.task(i).folder} holds that run. " + result.outcome.advice,
            )
        if result.outcome is Outcome.STOPPED or session.stop_requested():
            raise _failure(
                Outcome.STOPPED, f"Training of a Meta-PINN stopped at {label}. To go on from there, use --resume."
            )
        results.append(result)
    features = np.stack([np.asarray(theta_features(problem, theta)) for theta in support])
    network = MetaPINN.fitted([result.network for result in results[1:]], features)
    steps = sum(result.metrics["steps"] for result in results)
    state = replace(trainer.init(), network=network, pool=TaskPool.fixed(support), step=steps)
    elapsed = sum(result.metrics["wall_seconds"] for result in results)
    return session.finish(state, Outcome.FINISHED, lambda: elapsed)


def _failure(outcome: Outcome, message: str) -> RunError:
    error = RunError(message)
    error.exit_code = outcome.exit_code
    return error


def _task_settings(settings: Settings, theta: np.ndarray, share: float) -> Settings:
    """The settings of a standard PINN at one theta, with a share of the bounds."""
    return replace(
        settings,
        method="standard",
        network=replace(settings.network, kind="standard", support=None),
        tasks=replace(settings.tasks, selector="fixed", active=1, fixed=(tuple(theta.tolist()),)),
        steps=settings.steps and math.ceil(settings.steps * share),
        seconds=settings.seconds and settings.seconds * share,
    )
