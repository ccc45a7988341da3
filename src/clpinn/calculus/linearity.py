"""Which arguments a function contains linearly, and which results are the same computation.

Both are read from the function's jaxpr; no values are sampled. All that the function closes over counts as known. For
an equation the arguments are the derivatives, and the point is known.
"""

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jaxtyping import Array

K = TypeVar("K", bound=Hashable)

# Primitives that are linear in all operands together, and primitives that are linear in one if the others are known.
SUMS = {"add", "add_any", "sub", "neg", "convert_element_type", "reduce_sum"}
SUMS |= {"broadcast_in_dim", "concatenate", "reshape", "slice", "squeeze", "stack", "transpose"}
PRODUCTS = {"mul", "dot_general"}


def affine(
    function: Callable[[dict[K, Array]], dict[str, Array]], arguments: Mapping[K, Array]
) -> dict[str, dict[K, bool]]:
    """The arguments that each result depends on, by result: True if only as known coefficient × argument."""
    traced = jax.make_jaxpr(lambda *given: function(dict(zip(arguments, given))), return_shape=True)
    jaxpr, shape = traced(*arguments.values())
    # With a print or another effect, no argument counts as linear: the effect must see all arguments as they are.
    inputs = [{key: not jaxpr.effects} for key in arguments]
    return jax.tree.unflatten(jax.tree.structure(shape), _walk(jaxpr.jaxpr, inputs))


def _walk(jaxpr: Any, inputs: list[dict[Any, bool]]) -> list[dict[Any, bool]]:
    """The dependence of each result of a jaxpr, from the dependence of its inputs: argument -> is it linear."""
    dependence = dict(zip(jaxpr.invars, inputs, strict=True))

    def of(atom: Any) -> dict[Any, bool]:
        return {} if isinstance(atom, Literal) else dependence.get(atom, {})

    for eqn in jaxpr.eqns:
        operands, name = [of(atom) for atom in eqn.invars], eqn.primitive.name
        if name == "jit":
            dependence |= zip(eqn.outvars, _walk(eqn.params["jaxpr"].jaxpr, operands), strict=True)
            continue
        unknown = [i for i, operand in enumerate(operands) if operand]
        linear = name in SUMS or (name in PRODUCTS and len(unknown) == 1) or (name == "div" and unknown == [0])
        # Conversion to an integer rounds.
        linear = linear and jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating)
        result = {key: linear and all(o.get(key, True) for o in operands) for operand in operands for key in operand}
        dependence |= dict.fromkeys(eqn.outvars, result)
    return [of(atom) for atom in jaxpr.outvars]


def scalar_primitives(jaxpr: Any) -> set[str]:
    """Names of the primitives that a jaxpr, and those inside it, apply to a single number."""
    names = set()
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "jit":
            names |= scalar_primitives(eqn.params["jaxpr"].jaxpr)
        elif eqn.invars and all(atom.aval.shape == () for atom in eqn.invars):
            names.add(eqn.primitive.name)
    return names


def equal(function: Callable[[], Any]) -> Any:
    """A number for each result, in the same structure. Equal numbers: the same computation on the same values."""
    jaxpr, shape = jax.make_jaxpr(function, return_shape=True)()
    numbers: dict[Hashable, int] = {}
    known: dict[Any, int] = {}

    def number(key: Hashable) -> int:
        return numbers.setdefault(key, len(numbers))

    def of(atom: Any) -> int:
        if isinstance(atom, Literal):
            return number((str(atom.aval), np.asarray(atom.val).item()))
        return known[atom] if atom in known else number(atom)

    for eqn in jaxpr.jaxpr.eqns:
        key = (eqn.primitive, tuple(sorted(eqn.params.items())), tuple(map(of, eqn.invars)))
        for i, variable in enumerate(eqn.outvars):
            with suppress(TypeError):  # what cannot be hashed is equal to nothing
                known[variable] = number((key, i))
    return jax.tree.unflatten(jax.tree.structure(shape), map(of, jaxpr.jaxpr.outvars))
