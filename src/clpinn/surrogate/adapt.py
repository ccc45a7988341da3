"""Adaptation: a trained network made sharper at single thetas, by the equations there.

Many thetas are fitted in one compiled computation, by Levenberg-Marquardt or by the paper's Adam steps. Whether a
result is used is decided at points that it was not fitted to, by the physics loss and by an estimate of the remaining
error (see `Heads`).
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from clpinn.calculus.jets import Jet
from clpinn.errors import ProblemError
from clpinn.formulation.domain import Points
from clpinn.formulation.identity import Identity
from clpinn.formulation.pointwise import values
from clpinn.formulation.problem import Condition, Problem
from clpinn.formulation.thetas import checked_thetas
from clpinn.keys import Key, fold_in, split
from clpinn.machine import free_memory
from clpinn.networks.architecture import precision
from clpinn.surrogate.adaptations import ADAPTATIONS, Adaptation, AdaptationName, Heads
from clpinn.training.batches import RowSource, TaskMix, row_source
from clpinn.training.optimizers.levenberg_marquardt import LevenbergMarquardt, damped_change
from clpinn.training.rows import Batch, Rows, with_derivatives

ROWS = 1024
"""Residual rows that a head is fitted to, and as many that it is judged by."""
TOGETHER = 8
"""Thetas that are fitted in one computation, if memory allows."""
MEMORY_FRACTION = 0.5
"""Fraction of the free memory that one computation may use."""
JUDGING_DAMPING = 1e-8
"""Damping of the Gauss-Newton change that estimates the remaining error."""
ADAM_STEPS, ADAM_RATE = 500, 1e-3
"""The paper's number of steps. It does not state the learning rate."""

FitName = Literal["lm", "adam"]

Fit = Callable[[Callable[[Array], Array], Callable[[Array], tuple[Array, Array]], Array], tuple[Array, Array]]
"""From a loss, residuals with their Jacobian, and a start: the parameters at the end, and the number of steps."""


def adapt(
    problem: Problem,
    base: Any,
    thetas: Points,
    key: Key,
    progress: Callable[[int, int], None] = lambda done, of: None,
    way: AdaptationName = "head",
    optimizer: FitName = "lm",
    steps: int | None = None,
    together: int = TOGETHER,
) -> Heads:
    """Adaptations of a trained network at these thetas (thetas, parameters), computed in double precision.

    `steps` bounds a fit (at most 20 of Levenberg-Marquardt, exactly 500 of Adam, unless given). `together` thetas are
    fitted at once, or fewer if memory does not allow as many.
    """
    thetas = checked_thetas(problem, thetas, forbid_outside=True)
    if len(thetas) == 0:
        raise ProblemError("Thetas to adapt to need at least one row, but got none.")
    if way not in ADAPTATIONS or optimizer not in ("lm", "adam"):
        raise ProblemError(
            f"An adaptation trains one of {', '.join(ADAPTATIONS)} by lm or adam, but got {way!r} by {optimizer!r}."
        )
    if together < 1 or (steps is not None and steps < 1):
        raise ProblemError(f"An adaptation needs at least one theta and one step, but got {together} and {steps}.")
    dtype = precision(base)
    with jax.enable_x64(True):
        base = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), base)
        adaptation = ADAPTATIONS[way](problem, base)
        source, solve = _compiled(Identity(problem), way, optimizer, steps)
        batches = source.batches
        sizes = source.sizes.measure(base, fold_in(key, 0))
        size = sum(leaf.size for leaf in jax.tree.leaves(adaptation.start(jnp.asarray(thetas[0]), key)))
        together = min(together, len(thetas), _most_together(ROWS, size))

        def drawn(theta: np.ndarray, theta_key: Key) -> tuple[Any, dict[str, Batch], dict[str, Batch]]:
            """The start at a theta, the batch it is fitted to, and the batch it is judged by."""
            fit_key, judge_key, start_key = split(theta_key, 3)
            theta_alone = TaskMix.single(theta)
            # Robust: residuals that the head cannot remove must not decide about the others.
            judged = batches.draw(base, judge_key, sizes, theta_alone, robust=True)
            if optimizer == "lm":
                fitted = batches.draw(base, fit_key, sizes, theta_alone, robust=True)
            else:  # the paper's points and weights, with residuals as they are
                points = _paper_points(problem, batches.points)
                fitted = batches.uniform(fit_key, points, source.sizes.ones(), theta_alone)
            start = adaptation.start(jnp.asarray(theta), start_key)
            return start, batches.without_data(fitted), batches.without_data(judged)

        results = []
        for first in range(0, len(thetas), together):
            # The last block is filled up to the size of the others, so that it needs no compilation.
            block = np.resize(thetas[first : first + together], (together, thetas.shape[1]))
            draws = [drawn(theta, fold_in(key, 1 + first + i)) for i, theta in enumerate(block)]
            stacked = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees) for trees in zip(*draws)]
            kept = min(together, len(thetas) - first)
            results.append(jax.tree.map(lambda leaf, kept=kept: np.asarray(leaf)[:kept], solve(base, *stacked)))
            progress(first + kept, len(thetas))
        heads, figures = jax.tree.map(lambda *leaves: np.concatenate(leaves), *results)
        return Heads(thetas, jax.tree.map(lambda leaf: np.asarray(leaf, dtype), heads), **figures, way=way)


@lru_cache(maxsize=8)
def _compiled(identity: Identity, way: str, optimizer: str, steps: int | None) -> tuple[RowSource, Callable[..., Any]]:
    """The rows of a problem, and the fit and judgement of stacked heads: compiled once for all bases of one shape."""
    problem = identity.problem
    source = row_source(problem, ROWS, jnp.float64)
    if optimizer == "lm":
        fit = (LevenbergMarquardt(steps) if steps else LevenbergMarquardt()).fit
    else:
        fit = _adam(steps or ADAM_STEPS)

    def solve(base: Any, *stacked: Any) -> Any:
        return jax.vmap(_solver(source.rows, problem, ADAPTATIONS[way](problem, base), fit))(*stacked)

    return source, jax.jit(solve)


def _paper_points(problem: Problem, usual: Mapping[str, int]) -> dict[str, int]:
    """As many points of each term as the problem states."""
    stated = {condition.name: condition.points for condition in problem.conditions if isinstance(condition, Condition)}
    points = {name: stated.get(name, count) for name, count in usual.items()}
    return points | {"interior": problem.interior.points}


def _most_together(rows: int, parameters: int) -> int:
    """The number of thetas that fit into memory at once.

    Each needs its Jacobian, the arrays that it is made from, and the normal matrix.
    """
    each = 8 * (4 * rows * parameters + 2 * min(rows, parameters) ** 2)
    return max(1, math.floor(MEMORY_FRACTION * free_memory() / each))


# Fit and judgement -------------------------------------------------------------------------------------------


def _adam(steps: int) -> Fit:
    import optax  # here, because it takes long to import

    optimizer = optax.adam(ADAM_RATE)

    def fit(loss: Callable[[Array], Array], linearised: Callable[[Array], tuple[Array, Array]], start: Array):
        def step(carry: Any, _: None) -> tuple[Any, None]:
            flat, state = carry
            update, state = optimizer.update(jax.grad(loss)(flat), state)
            return (flat + update, state), None

        (flat, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), length=steps)
        return flat, jnp.asarray(float(steps))

    return fit


def _solver(rows: Rows, problem: Problem, adaptation: Adaptation, fit: Fit) -> Callable[..., Any]:
    """The fit of one head to a batch, and its judgement by another batch."""

    def solve(start: Any, fitted: dict[str, Batch], judged: dict[str, Batch]) -> tuple[Any, dict[str, Array]]:
        first, unflatten = ravel_pytree(start)

        def residuals(name: str, flat: Array, point: Batch, frozen: Streams) -> Array:
            return rows.at(name, _thawed(adaptation, unflatten(flat), frozen), point)

        def with_frozen(batch: dict[str, Batch]) -> dict[str, tuple[Batch, Streams]]:
            return {
                name: (points, jax.vmap(partial(_frozen, rows, adaptation, name))(points))
                for name, points in batch.items()
            }

        def loss(batch: dict[str, tuple[Batch, Streams]], flat: Array) -> Array:
            by_term = [jax.vmap(partial(residuals, name, flat))(*points) for name, points in batch.items()]
            return sum((jnp.sum(part**2) for part in by_term), jnp.zeros(()))

        def linearised(batch: dict[str, tuple[Batch, Streams]], flat: Array) -> tuple[Array, Array]:
            values_by_term, slopes_by_term = [], []
            for name, points in batch.items():

                def at_point(point: Batch, frozen: Streams, name=name) -> tuple[Array, Array]:
                    return with_derivatives(lambda flat: residuals(name, flat, point, frozen), flat)

                term_values, term_slopes = jax.vmap(at_point)(*points)
                values_by_term.append(term_values.reshape(-1))
                slopes_by_term.append(term_slopes.reshape(-1, len(flat)))
            return jnp.concatenate(values_by_term), jnp.concatenate(slopes_by_term)

        fit_to, judge_by = with_frozen(fitted), with_frozen(judged)
        end, steps = fit(partial(loss, fit_to), partial(linearised, fit_to), first)
        points = judged["interior"]

        def outputs(flat: Array) -> Array:
            network = adaptation.network(unflatten(flat))
            by_name = jax.vmap(lambda x, theta: values(problem, network, x, theta))(points.x, points.theta)
            return jnp.stack(list(by_name.values()))

        remaining = damped_change(*linearised(judge_by, end), jnp.asarray(JUDGING_DAMPING))
        now, change = jax.jvp(outputs, (end,), (remaining,))
        best = now + change
        size = jnp.linalg.norm(best, axis=1)

        def distance(outputs: Array) -> Array:
            return jnp.max(jnp.linalg.norm(outputs - best, axis=1) / size)

        return unflatten(end), {
            "loss_before": loss(judge_by, first),
            "loss_after": loss(judge_by, end),
            "error_before": distance(outputs(first)),
            "error_after": distance(now),
            "steps": steps,
        }

    return solve


# What is frozen ----------------------------------------------------------------------------------------------

Streams = list[dict[int, Array]]
"""The streams of several jets. Each stream is named by the position of its key among the keys that are tracked."""


def _frozen(rows: Rows, adaptation: Adaptation, name: str, point: Batch) -> Streams:
    """What training does not change at a point of a term."""
    streams: Streams = []

    def network(coordinates: Jet, parameters: Jet) -> Jet:
        positions = {key: position for position, key in enumerate(coordinates.keep)}
        for jet in adaptation.frozen(coordinates, parameters):
            streams.append({positions[key]: stream for key, stream in jet.streams.items()})
        return adaptation.base(coordinates, parameters)

    rows.at(name, network, point)
    return streams


def _thawed(adaptation: Adaptation, online: Any, frozen: Streams) -> Callable[[Jet, Jet], Jet]:
    """The network at the point where `frozen` was computed, as a function of what is trained."""

    def network(coordinates: Jet, parameters: Jet) -> Jet:
        keys = list(coordinates.keep)
        jets = [
            Jet({keys[position]: stream for position, stream in streams.items()}, coordinates.keep)
            for streams in frozen
        ]
        return adaptation.raw(online, coordinates, parameters, tuple(jets))

    return network
