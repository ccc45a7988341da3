"""From a surrogate to a program: JAX traces one point, and each equation of the trace becomes operations."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from clpinn.errors import TranslationError
from clpinn.exports.translate.builder import Builder, Components, Unsupported
from clpinn.exports.translate.primitives import evaluated, results, select
from clpinn.exports.translate.program import PRIMITIVES, Operation, Program
from clpinn.formulation.geometry import placed
from clpinn.formulation.pointwise import values
from clpinn.networks.architecture import precision
from clpinn.surrogate.box_correction import for_one_theta, for_single_precision

if TYPE_CHECKING:
    from clpinn.surrogate.surrogate import Surrogate

CALLERS = frozenset(
    "jit pjit closed_call core_call checkpoint remat remat2 custom_jvp_call custom_vjp_call "
    "custom_vjp_call_jaxpr".split()
)
"""Primitives that call a computation."""
CALLED = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""Names of the parameter that holds the called computation."""
LONGEST_SCAN = 1000
"""A loop of known length is unrolled up to this length."""


def program_of(surrogate: "Surrogate", by_theta: bool = False) -> Program:
    """The outputs of a surrogate at box coordinates and parameters, hard transform included, heads left out.

    Where parameters move the geometry, there are further outputs "physical x", ...: the physical coordinates. With
    `by_theta`, the program is made for many points of one theta.
    """
    problem, network = surrogate.problem, for_single_precision(surrogate.network)  # pages and ONNX are in single
    network = for_one_theta(network) if by_theta else network

    def point(x: jax.Array, theta: jax.Array) -> dict[str, jax.Array]:
        outputs = values(problem, network, x, theta)
        if problem.place is not None:
            given = dict(zip(problem.axes, (*x, *theta), strict=True))
            outputs |= {f"physical {name}": jnp.asarray(value) for name, value in placed(problem, given).items()}
        return outputs

    return trace(point, problem.coordinates.names, problem.parameters.names, precision(network))


def trace(
    point: Callable[[jax.Array, jax.Array], Mapping[str, jax.Array]],
    coordinates: Sequence[str],
    parameters: Sequence[str],
    dtype: Any = jnp.float32,
) -> Program:
    """The program of `point(x, theta)`, a JAX function of two vectors that gives scalars by name."""
    names: list[str] = []

    def listed(x: jax.Array, theta: jax.Array) -> list[jax.Array]:
        outputs = point(x, theta)
        names[:] = outputs
        return list(outputs.values())

    with jax.enable_x64(dtype == jnp.float64):
        x, theta = (jnp.zeros(len(axes), dtype) for axes in (coordinates, parameters))
        closed = jax.make_jaxpr(listed)(x, theta)
        inputs = np.arange(len(coordinates) + len(parameters))
        builder = Builder(len(inputs))
        arguments = [Components(inputs[: len(coordinates)]), Components(inputs[len(coordinates) :])]
        traced = _run(builder, closed.jaxpr, closed.consts, arguments)
        reasons = sorted({value.reason for value in traced if isinstance(value, Unsupported)})
        if reasons:
            raise TranslationError(
                f"{', '.join(reasons)} cannot be translated for a page or for ONNX. Write the hard transform "
                "(`constrain`), `place` or the network without it. What can be translated: matrix products, sums, "
                f"selections, whatever only moves values, {', '.join(sorted(PRIMITIVES))}. docs/explorer.md says how "
                "to add a primitive."
            )
        outputs = {name: int(builder.numbers(value).ravel()[0]) for name, value in zip(names, traced)}
    operations = _needed(builder.operations, set(outputs.values()))
    return Program(tuple(coordinates), tuple(parameters), operations, outputs, builder.size)


def _needed(operations: Sequence[Operation], components: set[int]) -> tuple[Operation, ...]:
    """The operations on which these components depend."""
    kept: list[Operation] = []
    for operation in reversed(operations):
        if not components.isdisjoint(range(operation.start, operation.start + operation.count)):
            kept.append(operation)
            components.update(*(ids.tolist() for ids in operation.reads))
    return tuple(reversed(kept))


def _run(builder: Builder, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """The outputs of a jaxpr."""
    known: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for equation in jaxpr.eqns:
        known.update(zip(equation.outvars, _apply(builder, equation, [read(atom) for atom in equation.invars])))
    return [read(atom) for atom in jaxpr.outvars]


def _apply(builder: Builder, equation: Any, operands: list[Any]) -> list[Any]:
    """The results of one equation."""
    name, parameters = equation.primitive.name, equation.params
    untranslated = [value for value in operands if isinstance(value, Unsupported)]
    if untranslated:
        return untranslated[:1] * len(equation.outvars)
    if name in CALLERS:
        called = next(parameters[key] for key in CALLED if key in parameters)
        return _run(builder, getattr(called, "jaxpr", called), getattr(called, "consts", ()), operands)
    if not any(isinstance(value, Components) for value in operands):
        return evaluated(equation, operands)
    if any(jnp.issubdtype(atom.aval.dtype, jnp.complexfloating) for atom in equation.outvars):
        return [Unsupported(f"{name!r} on complex numbers")] * len(equation.outvars)
    if name == "scan" and parameters["length"] <= LONGEST_SCAN:
        return _scan(builder, parameters, operands)
    if name == "cond":
        return _cond(builder, parameters["branches"], *operands)
    return results(builder, equation, operands)


def _scan(builder: Builder, parameters: Mapping[str, Any], operands: list[Any]) -> list[Any]:
    """A loop of known length, unrolled."""
    constants, carried = parameters["num_consts"], parameters["num_carry"]
    consts, carry = operands[:constants], operands[constants : constants + carried]
    stacks = operands[constants + carried :]
    body, length = parameters["jaxpr"], parameters["length"]
    gathered: dict[int, list[Any]] = {}
    for i in range(length)[:: -1 if parameters["reverse"] else 1]:
        slices = [Components(stack.ids[i]) if isinstance(stack, Components) else stack[i] for stack in stacks]
        outputs = _run(builder, body.jaxpr, body.consts, [*consts, *carry, *slices])
        carry, gathered[i] = outputs[:carried], outputs[carried:]
        untranslated = [value for value in outputs if isinstance(value, Unsupported)]
        if untranslated:
            return untranslated[:1] * (carried + len(gathered[i]))
    columns = zip(*(gathered[i] for i in range(length)))
    stacked = [np.stack([builder.numbers(value) for value in column]) for column in columns]
    return [*carry, *map(Components, stacked)]


def _cond(builder: Builder, branches: Sequence[Any], index: Any, *operands: Any) -> list[Any]:
    """All branches are computed, and the index selects one."""
    if not isinstance(index, Components):
        chosen = branches[int(np.clip(index, 0, len(branches) - 1))]
        return _run(builder, chosen.jaxpr, chosen.consts, operands)
    outputs = [_run(builder, branch.jaxpr, branch.consts, operands) for branch in branches]
    return [select(builder, index, *cases) for cases in zip(*outputs)]
