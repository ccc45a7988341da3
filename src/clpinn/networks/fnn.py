"""The networks that are trained by default, and the paper's."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from clpinn.calculus.jets import concatenate, tanh
from clpinn.networks.layers import Linear, Output, T


class FNN(eqx.Module):
    """A plain tanh network on coordinates and parameters side by side: inputs-(depth × width)-outputs."""

    hidden: tuple[Linear, ...]
    output: Output

    def __init__(
        self,
        coordinates: int,
        parameters: int,
        outputs: int,
        width: int,
        depth: int,
        key: Array,
        dtype=jnp.float32,
    ):
        keys = jax.random.split(key, depth + 1)
        sizes = [coordinates + parameters] + [width] * depth
        self.hidden = tuple(Linear(a, b, k, dtype) for a, b, k in zip(sizes, sizes[1:], keys))
        self.output = Output(width, outputs, keys[-1], dtype)

    def shared(self, coordinates: T, parameters: T) -> T:
        h = concatenate([coordinates, parameters])
        for layer in self.hidden:
            h = tanh(layer(h))
        return h

    def __call__(self, coordinates: T, parameters: T) -> T:
        return self.output(self.shared(coordinates, parameters))


class QuadraticFNN(eqx.Module):
    """A network whose hidden layers are tanh(z + z z'), z and z' both affine in the layer before.

    The products let few units follow what oscillates, or scales with a parameter (Bu and Karpatne 2021, QRes,
    arXiv:2101.08366). inputs-(depth × width)-outputs, with twice the weights of an FNN in a layer.
    """

    hidden: tuple[Linear, ...]
    output: Output

    def __init__(
        self,
        coordinates: int,
        parameters: int,
        outputs: int,
        width: int,
        depth: int,
        key: Array,
        dtype=jnp.float32,
    ):
        keys = jax.random.split(key, depth + 1)
        sizes = [coordinates + parameters] + [width] * depth
        self.hidden = tuple(Linear(a, 2 * width, k, dtype) for a, k in zip(sizes, keys[:-1]))
        self.output = Output(width, outputs, keys[-1], dtype)

    def shared(self, coordinates: T, parameters: T) -> T:
        h = concatenate([coordinates, parameters])
        for layer in self.hidden:
            both, width = layer(h), len(layer.bias) // 2
            z = both[:width]
            h = tanh(z + z * both[width:])
        return h

    def __call__(self, coordinates: T, parameters: T) -> T:
        return self.output(self.shared(coordinates, parameters))


class ParamFNN(eqx.Module):
    """Coordinates and parameters enter through branches of their own, are joined, and go through a trunk.

    One-layer branches of width w, concatenated, then `depth` trunk layers of width w (the first 2w → w) and a
    linear output. `parameter_branch` is the subtree that decay and freezing act on.
    """

    coordinate_branch: Linear
    parameter_branch: Linear
    trunk: tuple[Linear, ...]
    output: Output

    def __init__(
        self,
        coordinates: int,
        parameters: int,
        outputs: int,
        width: int,
        depth: int,
        key: Array,
        dtype=jnp.float32,
    ):
        keys = jax.random.split(key, depth + 3)
        self.coordinate_branch = Linear(coordinates, width, keys[0], dtype)
        self.parameter_branch = Linear(parameters, width, keys[1], dtype)
        sizes = [2 * width] + [width] * depth
        self.trunk = tuple(Linear(a, b, k, dtype) for a, b, k in zip(sizes, sizes[1:], keys[2:]))
        self.output = Output(width, outputs, keys[-1], dtype)

    def shared(self, coordinates: T, parameters: T) -> T:
        branches = [tanh(self.coordinate_branch(coordinates)), tanh(self.parameter_branch(parameters))]
        h = concatenate(branches)
        for layer in self.trunk:
            h = tanh(layer(h))
        return h

    def __call__(self, coordinates: T, parameters: T) -> T:
        return self.output(self.shared(coordinates, parameters))
