"""What a cell costs: the rows that its optimisers evaluate, and the hours that this takes on this machine."""

import time
from collections.abc import Sequence
from dataclasses import replace

import jax
import numpy as np

from clpinn.formulation.problem import Condition, Problem
from clpinn.keys import make_key
from clpinn.networks.make import make
from clpinn.runs.display import Display
from clpinn.studies.adapting import Adapting, targets
from clpinn.studies.study import Cell
from clpinn.surrogate.adapt import trajectory
from clpinn.surrogate.surrogate import Surrogate
from clpinn.training.settings import Settings
from clpinn.training.trainer import Trainer

TIMED_STEPS = 3
"""Steps of each kind that are timed, after one that compiles; the fastest counts."""
NATURAL_STEPS = 600
"""Steps that a natural run without a bound is assumed to make."""
LBFGS_CALLS = 1.1
"""Evaluations per L-BFGS step, between 1 and the paper's limit of 1.25."""
MOMENTS = 50
"""Moments of the Adam stage at which its tasks are counted."""


def rows(cell: Cell) -> tuple[float, float]:
    """Rows that the two stages of a run evaluate in all their steps: (Adam or natural, L-BFGS)."""
    settings, problem = cell.settings, cell.loaded
    if settings.optimizer == "natural":
        return float(settings.natural.rows * (settings.steps or NATURAL_STEPS)), 0.0
    runs = 1 + (settings.network.support or 0) if settings.network.kind == "metapinn" else 1
    adam = settings.adam.steps
    moments = np.linspace(0, adam, MOMENTS)
    mean = float(np.mean([_rows_at(problem, settings, int(step)) for step in moments]))
    share = settings.batch if settings.batch_rows is None else min(1.0, settings.batch_rows / mean)
    return runs * adam * mean * share, runs * LBFGS_CALLS * settings.lbfgs.steps * _rows_at(problem, settings, adam)


def total_rows(cell: Cell) -> float:
    """Rows of a run or an adaptation, for its weight among the others."""
    if cell.adaptation is None:
        return sum(rows(cell))
    problem = cell.loaded
    return float(_target_count(cell) * _adaptation_steps(cell.adaptation) * sum(_points(problem, cell.settings)))


def _adaptation_steps(adapting: Adapting) -> int:
    return adapting.settings.step_count + adapting.settings.lbfgs


def _target_count(cell: Cell) -> int:
    """Targets of an adaptation; of the unseen thetas as many as there will be at least."""
    adapting, problem, tasks = cell.adaptation, cell.loaded, cell.settings.tasks
    assert adapting is not None
    if adapting.targets == "fixed":
        return len(targets(adapting, Surrogate(problem, None)))
    candidates = len(problem.candidates.points)
    unseen = max(0, candidates - tasks.active - (candidates if tasks.replay is None else tasks.replay))
    return unseen if adapting.most is None else min(unseen, adapting.most)


def _points(problem: Problem, settings: Settings) -> tuple[int, int]:
    """Points of one task: in the interior, and all others."""
    others = problem.interior.count - problem.interior.points
    others += sum(condition.points for condition in problem.conditions if isinstance(condition, Condition))
    return settings.points.interior or problem.interior.points, others


def _rows_at(problem: Problem, settings: Settings, step: int) -> float:
    """Rows of the whole pool after so many Adam steps: tasks times points."""
    tasks = settings.tasks
    points, others = _points(problem, settings)
    fraction = tasks.fraction if tasks.density == "sparse" else 1.0
    if settings.network.kind in ("standard", "metapinn"):
        return points + others
    active, replay = tasks.active, 0
    if tasks.selector not in ("uniform", "fixed"):
        entered = 2 ** len(problem.parameters) + step // tasks.interval
        active = min(entered, tasks.active)
        replay = min(entered - active, entered if tasks.replay is None else tasks.replay)
    return active * (points + others) + replay * (fraction * points + others)


def seconds_left(cells: Sequence[tuple[Cell, float]], display: Display) -> float:
    """Seconds that the rest of these cells takes, one after the other: pairs of a cell and the share that is over.

    Steps of each kind are timed: of each problem, network, precision, optimiser, batch and adaptation. L-BFGS is taken
    to need as long per row as Adam.
    """
    speeds: dict[tuple, float] = {}
    total = 0.0
    for i, (cell, share) in enumerate(cells):
        settings, adapting = cell.settings, cell.adaptation
        if adapting is None and settings.seconds is not None:
            total += (1 - share) * settings.seconds
            continue
        batch = settings.batch, settings.batch_rows, settings.chunk
        kind = (cell.problem, settings.network, settings.precision, settings.optimizer, *batch)
        if adapting is not None:
            kind = (cell.problem, settings.network, replace(adapting.settings, steps=None, lbfgs=0))
        if kind not in speeds:
            speeds[kind] = _seconds_per_row(cell) if adapting is None else _seconds_per_adapted_row(cell)
        total += (1 - share) * total_rows(cell) * speeds[kind]
        display.evaluation("timing", i + 1, len(cells))
    return total


def _seconds_per_adapted_row(cell: Cell) -> float:
    """Time of a few steps of an adaptation of a fresh network, per row that they evaluate."""
    problem, adapting = cell.loaded, cell.adaptation
    assert adapting is not None
    few = replace(adapting.settings, steps=TIMED_STEPS, lbfgs=0)
    with jax.enable_x64(cell.settings.precision == "double"):
        network = make(problem, cell.settings.network, make_key(0))
    thetas = problem.parameters.sample(min(few.together, max(1, _target_count(cell))), make_key(0))
    seconds = trajectory(problem, network, thetas, make_key(0), few).seconds[-1]
    return float(seconds) / (TIMED_STEPS * sum(_points(problem, cell.settings)))


def _seconds_per_row(cell: Cell) -> float:
    """Time of one step of the first stage, per row that it evaluates."""
    problem, settings = cell.loaded, cell.settings
    if settings.network.kind == "metapinn":  # made of runs of standard PINNs
        settings = replace(settings, network=replace(settings.network, kind="standard"))
    settings = replace(settings, adam=replace(settings.adam, steps=max(1, settings.adam.steps)))
    with jax.enable_x64(settings.precision == "double"):
        trainer = Trainer(problem, settings)
        state = trainer.init(compile=True)
        stage = trainer.stages[state.stage]
        objective, times = stage.objective(state), []
        for _ in range(1 + TIMED_STEPS):
            start = time.perf_counter()
            state, step, _ = stage.step(state, objective, 0.0)
            float(step.value)
            times.append(time.perf_counter() - start)
    evaluated = settings.natural.rows
    if settings.optimizer == "adam-lbfgs":
        evaluated = settings.batch_rows or settings.batch * _rows_at(problem, settings, 0)
    return min(times[1:]) / evaluated
