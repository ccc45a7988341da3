"""Integral conditions as rows: a row is a quadrature rule at one theta, and at one time if there is time."""

import inspect
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from clpinn.errors import DomainError, ProblemError
from clpinn.formulation.calls import as_scalars, call_by_name
from clpinn.formulation.domain import Points
from clpinn.formulation.identity import Identity
from clpinn.formulation.pointwise import Network, condition_residuals, residual_names, residual_sizes
from clpinn.formulation.problem import Integral, Problem
from clpinn.formulation.regions import At, On
from clpinn.formulation.shaped import chosen_pieces, normal_names, shape_at, spanned
from clpinn.formulation.shaped_points import checked_thetas
from clpinn.formulation.thetas import theta_text
from clpinn.keys import Key, generator, make_key
from clpinn.shapes import points
from clpinn.shapes.inside import inside_rule
from clpinn.shapes.plane import Rectangle
from clpinn.shapes.quadrature import Rule, boundary_rule, box_rule, section_rule
from clpinn.shapes.solid import Cuboid

CHUNK = 8
"""Rows that one compiled call computes."""
DURING_TRAINING = 10.0
"""A rule that is this many times less exact than what is allowed before training ends a run."""
FINER = 2
"""Cells of an estimate of errors, along each direction, for one of training."""


def integral_rows(
    problem: Problem, integral: Integral, thetas: Points, key: Key, limit: float = DURING_TRAINING
) -> Points:
    """A row for each theta: all nodes, one after the other, each with its coordinates, its normal and its weight."""
    unit = generator(key).random(len(thetas))
    fixed, parts = dict(integral.on.fixed), dict(integral.on.parts)
    times = np.zeros(len(thetas))
    if "t" in problem.coordinates.names:
        axis = problem.coordinates["t"]
        low, high = parts.get("t", (axis.low, axis.high))
        times = np.full(len(thetas), fixed["t"]) if "t" in fixed else low + unit * (high - low)
    return _rows_at(problem, integral, thetas, times, limit)


def integral_nodes(
    problem: Problem, integral: Integral, theta: Float[np.ndarray, " parameters"], times: Float[np.ndarray, " times"]
) -> Float[np.ndarray, "times nodes numbers"]:
    """More nodes than in training at one theta and some times, each with its coordinates, normal and weight."""
    rows = _rows_at(problem, integral, np.tile(theta, (len(times), 1)), times, finer=FINER)
    return rows.reshape(len(times), -1, integral_columns(problem, integral))


def integral_targets(
    problem: Problem, integral: Integral, nodes: Float[np.ndarray, "times numbers"], theta: np.ndarray
) -> Float[np.ndarray, "times integrals"]:
    """What the integrals equal; a node tells each time."""
    names = residual_names(problem, integral.condition)
    with jax.enable_x64(True):
        rows = [_target(problem, integral, jnp.asarray(node), jnp.asarray(theta), names) for node in nodes]
    return np.array([[float(row[name]) for name in names] for row in rows])


def _rows_at(
    problem: Problem,
    integral: Integral,
    thetas: Points,
    times: np.ndarray,
    limit: float = DURING_TRAINING,
    finer: int = 1,
) -> Points:
    """Rows at thetas and times, computed CHUNK at a time."""
    number, rows = problem.conditions.index(integral), []
    thetas = np.asarray(thetas, float)
    for first in range(0, len(thetas), CHUNK):
        chosen = np.minimum(np.arange(first, first + CHUNK), len(thetas) - 1)
        with jax.enable_x64(True):
            computed = _rows(Identity(problem), number, thetas[chosen], times[chosen], finer)
            found, mismatch = map(np.asarray, computed)
        wrong = ~(mismatch < limit) | ~np.isfinite(found).all(axis=1)
        if wrong.any():
            raise DomainError(_unresolved(problem, integral, thetas[chosen][np.argmax(wrong)]))
        rows.append(found[: len(thetas) - first])
    return np.concatenate(rows)


def _unresolved(problem: Problem, integral: Integral, theta: Float[np.ndarray, " parameters"]) -> str:
    at = f" at {theta_text(problem.parameters, theta)}" if len(problem.parameters) else ""
    return (
        f"Integral {integral.name!r} cannot be computed{at}: the shape has details that are too fine, or too many of "
        "them, for the nodes of a quadrature rule. Simplify the shape, state the integral over single pieces or over "
        "a part such as cl.at(x=(0, 1)), or narrow the box of parameters."
    )


@partial(jax.jit, static_argnums=(0, 1, 4))
def _rows(identity: Identity, number: int, thetas: Array, times: Array, finer: int) -> tuple[Array, Array]:
    """Rows, and how far the measure of each is from one computed in another way, over what is allowed."""
    problem = identity.problem
    integral = problem.conditions[number]
    assert isinstance(integral, Integral)

    def row(theta: Array, time: Array) -> tuple[Array, Array]:
        rule, names = _rule(problem, integral, theta, finer), spanned(problem)
        columns = {name: rule.x[:, i] for i, name in enumerate(names)} | {"t": jnp.full(len(rule.x), time)}
        nodes = [columns[name] for name in problem.coordinates]
        nodes += [rule.normal[:, i] for i in range(len(normal_names(problem, integral.condition)))]
        return jnp.stack([*nodes, rule.weight], axis=1).reshape(-1), rule.mismatch

    return jax.vmap(row)(thetas, times)


def _rule(problem: Problem, integral: Integral, theta: Array, finer: int) -> Rule:
    """The quadrature rule of an integral at a theta."""
    names, region = spanned(problem), integral.on
    fixed = {names.index(name): value for name, value in region.fixed if name != "t"}
    parts = {names.index(name): ends for name, ends in region.parts if name != "t"}
    if problem.domain is None:
        axes = [problem.coordinates[name] for name in names]
        ends = [parts.get(i, (axis.low, axis.high)) for i, axis in enumerate(axes)]
        return box_rule((jnp.asarray([low for low, _ in ends]), jnp.asarray([high for _, high in ends])), fixed)
    shape = shape_at(problem, dict(zip(problem.parameters, theta, strict=True)))
    if isinstance(region, On):
        return boundary_rule(*chosen_pieces(shape, region.names), parts, finer)
    low, high = map(jnp.asarray, shape.bounds)
    for axis, (first, last) in parts.items():
        low, high = low.at[axis].max(first), high.at[axis].min(last)
    if fixed:
        limit = points.CLOSED * points.extent(shape.bounds)
        return section_rule(lambda x: shape.distance(x) <= limit, (low, high), fixed, finer)
    if parts:
        ends = list(zip(low, high, strict=True))
        box = Rectangle(x=ends[0], y=ends[1]) if len(ends) == 2 else Cuboid(x=ends[0], y=ends[1], z=ends[2])
        shape = shape & box
    return inside_rule(shape, finer)


def integral_residuals(
    problem: Problem, integral: Integral, network: Network, row: Float[Array, " row"], theta: Array
) -> dict[str, Array]:
    """The integral minus what it equals, by the name of the integral or of each integrand."""
    nodes = row.reshape(-1, integral_columns(problem, integral))
    at = partial(condition_residuals, problem, integral.condition, network)
    by_name = jax.vmap(lambda node: at(node, theta))(nodes[:, :-1])
    target = _target(problem, integral, nodes[0], theta, list(by_name))
    return {name: jnp.sum(nodes[:, -1] * values) - target[name] for name, values in by_name.items()}


def integral_sizes(
    problem: Problem, integral: Integral, measure: float, network: Network, x: Array, theta: Array
) -> dict[str, dict[str, Array]]:
    """How large the terms of the integral are, from the integrand at a point inside times the measure of its region."""
    sizes = residual_sizes(problem, integral.condition, network, x[: len(problem.coordinates)], theta)
    target = _target(problem, integral, x, theta, list(sizes))
    return {
        name: {output: measure * size for output, size in by_output.items()}
        | {"": measure * by_output[""] + jnp.abs(target[name])}
        for name, by_output in sizes.items()
    }


def integral_columns(problem: Problem, integral: Integral) -> int:
    """Numbers of one node in a row."""
    return len(problem.coordinates) + len(normal_names(problem, integral.condition)) + 1


def _target(problem: Problem, integral: Integral, x: Array, theta: Array, names: list[str]) -> dict[str, Any]:
    """What the integrals equal, by name."""
    label = f"equals of integral {integral.name!r}"
    if not callable(integral.equals):
        result: Any = integral.equals
    else:
        given = dict(zip(problem.parameters, theta, strict=True))
        if "t" in problem.coordinates.names:
            given["t"] = x[problem.coordinates.names.index("t")]
        result = call_by_name(integral.equals, label, given)
    target = as_scalars(result, label, integral.name)
    if set(target) != set(names):
        raise ProblemError(f"{label} must give {', '.join(names)}, but gives {', '.join(target)}.")
    return target


def check_integral(problem: Problem, integral: Integral) -> None:
    """Raise an error if an integral cannot be computed for this problem."""
    if not isinstance(integral.on, At | On):
        raise ProblemError(
            f"Integral {integral.name!r} is over on=cl.at(x=0), on=cl.at() for the whole domain, or on=cl.on('hole') "
            f"for pieces of a boundary, but got on={integral.on!r}."
        )
    if problem.place is not None:
        raise ProblemError(
            f"Integral {integral.name!r} needs lengths and areas, which place changes. Draw the domain as a shape, or "
            "leave the integral out."
        )
    if isinstance(integral.on, On) and problem.domain is None:
        integral.on.sample(problem.coordinates, 1, (0, 0))
    problem.coordinates.require([name for name, _ in (*integral.on.fixed, *integral.on.parts)])
    if callable(integral.equals):
        given = (*problem.parameters, *({"t"} & set(problem.coordinates)))
        unknown = [name for name in inspect.signature(integral.equals).parameters if name not in given]
        if unknown:
            raise ProblemError(
                f"equals of integral {integral.name!r} asks for {unknown[0]!r}. It may depend on "
                f"{', '.join(given) or 'nothing'}: an integral is over space."
            )
    if problem.domain is not None:
        integral_rows(problem, integral, checked_thetas(problem), make_key(0), limit=1.0)
