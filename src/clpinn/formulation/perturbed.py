"""A problem whose raw outputs are perturbed at one point: residuals, outputs, and their slopes.

The perturbation is a function of the box coordinates, each scaled to [-1, 1]. At one point it is given by its partial
derivatives (outputs, indices) with respect to the scaled coordinates. Residuals with those derivatives are exact: the
hard transform, moved domains and nonlinear equations are all in between.
"""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from clpinn.calculus import jets
from clpinn.calculus.jets import Index, Jet, Key
from clpinn.errors import ProblemError
from clpinn.formulation.domain import Axis
from clpinn.formulation.pointwise import Network, equation_at, output_jets, used_partials, variables
from clpinn.formulation.problem import Condition, Integral, Problem


def to_scaled(axis: Axis, values: Any) -> np.ndarray:
    """Values of an axis, scaled to [-1, 1]."""
    return 2 * axis.to_unit(np.asarray(values, float)) - 1


def from_scaled(axis: Axis, scaled: np.ndarray) -> np.ndarray:
    """The inverse of `to_scaled`."""
    return axis.from_unit((scaled + 1) / 2)


def perturbation_indices(problem: Problem) -> list[Index]:
    """The derivatives of a perturbation that the equation and the soft conditions depend on.

    It is an error if perturbations cannot tell: they are splines on a box, known at one theta only.
    """
    count = len(problem.coordinates)
    used = set()
    pointwise = [
        condition.condition if isinstance(condition, Integral) else condition for condition in problem.conditions
    ]
    for condition in (None, *(c for c in pointwise if isinstance(c, Condition))):
        for output, index in used_partials(problem, condition):
            if any(index[count:]):
                along = next(name for name, order in zip(problem.parameters, index[count:]) if order)
                raise ProblemError(
                    f"the equations use a derivative of {output} along the parameter {along}, and an estimate is made "
                    "at one theta"
                )
            used.add(index[:count])
    if problem.place is not None:  # a derivative along a physical coordinate is one along all box coordinates
        order = max(map(sum, used))
        used = {index for index in product(range(order + 1), repeat=count) if sum(index) == order}
    return sorted(jets.closure([(0,) * count, *used]))


def perturbed_residuals(
    problem: Problem,
    condition: Condition | None,
    network: Network,
    x: Array,
    theta: Array,
    indices: Sequence[Index],
    partials: Float[Array, "outputs indices"],
) -> tuple[Float[Array, " residuals"], Float[Array, "residuals outputs indices"]]:
    """The residuals of a term at one point, and their slopes with respect to the perturbation's partial derivatives."""
    used, equation = equation_at(problem, condition, x, theta)
    x = x[: len(problem.coordinates)]  # a normal may stand behind them
    keep = jets.closure([(0,) * len(problem.axes), *(index for _, index in used)])
    zero = jnp.zeros((), x.dtype)

    def residuals(partials: Array) -> Array:
        outputs = _perturbed_jets(problem, network, x, theta, keep, indices, partials)
        by_name = equation({(output, index): outputs[output].streams.get(index, zero) for output, index in used})
        return jnp.stack([jnp.asarray(residual, x.dtype) for residual in by_name.values()])

    values, pull = jax.vjp(residuals, partials)
    return values, jax.vmap(lambda unit: pull(unit)[0])(jnp.eye(len(values), dtype=values.dtype))


def perturbed_values(
    problem: Problem, network: Network, x: Array, theta: Array, raw: Float[Array, " outputs"]
) -> Float[Array, " outputs"]:
    """The outputs at one point, if this is added to the raw outputs."""
    keep: frozenset[Key] = frozenset({(0,) * len(problem.axes)})
    index = (0,) * len(problem.coordinates)
    outputs = _perturbed_jets(problem, network, x, theta, keep, [index], raw[:, None])
    return jnp.stack([outputs[name].value for name in problem.outputs])


def _perturbed_jets(
    problem: Problem,
    network: Network,
    x: Array,
    theta: Array,
    keep: frozenset[Any],
    indices: Sequence[Index],
    partials: Float[Array, "outputs indices"],
) -> dict[str, Jet]:
    """Jets of the outputs. The perturbation is added as its Taylor polynomial about the point."""
    assert network is not None
    one = jets.constant(jnp.ones((), x.dtype), keep)
    if len(indices) > 1:
        boxed = variables(problem, x, theta, keep)[1]
        scaled = [axis.scaled(boxed[name]) for name, axis in zip(problem.coordinates, problem.coordinates.axes)]
        offsets = [coordinate + (-coordinate.value) for coordinate in scaled]
    else:
        offsets = []

    def monomial(index: Index) -> Jet:
        total = one
        for offset, order in zip(offsets, index):
            for _ in range(order):
                total = total * offset
        return total

    def perturbed(coordinates: Jet, parameters: Jet) -> Jet:
        total = network(coordinates, parameters)
        for index, column in zip(indices, partials.T, strict=True):
            coefficient = column / math.prod(map(math.factorial, index))
            streams = {key: stream * coefficient for key, stream in monomial(index).streams.items()}
            total = total + Jet(streams, keep)
        return total

    return output_jets(problem, perturbed, x, theta, keep)
