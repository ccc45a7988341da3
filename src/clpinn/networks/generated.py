"""Networks whose weights are computed for each theta: the target, an FNN of the coordinates alone.

HyperPINN and Meta-PINN differ in how they compute the weights. Layouts reproduce the sizes that the paper of CL-PINN
states.
"""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from clpinn.calculus.jets import tanh
from clpinn.networks.architecture import Architecture, Dimensions
from clpinn.networks.fnn import FNN
from clpinn.networks.layers import T
from clpinn.networks.standard import StandardPINN


class Generated(eqx.Module):
    """A network that computes the weights of its target from the parameters."""

    architecture: eqx.AbstractVar[Architecture]
    sizes: eqx.AbstractVar[tuple[int, ...]]
    """Sizes of the target's layers, from the coordinates to the outputs."""

    @abstractmethod
    def target_weights(self, parameters: Any) -> Any:
        """All weights and biases of the target at one theta, given by its features: (weights,)."""

    def shared(self, coordinates: T, parameters: T) -> T:
        return _evaluated(coordinates, self.target_weights(parameters), self.sizes)[0]

    def __call__(self, coordinates: T, parameters: T) -> T:
        return _evaluated(coordinates, self.target_weights(parameters), self.sizes)[1]

    def target(self, parameters: Float[Array, " parameters"]) -> StandardPINN:
        """The target at one theta, given by its features."""
        return _unflattened(self.target_weights(parameters), self.architecture, self.sizes)


def layer_sizes(architecture: Architecture, dimensions: Dimensions) -> tuple[int, ...]:
    """Sizes of a target's layers, from the coordinates to the outputs."""
    return (dimensions.coordinates, *[architecture.width] * architecture.depth, dimensions.outputs)


def flattened(network: FNN) -> Float[Array, " weights"]:
    """Weights and biases of all layers in sequence; the last ones include the outputs' amplitudes."""
    arrays = [array for layer in network.hidden for array in (layer.weight, layer.bias)]
    arrays += [array * network.output.amplitude for array in (network.output.weight, network.output.bias)]
    return jnp.concatenate([array.reshape(-1) for array in arrays])


def _layers(flat: Any, sizes: Sequence[int]) -> list[tuple[Any, Any]]:
    """Weight and bias of each layer."""
    layers, start = [], 0
    for inputs, outputs in pairwise(sizes):
        middle, end = start + inputs * outputs, start + (inputs + 1) * outputs
        layers.append((flat[start:middle].reshape(inputs, outputs), flat[middle:end]))
        start = end
    return layers


def _evaluated(h: Any, flat: Any, sizes: Sequence[int]) -> tuple[Any, Any]:
    """The last hidden layer and the outputs, from weights that may depend on theta."""
    *hidden, (weight, bias) = _layers(flat, sizes)
    for w, b in hidden:
        h = tanh(h @ w + b)
    return h, h @ weight + bias


def _unflattened(flat: Array, architecture: Architecture, sizes: Sequence[int]) -> StandardPINN:
    """The network with these weights."""
    plain = Architecture("standard", architecture.width, architecture.depth)
    dimensions = Dimensions(sizes[0], 0, sizes[-1])
    shape = eqx.filter_eval_shape(StandardPINN, plain, dimensions, None, flat.dtype)

    def arrays(network: StandardPINN) -> list[Any]:
        layers = (*network.network.hidden, network.network.output)
        return [*(array for layer in layers for array in (layer.weight, layer.bias)), network.output.amplitude]

    weights = [array for layer in _layers(flat, sizes) for array in layer]
    return eqx.tree_at(arrays, shape, [*weights, jnp.ones((sizes[-1],), flat.dtype)])
