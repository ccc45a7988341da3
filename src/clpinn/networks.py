"""Networks u(features of the coordinates, features of the parameters), as equinox modules.

Each takes arrays or jets, gives raw outputs of shape (outputs,), and exposes `shared`, the last shared features
(what a residual head is put on).
"""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from clpinn.derivatives import Jet, concatenate, linear, tanh
from clpinn.errors import ProblemError
from clpinn.problem import Problem

T = TypeVar("T", Array, Jet)


class Linear(eqx.Module):
    """An affine layer with Glorot-uniform weights and zero biases (Glorot and Bengio, 2010)."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __init__(self, inputs: int, outputs: int, key: Array, dtype: jnp.dtype):
        limit = np.sqrt(6 / (inputs + outputs))
        self.weight = jax.random.uniform(key, (inputs, outputs), dtype, -limit, limit)
        self.bias = jnp.zeros((outputs,), dtype)

    def __call__(self, h: T) -> T:
        return linear(h, self.weight, self.bias)


class Output(Linear):
    """An affine layer whose outputs are multiplied by given amplitudes, which are not trained."""

    amplitude: Float[Array, " outputs"]

    def __init__(self, inputs: int, outputs: int, key: Array, dtype: jnp.dtype):
        super().__init__(inputs, outputs, key, dtype)
        self.amplitude = jnp.ones((outputs,), dtype)

    def __call__(self, h: T) -> T:
        amplitude = jax.lax.stop_gradient(self.amplitude)
        return linear(h, self.weight * amplitude, self.bias * amplitude)


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


Network = FNN | QuadraticFNN | ParamFNN

KINDS: dict[str, type[Network]] = {"fnn": FNN, "quadratic": QuadraticFNN, "param-fnn": ParamFNN}
"""Networks by their name in the settings."""


def build(kind: type[Network], problem: Problem, width: int, depth: int, key: Array, dtype=jnp.float32) -> Network:
    """A network with the inputs and outputs of a problem."""
    return kind(
        problem.coordinates.feature_count,
        problem.parameters.feature_count,
        len(problem.outputs),
        width,
        depth,
        key,
        dtype,
    )


def count(network: eqx.Module) -> int:
    """Number of trainable parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(network, trainable(network))))


def architecture(network: Network) -> tuple[str, int, int]:
    """The kind of a network as the settings name it, its width and its depth."""
    kind = next(name for name, kind in KINDS.items() if type(network) is kind)
    layers = network.trunk if isinstance(network, ParamFNN) else network.hidden
    return kind, network.output.weight.shape[0], len(layers)


def precision(network: Any) -> Any:
    """The dtype of a network's arrays; single where there are none."""
    leaves = [leaf for leaf in jax.tree.leaves(network) if eqx.is_inexact_array(leaf)]
    return leaves[0].dtype if leaves else jnp.dtype(jnp.float32)


def trainable(network: eqx.Module) -> Any:
    """True for the arrays that are trained, False for amplitudes."""

    def chosen(part: Any) -> Any:
        everything = jax.tree.map(lambda _: True, part)
        return eqx.tree_at(lambda layer: layer.amplitude, everything, False) if isinstance(part, Output) else everything

    return jax.tree.map(chosen, network, is_leaf=lambda part: isinstance(part, Output))


def matching_width(parameters: int, make: Callable[[int], eqx.Module]) -> int:
    """The width for which `make(width)` comes closest to a given number of parameters."""
    if parameters < 1:
        raise ProblemError(f"A network needs at least one parameter to match, but got {parameters}.")

    def size(width: int) -> int:
        return count(eqx.filter_eval_shape(make, width))

    width = 1
    while size(width) < parameters:
        width += 1
    return min((max(width - 1, 1), width), key=lambda w: abs(size(w) - parameters))
