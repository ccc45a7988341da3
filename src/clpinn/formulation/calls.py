"""Calls of the functions that a user wrote: arguments by name, results checked."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from clpinn.errors import ProblemError

Scalar = Float[Array, ""]


def call_by_name(function: Callable[..., Any], label: str, available: Mapping[str, Any], *leading: Any) -> Any:
    """Call a user's function with the leading arguments and the available ones that its signature names.

    `label` names the function in error messages.
    """
    signature = list(inspect.signature(function).parameters.values())
    if len(signature) < len(leading):
        raise ProblemError(f"{label} must take {len(leading)} argument(s) before the named ones.")
    arguments = {}
    for parameter in signature[len(leading) :]:
        if parameter.kind is parameter.VAR_KEYWORD:
            return function(*leading, **available)
        if parameter.name in available:
            arguments[parameter.name] = available[parameter.name]
        elif parameter.default is parameter.empty:
            may = f"It may ask for {', '.join(available)}." if available else "It takes no arguments."
            raise ProblemError(f"{label} asks for {parameter.name!r}, which it cannot have. {may}")
    return function(*leading, **arguments)


def with_keys(result: Any, names: Iterable[str], label: str) -> dict[str, Any]:
    """The result of a user's function if it is a dict with exactly these keys; an error otherwise."""
    if not isinstance(result, dict) or set(result) != set(names):
        got = ", ".join(map(str, result)) or "an empty dict" if isinstance(result, dict) else type(result).__name__
        raise ProblemError(f"{label} must return a dict with the keys {', '.join(names)}, but returned {got}.")
    return result


def as_scalars(result: Any, label: str, name: str) -> dict[str, Scalar]:
    """The result of a user's function as a dict of scalars; a single scalar gets the key `name`."""
    named = result if isinstance(result, dict) else {name: result}
    if not named or any(value is None or isinstance(value, list | tuple | str) for value in named.values()):
        got = "nothing" if result is None else "an empty dict" if result == {} else f"a {type(result).__name__}"
        raise ProblemError(
            f"{label} must return a scalar, or a dict of scalars by name, but returned {got}. "
            "Is a `return` missing? Several equations are a dict: {'mass': ..., 'momentum': ...}."
        )
    for key, value in named.items():
        shape = jnp.shape(value)
        if shape != ():
            place = f"{label} [{key!r}]" if isinstance(result, dict) else label
            raise ProblemError(
                f"{place} must return a scalar, or a dict of scalars, but returned the shape {shape}. It is "
                "written for one point: use the named arguments as scalars and return one number for each equation."
            )
    return {key: jnp.asarray(value) for key, value in named.items()}
