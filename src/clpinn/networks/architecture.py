"""The architecture of a network, its number of parameters, and which of its arrays are trained."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from clpinn.calculus.jets import concatenate
from clpinn.errors import ProblemError
from clpinn.formulation.domain import Axis
from clpinn.formulation.problem import Problem
from clpinn.networks.layers import Output, T


@dataclass(frozen=True)
class Architecture:
    """The kind of a network, and the number and width of its hidden layers.

    For param-fnn the depth is that of the trunk, for p2inn that of the decoder. For hyperpinn and metapinn width and
    depth are those of the network that is generated for each theta.
    """

    kind: Literal["fnn", "quadratic", "param-fnn", "standard", "p2inn", "hyperpinn", "metapinn"] = "fnn"
    width: int = 50
    depth: int = 4
    hyper: int | None = None
    """Width of the hypernetwork of hyperpinn; 40 if None."""
    support: int | None = None
    """Number of support tasks of metapinn; 9 if None."""
    inputs: Literal["scaled", "raw"] = "scaled"
    """What the first layer sees: values scaled to [-1, 1], by their logarithm where the axis is log, or the values of
    coordinates and parameters as they are. A periodic axis enters as sine and cosine in both."""


class Axes(NamedTuple):
    """The axes of a network with raw inputs."""

    coordinates: tuple[Axis, ...]
    parameters: tuple[Axis, ...]


class Dimensions(NamedTuple):
    """Numbers of coordinate features, parameter features and outputs of a network; its axes if its inputs are raw."""

    coordinates: int
    parameters: int
    outputs: int
    axes: Axes | None = None

    @staticmethod
    def of(problem: Problem, architecture: Architecture) -> "Dimensions":
        """The dimensions of a network that solves a problem."""
        coordinates, parameters = problem.coordinates, problem.parameters
        axes = Axes(coordinates.axes, parameters.axes) if architecture.inputs == "raw" else None
        return Dimensions(coordinates.feature_count, parameters.feature_count, len(problem.outputs), axes)

    def without_parameters(self) -> "Dimensions":
        """Those of a network of the coordinates alone."""
        return self._replace(parameters=0, axes=self.axes and self.axes._replace(parameters=()))


def first_inputs(axes: Axes | None, coordinates: T, parameters: T) -> tuple[T, T]:
    """What the first layer of a network sees, given the scaled features that every network is called with."""
    if axes is None:
        return coordinates, parameters
    return _raw(axes.coordinates, coordinates), _raw(axes.parameters, parameters)


def _raw(axes: tuple[Axis, ...], features: T) -> T:
    parts, start = [], 0
    for axis in axes:
        end = start + (2 if axis.scale == "periodic" else 1)
        feature = features[start:end]
        parts.append(feature if axis.scale == "periodic" else axis.unscaled(feature))
        start = end
    return concatenate(parts) if parts else features


def count(network: eqx.Module) -> int:
    """Number of trainable parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(network, trainable(network))))


def precision(network: Any) -> Any:
    """The dtype of a network's arrays; single precision if it has none."""
    leaves = [leaf for leaf in jax.tree.leaves(network) if eqx.is_inexact_array(leaf)]
    return leaves[0].dtype if leaves else jnp.dtype(jnp.float32)


def cast(network: Any, dtype: Any) -> Any:
    """The same network with its real numbers in this precision. Integers stay as they are."""

    def converted(leaf: Any) -> Any:
        return jnp.asarray(leaf, dtype if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact) else None)

    return jax.tree.map(converted, network)


def trainable(network: eqx.Module) -> Any:
    """A tree like the network: True for arrays that are trained, False for amplitudes."""

    def mark(node: Any) -> Any:
        marks = jax.tree.map(lambda _: True, node)
        return eqx.tree_at(lambda layer: layer.amplitude, marks, False) if isinstance(node, Output) else marks

    return jax.tree.map(mark, network, is_leaf=lambda node: isinstance(node, Output))


def matching_width(parameters: int, make: Callable[[int], eqx.Module]) -> int:
    """The width for which `make(width)` comes closest to a given number of parameters."""
    if parameters < 1:
        raise ProblemError(f"A network needs at least one parameter to match, but got {parameters}.")

    def size(width: int) -> int:
        return count(eqx.filter_eval_shape(make, width))

    high = 1
    while size(high) < parameters:
        high *= 2
    width = 1 + bisect_left(range(1, high), parameters, key=size)
    return min((max(width - 1, 1), width), key=lambda w: abs(size(w) - parameters))
