"""Levenberg-Marquardt (Marquardt, 1963): damped Gauss-Newton steps to the end, in one compiled computation.

The whole fit is traceable, so that many fits can be vectorised by jax.vmap. Each trial of a step is a damped
Gauss-Newton change: with residuals r and Jacobian J, (JᵀJ + λ diag(JᵀJ)) change = -Jᵀr.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from clpinn.errors import ClpinnError

LEAST_NORM = 1e-6
"""Least norm of a column of the Jacobian that damping goes by, relative to the largest norm."""


class _State(eqx.Module):
    """Parameters, the loss there, the damping of the last step, steps taken, and whether the fit has ended."""

    flat: Float[Array, " parameters"]
    value: Float[Array, ""]
    damping: Float[Array, ""]
    steps: Float[Array, ""]
    done: Bool[Array, ""]


@dataclass(frozen=True)
class LevenbergMarquardt:
    """At most `steps` steps. The fit ends earlier when an accepted step lowers the loss by less than `least_progress`,
    relative to the loss, or when the damping exceeds `most_damping`. Dampings are relative to the diagonal of JᵀJ.
    """

    steps: int = 20
    least_progress: float = 1e-3
    first_damping: float = 1e-3
    least_damping: float = 1e-12
    most_damping: float = 1e6
    factors: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0)
    """Dampings tried at each step, relative to the damping of the step before."""

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.least_damping <= self.first_damping <= self.most_damping or not self.factors:
            raise ClpinnError(
                "Levenberg-Marquardt needs at least one step, one factor, and dampings with 0 < least <= first <= most,"
                f" but got {self.steps}, {self.factors}, and "
                f"{self.least_damping:g}, {self.first_damping:g}, {self.most_damping:g}."
            )

    def fit(
        self,
        loss: Callable[[Array], Array],
        linearised: Callable[[Array], tuple[Array, Array]],
        start: Float[Array, " parameters"],
    ) -> tuple[Float[Array, " parameters"], Float[Array, ""]]:
        """The parameters at the end, and the number of steps.

        `loss` gives the sum of squares, `linearised` the residuals with their Jacobian (rows, parameters).
        """

        def step(state: _State) -> _State:
            change = partial(damped_change, *linearised(state.flat))
            # A solution costs little beside the Jacobian, so several dampings are tried.
            dampings = jnp.maximum(state.damping * np.array(self.factors), self.least_damping)
            moved = state.flat + jax.vmap(change)(dampings)
            losses = jax.vmap(loss)(moved)
            best = jnp.argmin(jnp.where(jnp.isfinite(losses), losses, jnp.inf))
            value, better = losses[best], losses[best] < state.value  # false where the loss is not a number
            little = better & (value > (1 - self.least_progress) * state.value)
            damping = jnp.where(better, dampings[best], 10 * dampings[-1])
            return _State(
                jnp.where(better, moved[best], state.flat),
                jnp.where(better, value, state.value),
                damping,
                state.steps + 1,
                little | (damping > self.most_damping),
            )

        first = _State(start, loss(start), jnp.asarray(self.first_damping), jnp.zeros(()), jnp.array(False))
        last = jax.lax.while_loop(lambda state: ~state.done & (state.steps < self.steps), step, first)
        return last.flat, last.steps


def damped_change(
    residual: Float[Array, " rows"], jacobian: Float[Array, "rows parameters"], damping: Float[Array, ""]
) -> Float[Array, " parameters"]:
    """The damped Gauss-Newton change, solved in the space of parameters or of rows, whichever is smaller.

    Each parameter is damped in proportion to its column of the Jacobian. A residual head starts at zero, so the
    derivatives by its hidden weights are small: with equal damping they would never move.
    """
    rows, parameters = jacobian.shape
    norms = jnp.linalg.norm(jacobian, axis=0)
    norms = jnp.maximum(norms, LEAST_NORM * jnp.max(norms))
    jacobian = jacobian / jnp.where(norms > 0, norms, 1.0)
    if parameters > rows:
        kernel = jacobian @ jacobian.T + damping * jnp.eye(rows, dtype=jacobian.dtype)
        change = -jacobian.T @ jax.scipy.linalg.solve(kernel, residual, assume_a="pos")
    else:
        normal = jacobian.T @ jacobian + damping * jnp.eye(parameters, dtype=jacobian.dtype)
        change = -jax.scipy.linalg.solve(normal, jacobian.T @ residual, assume_a="pos")
    return change / jnp.where(norms > 0, norms, 1.0)
