"""A problem whose domain is a shape: the shape at a theta, pieces of its boundary, derivatives along normals."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from clpinn.calculus.names import Derivatives
from clpinn.errors import DomainError, ProblemError
from clpinn.formulation.calls import call_by_name
from clpinn.formulation.problem import Condition, Problem
from clpinn.formulation.regions import On
from clpinn.shapes.pieces import Piece
from clpinn.shapes.plane import Rectangle
from clpinn.shapes.shape import Shape, interface_names, unknown_names


def spanned(problem: Problem) -> tuple[str, ...]:
    """The coordinates that the shape of a problem spans: all but time, which is called t."""
    return tuple(name for name in problem.coordinates if name != "t")


def shape_at(problem: Problem, parameters: Mapping[str, Any]) -> Shape:
    """The shape of the domain for parameters by name."""
    assert problem.domain is not None
    given = {name: parameters[name] for name in problem.parameters if name in parameters}
    shape = call_by_name(problem.domain, "domain", given)
    if not isinstance(shape, Shape):
        raise ProblemError(f"domain must return a shape such as cl.Disk((0, 0), 1), but returned {shape!r}.")
    names = spanned(problem)
    if shape.space != len(names):
        raise ProblemError(
            f"domain returned a shape in {shape.space} coordinates, but {type(problem).__name__} has {len(names)} "
            f"besides t: {', '.join(names)}."
        )
    for axes in _named_axes(shape):
        if set(axes) & set(names) and axes != names[: len(axes)]:
            raise ProblemError(
                f"A rectangle or cuboid names the axes {', '.join(axes)}, but the coordinates of the domain are "
                f"{', '.join(names)}. Name them in this order."
            )
    return shape


def _named_axes(shape: Shape) -> Iterator[tuple[str, ...]]:
    """The names of axes that parts of a shape were given."""
    if isinstance(shape, Rectangle):
        yield shape.axes
    for part in vars(shape).values():
        if isinstance(part, Shape):
            yield from _named_axes(part)


def shape_of(problem: Problem, theta: Float[Array, " parameters"]) -> Shape:
    """The shape of the domain at a theta."""
    return shape_at(problem, dict(zip(problem.parameters, theta, strict=True)))


def boundary_names(problem: Problem) -> list[str]:
    """The names of all pieces of the boundary; none if the domain is a box."""
    if problem.domain is None:
        return []
    with jax.enable_x64(True):
        return shape_of(problem, jnp.asarray(problem.parameters.centre)).names


def chosen_pieces(shape: Shape, names: tuple[str, ...]) -> tuple[Shape, tuple[Piece, ...]]:
    """The pieces with one of these names, and the shape that they bound: the domain, or a part of it at an interface.

    Without names these are all pieces of the boundary of the domain.
    """
    inside = interface_names(shape)
    unknown = [name for name in names if name not in (*shape.names, *inside)]
    if unknown:
        raise DomainError(unknown_names(unknown, [*shape.names, *inside]))
    bounded = next((part for part in (shape, *shape.interfaces()) if set(names) <= set(part.names)), None)
    if bounded is None:
        raise DomainError(
            f"on({', '.join(map(repr, names))}) names pieces of an interface and others. State a condition for each."
        )
    return bounded, tuple(piece for piece in bounded.pieces() if not names or set(names) & set(piece.names))


def normal_names(problem: Problem, condition: Condition | None) -> tuple[str, ...]:
    """Names of the components of the normal, such as nx and ny; none unless a condition is on a boundary of a shape.

    The point of such a condition has these components behind its coordinates.
    """
    if condition is None or not isinstance(condition.on, On):
        return ()
    return tuple(f"n{name}" for name in spanned(problem))


def with_normal(problem: Problem, d: Derivatives, normal: Mapping[str, Array]) -> Derivatives:
    """Derivatives, also along the outward normal: `d.u_n`."""
    if "n" in problem.axes:  # then u_n is the derivative along that axis
        return d
    along_normal = {f"{output}_n": output for output in problem.outputs}

    def lookup(text: str) -> Array:
        if text not in along_normal:
            return d[text]
        if not normal:
            raise ProblemError(
                f"d.{text} is the derivative along the outward normal of a shape. Only conditions on its boundary have "
                f"one, such as cl.Condition(..., on=cl.on('hole')). Elsewhere write d.{along_normal[text]}_"
                f"{problem.axes[0]}."
            )
        slopes = [d[f"{along_normal[text]}_{name}"] for name in spanned(problem)]
        return sum((n * slope for n, slope in zip(normal.values(), slopes, strict=True)), jnp.zeros(()))

    return Derivatives(lookup)


def domain_values(problem: Problem, given: Mapping[str, Any]) -> dict[str, Array]:
    """The signed distance of a point to the boundary, in a dict: what the domain of a problem computes."""
    shape = shape_at(problem, given)
    return {"distance": shape.distance(jnp.stack([jnp.asarray(given[name]) for name in spanned(problem)]))}


def piece_values(problem: Problem, given: Mapping[str, Any]) -> dict[str, Array]:
    """A point of each piece of the boundary, in a dict by number, names and axis: where each name is."""
    values = {}
    for number, piece in enumerate(shape_at(problem, given).pieces()):
        x = piece.at(jnp.full(len(spanned(problem)) - 1, 0.3)).x
        values |= {f"{number} {', '.join(piece.names)} {name}": x[i] for i, name in enumerate(spanned(problem))}
    return values


def interface_values(problem: Problem, given: Mapping[str, Any]) -> dict[str, Array]:
    """The signed distance of a point to each interface of the domain, in a dict by their names."""
    x = jnp.stack([jnp.asarray(given[name]) for name in spanned(problem)])
    return {", ".join(part.names): part.distance(x) for part in shape_at(problem, given).interfaces()}
