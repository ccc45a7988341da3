"""Networks that are polynomials, so that their errors are known exactly."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from clpinn.calculus import jets
from clpinn.formulation.pointwise import values


class Cubic(eqx.Module):
    """Raw outputs that are polynomials of third degree of the features of the coordinates. Parameters do not matter."""

    inner: jax.Array
    outer: jax.Array
    linear: jax.Array
    bias: jax.Array

    def __init__(self, features, outputs, seed=0, size=0.1, dtype=jnp.float64):
        draw = np.random.default_rng(seed).normal
        with jax.enable_x64(True):
            self.inner = jnp.asarray(draw(size=(features, 3)), dtype)
            self.outer = jnp.asarray(size * draw(size=(3, outputs)), dtype)
            self.linear = jnp.asarray(size * draw(size=(features, outputs)), dtype)
            self.bias = jnp.asarray(size * draw(size=outputs), dtype)

    def __call__(self, coordinates, parameters):
        zero = jnp.zeros((), coordinates.value.dtype)
        hidden = jets.linear(coordinates, self.inner, zero)
        cube = jets.linear(hidden * hidden * hidden, self.outer, self.bias)
        return cube + jets.linear(coordinates, self.linear, zero)


def outputs_on_grid(problem, network, theta):
    """Outputs on the evaluation grid, (points, outputs)."""
    with jax.enable_x64(True):
        at = jax.vmap(lambda x: values(problem, network, x, jnp.asarray(theta, float)))
        by_name = at(jnp.asarray(problem.evaluation.points))
        return np.stack([np.asarray(by_name[name]) for name in problem.outputs], axis=1)
