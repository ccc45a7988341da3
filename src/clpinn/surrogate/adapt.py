"""Adaptation: a trained network made sharper at single thetas, by the equations there.

Many thetas are fitted in one compiled computation, by Levenberg-Marquardt or by the paper's Adam steps. Whether a
result is used is decided at points that it was not fitted to, by the physics loss and by an estimate of the remaining
error (see `Heads`).
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from clpinn.errors import ProblemError, SettingsError
from clpinn.formulation.domain import Points
from clpinn.formulation.identity import Identity
from clpinn.formulation.problem import Problem
from clpinn.formulation.thetas import checked_thetas
from clpinn.keys import Key, fold_in, split
from clpinn.machine import free_memory
from clpinn.networks.architecture import cast, precision
from clpinn.programs import Program
from clpinn.surrogate.adapt_programs import adapt_programs
from clpinn.surrogate.adapt_settings import HEADS_BY_LM, LM_STEPS, AdaptSettings
from clpinn.surrogate.adaptations import Heads, make_adaptation
from clpinn.surrogate.box_correction import for_single_precision
from clpinn.training.batches import TaskMix
from clpinn.training.pool_loss import Collocation
from clpinn.training.residuals import Terms
from clpinn.training.rows import Batch

ROWS = 1024
"""Residual rows that a head is fitted to by Levenberg-Marquardt, and as many that each head is judged by."""
MEMORY_FRACTION = 0.5
"""Fraction of the free memory that one computation may use."""

Progress = Callable[[int, int], None]
"""Called with the number of thetas done, and of all."""


@dataclass(frozen=True)
class Trajectory:
    """What one fit gives along its way.

    `heads[i]` are the heads at the i-th checkpoint, the last ones at the end. `seconds[i]` is the wall time per theta
    from the start to there, of the fit alone: without compilation, drawing points and judgement.
    """

    heads: tuple[Heads, ...]
    seconds: Float[np.ndarray, " checkpoints"]
    compile_seconds: float


def adapt(
    problem: Problem,
    base: Any,
    thetas: Points,
    key: Key,
    settings: AdaptSettings = HEADS_BY_LM,
    progress: Progress = lambda done, of: None,
) -> Heads:
    """Adaptations of a trained network at these thetas (thetas, parameters)."""
    return trajectory(problem, base, thetas, key, settings, (), progress).heads[-1]


def trajectory(
    problem: Problem,
    base: Any,
    thetas: Points,
    key: Key,
    settings: AdaptSettings = HEADS_BY_LM,
    checkpoints: Sequence[int] = (),
    progress: Progress = lambda done, of: None,
) -> Trajectory:
    """Adaptations at these thetas (thetas, parameters), after some of Adam's steps and at the end.

    `checkpoints` are increasing numbers of steps. Heads at a checkpoint are, bit for bit, those of a fit that ends
    there. After the last step of Adam comes L-BFGS, if the settings ask for it; the end is after it.
    """
    thetas = checked_thetas(problem, thetas, forbid_outside=True)
    if len(thetas) == 0:
        raise ProblemError("Thetas to adapt to need at least one row, but got none.")
    checkpoints = _before_the_end(settings, checkpoints)
    dtype = precision(base)
    with jax.enable_x64(True):
        fit = _Fit(problem, base, settings, checkpoints, fold_in(key, 0))
        together = min(settings.together, len(thetas), _most_together(ROWS, fit.size(thetas[0], key)))
        blocks: list[list[Any]] = []
        for first in range(0, len(thetas), together):
            # The last block is filled up to the size of the others, so that it needs no compilation.
            block = np.resize(thetas[first : first + together], (together, thetas.shape[1]))
            keys = [fold_in(key, 1 + first + i) for i in range(together)]
            kept = min(together, len(thetas) - first)
            results = fit.results(block, keys)
            blocks.append([jax.tree.map(lambda leaf, kept=kept: np.asarray(leaf)[:kept], tree) for tree in results])
            progress(first + kept, len(thetas))
    heads = []
    for at_checkpoint in zip(*blocks, strict=True):
        trained, figures = jax.tree.map(lambda *leaves: np.concatenate(leaves), *at_checkpoint)
        trained = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), trained)
        heads.append(Heads(thetas, trained, **figures, way=settings.way, always=settings.always))
    seconds = np.array(fit.clock.seconds) / (len(blocks) * together)
    return Trajectory(tuple(heads), np.cumsum(seconds), fit.clock.compile_seconds)


def _before_the_end(settings: AdaptSettings, checkpoints: Sequence[int]) -> tuple[int, ...]:
    """The checkpoints, without one that is the end."""
    end = settings.step_count
    if checkpoints and settings.optimizer != "adam":
        raise SettingsError(
            "Checkpoints are steps of adam, but optimizer is lm. Choose optimizer adam, or leave them out."
        )
    if any(b <= a for a, b in pairwise((0, *checkpoints))) or max(checkpoints, default=0) > end:
        raise SettingsError(
            f"Checkpoints are increasing numbers of steps from 1 to {end}, the steps of the fit, but got "
            f"{tuple(checkpoints)}. Leave some out, or set more steps."
        )
    return tuple(step for step in checkpoints if step < end or settings.lbfgs)


def paper_batch(
    terms: Terms, theta: Float[np.ndarray, " parameters"], key: Key, dtype: Any = np.float64
) -> dict[str, Batch]:
    """The problem's own points at one theta, newly drawn: the interior with its anchors, and each condition.

    The sum of squares of these rows is the paper's loss of a task: a weighted sum of mean squares.
    """
    batch = {}
    for name, points in Collocation.sample(terms.problem, key).of(theta).items():
        count = len(points)
        weight = np.full((count, len(terms.residual_names[name])), math.sqrt(terms.weights[name] / count))
        arrays = points, np.broadcast_to(theta, (count, len(theta))), weight
        batch[name] = Batch(*(np.asarray(array, dtype) for array in arrays))  # pyright: ignore[reportArgumentType]
    return batch


def _most_together(rows: int, parameters: int) -> int:
    """The number of thetas that fit into memory at once.

    Each needs its Jacobian, the arrays that it is made from, and the normal matrix.
    """
    each = 8 * (4 * rows * parameters + 2 * min(rows, parameters) ** 2)
    return max(1, math.floor(MEMORY_FRACTION * free_memory() / each))


# The fit of several thetas -----------------------------------------------------------------------------------


@dataclass
class _Clock:
    """Wall seconds of the fits, by stretch between results, and of compilation."""

    seconds: list[float]
    compile_seconds: float = 0.0

    def run(self, stretch: int, program: Program, *arguments: Any) -> Any:
        """What a program gives. Compilation counts apart."""
        start = time.perf_counter()
        program.lowered(*arguments)()
        compiled = time.perf_counter()
        result = jax.block_until_ready(program(*arguments))
        self.compile_seconds += compiled - start
        self.seconds[stretch] += time.perf_counter() - compiled
        return result


class _Fit:
    """The fit of a base at blocks of thetas. It is judged in double precision, also if it is fitted in single."""

    def __init__(self, problem: Problem, base: Any, settings: AdaptSettings, checkpoints: tuple[int, ...], key: Key):
        self.settings, self.checkpoints = settings, checkpoints
        lm_steps = settings.step_count if settings.optimizer == "lm" else LM_STEPS
        self.programs = adapt_programs(Identity(problem), ROWS, settings.way, settings.width, lm_steps)
        self.base = cast(base, jnp.float64)
        self.dtype = jnp.float32 if settings.precision == "single" else jnp.float64
        self.fitted_base = self.base
        if settings.precision == "single":
            self.fitted_base = cast(for_single_precision(self.base), jnp.float32)
        self.adaptation = make_adaptation(problem, self.fitted_base, settings.way, settings.width)
        self.sizes = self.programs.source.sizes.measure(self.base, key)
        self.clock = _Clock([0.0] * (len(checkpoints) + 1))

    def size(self, theta: np.ndarray, key: Key) -> int:
        """Numbers that are trained at one theta."""
        return sum(leaf.size for leaf in jax.tree.leaves(self._start(theta, key)))

    def results(self, thetas: Points, keys: Sequence[Key]) -> list[Any]:
        """What is trained at these thetas and its figures, per checkpoint and at the end; one entry per theta."""
        draws = [self._drawn(theta, key) for theta, key in zip(thetas, keys, strict=True)]
        start, fitted, judged = (jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees) for trees in zip(*draws))
        first = self._in_double(start)
        results = []
        for trained, steps in self._along(start, fitted):
            end = self._in_double(trained)
            figures = self.programs.judge(self.base, first, end, judged)
            results.append((end, figures | {"steps": np.broadcast_to(np.asarray(steps, float), len(thetas))}))
        return results

    def _drawn(self, theta: np.ndarray, key: Key) -> tuple[Any, dict[str, Batch], dict[str, Batch]]:
        """The start at a theta, the batch it is fitted to, and the batch it is judged by."""
        fit_key, judge_key, start_key = split(key, 3)
        source, alone = self.programs.source, TaskMix.single(theta)
        # Robust: residuals that the head cannot remove must not decide about the others.
        judged = source.batches.draw(self.base, judge_key, self.sizes, alone, robust=True)
        if self.settings.optimizer == "lm":
            fitted = source.batches.draw(self.base, fit_key, self.sizes, alone, robust=True)
        else:  # residuals as they are
            fitted = paper_batch(source.rows.terms, theta, fit_key, self.dtype)
        without_data = source.batches.without_data
        return self._start(theta, start_key), without_data(fitted), without_data(judged)

    def _start(self, theta: np.ndarray, key: Key) -> Any:
        return self.adaptation.start(jnp.asarray(theta, self.dtype), key)

    def _in_double(self, tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), tree)

    def _along(self, start: Any, fitted: dict[str, Batch]) -> Iterator[tuple[Any, Any]]:
        """What is trained and the steps so far, at each checkpoint and at the end."""
        settings, programs, base = self.settings, self.programs, self.fitted_base
        if settings.optimizer == "lm":
            yield self.clock.run(0, programs.lm, base, start, fitted)
            return
        double = settings.precision == "double"  # in single precision no constant of an equation may be double
        rate, done = np.asarray(settings.learning_rate, self.dtype), 0
        with jax.enable_x64(double):
            state = start, programs.moments(start)
        for stretch, step in enumerate((*self.checkpoints, settings.step_count)):
            with jax.enable_x64(double):
                state = self.clock.run(stretch, programs.adam, base, state, fitted, np.int32(step - done), rate)
            trained, done = state[0], step
            if stretch < len(self.checkpoints):
                yield trained, done
        steps: Any = done
        if settings.lbfgs:
            with jax.enable_x64(double):
                trained, more = self.clock.run(
                    len(self.checkpoints), programs.lbfgs, base, trained, fitted, np.int32(settings.lbfgs)
                )
            steps = done + np.asarray(more)
        yield trained, steps
