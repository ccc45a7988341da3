"""What a problem computes, as a few short hashes. Files of runs hold them, so that an edited problem is noticed.

The hashes are of traced programs with their constants, not of source text. So comments, names of variables and moved
files change nothing. They hold no memory addresses, and floats enter with 24 bits. So they are the same in another
process, on another machine, and with or without x64.
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from clpinn.calculus.names import Derivatives, parse_name, requested
from clpinn.errors import ProblemError
from clpinn.formulation.calls import as_scalars, call_by_name
from clpinn.formulation.geometry import placed
from clpinn.formulation.identity import Identity
from clpinn.formulation.problem import Condition, Integral, Problem
from clpinn.formulation.shaped import (
    boundary_names,
    domain_values,
    interface_values,
    normal_names,
    piece_values,
    with_normal,
)

JAX = "jax"
"""The version of JAX. Another version may trace the same function to another program."""
STATED = ("coordinates", "parameters", "outputs")
"""Parts that are not traced."""
IGNORED = ("name", "weak_type", "inline", "keep_unused")
"""Parameters of traced operations that do not change what is computed."""


def fingerprint(problem: Problem) -> dict[str, str] | None:
    """A hash for each part of a problem: boxes, outputs, equation, conditions, constrain, place.

    None if the problem cannot be traced, or calls back into Python, where anything may happen.
    """
    return _fingerprint(Identity(problem))


def check_unchanged(problem: Problem, recorded: Mapping[str, str] | None, label: str) -> None:
    """Raise an error if a problem differs from the recorded fingerprint. `label` names what was trained on that one."""
    now = fingerprint(problem) if recorded else None
    if not recorded or now is None:
        return
    same_jax = recorded.get(JAX) == now[JAX]
    names = [name for name in {**recorded, **now} if name != JAX and (same_jax or name in STATED)]
    differing = [name for name in names if recorded.get(name) != now.get(name)]
    if differing:
        raise ProblemError(
            f"{type(problem).__name__} is not the problem that {label} was trained on. What differs: "
            f"{', '.join(differing)}. Restore the problem, or train again. If the change is harmless: "
            "--changed-problem (in Python changed_problem=True)."
        )


@lru_cache(maxsize=16)
def _fingerprint(identity: Identity) -> dict[str, str] | None:
    problem = identity.problem
    try:
        with jax.enable_x64(True):
            parts = {name: _hash(_value(part)) for name, part in _parts(problem)}
    except Exception:  # a user's function, or an operation, that cannot be described
        return None
    return {JAX: jax.__version__, **parts}


def _parts(problem: Problem) -> Iterator[tuple[str, Any]]:
    """The parts of a problem by name, in plain values and traced programs."""
    for name in ("coordinates", "parameters"):
        box = getattr(problem, name)
        yield name, [(key, float(axis.low), float(axis.high), axis.scale) for key, axis in zip(box, box.axes)]
    yield "outputs", problem.outputs
    yield "equation", _traced_residual(problem, None)
    for condition in problem.conditions:
        if isinstance(condition, Integral):
            equals = condition.equals
            target = equals
            if callable(equals):
                given = dict.fromkeys((*problem.parameters, *({"t"} & set(problem.coordinates))), _SCALAR)
                target = _trace(lambda at, f=equals: as_scalars(call_by_name(f, "equals", at), "", ""), given)
            part = condition.on, _traced_residual(problem, condition.condition), target
        elif isinstance(condition, Condition):
            part = condition.on, _traced_residual(problem, condition)
        else:
            arrays = {**condition.at, **condition.values}
            part = {name: np.asarray(values, dtype=float) for name, values in arrays.items()}
        yield f"condition {condition.name!r}", (float(condition.weight), part)
    point = dict.fromkeys(problem.axes, _SCALAR)
    if problem.constrain is not None:
        raw = dict.fromkeys(problem.outputs, _SCALAR)
        single = raw if len(raw) > 1 else _SCALAR
        constrain = problem.constrain
        yield (
            "constrain",
            _trace(lambda raw, at: as_scalars(call_by_name(constrain, "constrain", at, raw), "", ""), single, point),
        )
    if problem.domain is not None:
        drawn = [_trace(lambda at, f=f: f(problem, at), point) for f in (domain_values, piece_values)]
        yield "domain", (boundary_names(problem), *drawn)
        interfaces = _trace(lambda at: interface_values(problem, at), point)
        if interfaces[0]:
            yield "interfaces", interfaces
    if problem.place is not None:
        yield "place", _trace(lambda at: as_scalars(placed(problem, at), "", ""), point)


_SCALAR = jax.ShapeDtypeStruct((), np.float64)


def _trace(function: Callable[..., dict[str, Any]], *arguments: Any) -> tuple[list[str], ClosedJaxpr]:
    """The names of a function's results, and its program. Dicts are flattened in the order of their keys."""
    program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    return sorted(shapes), program


def _traced_residual(problem: Problem, condition: Condition | None) -> tuple[list[Any], Any]:
    """The partial derivatives that a residual uses, and its program as a function of them and of the point."""
    residual = problem.residual if condition is None else condition.residual
    normals = normal_names(problem, condition)

    def parse(text: str) -> Any:
        return parse_name(text, tuple(problem.outputs), problem.axes)

    def call(d: Derivatives, at: Mapping[str, Any]) -> Any:
        d = with_normal(problem, d, {name: at[name] for name in normals})
        return call_by_name(residual, "residual", at, d)

    point = dict.fromkeys((*problem.axes, *normals), _SCALAR)
    ones = dict.fromkeys(point, np.ones(()))  # a user may divide by a parameter
    names = requested(lambda d: call(d, ones), parse)
    partials = sorted({parse(name) for name in names})

    def function(values: list[Any], at: Mapping[str, Any]) -> dict[str, Any]:
        d = Derivatives(lambda text: values[partials.index(parse(text))])
        return as_scalars(call(d, at), "", "")

    return partials, _trace(function, [_SCALAR] * len(partials), point)


# Values without addresses ------------------------------------------------------------------------------------


def _hash(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _value(value: Any) -> Any:
    """A value as nested tuples of plain values that are printed alike everywhere."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | complex | np.ndarray | np.generic | jax.Array):
        return _array(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return _kind(np.dtype(value))
    if isinstance(value, ClosedJaxpr):
        return _program(value.jaxpr, [_value(constant) for constant in value.consts])
    if isinstance(value, Jaxpr):
        return _program(value, [])
    if isinstance(value, Mapping):
        return tuple((str(name), _value(value[name])) for name in value)
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        return tuple(_value(item) for item in items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, tuple(_value(getattr(value, field.name)) for field in dataclasses.fields(value))
    return type(value).__name__


def _kind(dtype: Any) -> str:
    """Float, integer or another kind of number, whatever its size."""
    return {"u": "i"}.get(np.dtype(dtype).kind, np.dtype(dtype).kind)


def _array(value: Any) -> Any:
    """Numbers rounded to single precision, except those beyond its range."""
    array = np.asarray(value)
    if array.dtype.kind not in "fc":
        return array.shape, _kind(array.dtype), _bytes_hash(array.astype("<i8"))
    if array.dtype.kind == "c":
        return _array(np.real(array)), _array(np.imag(array))
    exact = np.where(np.isnan(array), np.nan, array.astype(np.float64) + 0.0)  # one NaN, one zero
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        beyond = np.isfinite(exact) & (exact != 0) & ~((np.abs(rounded) >= 1e-37) & np.isfinite(rounded))
    return array.shape, "f", _bytes_hash(np.where(beyond, exact, rounded.astype(np.float64)).astype("<f8"))


def _bytes_hash(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _program(program: Jaxpr, constants: list[Any]) -> Any:
    """A program with its variables numbered in the order in which they appear."""
    numbers = itertools.count()
    names: dict[Any, Any] = dict(zip(program.constvars, constants))
    for variable in program.invars:
        names[variable] = f"variable {next(numbers)}"

    def name(atom: Any) -> Any:
        return _value(atom.val) if isinstance(atom, Literal) else names[atom]

    operations = []
    for equation in program.eqns:
        operation = equation.primitive.name
        if "callback" in operation:
            raise ProblemError(f"The problem calls Python while it computes ({operation}).")
        inputs = tuple(name(atom) for atom in equation.invars)
        if operation == "convert_element_type" and _kind(equation.params["new_dtype"]) == _input_kind(equation):
            names[equation.outvars[0]] = inputs[0]  # only the precision changes
            continue
        for variable in equation.outvars:
            names[variable] = f"variable {next(numbers)}"
        settings = tuple((key, _value(equation.params[key])) for key in sorted(equation.params) if key not in IGNORED)
        operations.append((operation, settings, inputs, len(equation.outvars)))
    return len(program.invars), tuple(operations), tuple(name(atom) for atom in program.outvars)


def _input_kind(equation: Any) -> str:
    return _kind(equation.invars[0].aval.dtype)
