"""The networks that are trained by default, and the paper's.

Every network takes arrays or jets and gives raw outputs of shape (outputs,). `shared` gives its last hidden features,
which a residual head starts from.
"""

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp

from clpinn.calculus.jets import concatenate, tanh
from clpinn.keys import Key, split
from clpinn.networks.architecture import Architecture, Axes, Dimensions, first_inputs
from clpinn.networks.layers import Linear, Output, T


class FNN(eqx.Module):
    """A plain tanh network on coordinates and parameters side by side: inputs-(depth × width)-outputs."""

    hidden: tuple[Linear, ...]
    output: Output
    architecture: Architecture = eqx.field(static=True)
    axes: Axes | None = eqx.field(static=True)

    def __init__(self, architecture: Architecture, dimensions: Dimensions, key: Key | None, dtype=jnp.float32):
        self.architecture = replace(architecture, kind="fnn")
        self.axes = dimensions.axes
        width, depth = architecture.width, architecture.depth
        keys = split(key, depth + 1)
        sizes = [dimensions.coordinates + dimensions.parameters] + [width] * depth
        self.hidden = tuple(Linear(a, b, k, dtype) for a, b, k in zip(sizes, sizes[1:], keys))
        self.output = Output(width, dimensions.outputs, keys[-1], dtype)

    def shared(self, coordinates: T, parameters: T) -> T:
        h = concatenate(first_inputs(self.axes, coordinates, parameters))
        for layer in self.hidden:
            h = tanh(layer(h))
        return h

    def __call__(self, coordinates: T, parameters: T) -> T:
        return self.output(self.shared(coordinates, parameters))


class QuadraticFNN(eqx.Module):
    """A network whose hidden layers are tanh(z + z z'), where z and z' are both affine in the layer before.

    With the products, few units can follow what oscillates or scales with a parameter (Bu and Karpatne 2021, QRes,
    arXiv:2101.08366). inputs-(depth × width)-outputs, with twice as many weights per layer as an FNN.
    """

    hidden: tuple[Linear, ...]
    output: Output
    architecture: Architecture = eqx.field(static=True)
    axes: Axes | None = eqx.field(static=True)

    def __init__(self, architecture: Architecture, dimensions: Dimensions, key: Key | None, dtype=jnp.float32):
        self.architecture = replace(architecture, kind="quadratic")
        self.axes = dimensions.axes
        width, depth = architecture.width, architecture.depth
        keys = split(key, depth + 1)
        sizes = [dimensions.coordinates + dimensions.parameters] + [width] * depth
        self.hidden = tuple(Linear(a, 2 * width, k, dtype) for a, k in zip(sizes, keys[:-1]))
        self.output = Output(width, dimensions.outputs, keys[-1], dtype)

    def shared(self, coordinates: T, parameters: T) -> T:
        h = concatenate(first_inputs(self.axes, coordinates, parameters))
        for layer in self.hidden:
            both, width = layer(h), len(layer.bias) // 2
            z = both[:width]
            h = tanh(z + z * both[width:])
        return h

    def __call__(self, coordinates: T, parameters: T) -> T:
        return self.output(self.shared(coordinates, parameters))


class ParamFNN(eqx.Module):
    """Coordinates and parameters enter through separate branches, are joined, and go through a trunk.

    One-layer branches of width w, concatenated, then `depth` trunk layers of width w (the first 2w → w) and a
    linear output. `parameter_branch` is the subtree that decay and freezing act on.
    """

    coordinate_branch: Linear
    parameter_branch: Linear
    trunk: tuple[Linear, ...]
    output: Output
    architecture: Architecture = eqx.field(static=True)
    axes: Axes | None = eqx.field(static=True)

    def __init__(self, architecture: Architecture, dimensions: Dimensions, key: Key | None, dtype=jnp.float32):
        self.architecture = replace(architecture, kind="param-fnn")
        self.axes = dimensions.axes
        width, depth = architecture.width, architecture.depth
        keys = split(key, depth + 3)
        self.coordinate_branch = Linear(dimensions.coordinates, width, keys[0], dtype)
        self.parameter_branch = Linear(dimensions.parameters, width, keys[1], dtype)
        sizes = [2 * width] + [width] * depth
        self.trunk = tuple(Linear(a, b, k, dtype) for a, b, k in zip(sizes, sizes[1:], keys[2:]))
        self.output = Output(width, dimensions.outputs, keys[-1], dtype)

    def shared(self, coordinates: T, parameters: T) -> T:
        coordinates, parameters = first_inputs(self.axes, coordinates, parameters)
        branches = [tanh(self.coordinate_branch(coordinates)), tanh(self.parameter_branch(parameters))]
        h = concatenate(branches)
        for layer in self.trunk:
            h = tanh(layer(h))
        return h

    def __call__(self, coordinates: T, parameters: T) -> T:
        return self.output(self.shared(coordinates, parameters))
