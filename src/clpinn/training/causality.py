"""Causality: rows of a later time count less while the residuals before that time are large.

Without it a network may leave the true solution early and satisfy the equations from there on: all residuals are small
but for one moment. The idea is from Wang, Sankaran and Perdikaris (2022), who use an exponential weight.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from clpinn.formulation.domain import Points
from clpinn.formulation.pointwise import constant_network, values
from clpinn.formulation.problem import Condition, Problem
from clpinn.formulation.regions import At, Boundary, On
from clpinn.keys import make_key

PointWeights = Callable[[Points], Float[np.ndarray, " points"]]
"""Weights of points, shape (points, coordinates) -> (points,)."""

TimeDirection = tuple[int, float]
"""The column of time among the coordinates, and 1 where time runs forwards, -1 where it runs backwards."""


def equal_weights(points: Points) -> Float[np.ndarray, " points"]:
    """A weight of one for every point."""
    return np.ones(len(points))


def causal_weights(
    direction: TimeDirection | None, points: Points, residuals: Float[np.ndarray, "points residuals"], strength: float
) -> PointWeights:
    """Weights by time, from the scaled residuals of the equation at some points.

    The weight at a time is 1 / (1 + strength × S), where S is the sum of squared residuals before that time. Each
    residual counts as at most one. Once all residuals are small, all weights are one. So they are without a time.
    """
    if direction is None or strength == 0:
        return equal_weights
    axis, sign = direction
    times = sign * points[:, axis]
    order = np.argsort(times, kind="stable")
    squares = np.sum(np.nan_to_num(residuals).clip(-1, 1) ** 2, axis=1)  # finite for any residual
    before = np.cumsum(squares[order])

    def weights(points: Points) -> np.ndarray:
        return 1 / (1 + strength * np.interp(sign * points[:, axis], times[order], before, left=0.0))

    return weights


def time_direction(problem: Problem) -> TimeDirection | None:
    """Where time is among the coordinates, and its direction. The coordinate called t is time.

    Time starts at the end where a condition is imposed; without one it runs forwards. The result is None without a
    time, on a periodic one, and where conditions are imposed at both ends or in between.
    """
    if "t" not in problem.coordinates.names or problem.coordinates["t"].scale == "periodic":
        return None
    axis = problem.coordinates["t"]
    imposed = _hard_times(problem, (axis.low, axis.high))
    for condition in problem.conditions:
        if isinstance(condition, Condition):
            region = condition.on
            imposed |= {axis.low, axis.high} if isinstance(region, Boundary) and "t" in region.names else set()
            imposed |= {time for name, time in region.fixed if name == "t"} if isinstance(region, At | On) else set()
    if not imposed < {axis.low, axis.high}:
        return None
    return problem.coordinates.names.index("t"), -1.0 if axis.high in imposed else 1.0


def _hard_times(problem: Problem, times: tuple[float, ...]) -> set[float]:
    """Those of the times at which the hard transform fixes an output, whatever the network gives."""
    if problem.constrain is None:
        return set()
    points = problem.coordinates.sample(16, make_key(0), "uniform")
    thetas = jnp.asarray(problem.parameters.sample(16, make_key(1), "uniform"))

    @jax.jit
    def sensitivity(x: Array) -> Float[Array, " outputs"]:
        """The largest change of each output when the raw outputs change."""

        def outputs(raw: float) -> Array:
            network = constant_network(problem, raw)
            by_name: Mapping[str, Array] = jax.vmap(lambda x, theta: values(problem, network, x, theta))(x, thetas)
            return jnp.stack([by_name[name] for name in problem.outputs])

        return jnp.max(jnp.abs(outputs(1.7) - outputs(0.3)), axis=1)

    usual = sensitivity(jnp.asarray(points))
    imposed = set()
    for time in times:
        points[:, problem.coordinates.names.index("t")] = time
        fixed = (sensitivity(jnp.asarray(points)) <= 1e-6 * usual) & (usual > 0)
        imposed |= {time} if jnp.any(fixed) else set()
    return imposed
