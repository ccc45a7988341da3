"""Layers of all networks."""

from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from clpinn.calculus.jets import Jet, linear
from clpinn.keys import Key, constant, uniform

T = TypeVar("T", Array, Jet)


class Linear(eqx.Module):
    """An affine layer with Glorot-uniform weights and zero biases (Glorot and Bengio, 2010)."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __init__(self, inputs: int, outputs: int, key: Key | None, dtype: jnp.dtype):
        limit = np.sqrt(6 / (inputs + outputs))
        self.weight = uniform(key, (inputs, outputs), dtype, limit)
        self.bias = constant(key, outputs, dtype, 0.0)

    def __call__(self, h: T) -> T:
        return linear(h, self.weight, self.bias)


class Output(Linear):
    """An affine layer whose outputs are multiplied by given amplitudes, which are not trained."""

    amplitude: Float[Array, " outputs"]

    def __init__(self, inputs: int, outputs: int, key: Key | None, dtype: jnp.dtype):
        super().__init__(inputs, outputs, key, dtype)
        self.amplitude = constant(key, outputs, dtype, 1.0)

    def __call__(self, h: T) -> T:
        amplitude = jax.lax.stop_gradient(self.amplitude)
        return linear(h, self.weight * amplitude, self.bias * amplitude)
