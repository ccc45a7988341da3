"""Amplitudes of a network's outputs: fixed factors that keep the weights of the output layer near one.

A step is measured in the network's weights, so an output far smaller or larger than one would ask for steps of quite
another size than the rest.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from clpinn.keys import Key
from clpinn.networks.layers import Output
from clpinn.training.term_sizes import SizeMeter

RANGE, SMALLEST = 0.01, 1e-6
"""Amplitudes change where the norm of an output's weights leaves [RANGE, 1 / RANGE], by no less than SMALLEST."""


def has_amplitudes(network: Any) -> bool:
    """Whether the outputs have amplitudes. They have none where the weights of the network are computed."""
    return isinstance(getattr(network, "output", None), Output)


def amplified(network: Any, meter: SizeMeter, key: Key, overflows: Callable[[Any], bool]) -> Any:
    """A fresh network with outputs as large as the equations ask for. `overflows` tells whether residuals do."""
    if not has_amplitudes(network):
        return network

    def multiplied(network: Any, factor: np.ndarray) -> Any:
        by = jnp.asarray(factor, meter.dtype)
        return eqx.tree_at(lambda n: n.output.amplitude, network, replace_fn=lambda before: before * by)

    for _ in range(1 + len(meter.terms.problem.outputs)):  # one output's amplitude may ask for another's
        factors = meter.amplitudes(network, key)
        if np.all(factors == 1):
            break
        network = multiplied(network, factors)
    while np.any(raised := np.asarray(network.output.amplitude) > 1):
        excessive = raised & (overflows(network) | meter.overshot(network, key))
        if not excessive.any():
            break
        network = multiplied(network, np.where(excessive, 0.5, 1.0))
    return network


def rescaled(network: Any, momentum: np.ndarray) -> tuple[Any, np.ndarray]:
    """The same function with other amplitudes, where an output's weights have become far smaller or larger than one.

    The momentum, over the flattened network, changes along with the weights.
    """
    if not has_amplitudes(network):
        return network, momentum
    output = network.output
    norm = jnp.linalg.norm(output.weight, axis=0)
    factor = jnp.where((norm < RANGE) | (norm > 1 / RANGE), jnp.maximum(norm, SMALLEST), 1.0)
    if jnp.all(factor == 1):
        return network, momentum
    _, unflatten = ravel_pytree(network)

    def divided(tree: Any) -> Any:
        return eqx.tree_at(lambda n: (n.output.weight, n.output.bias), tree, replace_fn=lambda leaf: leaf / factor)

    momentum = np.asarray(ravel_pytree(divided(unflatten(jnp.asarray(momentum))))[0])
    return eqx.tree_at(lambda n: n.output.amplitude, divided(network), output.amplitude * factor), momentum
