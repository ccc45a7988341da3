"""A residual head at one theta: a small network on the frozen one's last features, fitted to the equations there.

The head starts at zero, adds to the raw outputs inside the hard transform, and is fitted by Levenberg-Marquardt on
points of that theta, for many thetas in one compiled computation. Whether it is used is decided by what it was not
fitted to: the physics loss on points of their own, and an estimate of the error that is left (see `Heads`).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from clpinn.derivatives import tanh
from clpinn.domain import Points
from clpinn.errors import ProblemError
from clpinn.networks import Linear, Output, precision
from clpinn.problem import Problem, checked_thetas, values
from clpinn.rows import Batch, Pool, Rows

ROWS = 1024
"""Residual rows a head is fitted to, and as many that it is judged by."""
TARGETS = 8
"""Thetas in one computation; bounds memory."""
MOST_STEPS, LEAST_PROGRESS = 30, 1e-3
"""A fit ends after so many steps, or when an accepted one lowers the loss by less than this share."""
FIRST_DAMPING, LEAST_DAMPING, MOST_DAMPING = 1e-3, 1e-12, 1e6
"""Relative to the mean of the diagonal of JᵀJ."""
JUDGING_DAMPING = 1e-8
"""The same, for the estimate of the error that is left."""


class Head(eqx.Module):
    """One hidden layer, half as wide as the features it sees, and an output layer that is zero at the start."""

    hidden: Linear
    output: Output

    def __init__(self, base: Any, key: Array):
        features, outputs = base.output.weight.shape
        dtype = base.output.weight.dtype
        self.hidden = Linear(features, features // 2, key, dtype)
        output = Output(features // 2, outputs, key, dtype)
        self.output = eqx.tree_at(
            lambda o: (o.weight, o.amplitude), output, (jnp.zeros_like(output.weight), base.output.amplitude)
        )

    def __call__(self, features: Any) -> Any:
        return self.output(tanh(self.hidden(features)))


class Adapted(eqx.Module):
    """A frozen network with a head."""

    base: Any
    head: Head

    def __call__(self, coordinates: Any, parameters: Any) -> Any:
        features = self.base.shared(coordinates, parameters)
        return self.base.output(features) + self.head(features)


class Heads(eqx.Module):
    """Heads of several thetas, stacked, and what was found about each.

    Losses are mean squares of scaled residuals at points that the head was not fitted to. The error that is left is
    estimated there too: the linearised equations are solved for the change of the head that would remove the
    residuals, and the outputs' change, relative to the outputs, is the estimate; for the base it is the change from the
    base to there. A head is used where both its loss and its estimate are below the base's.
    """

    thetas: Points
    heads: Head
    loss_before: Float[np.ndarray, " thetas"]
    loss_after: Float[np.ndarray, " thetas"]
    error_before: Float[np.ndarray, " thetas"]
    error_after: Float[np.ndarray, " thetas"]
    steps: Float[np.ndarray, " thetas"]

    @staticmethod
    def blank(parameters: int, head: Head, count: int) -> "Heads":
        """Heads of a number of thetas with nothing in them."""
        stacked = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), head)
        thetas: Any = jnp.zeros((count, parameters))
        figures: dict[str, Any] = {field.name: jnp.zeros(count) for field in dataclasses.fields(Heads)[2:]}
        return Heads(thetas, stacked, **figures)

    def joined(self, others: "Heads") -> "Heads":
        """These heads and others, which take the place of those at the same thetas."""
        kept = ~np.any(np.all(self.thetas[:, None] == others.thetas, axis=2), axis=1)
        return jax.tree.map(lambda a, b: np.concatenate([np.asarray(a)[kept], np.asarray(b)]), self, others)

    @property
    def used(self) -> np.ndarray:
        return (self.loss_after < self.loss_before) & (self.error_after < self.error_before)

    def reason(self, i: int) -> str:
        """Why the head of a theta is used, or not."""
        losses = f"the physics loss goes from {self.loss_before[i]:.1e} to {self.loss_after[i]:.1e}"
        errors = f"the estimated error from {self.error_before[i]:.1e} to {self.error_after[i]:.1e}"
        verdict = "The head is used" if self.used[i] else "The head is not used, the base stays"
        return f"{verdict}: on points of their own {losses}, {errors}."

    def network(self, base: Any, i: int) -> Any:
        """The base with the head of a theta, or the base alone where that is not used."""
        if not self.used[i]:
            return base
        with jax.enable_x64(precision(base) == jnp.float64):
            return Adapted(base, jax.tree.map(lambda leaf: jnp.asarray(leaf[i]), self.heads))


class _Fit(eqx.Module):
    """The state of a fit."""

    flat: Float[Array, " parameters"]
    value: Float[Array, ""]
    damping: Float[Array, ""]
    steps: Float[Array, ""]
    done: Bool[Array, ""]


def adapt(
    problem: Problem,
    base: Any,
    thetas: Points,
    key: Array,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Heads:
    """Heads for a trained network at these thetas (rows, parameters), fitted in double precision whatever its own."""
    thetas = checked_thetas(problem, thetas, forbid_outside=True)
    if len(thetas) == 0:
        raise ProblemError("Thetas to adapt to need at least one row, but got none.")
    dtype = precision(base)
    with jax.enable_x64(True):
        base = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), base)
        rows = Rows(problem, ROWS, jnp.float64)
        scales = rows.scales(base, jax.random.fold_in(key, 0))
        solve = jax.jit(jax.vmap(_solver(rows, problem, base)))
        found = []
        for start in range(0, len(thetas), TARGETS):
            # The last ones are filled up, so that nothing is compiled anew.
            block = np.resize(thetas[start : start + TARGETS], (min(TARGETS, len(thetas)), thetas.shape[1]))
            keys = [jax.random.split(jax.random.fold_in(key, 1 + start + i), 3) for i in range(len(block))]
            pools = [Pool(theta[None], np.ones(1)) for theta in block]
            fitted = [rows.without_data(rows.draw(base, k[0], scales, pool)) for k, pool in zip(keys, pools)]
            judged = [rows.without_data(rows.draw(base, k[1], scales, pool)) for k, pool in zip(keys, pools)]
            heads = [Head(base, k[2]) for k in keys]
            stacked = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *part) for part in (heads, fitted, judged)]
            kept = min(TARGETS, len(thetas) - start)
            found.append(jax.tree.map(lambda leaf, kept=kept: np.asarray(leaf)[:kept], solve(*stacked)))
            progress(start + kept, len(thetas))
        heads, figures = jax.tree.map(lambda *leaves: np.concatenate(leaves), *found)
        return Heads(thetas, jax.tree.map(lambda leaf: np.asarray(leaf, dtype), heads), **figures)


def _solver(rows: Rows, problem: Problem, base: Any) -> Callable[[Head, dict[str, Batch], dict[str, Batch]], Any]:
    """The fit of one head to a batch, and what another batch says about it."""

    def solve(head: Head, fitted: dict[str, Batch], judged: dict[str, Batch]) -> tuple[Head, dict[str, Array]]:
        first, unflatten = ravel_pytree(head)

        def network(flat: Array) -> Adapted:
            return Adapted(base, unflatten(flat))

        def loss(flat: Array, batch: dict[str, Batch]) -> Array:
            return sum((jnp.sum(part**2) for part in rows.scaled(network(flat), batch).values()), jnp.zeros(()))

        def change(flat: Array, batch: dict[str, Batch], damping: Array) -> Array:
            """The damped Gauss-Newton step."""
            found, slopes = rows.linearised(network, flat, batch)
            residual = jnp.concatenate([part.reshape(-1) for part in found.values()])
            jacobian = jnp.concatenate([part.reshape(-1, len(flat)) for part in slopes.values()])
            normal = jacobian.T @ jacobian
            normal = normal + damping * jnp.mean(jnp.diagonal(normal)) * jnp.eye(len(flat), dtype=flat.dtype)
            return -jax.scipy.linalg.solve(normal, jacobian.T @ residual, assume_a="pos")

        def step(state: _Fit) -> _Fit:
            moved = state.flat + change(state.flat, fitted, state.damping)
            value = loss(moved, fitted)
            better = value < state.value  # not where it is not a number
            damping = jnp.clip(jnp.where(better, state.damping / 10, state.damping * 10), LEAST_DAMPING)
            little = better & (value > (1 - LEAST_PROGRESS) * state.value)
            return _Fit(
                jnp.where(better, moved, state.flat),
                jnp.where(better, value, state.value),
                damping,
                state.steps + 1,
                little | (damping > MOST_DAMPING),
            )

        start = _Fit(first, loss(first, fitted), jnp.asarray(FIRST_DAMPING), jnp.zeros(()), jnp.array(False))
        end = jax.lax.while_loop(lambda state: ~state.done & (state.steps < MOST_STEPS), step, start)

        points = judged["interior"]

        def outputs(flat: Array) -> Array:
            found = jax.vmap(lambda x, theta: values(problem, network(flat), x, theta))(points.x, points.theta)
            return jnp.stack(list(found.values()))

        now, left = jax.jvp(outputs, (end.flat,), (change(end.flat, judged, jnp.asarray(JUDGING_DAMPING)),))
        best = now + left
        size = jnp.linalg.norm(best, axis=1)

        def distance(one: Array) -> Array:
            return jnp.max(jnp.linalg.norm(one - best, axis=1) / size)

        return unflatten(end.flat), {
            "loss_before": loss(first, judged),
            "loss_after": loss(end.flat, judged),
            "error_before": distance(outputs(first)),
            "error_after": distance(now),
            "steps": end.steps,
        }

    return solve
