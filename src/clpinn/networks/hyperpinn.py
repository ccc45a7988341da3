"""HyperPINN (de Avila Belbute-Peres et al. 2021, arXiv:2111.01008), a method to compare with."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from clpinn.calculus.jets import tanh
from clpinn.keys import Key, split
from clpinn.networks.architecture import Architecture, Dimensions
from clpinn.networks.fnn import FNN
from clpinn.networks.generated import Generated, flattened, layer_sizes
from clpinn.networks.layers import Linear

HYPER = 40
"""Width of the hypernetwork, unless the architecture states one."""


class HyperPINN(Generated):
    """A network of the parameters gives the weights of the target: parameters-hyper-hyper-(all weights of the target).

    Its last layer starts with small weights and with the weights of a fresh target as biases. So the target starts
    nearly the same at every theta.
    """

    hidden: tuple[Linear, ...]
    weights: Linear
    architecture: Architecture = eqx.field(static=True)
    sizes: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, architecture: Architecture, dimensions: Dimensions, key: Key | None, dtype=jnp.float32):
        hyper = architecture.hyper or HYPER
        self.architecture = replace(architecture, kind="hyperpinn", hyper=hyper)
        self.sizes = layer_sizes(architecture, dimensions)
        keys = split(key, 4)
        first = flattened(FNN(architecture, dimensions.without_parameters(), keys[3], dtype))
        self.hidden = (Linear(dimensions.parameters, hyper, keys[0], dtype), Linear(hyper, hyper, keys[1], dtype))
        last = Linear(hyper, len(first), keys[2], dtype)
        self.weights = eqx.tree_at(lambda layer: (layer.weight, layer.bias), last, (0.1 * last.weight, first))

    def target_weights(self, parameters: Any) -> Any:
        for layer in self.hidden:
            parameters = tanh(layer(parameters))
        return self.weights(parameters)
