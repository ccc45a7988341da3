"""Amplitudes of a network's outputs: fixed factors that keep the weights of the output layer near one.

A step is measured in the network's weights, so an output far smaller or larger than one would ask for steps of quite
another size than the rest.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float

from clpinn.keys import Key
from clpinn.networks.layers import Output
from clpinn.training.term_sizes import ResidualSizes, SizeMeter

RANGE, SMALLEST = 0.01, 1e-6
"""Amplitudes change where the norm of an output's weights leaves [RANGE, 1 / RANGE], by no less than SMALLEST."""
SMALL = 0.01
"""Outputs of a fresh network, which are of size one, are made smaller by factors below this only."""
MOST_DECADES = 15
"""Outputs that are hidden behind the hard transform are raised by at most so many powers of ten."""


def has_amplitudes(network: Any) -> bool:
    """Whether the outputs have amplitudes. They have none where the weights of the network are computed."""
    return isinstance(getattr(network, "output", None), Output)


def amplified(network: Any, meter: SizeMeter, key: Key, overflows: Callable[[Any], bool]) -> Any:
    """A fresh network with outputs as large as the equations ask for. `overflows` tells whether residuals do."""
    if not has_amplitudes(network):
        return network
    problem = meter.terms.problem

    def multiplied(network: Any, factor: np.ndarray) -> Any:
        by = jnp.asarray(factor, meter.dtype)
        return eqx.tree_at(lambda n: n.output.amplitude, network, replace_fn=lambda before: before * by)

    sizes = meter.by_residual(network, key)
    given = [residual._replace(outputs={}) for residual in sizes]
    if problem.constrain is not None:
        given = meter.by_residual(multiplied(network, np.zeros(len(problem.outputs))), key)
        factors = np.ones(len(problem.outputs))
        for _ in range(MOST_DECADES):
            behind = hidden(problem.outputs, meter.by_residual(multiplied(network, factors), key), given)
            factors = np.where(behind, 10 * factors, factors)
            if not behind.any():
                break
        network = multiplied(network, np.maximum(1, 0.1 * factors))
    factors = reductions(problem.outputs, sizes, [_given(residual) for residual in given])
    for _ in range(2 + len(problem.outputs)):  # one output's amplitude may ask for another's
        if np.any(factors != 1):
            network = multiplied(network, factors)
            sizes = meter.by_residual(network, key)
        factors = enlargements(problem.outputs, sizes)
        if np.all(factors == 1):
            break
    while np.any(raised := np.asarray(network.output.amplitude) > 1):
        excessive = raised & (overflows(network) | overshot(problem.outputs, meter.by_residual(network, key)))
        if not excessive.any():
            break
        network = multiplied(network, np.where(excessive, 0.5, 1.0))
    return network


def enlargements(outputs: Sequence[str], residuals: Sequence[ResidualSizes]) -> Float[np.ndarray, " outputs"]:
    """Factors, at least one, that make the outputs of a fresh network as large as the equations ask for.

    An output must balance the source of an equation: of u'' = 1e6 it must be about 1e6 times a network of size one. It
    must also balance the other outputs: of v' = 1e6 u, v must be about 1e6 u. The first is the largest over all
    residuals, the second the smallest over all equations. A solution is rougher than a fresh network and so looks too
    large: a tenth of the factor is taken.
    """
    by_source, by_others = dict.fromkeys(outputs, 0.0), dict.fromkeys(outputs, math.inf)
    for residual in residuals:
        sizes = _medians(residual)
        total = sum(sizes.values())
        for output, size in sizes.items():
            by_source[output] = max(by_source[output], float(np.median(residual.source)) / total)
            if residual.term == "interior":  # u = 0 on a boundary says nothing about the size of u
                by_others[output] = min(by_others[output], total / size)
    factors = [max(by_source[output], by_others[output]) for output in outputs]
    return np.array([max(1.0, 0.1 * factor) if math.isfinite(factor) else 1.0 for factor in factors])


def reductions(
    outputs: Sequence[str], residuals: Sequence[ResidualSizes], given: Sequence[float]
) -> Float[np.ndarray, " outputs"]:
    """Factors that make outputs of a fresh network smaller, where all that determines them is small; 1 elsewhere.

    `given` is what is left of each residual without the network: its source, and what the hard transform adds. Outputs
    that share a residual are one group. A group becomes as small as the largest of given / size over its residuals.
    After that a single output becomes as small as the given part and the other outputs of its residuals ask for. Only
    factors below SMALL count, as a small start may grow.
    """
    groups = {output: {output} for output in outputs}
    sizes = [{output: float(np.max(size)) for output, size in r.outputs.items() if np.max(size) > 0} for r in residuals]
    for by_output in sizes:
        joined = set().union(*(groups[output] for output in by_output))
        groups |= dict.fromkeys(joined, joined)
    asked = {
        output: max((g / sum(by.values()) for g, by in zip(given, sizes) if group & by.keys()), default=0.0)
        for output, group in groups.items()
    }
    factors = {output: asked[output] if 0 < asked[output] < SMALL else 1.0 for output in outputs}
    for output, factor in factors.items():
        alone = max(
            (
                (g + sum(size * factors[other] for other, size in by.items() if other != output)) / by[output]
                for g, by in zip(given, sizes)
                if output in by
            ),
            default=0.0,
        )
        if 0 < alone < SMALL * factor:
            factors[output] = alone
    return np.array(list(factors.values()))


def hidden(
    outputs: Sequence[str], residuals: Sequence[ResidualSizes], given: Sequence[ResidualSizes]
) -> Bool[np.ndarray, " outputs"]:
    """Outputs whose terms the network hardly changes in any residual: the hard transform is far larger."""
    changes: dict[str, list[bool]] = {output: [] for output in outputs}
    for residual, without in zip(residuals, given, strict=True):
        before = _medians(without)
        for output, size in _medians(residual).items():
            changes[output].append(size > 1.5 * before.get(output, 0.0))
    return np.array([bool(flags) and not any(flags) for flags in changes.values()])


def overshot(outputs: Sequence[str], residuals: Sequence[ResidualSizes]) -> Bool[np.ndarray, " outputs"]:
    """Outputs whose terms exceed ten times the source of every residual that contains them and has a source.

    This happens where an equation is not linear: of exp(u) = 1e6, u is 14 and not 1e6.
    """
    exceeds: dict[str, list[bool]] = {output: [] for output in outputs}
    for residual in residuals:
        source = float(np.median(residual.source))
        for output, size in _medians(residual).items():
            exceeds[output] += [size > 10 * source] * (source > 0)
    return np.array([bool(flags) and all(flags) for flags in exceeds.values()])


def _medians(residual: ResidualSizes) -> dict[str, float]:
    """The median size over thetas, by output; outputs that the residual does not contain are left out."""
    medians = {output: float(np.median(size)) for output, size in residual.outputs.items()}
    return {output: size for output, size in medians.items() if size > 0}


def _given(residual: ResidualSizes) -> float:
    """The largest size over thetas of all that a residual holds."""
    return float(np.max(residual.source) + sum(np.max(size) for size in residual.outputs.values()))


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
