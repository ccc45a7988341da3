"""Whether a reference agrees with its problem: with the equation, every condition and the hard transform.

A disagreement is a typing error, in the problem or in the reference. Nothing here is called by training.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from clpinn.errors import ClpinnError
from clpinn.formulation.domain import Points
from clpinn.formulation.geometry import placed
from clpinn.formulation.integrals import integral_columns, integral_residuals, integral_rows
from clpinn.formulation.pointwise import (
    condition_residuals,
    constant_network,
    residual_sizes,
    residuals,
    residuals_of_values,
    values,
)
from clpinn.formulation.problem import Condition, Integral, Problem
from clpinn.formulation.references import reference_at
from clpinn.formulation.regions import On
from clpinn.formulation.shaped import boundary_names
from clpinn.formulation.shaped_points import boundary_samples, term_points
from clpinn.formulation.thetas import theta_text
from clpinn.keys import Key, fold_in, make_key

POINTS, THETAS = 200, 3
"""Points of each term, and thetas that a reference in NumPy is asked for."""
AGREES, NEARLY = 1e-6, 1e-4
"""Largest residual relative to its terms up to which a reference agrees, and up to which it may be approximate."""
FLOOR = 1e-3
"""Terms count as at least this share of their largest inside: u = 0 on a boundary is judged by u elsewhere."""
INSIDE = make_key(1)
"""The key of the points inside the domain where sizes are measured."""
QUADRATURE = 1e-3
"""Quadrature may miss an integral by this share of its terms."""
IMPOSED = 1e-9
"""An output is imposed where the network changes it by less than this share of what it does elsewhere."""

Verdict = Literal["agrees", "nearly", "does not agree", "not checked"]


@dataclass(frozen=True)
class Agreement:
    """How well the reference fits one residual of the problem."""

    term: str
    """The equation ("equation"), the name of a condition, or "constrain"."""
    residual: str
    largest: float
    """The largest absolute residual; NaN where it is not defined at some point."""
    relative: float
    """The largest of residual over size of its terms at the same point."""
    worst: Mapping[str, float]
    """Physical coordinates and parameters of the largest residual, or of the first that is not defined."""
    checked: bool = True

    @property
    def verdict(self) -> Verdict:
        if not self.checked:
            return "not checked"
        if not np.isfinite(self.largest) or self.relative > NEARLY:
            return "does not agree"
        return "agrees" if self.relative <= AGREES else "nearly"

    def __str__(self) -> str:
        name = self.term if self.residual in (self.term, "residual") else f"{self.term}, {self.residual}"
        if not self.checked:
            return (
                f"{name}: not checked, because it needs derivatives or integrals of a reference that is not written "
                "with jax.numpy"
            )
        worst = theta_text(self.worst.keys(), self.worst.values(), digits=4)
        if not np.isfinite(self.largest):
            return f"{name}: DOES NOT AGREE, not defined at {worst}"
        text = f"largest residual {self.largest:.1e}, {self.relative:.1e} of its terms"
        if self.verdict == "agrees":
            return f"{name}: agrees ({text})"
        if self.verdict == "nearly":
            return f"{name}: agrees to {self.relative:.0e} only (at {worst}): an approximate reference, or a mistake"
        return f"{name}: DOES NOT AGREE ({text}, at {worst})"


def check_reference(problem: Problem, key: Key) -> list[Agreement]:
    """Put the reference into the equation, every condition and the hard transform. Empty without a reference.

    A reference that JAX cannot trace is checked in conditions without derivatives only, at a few thetas.
    """
    if problem.reference is None:
        return []
    conditions = [condition for condition in problem.conditions if isinstance(condition, Condition)]
    thetas, checks = problem.parameters.sample(POINTS, fold_in(key, 0)), []
    with jax.enable_x64(True):
        by_values = _ByValues(problem, conditions, thetas[:THETAS], fold_in(key, 1))
        for condition in [None, *conditions]:
            points = _points(problem, condition, thetas, key)
            try:
                checks += _traced(problem, condition, points, thetas)
            except ClpinnError:
                raise
            except Exception:  # a reference written with NumPy fails in many ways when JAX traces it
                checks += by_values.condition(condition)
        for each in problem.conditions:
            checks += _integral(problem, each) if isinstance(each, Integral) else []
        return checks + by_values.hard_transform()


def _traced(problem: Problem, condition: Condition | None, points: Points, thetas: Points) -> list[Agreement]:
    """The check with a reference in jax.numpy, whose derivatives are exact."""

    def at(x: Array, theta: Array) -> dict[str, Array]:
        if condition is None:
            return residuals(problem, None, x, theta)
        return condition_residuals(problem, condition, None, x, theta)

    def sizes(points: Points) -> dict[str, np.ndarray]:
        at_point = jax.vmap(lambda x, theta: residual_sizes(problem, condition, None, x, theta))
        by_name = at_point(jnp.asarray(points), jnp.asarray(thetas))
        return {name: np.nan_to_num(np.sum(list(part.values()), axis=0), posinf=0.0) for name, part in by_name.items()}

    by_name = jax.vmap(at)(jnp.asarray(points), jnp.asarray(thetas))
    here, inside = sizes(points), sizes(_points(problem, None, thetas, INSIDE))
    return [
        _agreement(
            problem, condition, name, np.asarray(part), here[name] + FLOOR * np.max(inside[name]), points, thetas
        )
        for name, part in by_name.items()
    ]


def _integral(problem: Problem, integral: Integral) -> list[Agreement]:
    """The check of an integral at a few thetas. What quadrature may miss is taken from what is left."""
    thetas = problem.parameters.sample(THETAS, make_key(2))
    rows = integral_rows(problem, integral, thetas, make_key(3))
    columns = integral_columns(problem, integral)
    one = partial(condition_residuals, problem, integral.condition, None)

    def at(row: Array, theta: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        nodes = row.reshape(-1, columns)
        values = jax.vmap(lambda node: one(node, theta))(nodes[:, :-1])
        sizes = {name: jnp.sum(jnp.abs(nodes[:, -1] * part)) for name, part in values.items()}
        return integral_residuals(problem, integral, None, row, theta), sizes

    try:
        residual, sizes = jax.vmap(at)(jnp.asarray(rows), jnp.asarray(thetas))
    except ClpinnError:
        raise
    except Exception:  # a reference written with NumPy
        return [Agreement(integral.name, integral.name, 0.0, 0.0, {}, checked=False)]
    checks = []
    for name, part in residual.items():
        left = np.asarray(part)
        size = np.asarray(sizes[name]) + np.abs(left)
        beyond = np.sign(left) * np.maximum(np.abs(left) - QUADRATURE * size, 0.0)
        checks.append(_agreement(problem, integral.condition, name, beyond, size, rows[:, :columns], thetas))
    return checks


class _ByValues:
    """Checks that need only values of the reference. It is asked once for each theta, as it may be a solver."""

    def __init__(self, problem: Problem, conditions: Sequence[Condition], thetas: Points, key: Key):
        self.problem, self.thetas = problem, thetas
        several = np.repeat(thetas, POINTS, axis=0)
        self.points = {"inside": _points(problem, None, several, INSIDE)}
        """Points of each condition, of the faces of the box ("x = 0") and inside, the same number for each theta."""
        for condition in conditions:
            self.points[condition.name] = _points(problem, condition, several, key)
        self._faces = []
        """The names of the sets of points at which a hard condition may hold."""
        for axis in problem.coordinates if problem.domain is None else {"t"} & set(problem.coordinates):
            for end in (problem.coordinates[axis].low, problem.coordinates[axis].high):
                face = self.points["inside"].copy()
                face[:, problem.coordinates.names.index(axis)] = end
                self._faces.append(f"{axis} = {end:g}")
                self.points[self._faces[-1]] = face
        for name in boundary_names(problem):
            region = On((name,))
            if any(len(boundary_samples(problem, region, theta).x) == 0 for theta in thetas):
                continue  # what is cut away bounds nothing
            self._faces.append(f"on {name}")
            drawn = term_points(problem, region, several, key)
            self.points[self._faces[-1]] = drawn[:, : len(problem.coordinates)]

    @cached_property
    def _reference(self) -> dict[str, dict[str, Float[np.ndarray, " points"]]]:
        """The reference by set of points and output, theta after theta."""
        coordinates = len(self.problem.coordinates)
        tables = []
        for i, theta in enumerate(self.thetas):
            mine = [points.reshape(len(self.thetas), POINTS, -1)[i, :, :coordinates] for points in self.points.values()]
            tables.append(reference_at(self.problem, np.concatenate(mine), theta))
        parts = np.split(np.stack(tables), len(self.points), axis=2)
        return {
            name: {output: part[:, i].reshape(-1) for i, output in enumerate(self.problem.outputs)}
            for name, part in zip(self.points, parts, strict=True)
        }

    def _rows(self, name: str) -> tuple[Points, Points]:
        """The points of a set with their thetas, in the order of the reference."""
        return self.points[name], np.repeat(self.thetas, POINTS, axis=0)

    def _size(self, *outputs: str) -> float:
        return max(_largest(self._reference["inside"][output]) for output in outputs)

    def condition(self, condition: Condition | None) -> list[Agreement]:
        """The check of a condition, or of the equation; possible where no derivatives are used."""
        problem, name = self.problem, "inside" if condition is None else condition.name
        points, thetas = self._rows(name)
        arguments = {k: jnp.asarray(v) for k, v in self._reference[name].items()}, jnp.asarray(points)
        at = partial(residuals_of_values, problem, condition)
        by_name = jax.vmap(lambda outputs, x, theta: at(outputs, x, theta))(*arguments, jnp.asarray(thetas))
        if by_name is None:
            term = "equation" if condition is None else name
            return [Agreement(term, term, 0.0, 0.0, {}, checked=False)]
        # Where only values are known, what they do not explain of a residual is a term of it, too.
        size = sum(map(np.abs, self._reference[name].values())) + FLOOR * self._size(*problem.outputs)
        return [
            _agreement(problem, condition, residual, np.asarray(part), size + np.abs(part), points, thetas)
            for residual, part in by_name.items()
        ]

    def hard_transform(self) -> list[Agreement]:
        """The check of `constrain` on the faces of the box where it alone determines an output."""
        problem, checks = self.problem, []
        if problem.constrain is None:
            return []
        usual = {output: np.max(change) for output, change in self._answers("inside")[1].items()}
        for face in self._faces:
            outputs, changes = self._answers(face)
            for output in problem.outputs:
                imposed: Bool[np.ndarray, " points"] = changes[output] <= IMPOSED * usual[output]
                if imposed.any():
                    difference = np.where(imposed, outputs[output] - self._reference[face][output], 0.0)
                    label, size = f"{output} at {face}", self._size(output)
                    checks.append(_agreement(problem, "constrain", label, difference, size, *self._rows(face)))
        return checks

    def _answers(self, name: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The outputs of a constant network at a set of points, and how much another constant changes them."""
        points, thetas = map(jnp.asarray, self._rows(name))

        def outputs(raw: float) -> dict[str, np.ndarray]:
            network = constant_network(self.problem, raw)
            by_name = jax.vmap(lambda x, theta: values(self.problem, network, x, theta))(points, thetas)
            return {output: np.asarray(column) for output, column in by_name.items()}

        first, second = outputs(0.3), outputs(1.7)
        return first, {output: np.abs(second[output] - column) for output, column in first.items()}


def _largest(sizes: np.ndarray) -> float:
    """The largest absolute value; undefined ones do not count."""
    return float(np.max(np.nan_to_num(np.abs(sizes), posinf=0.0)))


def _points(problem: Problem, condition: Condition | None, thetas: Points, key: Key) -> Points:
    """A point for each theta: of a condition, or inside the domain."""
    number = 0 if condition is None else 1 + problem.conditions.index(condition)
    return term_points(problem, None if condition is None else condition.on, thetas, fold_in(key, number))


def _agreement(
    problem: Problem,
    condition: Condition | Literal["constrain"] | None,
    name: str,
    residual: Float[np.ndarray, " points"],
    sizes: Any,
    points: Points,
    thetas: Points,
) -> Agreement:
    term = condition.name if isinstance(condition, Condition) else condition or "equation"
    undefined = ~np.isfinite(residual)
    worst = int(np.argmax(undefined if undefined.any() else np.abs(residual)))
    given = dict(zip(problem.axes, (*points[worst, : len(problem.coordinates)], *thetas[worst]), strict=True))
    at = {key: float(value) for key, value in (given | placed(problem, given)).items()}
    largest = float("nan") if undefined.any() else float(np.max(np.abs(residual)))
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = float(np.max(np.nan_to_num(np.abs(residual) / sizes)))
    return Agreement(term, name, largest, relative, at)
