"""What is wrong with a problem, said before anything is trained."""

import inspect
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from clpinn.calculus import jets
from clpinn.calculus.jets import Jet
from clpinn.calculus.names import parse_name
from clpinn.errors import ClpinnError, ProblemError
from clpinn.formulation.domain import Box, Grid
from clpinn.formulation.geometry import data_points
from clpinn.formulation.integrals import check_integral
from clpinn.formulation.membership import are_inside
from clpinn.formulation.pointwise import condition_residuals, residuals, used_partials, user_primitives
from clpinn.formulation.problem import Condition, Data, Integral, Problem, task_prior
from clpinn.formulation.regions import At, Boundary, Interior, On
from clpinn.formulation.shaped import normal_names, spanned
from clpinn.formulation.shaped_points import check_domain
from clpinn.formulation.thetas import theta_text
from clpinn.keys import make_key
from clpinn.shapes.shape import Shape

LIBRARY = str(Path(__file__).parent.parent)
"""The folder of clpinn: frames of a traceback in it are not the user's."""
MOST_POINTS = 10**8
"""More points of one kind do not fit into the memory of most machines."""


REDUCTIONS = {"reduce_sum": "sum or mean", "reduce_prod": "product", "reduce_max": "maximum", "reduce_min": "minimum"}
"""Primitives that make one number of many, and their names for people."""


def validate(problem: Problem) -> None:
    """Raise a ProblemError that says what is wrong, if anything is. The equation is traced, not computed."""
    if not isinstance(problem, Problem):
        given = f"the class {problem.__name__}" if isinstance(problem, type) else repr(problem)
        raise ProblemError(f"Expected an instance of clpinn.Problem, but got {given}.")
    _check_names(problem)
    _check_grids(problem)
    _check_points(problem)
    _check_domain(problem)
    _check_residuals(problem)
    _check_prior(problem)


def _check_names(problem: Problem) -> None:
    """Boxes and outputs are there, and each name is used once."""
    kind = type(problem).__name__
    for name in ("coordinates", "residual"):
        if not hasattr(problem, name):
            raise ProblemError(f"{kind} has no {name}. A problem needs coordinates, outputs and a residual.")
    for name in ("coordinates", "parameters"):
        if not isinstance(getattr(problem, name), Box):
            raise ProblemError(f"{kind}.{name} must be a clpinn.Box, but is {getattr(problem, name)!r}.")
    if len(problem.coordinates) == 0:
        raise ProblemError(f"{kind}.coordinates has no axes. Give at least one, e.g. Box(x=(0, 1)).")
    outputs = problem.outputs
    if not isinstance(outputs, tuple) or not outputs or not all(isinstance(name, str) for name in outputs):
        raise ProblemError(f'{kind}.outputs must be a tuple of names such as ("u",), but is {outputs!r}.')
    names = [*problem.axes, *outputs]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ProblemError(
            f"{kind} uses the name {', '.join(repeated)} twice. Give every axis and output its own name."
        )
    if problem.domain is not None:
        taken = [f"n{name}" for name in spanned(problem) if f"n{name}" in names]
        if taken:
            raise ProblemError(
                f"{kind} has an axis or output called {taken[0]!r}. With a shape this is a component of the normal on "
                "its boundary. Rename it."
            )
    unknown = [name for name in problem.units if name not in names]
    if unknown:
        raise ProblemError(f"{kind}.units names {', '.join(unknown)}, but there is only {', '.join(names)}.")
    for name in outputs:
        if not name.isidentifier() or name.startswith("_") or _reads_as_derivative(name, problem):
            raise ProblemError(
                f"{kind} has an output called {name!r}, which reads as a derivative or cannot be asked for. Rename it."
            )


def _reads_as_derivative(name: str, problem: Problem) -> bool:
    others = tuple(output for output in problem.outputs if output != name)
    try:
        parse_name(name, others, problem.axes)
    except (ProblemError, IndexError):
        return False
    return True


def _check_grids(problem: Problem) -> None:
    kind = type(problem).__name__
    for name, box in (("candidates", problem.parameters), ("evaluation", problem.coordinates)):
        grid = getattr(problem, name)
        if not isinstance(grid, Grid):
            raise ProblemError(f"{kind}.{name} must be a clpinn.Grid, but is {type(grid).__name__}.")
        box.require(grid.values, complete=True)
        if tuple(grid.values) != box.names:
            raise ProblemError(f"{kind}.{name} must name its axes in the order of the box: {', '.join(box)}.")


def _check_points(problem: Problem) -> None:
    """The conditions are a tuple, and points can be drawn in the interior."""
    kind = type(problem).__name__
    if not isinstance(problem.conditions, tuple) or not all(
        isinstance(condition, Condition | Integral | Data) for condition in problem.conditions
    ):
        raise ProblemError(
            f"{kind}.conditions must be a tuple of clpinn.Condition, Integral and Data, but is {problem.conditions!r}. "
            "A tuple of one needs a comma: (cl.Condition(...),)."
        )
    for condition in problem.conditions:
        if isinstance(condition, Condition):
            _check_region(problem, condition)
    if not isinstance(problem.interior, Interior):
        raise ProblemError(f"{kind}.interior must be a clpinn.Interior(points), but is {problem.interior!r}.")
    _require_whole(f"{kind}.interior", problem.interior.points)
    if problem.domain is not None and problem.interior.anchors is not None:
        raise ProblemError(
            f"{kind}.interior has anchors, but a domain that is a shape depends on theta, and fixed points may lie "
            "outside of it. Leave the anchors out."
        )
    _require_points(problem, problem.interior)


def _check_domain(problem: Problem) -> None:
    """The shape of the domain can be drawn at every theta."""
    kind, domain = type(problem).__name__, problem.domain
    if isinstance(domain, Shape) or (domain is not None and not callable(domain)):
        raise ProblemError(
            f"{kind}.domain must be a method that returns a shape, but is a {type(domain).__name__}. Write def "
            "domain(self): return ..., with the parameters that it needs after self."
        )
    method = vars(type(problem)).get("domain")
    arguments = ["self"]
    if method is not None and not isinstance(method, staticmethod):
        arguments = list(inspect.signature(method).parameters)
    if not arguments or arguments[0] in problem.parameters:
        raise ProblemError(f"{kind}.domain has no self. Write def domain({', '.join(['self', *arguments])}).")
    try:
        check_domain(problem)
    except ClpinnError:
        raise
    except Exception as error:
        raise user_error("domain", error, problem.parameters.names) from error


def _check_region(problem: Problem, condition: Condition) -> None:
    """A condition holds in a region, and the axes that it fixes or cuts are coordinates."""
    region = condition.on
    if not isinstance(region, At | Boundary | On):
        raise ProblemError(
            f"Condition {condition.name!r} holds on clpinn.at(t=0), clpinn.boundary('x'), clpinn.on('hole') and the "
            f"like, but got on={region!r}."
        )
    stated = () if isinstance(region, Boundary) else (*region.fixed, *region.parts)
    unknown = [axis for axis, _ in stated if axis not in problem.coordinates]
    if unknown:
        raise ProblemError(
            f"Condition {condition.name!r} holds at values of {unknown[0]!r}, but the coordinates are "
            f"{', '.join(problem.coordinates)}."
        )


def _check_residuals(problem: Problem) -> None:
    """The equation and every condition can be traced with a linear network; data fits the problem."""
    kind = type(problem).__name__
    inputs = problem.coordinates.feature_count + problem.parameters.feature_count
    weight, bias = np.zeros((inputs, len(problem.outputs)), np.float32), np.zeros(len(problem.outputs), np.float32)

    def network(coordinates: Jet, parameters: Jet) -> Jet:
        return jets.linear(jets.concatenate([coordinates, parameters]), jnp.asarray(weight), jnp.asarray(bias))

    _trace(problem, lambda x, theta: residuals(problem, network, x, theta), "residual")
    _check_reductions(problem, None, "residual")
    names = ["interior"]
    for condition in problem.conditions:
        if condition.name in names:
            raise ProblemError(
                f"{kind} has two conditions called {condition.name!r}, or one with the name of the equation's own "
                "points, interior. Rename one."
            )
        names.append(condition.name)
        if not condition.weight > 0:
            raise ProblemError(f"Condition {condition.name!r} needs a weight above zero, but got {condition.weight}.")
        if isinstance(condition, Data):
            x, thetas, _ = data_points(problem, condition)
            inside = are_inside(problem, x, thetas)
            if not inside.all():
                row = int(np.argmin(inside))
                place = theta_text(problem.axes, (*x[row], *thetas[row]))
                raise ProblemError(
                    f"Data {condition.name!r} has {np.sum(~inside)} points outside of the domain, the first in row "
                    f"{row + 1}, at {place}. Leave them out, or change the shape."
                )
            continue
        if isinstance(condition, Integral):
            check_integral(problem, condition)
            condition = condition.condition
        label = f"condition {condition.name!r}"
        _require_whole(f"Condition {condition.name!r}", condition.points)
        at = partial(condition_residuals, problem, condition, network)
        _trace(problem, at, label, len(normal_names(problem, condition)))
        _check_reductions(problem, condition, label)
        _require_points(problem, condition)


def _check_reductions(problem: Problem, condition: Condition | None, label: str) -> None:
    """A sum or mean over one number is a misunderstanding: a residual sees one point, not a field."""
    for primitive in user_primitives(problem, condition):
        if primitive in REDUCTIONS:
            raise ProblemError(
                f"{label} takes a {REDUCTIONS[primitive]} over a single number. A residual is written for one point: "
                "d.u is the output there, not a field, so an integral over the domain cannot be stated in this way. "
                "Use d.u itself; for an absolute value use jnp.abs."
            )


def undetermined(problem: Problem) -> str | None:
    """What to tell the user if nothing but the equation determines the solution; None if something does.

    An equation without derivatives determines it alone, and so may one whose derivatives are along periodic axes.
    """
    if problem.conditions or problem.constrain is not None:
        return None
    axes = [*problem.coordinates.axes, *problem.parameters.axes]
    indices = [index for _, index in used_partials(problem, None)]
    open_axes = [
        name
        for i, (name, axis) in enumerate(zip(problem.axes, axes, strict=True))
        if axis.scale != "periodic" and any(index[i] for index in indices)
    ]
    if not open_axes:
        return None
    return (
        f"Nothing but the equation determines the solution: {type(problem).__name__} has no condition and no "
        f"`constrain`, and the equation has derivatives along {', '.join(open_axes)}. Training will find any one "
        'of its solutions. Give conditions, such as cl.Condition("ends", lambda d: d.u, on=cl.boundary("x")).'
    )


def _check_prior(problem: Problem) -> None:
    for corner in problem.parameters.corners():
        prior = task_prior(problem, corner)
        if not (np.isfinite(prior) and prior > 0):
            raise ProblemError(
                f"{type(problem).__name__}.prior must be positive, but is {prior} at "
                f"{dict(zip(problem.parameters, corner))}."
            )


def _require_points(problem: Problem, region: Interior | Condition) -> None:
    """Draw the points of a region once, so that what is wrong with it raises. Random ones where SciPy would draw."""
    sampler = "uniform" if region.sampler in ("sobol", "latin") else region.sampler
    if problem.domain is None:  # points of shapes are drawn by check_domain
        replace(region, sampler=sampler).sample(problem.coordinates, make_key(0))


def _require_whole(label: str, points: Any) -> None:
    if not isinstance(points, int | np.integer):
        raise ProblemError(f"{label} needs a whole number of points, such as 1000, but got {points!r}.")
    if points > MOST_POINTS:
        raise ProblemError(f"{label} can have at most {MOST_POINTS:.0e} points, but got {points}. Ask for fewer.")


# What a user's function raised ------------------------------------------------------------------------------

ADVICE: tuple[tuple[type[Exception], str], ...] = (
    (jax.errors.TracerArrayConversionError, "Use jax.numpy (jnp) in place of numpy there."),
    (jax.errors.TracerBoolConversionError, "Use jnp.where in place of if there."),
    (jax.errors.ConcretizationTypeError, "Use jax.numpy (jnp) and no float() or int() there."),
)


def _trace(problem: Problem, function: Callable[[Array, Array], Any], label: str, normal: int = 0) -> None:
    """Trace a function of a point and a theta abstractly. Its exceptions become a ProblemError with the place.

    `normal` is the number of components of the normal behind the point.
    """
    sizes = len(problem.coordinates) + normal, len(problem.parameters)
    try:
        jax.eval_shape(function, *(jax.ShapeDtypeStruct((size,), np.float32) for size in sizes))
    except ClpinnError:
        raise
    except Exception as error:
        raise user_error(f"{label} (or constrain, or place, or domain)", error, problem.axes) from error


def user_error(label: str, error: Exception, axes: tuple[str, ...] = ()) -> ProblemError:
    """The exception of a user's function as a ProblemError: with its line and, for a known mistake, advice.

    `axes` are the names that the function may take as arguments.
    """
    text = str(error).strip().split("\n")[0]
    lines = [
        f" ({frame.filename}, line {frame.lineno})"
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename and not frame.filename.startswith((LIBRARY, "<"))
    ]
    advice = next((f" {advice}" for kind, advice in ADVICE if isinstance(error, kind)), "")
    if isinstance(error, NameError) and error.name in axes:
        advice = f". {error.name} belongs to the problem. Name it as an argument: {_with_argument(error, error.name)}."
    return ProblemError(f"{label} failed: {type(error).__name__}: {text}{''.join(lines[-1:])}{advice}")


def _with_argument(error: Exception, name: str) -> str:
    """How the function that raised an exception starts with one more argument: `lambda d, kappa:`."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    code = frame.f_code
    arguments = ", ".join([*code.co_varnames[: code.co_argcount], name])
    return f"`lambda {arguments}:`" if code.co_name == "<lambda>" else f"`def {code.co_name}({arguments}):`"
