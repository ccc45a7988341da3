"""L-BFGS (Liu and Nocedal, 1989), without a line search as the paper runs it in PyTorch, or with one.

`optax.scale_by_lbfgs` is not the same method: it stores every pair, those of negative curvature too, and
scales its first step by another norm. `optax.scale_by_zoom_linesearch` traces the objective, and ours loops
on the host.
"""

import math
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from clpinn.errors import ClpinnError
from clpinn.training.optimizers import Objective, Step

# A pair (s, y) is stored only where y·s is above this, as in torch.optim.LBFGS.
CURVATURE = 1e-10
# Sufficient decrease and curvature of the strong Wolfe conditions (Nocedal and Wright, 2006, section 3.1).
DECREASE, FLATNESS = 1e-4, 0.9

MOVED, NOT_FINITE, CONVERGED, NO_DESCENT = range(4)
REASONS = {
    CONVERGED: "gradient below tolerance",
    NO_DESCENT: "direction does not descend",
}


class LBFGSState(NamedTuple):
    """What L-BFGS remembers, for parameters flattened to n numbers."""

    steps: Float[Array, "history n"]
    differences: Float[Array, "history n"]
    """Of gradients, over those steps; a ring, the newest pair in row (pairs - 1) % history."""
    curvatures: Float[Array, " history"]
    """y·s of each pair."""
    pairs: Int[Array, ""]
    """How many pairs were stored so far, those since overwritten too."""
    scale: Float[Array, ""]
    """y·s / y·y of the newest pair: the initial inverse Hessian is this times the identity."""
    started: Bool[Array, ""]
    last_step: Float[Array, " n"]
    """The step that led here, and the gradient at its start."""
    last_gradient: Float[Array, " n"]
    value_here: Float[Array, ""]
    """Value and gradient at the current parameters if the line search found them, otherwise NaN."""
    gradient_here: Float[Array, " n"]


@dataclass(frozen=True)
class LBFGS:
    """L-BFGS on a fixed objective. `history` pairs; finished where max |gradient| <= `gradient_tolerance`.

    Without a line search the step length is one (the first step: at most one in the 1-norm) and a step costs
    one evaluation: torch.optim.LBFGS with lr=1, tolerance_change=0. With it, step lengths satisfy the strong
    Wolfe conditions; a step costs one evaluation where length one does, and the first one more.
    """

    history: int = 100
    gradient_tolerance: float = 1e-8
    line_search: bool = False

    def __post_init__(self) -> None:
        if self.history < 1 or not self.gradient_tolerance >= 0:
            raise ClpinnError(
                "L-BFGS needs history >= 1 and gradient_tolerance >= 0, but got "
                f"history={self.history}, gradient_tolerance={self.gradient_tolerance}."
            )

    def init(self, parameters: Any) -> LBFGSState:
        flat = jnp.zeros_like(ravel_pytree(parameters)[0])
        rows = jnp.zeros((self.history, flat.size), flat.dtype)
        return LBFGSState(
            steps=rows,
            differences=rows,
            curvatures=jnp.zeros(self.history, flat.dtype),
            pairs=jnp.zeros((), jnp.int32),
            scale=jnp.ones((), flat.dtype),
            started=jnp.zeros((), bool),
            last_step=flat,
            last_gradient=flat,
            value_here=jnp.full((), jnp.nan, flat.dtype),
            gradient_here=flat,
        )

    def step(self, objective: Objective, parameters: Any, state: LBFGSState) -> tuple[Any, LBFGSState, Step]:
        if self.line_search:
            return self._searched_step(objective, parameters, state)
        value, gradient = objective(parameters)
        parameters, state, norm, outcome = unit_step(self, parameters, state, value, gradient)
        reason = REASONS.get(int(outcome), "")
        return parameters, state, Step(value, norm, 1, bool(reason), reason)

    def _searched_step(
        self,
        objective: Objective,
        parameters: Any,
        state: LBFGSState,
    ) -> tuple[Any, LBFGSState, Step]:
        evaluations = 0
        if math.isfinite(float(state.value_here)):
            value, gradient = state.value_here, state.gradient_here
        else:
            value, tree = objective(parameters)
            gradient, _ = ravel_pytree(tree)
            evaluations = 1
        state, norm, slope, outcome = _direction(self, state, value, gradient)
        if int(outcome) != MOVED:
            reason = REASONS.get(int(outcome), "")
            return parameters, state, Step(value, norm, evaluations, bool(reason), reason)

        import scipy.optimize  # here, because it takes long to import

        # SciPy searches along a line of one dimension; the parameters stay on the device.
        trials: dict[float, tuple[float, float, Any, Any, Any]] = {}

        def trial(length: np.ndarray) -> tuple[float, float, Any, Any, Any]:
            key = float(length[0])
            if key not in trials:
                there = _along(parameters, state.last_step, key)
                value_there, tree = objective(there)
                gradient_there, slope_there = _slope(tree, state.last_step)
                height, rise = float(value_there), float(slope_there)
                # SciPy would step over a NaN to longer steps, but bisects back from infinity.
                if not (math.isfinite(height) and math.isfinite(rise)):
                    height, rise = math.inf, math.inf
                trials[key] = height, rise, there, value_there, gradient_there
            return trials[key]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # failure is dealt with below
            length, *_ = scipy.optimize.line_search(
                lambda length: trial(length)[0],
                lambda length: np.array([trial(length)[1]]),
                np.zeros(1),
                np.ones(1),
                gfk=np.array([float(slope)]),
                old_fval=float(value),
                c1=DECREASE,
                c2=FLATNESS,
            )
        evaluations += len(trials)
        # Where no length satisfies the conditions, the lowest point met is still progress.
        length = min(trials, key=lambda key: trials[key][0]) if length is None else float(length)
        height, _, there, value_there, gradient_there = trials[length]
        if not height < float(value):
            reason = "line search found no lower value"
            return parameters, _stay(state, value, gradient), Step(value, norm, evaluations, True, reason)
        state = _arrive(state, length, value_there, gradient_there)
        return there, state, Step(value, norm, evaluations)


@partial(jax.jit, static_argnums=0)
def unit_step(
    lbfgs: LBFGS, parameters: Any, state: LBFGSState, value: Float[Array, ""], gradient: Any
) -> tuple[Any, LBFGSState, Float[Array, ""], Int[Array, ""]]:
    state, norm, _, outcome = _direction(lbfgs, state, value, ravel_pytree(gradient)[0])
    moved = _along(parameters, state.last_step, 1.0)
    parameters = jax.tree.map(lambda a, b: jnp.where(outcome == MOVED, a, b), moved, parameters)
    return parameters, state, norm, outcome


@partial(jax.jit, static_argnums=0)
def _direction(
    lbfgs: LBFGS, state: LBFGSState, value: Float[Array, ""], gradient: Float[Array, " n"]
) -> tuple[LBFGSState, Float[Array, ""], Float[Array, ""], Int[Array, ""]]:
    """State with the newest pair and the next step in `last_step`; gradient norm, slope of the step, outcome.

    The step is zero where there is none to take, so that asking again changes nothing.
    """
    norm = jnp.linalg.norm(gradient)
    finite = jnp.isfinite(value) & jnp.isfinite(norm)

    difference = gradient - state.last_gradient
    curvature = _dot(difference, state.last_step)
    accepted = finite & state.started & (curvature > CURVATURE)
    row = state.pairs % lbfgs.history

    def store(ring: Array, new: Array) -> Array:
        return ring.at[row].set(jnp.where(accepted, new, ring[row]))

    steps = store(state.steps, state.last_step)
    differences = store(state.differences, difference)
    curvatures = store(state.curvatures, curvature)
    pairs = state.pairs + accepted.astype(state.pairs.dtype)
    scale = jnp.where(accepted, curvature / _dot(difference, difference), state.scale)

    direction = -_inverse_hessian_product(steps, differences, curvatures, pairs, scale, gradient)
    first_length = jnp.minimum(1, 1 / jnp.sum(jnp.abs(gradient)))
    step = jnp.where(state.started, 1, first_length).astype(gradient.dtype) * direction
    slope = _dot(gradient, step)

    converged = jnp.max(jnp.abs(gradient), initial=0) <= lbfgs.gradient_tolerance
    outcome = jnp.select(
        [~finite, converged, ~(slope < 0)],
        [jnp.int32(NOT_FINITE), jnp.int32(CONVERGED), jnp.int32(NO_DESCENT)],
        MOVED,
    )
    state = state._replace(
        steps=steps,
        differences=differences,
        curvatures=curvatures,
        pairs=pairs,
        scale=scale,
        started=state.started | (outcome == MOVED),
        last_step=jnp.where(finite, jnp.where(outcome == MOVED, step, 0), state.last_step),
        last_gradient=jnp.where(finite, gradient, state.last_gradient),
    )
    return state, norm, slope, outcome


def _inverse_hessian_product(
    steps: Float[Array, "history n"],
    differences: Float[Array, "history n"],
    curvatures: Float[Array, " history"],
    pairs: Int[Array, ""],
    scale: Float[Array, ""],
    vector: Float[Array, " n"],
) -> Float[Array, " n"]:
    """The two-loop recursion (Nocedal and Wright, 2006, algorithm 7.4)."""
    history = len(curvatures)
    stored = jnp.minimum(pairs, history)

    def newest_first(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        vector, alphas = carry
        row = (pairs - 1 - i) % history
        alpha = _dot(steps[row], vector) / curvatures[row]
        return vector - alpha * differences[row], alphas.at[row].set(alpha)

    def oldest_first(i: Array, vector: Array) -> Array:
        row = (pairs - stored + i) % history
        beta = _dot(differences[row], vector) / curvatures[row]
        return vector + (alphas[row] - beta) * steps[row]

    vector, alphas = jax.lax.fori_loop(0, stored, newest_first, (vector, jnp.zeros_like(curvatures)))
    return jax.lax.fori_loop(0, stored, oldest_first, scale * vector)


def _dot(a: Float[Array, " n"], b: Float[Array, " n"]) -> Float[Array, ""]:
    # GPUs and TPUs would otherwise round the factors to fewer bits.
    return jnp.vdot(a, b, precision=jax.lax.Precision.HIGHEST)


@jax.jit
def _along(parameters: Any, step: Float[Array, " n"], length: float) -> Any:
    flat, unflatten = ravel_pytree(parameters)
    return unflatten(flat + length * step)


@jax.jit
def _slope(gradient: Any, step: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    flat, _ = ravel_pytree(gradient)
    return flat, _dot(flat, step)


@jax.jit
def _arrive(
    state: LBFGSState,
    length: float,
    value: Float[Array, ""],
    gradient: Float[Array, " n"],
) -> LBFGSState:
    return state._replace(last_step=length * state.last_step, value_here=value, gradient_here=gradient)


@jax.jit
def _stay(state: LBFGSState, value: Float[Array, ""], gradient: Float[Array, " n"]) -> LBFGSState:
    return state._replace(last_step=jnp.zeros_like(state.last_step), value_here=value, gradient_here=gradient)
