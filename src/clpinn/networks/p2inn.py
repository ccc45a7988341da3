"""P2INN (Cho et al. 2024, arXiv:2408.09446), a method to compare with.

The layout reproduces the sizes that the paper of CL-PINN states. Activations are tanh throughout, because a second
derivative needs curvature.
"""

from dataclasses import replace
from itertools import pairwise

import equinox as eqx
import jax.numpy as jnp

from clpinn.calculus.jets import concatenate, tanh
from clpinn.keys import Key, split
from clpinn.networks.architecture import Architecture, Axes, Dimensions, first_inputs
from clpinn.networks.layers import Linear, Output, T


class P2INN(eqx.Module):
    """Coordinates and parameters are encoded separately, joined and decoded.

    The encoders are d-(2w)-(2w)-w for parameters and c-w-w for coordinates. The decoder is a layer 2w-w and `depth`
    layers w-w. Each of these from the second on adds the output of the layer before the previous one. The last one adds
    a linear shift of the raw inputs inside its activation.
    """

    parameter_encoder: tuple[Linear, ...]
    coordinate_encoder: tuple[Linear, ...]
    joined: Linear
    decoder: tuple[Linear, ...]
    shift: Linear
    output: Output
    architecture: Architecture = eqx.field(static=True)
    axes: Axes | None = eqx.field(static=True)

    def __init__(self, architecture: Architecture, dimensions: Dimensions, key: Key | None, dtype=jnp.float32):
        self.architecture = replace(architecture, kind="p2inn")
        self.axes = dimensions.axes
        width, depth = architecture.width, architecture.depth
        keys = iter(split(key, depth + 8))

        def layers(*sizes: int) -> tuple[Linear, ...]:
            return tuple(Linear(a, b, next(keys), dtype) for a, b in pairwise(sizes))

        self.parameter_encoder = layers(dimensions.parameters, 2 * width, 2 * width, width)
        self.coordinate_encoder = layers(dimensions.coordinates, width, width)
        (self.joined,) = layers(2 * width, width)
        self.decoder = layers(*[width] * (depth + 1))
        (self.shift,) = layers(dimensions.parameters + dimensions.coordinates, width)
        self.output = Output(width, dimensions.outputs, next(keys), dtype)

    def shared(self, coordinates: T, parameters: T) -> T:
        coordinates, parameters = first_inputs(self.axes, coordinates, parameters)
        p, c = parameters, coordinates
        for layer in self.parameter_encoder[:-1]:
            p = tanh(layer(p))
        for layer in self.coordinate_encoder:
            c = tanh(layer(c))
        h = [tanh(self.joined(concatenate([c, self.parameter_encoder[-1](p)])))]
        for i, layer in enumerate(self.decoder):
            z = layer(h[-1])
            if i == len(self.decoder) - 1:
                z = z + self.shift(concatenate([parameters, coordinates]))
            h.append(tanh(z) + h[-2] if i > 0 else tanh(z))
        return h[-1]

    def __call__(self, coordinates: T, parameters: T) -> T:
        return self.output(self.shared(coordinates, parameters))
