"""The computations of an adaptation: fits by three optimisers and the judgement, each for several thetas at once.

What the base contributes at a point is frozen and computed once per call, not once per step.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from clpinn.calculus.jets import Jet
from clpinn.formulation.identity import Identity
from clpinn.formulation.pointwise import values
from clpinn.formulation.problem import Problem
from clpinn.programs import Program
from clpinn.surrogate.adaptations import Adaptation, make_adaptation
from clpinn.training.batches import RowSource, row_source
from clpinn.training.optimizers.lbfgs import LBFGS, MOVED, unit_step
from clpinn.training.optimizers.levenberg_marquardt import LevenbergMarquardt, damped_change
from clpinn.training.rows import Batch, Rows, with_derivatives

JUDGING_DAMPING = 1e-8
"""Damping of the Gauss-Newton change that estimates the remaining error."""


class AdaptPrograms:
    """The programs of one way to adapt. Each takes the base, then trees with one entry per theta.

    - `lm(base, start, fitted)`: what is trained after Levenberg-Marquardt, and its steps.
    - `adam(base, (trained, moments), fitted, steps, rate)`: the same pair after so many more steps.
    - `lbfgs(base, start, fitted, most)`: what is trained after L-BFGS, and its steps.
    - `judge(base, start, end, judged)`: losses and estimated errors before and after, by name.

    Numbers of steps are arguments, so that a fit in several calls is the same computation as in one.
    """

    def __init__(self, problem: Problem, source: RowSource, way: str, width: int | None, lm_steps: int):
        import optax  # here, because it takes long to import

        self.source = source
        self._problem, self._way, self._width = problem, way, width
        self._lm = LevenbergMarquardt(lm_steps)
        self._scaled: Any = optax.scale_by_adam()
        self.lm = self._program(self._fitted_by_lm, 2)
        self.adam = self._program(self._moved_by_adam, 2)
        self.lbfgs = self._program(self._fitted_by_lbfgs, 2)
        self.judge = self._program(self._judged, 3)

    def _program(self, function: Callable[..., Any], by_theta: int) -> Program:
        """A function of (losses, `by_theta` trees of one theta, numbers) as a program over thetas."""

        def over_thetas(base: Any, *arguments: Any) -> Any:
            adaptation = make_adaptation(self._problem, base, self._way, self._width)
            losses = _Losses(self.source.rows, adaptation)
            trees, numbers = arguments[:by_theta], arguments[by_theta:]
            return jax.vmap(lambda *trees: function(losses, *trees, *numbers))(*trees)

        return Program(over_thetas)

    def moments(self, trained: Any) -> Any:
        """What Adam remembers before its first step, for trees with one entry per theta."""
        return jax.vmap(lambda tree: self._scaled.init(ravel_pytree(tree)[0]))(trained)

    def _fitted_by_lm(self, losses: "_Losses", start: Any, fitted: dict[str, Batch]) -> tuple[Any, Array]:
        flat, unflatten = ravel_pytree(start)
        points = losses.with_frozen(fitted)
        end, steps = self._lm.fit(
            partial(losses.loss, unflatten, points), partial(losses.linearised, unflatten, points), flat
        )
        return unflatten(end), steps

    def _moved_by_adam(
        self, losses: "_Losses", begun: tuple[Any, Any], fitted: dict[str, Batch], steps: Array, rate: Array
    ) -> tuple[Any, Any]:
        trained, moments = begun
        flat, unflatten = ravel_pytree(trained)
        gradient = jax.grad(partial(losses.loss, unflatten, losses.with_frozen(fitted)))

        def step(_: Array, state: tuple[Array, Any]) -> tuple[Array, Any]:
            flat, moments = state
            direction, moments = self._scaled.update(gradient(flat), moments)
            return flat - rate * direction, moments

        flat, moments = jax.lax.fori_loop(0, steps, step, (flat, moments))
        return unflatten(flat), moments

    def _fitted_by_lbfgs(
        self, losses: "_Losses", start: Any, fitted: dict[str, Batch], most: Array
    ) -> tuple[Any, Array]:
        flat, unflatten = ravel_pytree(start)
        lbfgs, evaluate = LBFGS(), jax.value_and_grad(partial(losses.loss, unflatten, losses.with_frozen(fitted)))

        def step(state: tuple[Array, Any, Array, Array]) -> tuple[Array, Any, Array, Array]:
            flat, memory, steps, _ = state
            flat, memory, _, outcome = unit_step(lbfgs, flat, memory, *evaluate(flat))
            return flat, memory, steps + (outcome == MOVED), outcome

        first = (flat, lbfgs.init(flat), jnp.zeros((), jnp.int32), jnp.asarray(MOVED, jnp.int32))
        flat, _, steps, _ = jax.lax.while_loop(lambda state: (state[2] < most) & (state[3] == MOVED), step, first)
        return unflatten(flat), steps

    def _judged(self, losses: "_Losses", start: Any, end: Any, judged: dict[str, Batch]) -> dict[str, Array]:
        first, unflatten = ravel_pytree(start)
        last, _ = ravel_pytree(end)
        judge_by = losses.with_frozen(judged)
        points = judged["interior"]

        def outputs(flat: Array) -> Array:
            network = losses.adaptation.network(unflatten(flat))
            by_name = jax.vmap(lambda x, theta: values(self._problem, network, x, theta))(points.x, points.theta)
            return jnp.stack(list(by_name.values()))

        remaining = damped_change(*losses.linearised(unflatten, judge_by, last), jnp.asarray(JUDGING_DAMPING))
        now, change = jax.jvp(outputs, (last,), (remaining,))
        best = now + change
        size = jnp.linalg.norm(best, axis=1)

        def distance(outputs: Array) -> Array:
            return jnp.max(jnp.linalg.norm(outputs - best, axis=1) / size)

        return {
            "loss_before": losses.loss(unflatten, judge_by, first),
            "loss_after": losses.loss(unflatten, judge_by, last),
            "error_before": distance(outputs(first)),
            "error_after": distance(now),
        }


@lru_cache(maxsize=8)
def adapt_programs(identity: Identity, rows: int, way: str, width: int | None, lm_steps: int) -> AdaptPrograms:
    """The programs of an adaptation of a problem: compiled once for all bases of one shape."""
    problem = identity.problem
    return AdaptPrograms(problem, row_source(problem, rows, jnp.float64), way, width, lm_steps)


# Losses at one theta -----------------------------------------------------------------------------------------

Streams = list[dict[int, Array]]
"""The streams of several jets. Each stream is named by the position of its key among the keys that are tracked."""
FrozenBatch = dict[str, tuple[Batch, Streams]]
"""A batch by term, and what is frozen at its points."""
Unflatten = Callable[[Array], Any]


class _Losses:
    """The loss of what is trained at one theta, flattened, and its rows with their derivatives."""

    def __init__(self, rows: Rows, adaptation: Adaptation):
        self.rows, self.adaptation = rows, adaptation

    def with_frozen(self, batch: dict[str, Batch]) -> FrozenBatch:
        return {name: (points, jax.vmap(partial(self._frozen, name))(points)) for name, points in batch.items()}

    def loss(self, unflatten: Unflatten, batch: FrozenBatch, flat: Array) -> Array:
        """The sum of squares of all rows."""
        by_term = [jax.vmap(partial(self._residuals, unflatten, name, flat))(*points) for name, points in batch.items()]
        return sum((jnp.sum(part**2) for part in by_term), jnp.zeros(()))

    def linearised(self, unflatten: Unflatten, batch: FrozenBatch, flat: Array) -> tuple[Array, Array]:
        """All rows, and their derivatives (rows, parameters)."""
        values_by_term, slopes_by_term = [], []
        for name, points in batch.items():

            def at_point(point: Batch, frozen: Streams, name=name) -> tuple[Array, Array]:
                return with_derivatives(lambda flat: self._residuals(unflatten, name, flat, point, frozen), flat)

            term_values, term_slopes = jax.vmap(at_point)(*points)
            values_by_term.append(term_values.reshape(-1))
            slopes_by_term.append(term_slopes.reshape(-1, len(flat)))
        return jnp.concatenate(values_by_term), jnp.concatenate(slopes_by_term)

    def _residuals(self, unflatten: Unflatten, name: str, flat: Array, point: Batch, frozen: Streams) -> Array:
        return self.rows.at(name, self._thawed(unflatten(flat), frozen), point)

    def _frozen(self, name: str, point: Batch) -> Streams:
        """What training does not change at a point of a term."""
        streams: Streams = []

        def network(coordinates: Jet, parameters: Jet) -> Jet:
            positions = {key: position for position, key in enumerate(coordinates.keep)}
            for jet in self.adaptation.frozen(coordinates, parameters):
                streams.append({positions[key]: stream for key, stream in jet.streams.items()})
            return self.adaptation.base(coordinates, parameters)

        self.rows.at(name, network, point)
        return streams

    def _thawed(self, online: Any, frozen: Streams) -> Callable[[Jet, Jet], Jet]:
        """The network at the point where `frozen` was computed, as a function of what is trained."""

        def network(coordinates: Jet, parameters: Jet) -> Jet:
            keys = list(coordinates.keep)
            jets = [
                Jet({keys[position]: stream for position, stream in streams.items()}, coordinates.keep)
                for streams in frozen
            ]
            return self.adaptation.raw(online, coordinates, parameters, tuple(jets))

        return network
