"""A problem and a network at one point with one theta.

    values(problem, network, x, theta)                          the outputs by name
    named_derivatives(problem, network, x, theta, names)        derivatives by name
    residuals(problem, network, x, theta)                       the equation's residuals by name
    condition_residuals(problem, condition, network, x, theta)  the residuals of a soft condition by name
    residual_sizes(problem, condition, network, x, theta)       how large the terms of each residual are

`x` holds box coordinates, shape (coordinates,), and `theta` the parameters, shape (parameters,). The functions are
meant to be mapped over points with `jax.vmap`. A network is a callable (coordinate features, parameter features) ->
raw outputs that accepts arrays and jets. `None` in its place stands for the problem's reference, which must then be
written with jax.numpy.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from clpinn.calculus import jets, linearity
from clpinn.calculus.jets import Index, Jet, Key, Operator
from clpinn.calculus.names import Derivatives, parse_name, requested
from clpinn.errors import ProblemError
from clpinn.formulation.calls import Scalar, as_scalars, call_by_name, with_keys
from clpinn.formulation.domain import Box
from clpinn.formulation.geometry import placed
from clpinn.formulation.problem import Condition, Problem
from clpinn.formulation.shaped import normal_names, with_normal

Network = Callable[[Any, Any], Any] | None
Partial = tuple[str, Index]
"""A partial derivative: the output and its index."""
Equation = Callable[[Mapping[Partial, Array]], dict[str, Scalar]]
"""Residuals by name as a function of the partial derivatives."""


def values(
    problem: Problem, network: Network, x: Float[Array, " coordinates"], theta: Float[Array, " parameters"]
) -> dict[str, Scalar]:
    """The outputs at one point, by name."""
    keep = frozenset({(0,) * len(problem.axes)})
    outputs = output_jets(problem, network, x, theta, keep)
    return {name: jet.value for name, jet in outputs.items()}


def named_derivatives(
    problem: Problem, network: Network, x: Array, theta: Array, names: list[str]
) -> dict[str, Scalar]:
    """Derivatives at one point, by name ("u_xx", or "u_nu" along a parameter)."""
    parsed = {name: _parse(problem, name) for name in names}
    keep = jets.closure([(0,) * len(problem.axes), *(index for _, index in parsed.values())])
    outputs = output_jets(problem, network, x, theta, keep)
    zero = jnp.zeros((), x.dtype)
    return {name: outputs[output].streams.get(index, zero) for name, (output, index) in parsed.items()}


def residuals(problem: Problem, network: Network, x: Array, theta: Array) -> dict[str, Scalar]:
    """The equation's residuals at one point, by name. A single one is called "residual"."""
    return _evaluate(problem, None, network, x, theta)


def condition_residuals(
    problem: Problem, condition: Condition, network: Network, x: Array, theta: Array
) -> dict[str, Scalar]:
    """The residuals of a soft condition at one point, by name. A single one has the condition's name."""
    return _evaluate(problem, condition, network, x, theta)


def residual_sizes(
    problem: Problem, condition: Condition | None, network: Network, x: Array, theta: Array
) -> dict[str, dict[str, Scalar]]:
    """How large the terms of each residual are at one point, by residual and output.

    The residuals are those of `condition`, or of the equation if it is None. The size for an output is the sum of
    |∂residual/∂derivative · derivative| over the output's derivatives. The key "" holds the absolute value of what is
    left if all derivatives are zero. For u_t + u u_x - f the sizes are u: |u_t| + 2 |u u_x| and "": |f|.

    A condition on a boundary may be measured elsewhere: a point without a normal gets one along the diagonal.
    """
    normal = normal_names(problem, condition)
    if len(x) == len(problem.coordinates):
        x = jnp.concatenate([x, jnp.full(len(normal), len(normal) ** -0.5 if normal else 0.0, x.dtype)])
    partials, equation = equation_at(problem, condition, x, theta)
    x, zero = x[: len(problem.coordinates)], jnp.zeros((), x.dtype)
    keep = jets.closure([(0,) * len(problem.axes), *(index for _, index in partials)])
    outputs = output_jets(problem, network, x, theta, keep)
    at = {(output, index): outputs[output].streams.get(index, zero) for output, index in partials}
    slopes = jax.jacrev(equation)(at)
    without = equation(dict.fromkeys(at, zero))
    return {
        residual: {
            output: sum((jnp.abs(slope[key] * at[key]) for key in at if key[0] == output), zero)
            for output in problem.outputs
        }
        | {"": jnp.nan_to_num(jnp.abs(without[residual]), posinf=0.0)}
        for residual, slope in slopes.items()
    }


def used_partials(problem: Problem, condition: Condition | None) -> list[Partial]:
    """The partial derivatives that the equation or a condition uses, by an abstract trace."""
    used: list[Partial] = []

    def trace(x: Array, theta: Array) -> None:
        used.extend(equation_at(problem, condition, x, theta)[0])

    jax.eval_shape(trace, *_shapes(problem, condition))
    return used


def residual_names(problem: Problem, condition: Condition | None) -> list[str]:
    """The names of the residuals of the equation or of a condition, by an abstract trace."""
    names: list[str] = []

    def trace(x: Array, theta: Array) -> None:
        partials, equation = equation_at(problem, condition, x, theta)
        names.extend(equation(dict.fromkeys(partials, jnp.zeros((), x.dtype))))

    jax.eval_shape(trace, *_shapes(problem, condition))
    return names


def user_primitives(problem: Problem, condition: Condition | None) -> set[str]:
    """Names of the JAX primitives that the equation or a condition applies to single numbers."""
    partials = used_partials(problem, condition)

    def equation(x: Array, theta: Array, numbers: list[Array]) -> dict[str, Scalar]:
        return equation_at(problem, condition, x, theta)[1](dict(zip(partials, numbers)))

    numbers = [jax.ShapeDtypeStruct((), jnp.float32)] * len(partials)
    return linearity.scalar_primitives(jax.make_jaxpr(equation)(*_shapes(problem, condition), numbers).jaxpr)


def _shapes(problem: Problem, condition: Condition | None) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """A point of a term and a theta, as shapes."""
    coordinates = len(problem.coordinates) + len(normal_names(problem, condition))
    parameters = len(problem.parameters)
    return jax.ShapeDtypeStruct((coordinates,), jnp.float32), jax.ShapeDtypeStruct((parameters,), jnp.float32)


def residuals_of_values(
    problem: Problem, condition: Condition | None, outputs: Mapping[str, Array], x: Array, theta: Array
) -> dict[str, Scalar] | None:
    """The residuals at one point where the outputs have these values; None if derivatives are needed as well."""
    partials, equation = equation_at(problem, condition, x, theta)
    if any(any(index) for _, index in partials):
        return None
    return equation({partial: outputs[partial[0]] for partial in partials})


def constant_network(problem: Problem, raw: float) -> Callable[[Jet, Jet], Jet]:
    """A network whose raw outputs are the same everywhere."""

    def network(coordinates: Jet, parameters: Jet) -> Jet:
        weight = jnp.zeros((len(coordinates.value), len(problem.outputs)))
        return jets.linear(coordinates, weight, jnp.full(len(problem.outputs), raw))

    return network


def theta_features(problem: Problem, theta: Float[Array, " parameters"]) -> Float[Array, " features"]:
    """The network inputs of a theta."""
    box = problem.parameters
    features: list[Any] = [
        feature for axis, value in zip(box.axes, theta, strict=True) for feature in axis.features(value)
    ]
    return jnp.stack(features) if features else jnp.zeros(0, theta.dtype)


def reference_values(problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
    """The problem's reference, by output, at physical coordinates and parameters by name."""
    if problem.reference is None:
        raise ProblemError(f"{type(problem).__name__} has no reference. Give the class a method `reference`.")
    return with_keys(call_by_name(problem.reference, "reference", given), problem.outputs, "reference")


# Residuals --------------------------------------------------------------------------------------------------


class _Term(NamedTuple):
    """The equation, or one condition."""

    residual: Callable[..., Any]
    label: str
    """Its name in error messages."""
    name: str
    """The name of its residual if there is only one."""


def _term(problem: Problem, condition: Condition | None) -> _Term:
    if condition is None:
        return _Term(problem.residual, "residual", "residual")
    return _Term(condition.residual, f"condition {condition.name!r}", condition.name)


def _parse(problem: Problem, name: str) -> Partial:
    return parse_name(name, tuple(problem.outputs), problem.axes)


def equation_at(
    problem: Problem, condition: Condition | None, x: Array, theta: Array
) -> tuple[dict[Partial, None], Equation]:
    """The partial derivatives that the equation or a condition uses, and its residuals here as a function of them."""
    term = _term(problem, condition)
    zero = jnp.zeros((), x.dtype)
    x, normal = (
        x[: len(problem.coordinates)],
        dict(zip(normal_names(problem, condition), x[len(problem.coordinates) :])),
    )

    def call(d: Derivatives, point: Mapping[str, Array]) -> Any:
        return call_by_name(term.residual, term.label, point, with_normal(problem, d, normal))

    nowhere = dict.fromkeys((*problem.axes, *normal), zero)
    names = requested(lambda d: call(d, nowhere), lambda text: _parse(problem, text))
    given = dict(zip(problem.axes, (*x, *theta), strict=True))
    point = normal | given | placed(problem, given)

    def equation(partials: Mapping[Partial, Array]) -> dict[str, Scalar]:
        d = Derivatives(lambda text: partials[_parse(problem, text)])
        result = as_scalars(call(d, point), term.label, term.name)
        if not names:
            output, axis = problem.outputs[0], problem.axes[0]
            raise ProblemError(
                f"{term.label} does not use d, so it says nothing about the solution. Write it with d.{output} and its "
                f"derivatives, such as d.{output}_{axis}."
            )
        return result

    return dict.fromkeys(_parse(problem, text) for text in names), equation


def _evaluate(
    problem: Problem, condition: Condition | None, network: Network, x: Array, theta: Array
) -> dict[str, Scalar]:
    """The residuals of a term. Highest derivatives share a stream where they can."""
    partials, equation = equation_at(problem, condition, x, theta)
    x, zero = x[: len(problem.coordinates)], jnp.zeros((), x.dtype)
    operators = _collapsed(equation, dict.fromkeys(partials, jnp.ones_like(zero)))
    indices = jets.closure([(0,) * len(problem.axes), *(index for _, index in partials)])
    collapsed = {index for operator in operators.values() for index in operator.coefficients}
    keep = (indices - collapsed) | set(operators.values())
    outputs = output_jets(problem, network, x, theta, keep)
    # Collapsed derivatives have no stream and count as zero in the equation. The operator adds their contribution.
    result = equation({(output, index): outputs[output].streams.get(index, zero) for output, index in partials})
    for (residual, output), operator in operators.items():
        result[residual] = result[residual] + outputs[output].streams.get(operator, zero)
    return result


def _collapsed(equation: Equation, ones: Mapping[Partial, Array]) -> dict[tuple[str, str], Operator]:
    """Operators that replace highest derivatives, by residual and output; empty if none saves a stream.

    The highest derivatives often enter an equation linearly, with coefficients that depend on the point only. Then
    their weighted sum is a single stream through the network. Residuals with equal coefficients share it. `ones` holds
    a one for each partial derivative that the equation uses: values at which the equation can be evaluated.
    """
    indices = [index for _, index in ones]
    highest = {a for a in indices if not any(a != b and all(map(int.__le__, a, b)) for b in indices)}
    if len(highest) < 2:
        return {}
    uses = linearity.affine(equation, ones)
    highest -= {index for use in uses.values() for (_, index), is_affine in use.items() if not is_affine}
    pairs = [(residual, key) for residual, use in uses.items() for key in use if key[1] in highest]

    def coefficient(residual: str, key: Partial) -> Array:
        unit = ones[key]
        return jax.jvp(lambda value: equation({**ones, key: value})[residual], (unit,), (unit,))[1].astype(unit.dtype)

    def coefficients() -> dict[tuple[str, str], dict[Index, Array]]:
        rows = {}
        for residual, (output, index) in pairs:
            rows.setdefault((residual, output), {})[index] = coefficient(residual, (output, index))
        return rows

    numbers = linearity.equal(coefficients)
    shared: dict[Any, Operator] = {}
    operators = {
        pair: shared.setdefault(tuple(numbers[pair].items()), Operator(row)) for pair, row in coefficients().items()
    }
    return operators if len(shared) < len({index for _, (_, index) in pairs}) else {}


# Jets of the outputs ----------------------------------------------------------------------------------------


def output_jets(problem: Problem, network: Network, x: Array, theta: Array, keep: frozenset[Key]) -> dict[str, Jet]:
    """Jets of the outputs along physical coordinates and parameters, by output."""
    point, boxed = variables(problem, x, theta, keep)
    if network is None:
        return jets.compose(lambda **named: reference_values(problem, named), point, keep)

    def features(box: Box) -> Jet:
        inputs = [jet for name, axis in zip(box, box.axes, strict=True) for jet in axis.features(boxed[name])]
        return jets.stack(inputs, keep, x.dtype)

    raw = network(features(problem.coordinates), features(problem.parameters))
    outputs = {name: raw[i] for i, name in enumerate(problem.outputs)}
    if problem.constrain is not None:
        outputs = _constrained(problem, outputs, point, keep)
    return outputs


def variables(problem: Problem, x: Array, theta: Array, keep: frozenset[Key]) -> tuple[dict[str, Jet], dict[str, Jet]]:
    """Jets of the physical coordinates and parameters, and of the box coordinates as functions of them."""
    given = dict(zip(problem.axes, (*x, *theta), strict=True))
    if problem.place is None:
        point = {name: jets.variable(given[name], i, keep) for i, name in enumerate(problem.axes)}
        return point, point
    physical = placed(problem, given)
    point = {name: jets.variable(physical.get(name, given[name]), i, keep) for i, name in enumerate(problem.axes)}
    names = problem.coordinates.names
    parameters = {name: given[name] for name in problem.parameters}

    def place(box_point: Array, parameters: Mapping[str, Array]) -> Array:
        moved = placed(problem, {**dict(zip(names, box_point, strict=True)), **parameters})
        return jnp.stack([moved[name] for name in names])

    # The box point as a function of the physical point, by chord iterations from the known solution. Each iteration
    # makes one more order of the Taylor series exact, so the highest order in `keep` is the number needed.
    inverse = jnp.linalg.inv(jax.jacfwd(place)(x, parameters))
    target = jnp.stack([physical[name] for name in names])

    def box_point(*offsets: Array) -> dict[str, Array]:
        shifted = {name: parameters[name] + offsets[len(names) + i] for i, name in enumerate(problem.parameters)}
        goal = target + jnp.stack(offsets[: len(names)])
        estimate = x
        for _ in range(max(map(sum, jets.indices(keep)))):
            estimate = estimate - inverse @ (place(estimate, shifted) - goal)
        return dict(zip(names, estimate, strict=True))

    boxed = jets.expand(box_point, keep, x.dtype)
    return point, {**{name: point[name] for name in problem.parameters}, **boxed}


def _constrained(problem: Problem, raw: dict[str, Jet], point: dict[str, Jet], keep: frozenset[Key]) -> dict[str, Jet]:
    """The hard transform, differentiated along with the network's streams."""
    assert problem.constrain is not None
    constrain, single = problem.constrain, len(problem.outputs) == 1

    def transform(**arguments: Array) -> dict[str, Array]:
        inputs = {name: arguments[f"raw {name}"] for name in problem.outputs}
        available = {name: arguments[name] for name in point}
        result = call_by_name(constrain, "constrain", available, inputs[problem.outputs[0]] if single else inputs)
        if single and not isinstance(result, dict):
            result = {problem.outputs[0]: result}
        return as_scalars(with_keys(result, problem.outputs, "constrain"), "constrain", "")

    arguments = {f"raw {name}": jet for name, jet in raw.items()} | point
    return jets.compose(transform, arguments, keep)
