"""Networks u(features of the coordinates, features of the parameters), as equinox modules.

Each takes arrays or jets, gives raw outputs of shape (outputs,), and exposes `shared`, the last shared features
(what a residual head is put on).
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from clpinn.errors import ProblemError
from clpinn.formulation.problem import Problem
from clpinn.networks.fnn import FNN, ParamFNN, QuadraticFNN
from clpinn.networks.layers import Linear, Output
from clpinn.networks.rivals import P2INN, HyperPINN, MetaPINN, StandardPINN

__all__ = [
    "FNN",
    "KINDS",
    "P2INN",
    "Architecture",
    "HyperPINN",
    "Linear",
    "MetaPINN",
    "Network",
    "Output",
    "ParamFNN",
    "QuadraticFNN",
    "StandardPINN",
    "architecture",
    "build",
    "count",
    "make",
    "matching_width",
    "precision",
    "trainable",
]

Network = FNN | QuadraticFNN | ParamFNN | StandardPINN | P2INN | HyperPINN | MetaPINN

KINDS: dict[str, type[Network]] = {
    "fnn": FNN,
    "quadratic": QuadraticFNN,
    "param-fnn": ParamFNN,
    "standard": StandardPINN,
    "p2inn": P2INN,
    "hyperpinn": HyperPINN,
    "metapinn": MetaPINN,
}
"""Networks by their name in the settings."""


@dataclass(frozen=True)
class Architecture:
    """A network: hidden layers of one width; for param-fnn the depth is that of the trunk, for p2inn of the decoder.

    For hyperpinn and metapinn width and depth are those of the network that is made for each theta.
    """

    kind: Literal["fnn", "quadratic", "param-fnn", "standard", "p2inn", "hyperpinn", "metapinn"] = "fnn"
    width: int = 50
    depth: int = 4
    hyper: int | None = None
    """Width of the hypernetwork of hyperpinn."""
    support: int | None = None
    """Number of support tasks of metapinn."""


def make(problem: Problem, architecture: Architecture, key: Array, dtype=jnp.float32) -> Network:
    """A fresh network for a problem."""
    own = {name: size for name in ("hyper", "support") if (size := getattr(architecture, name)) is not None}
    return build(KINDS[architecture.kind], problem, architecture.width, architecture.depth, key, dtype, **own)


def build(
    kind: type[Network], problem: Problem, width: int, depth: int, key: Array, dtype=jnp.float32, **own: int
) -> Network:
    """A network with the inputs and outputs of a problem; `own` is what only that kind has."""
    return kind(
        problem.coordinates.feature_count,
        problem.parameters.feature_count,
        len(problem.outputs),
        width,
        depth,
        key,
        dtype,
        **own,
    )


def count(network: eqx.Module) -> int:
    """Number of trainable parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(network, trainable(network))))


def architecture(network: Network) -> Architecture:
    """What `make` would make a network like this one of."""
    kind: Any = next(name for name, kind in KINDS.items() if type(network) is kind)
    if isinstance(network, HyperPINN):
        return Architecture(kind, network.sizes[1], len(network.sizes) - 2, hyper=len(network.hidden[0].bias))
    if isinstance(network, MetaPINN):
        return Architecture(kind, network.sizes[1], len(network.sizes) - 2, support=len(network.support))
    layers = {ParamFNN: "trunk", P2INN: "decoder"}.get(type(network), "hidden")
    inner = network.network if isinstance(network, StandardPINN) else network
    return Architecture(kind, network.output.weight.shape[0], len(getattr(inner, layers)))


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

    high = 1
    while size(high) < parameters:
        high *= 2
    width = 1 + bisect_left(range(1, high), parameters, key=size)
    return min((max(width - 1, 1), width), key=lambda w: abs(size(w) - parameters))
