"""Which of its arguments a function contains linearly, read off its jaxpr. Nothing is sampled.

Whatever a function closes over counts as known: for an equation that is the point, while the arguments are the
derivatives.
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

# Primitives that are linear in all operands together, and those that are so in one where the others are known.
SUMS = {"add", "add_any", "sub", "neg", "convert_element_type", "reduce_sum"}
SUMS |= {"broadcast_in_dim", "concatenate", "reshape", "slice", "squeeze", "stack", "transpose"}
PRODUCTS = {"mul", "dot_general"}


def affine(
    function: Callable[[dict[K, Array]], dict[str, Array]], arguments: Mapping[K, Array]
) -> dict[str, dict[K, bool]]:
    """For each result, the arguments it depends on: True if as coefficient × argument, with a known coefficient."""
    traced = jax.make_jaxpr(lambda *given: function(dict(zip(arguments, given))), return_shape=True)
    jaxpr, shape = traced(*arguments.values())
    # A print or another effect must see the arguments as they are, so nothing may be taken out of them.
    inputs = [{key: not jaxpr.effects} for key in arguments]
    return jax.tree.unflatten(jax.tree.structure(shape), _walk(jaxpr.jaxpr, inputs))


def _walk(jaxpr: Any, inputs: list[dict[Any, bool]]) -> list[dict[Any, bool]]:
    seen = dict(zip(jaxpr.invars, inputs, strict=True))

    def of(atom: Any) -> dict[Any, bool]:
        return {} if isinstance(atom, Literal) else seen.get(atom, {})

    for eqn in jaxpr.eqns:
        operands, name = [of(atom) for atom in eqn.invars], eqn.primitive.name
        if name == "jit":
            seen |= zip(eqn.outvars, _walk(eqn.params["jaxpr"].jaxpr, operands), strict=True)
            continue
        unknown = [i for i, operand in enumerate(operands) if operand]
        linear = name in SUMS or (name in PRODUCTS and len(unknown) == 1) or (name == "div" and unknown == [0])
        # A float made an integer is rounded.
        linear = linear and jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating)
        found = {key: linear and all(o.get(key, True) for o in operands) for operand in operands for key in operand}
        seen |= dict.fromkeys(eqn.outvars, found)
    return [of(atom) for atom in jaxpr.outvars]


def equal(function: Callable[[], Any]) -> Any:
    """A number for each result, in their structure: one number is one computation on the same values."""
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
            with suppress(TypeError):  # what cannot be hashed is equal to nothing else
                known[variable] = number((key, i))
    return jax.tree.unflatten(jax.tree.structure(shape), map(of, jaxpr.jaxpr.outvars))
