"""How large the terms of each residual are, as a function of theta: residuals are divided by these sizes.

So equations in other units, outputs of other amplitudes and tasks with small solutions all count alike, and a scaled
residual of 1e-3 means that the terms of an equation cancel to a thousandth.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from clpinn.formulation.domain import Box, Points
from clpinn.formulation.integrals import integral_sizes
from clpinn.formulation.pointwise import residual_sizes, values
from clpinn.formulation.problem import Condition, Data
from clpinn.formulation.shaped import normal_names
from clpinn.keys import Key, split
from clpinn.programs import Lowering, Program
from clpinn.training.causality import PointWeights, equal_weights
from clpinn.training.residuals import Terms

THETAS, POINTS_PER_THETA, POINTS_AT_ONE_THETA = 64, 64, 1024
"""What a measurement of the sizes takes: thetas over the box and points of each, or points at a single theta."""
THETA_RANGE, RUN_RANGE = 1e-3, 1e-6
"""No size falls below the first share of the largest over theta, nor below the second of the largest in the run."""


class TermSize(eqx.Module):
    """The sizes of one term's residuals as a function of theta: exp of a quadratic polynomial, within limits."""

    coefficients: Float[np.ndarray, "features residuals"]
    limits: Float[np.ndarray, "2 residuals"]
    """The smallest and largest logarithm measured."""
    largest: Float[np.ndarray, " residuals"]
    """The largest size measured in the run."""

    def at(self, box: Box, thetas: Points) -> Float[np.ndarray, "thetas residuals"]:
        return np.exp(np.clip(_polynomial_features(box, thetas) @ self.coefficients, *self.limits))


def _polynomial_features(box: Box, thetas: Points) -> Float[np.ndarray, "thetas features"]:
    """One, the parameters scaled to [-1, 1], and their products of two."""
    unit = [2 * axis.to_unit(thetas[:, i]) - 1 for i, axis in enumerate(box.axes)]
    products = [a * b for i, a in enumerate(unit) for b in unit[: i + 1]]
    return np.stack([np.ones(len(thetas)), *unit, *products], axis=1)


class ResidualSizes(NamedTuple):
    """How large one residual is at some thetas: what is left if all derivatives are zero, and the size by output."""

    term: str
    source: Float[np.ndarray, " thetas"]
    outputs: dict[str, Float[np.ndarray, " thetas"]]


class SizeMeter:
    """Measures the sizes of the terms' residuals in a network."""

    def __init__(self, terms: Terms, dtype: Any):
        self.terms, self.dtype = terms, dtype
        functions = _size_functions(terms)

        def sizes(network: Any, x: Array, theta: Array) -> dict[str, dict[str, dict[str, Array]]]:
            return {name: function(network, x, theta) for name, function in functions.items()}

        self._normal = max((len(normal_names(terms.problem, each)) for each in terms.conditions.values()), default=0)
        # One program for all terms: they share most of the network's derivatives, which are then compiled once.
        self._sizes = Program(jax.vmap(sizes, in_axes=(None, 0, 0)), called_rarely=True)

    def lowerings(self, network: Any) -> list[Lowering]:
        """What traces and compiles the program for a measurement over the box."""
        problem = self.terms.problem
        columns = len(problem.coordinates) + self._normal, len(problem.parameters)
        points = self._theta_count() * POINTS_PER_THETA
        x, theta = (jax.ShapeDtypeStruct((points, count), self.dtype) for count in columns)
        return [partial(self._sizes.lowered, network, x, theta)]

    def _theta_count(self) -> int:
        """Thetas of a measurement over the box: at least twice as many as the polynomial has coefficients."""
        box = self.terms.problem.parameters
        return max(THETAS, 2 * _polynomial_features(box, box.corners()).shape[1])

    def ones(self) -> dict[str, TermSize]:
        """Sizes of one, before anything was measured."""
        box = self.terms.problem.parameters
        count = _polynomial_features(box, box.corners()).shape[1]
        return {
            name: TermSize(np.zeros((count, len(names))), np.zeros((2, len(names))), np.zeros(len(names)))
            for name, names in self.terms.residual_names.items()
        }

    def measure(
        self,
        network: Any,
        key: Key,
        before: Mapping[str, TermSize] | None = None,
        point_weights: PointWeights = equal_weights,
        theta: Float[np.ndarray, " parameters"] | None = None,
    ) -> dict[str, TermSize]:
        """The sizes of all residuals in this network, measured inside the domain and fitted over the box.

        The sizes of a condition are measured inside the domain too: u = 0 on the boundary is judged by how large u is
        elsewhere. `before` holds the sizes of the last measurement. `point_weights` keeps times that training has
        not reached from counting. With a `theta` the sizes are those at that theta alone.
        """
        before = before or self.ones()
        theta_key, point_key = split(key)
        box = self.terms.problem.parameters
        count = self._theta_count()
        thetas, points = box.sample(count, theta_key, "uniform"), count * POINTS_PER_THETA
        if theta is not None:
            thetas, points = np.asarray(theta, float)[None], POINTS_AT_ONE_THETA
        inside = self.terms.sample("interior", point_key, np.repeat(thetas, points // len(thetas), axis=0))
        by_term = _root_mean_squares(self._begun(network, inside, thetas), inside, thetas, point_weights)
        sizes = {}
        for name, names in self.terms.residual_names.items():
            by_output = by_term[name]
            size = np.stack([sum(by_output[residual].values()) for residual in names], axis=1)
            high = size.max(axis=0)
            largest = np.maximum(high, before[name].largest)
            floor = np.maximum(THETA_RANGE * high, RUN_RANGE * largest)
            logarithm = np.log(np.maximum(size, np.where(floor > 0, floor, 1.0)))
            coefficients = np.linalg.lstsq(_polynomial_features(box, thetas), logarithm, rcond=None)[0]
            limits = np.stack([logarithm.min(axis=0), logarithm.max(axis=0)])
            sizes[name] = TermSize(coefficients, limits, largest)
        return sizes

    def by_residual(self, network: Any, key: Key) -> list[ResidualSizes]:
        """The sizes of every residual where it holds, data included."""
        return [*self._equation_sizes(network, key), *self._data_sizes(network)]

    def _equation_sizes(self, network: Any, key: Key) -> Iterator[ResidualSizes]:
        begun = []
        for name in [name for name in self.terms.residuals if name not in self.terms.data]:
            theta_key, point_key, key = split(key, 3)
            thetas = self.terms.problem.parameters.sample(THETAS, theta_key, "uniform")
            points = self.terms.sample(name, point_key, np.repeat(thetas, POINTS_PER_THETA, axis=0))
            begun.append((name, points, thetas, self._begun(network, points, thetas)[name]))  # JAX works side by side
        for name, points, thetas, sizes in begun:
            for by_output in _root_mean_squares(sizes, points, thetas).values():
                yield ResidualSizes(name, by_output.pop(""), by_output)

    def _data_sizes(self, network: Any) -> Iterator[ResidualSizes]:
        problem = self.terms.problem
        for name, data in self.terms.data.items():
            rows = jnp.asarray(self.terms.measured[name], self.dtype)
            x, theta = rows[:, : len(problem.coordinates)], self.terms.measured_thetas(np.asarray(rows))
            outputs = jax.vmap(lambda x, theta: values(problem, network, x, theta))(x, jnp.asarray(theta))
            for output, measured in data.values.items():
                yield ResidualSizes(name, np.abs(measured), {output: np.abs(outputs[output])})

    def _begun(self, network: Any, points: Points, thetas: Points) -> dict[str, dict[str, dict[str, Array]]]:
        """The sizes of the residuals at the points, by term, residual and output. Each theta has an equal share."""
        theta = np.repeat(thetas, len(points) // len(thetas), axis=0)
        points = self._with_normal(points)
        return self._sizes(network, jnp.asarray(points, self.dtype), jnp.asarray(theta, self.dtype))

    def _with_normal(self, points: Points) -> Points:
        """Points with a normal behind, along the diagonal if they have none, so that one program does for all terms."""
        coordinates = len(self.terms.problem.coordinates)
        if points.shape[1] == coordinates + self._normal:
            return points
        diagonal = np.full((len(points), self._normal), self._normal**-0.5 if self._normal else 0.0)
        return np.concatenate([points[:, :coordinates], diagonal], axis=1)


def _root_mean_squares(sizes: Any, points: Points, thetas: Points, point_weights: PointWeights = equal_weights) -> Any:
    """A tree of sizes at points, (points,) each, as root mean squares over the points of each theta, (thetas,) each."""
    weight = point_weights(points).reshape(len(thetas), -1)

    def root_mean_square(size: Array) -> np.ndarray:
        square = np.asarray(size, float).reshape(len(thetas), -1) ** 2
        known = np.isfinite(square)  # a condition need not be defined inside the domain
        total = np.sum(weight, axis=1, where=known)
        return np.sqrt(np.sum(weight * square, axis=1, where=known) / np.where(total > 0, total, 1.0))

    return jax.tree.map(root_mean_square, sizes)


SizeFunction = Callable[[Any, Array, Array], dict[str, dict[str, Array]]]
"""(network, point, theta) -> sizes by residual and output; the source has the output ""."""


def _size_functions(terms: Terms) -> dict[str, SizeFunction]:
    """Sizes at one point, by term. The size of a measured residual is that of its output."""
    problem = terms.problem

    def of_data(data: Data) -> SizeFunction:
        def size(network: Any, x: Array, theta: Array) -> dict[str, dict[str, Array]]:
            outputs = values(problem, network, x[: len(problem.coordinates)], theta)
            zero = dict.fromkeys(("", *problem.outputs), jnp.zeros_like(x[0]))
            return {f"{data.name}_{output}": zero | {output: jnp.abs(outputs[output])} for output in data.values}

        return size

    def of_equation(condition: Condition | None) -> SizeFunction:
        return lambda network, x, theta: residual_sizes(problem, condition, network, x, theta)

    apart = {*terms.data, *terms.integrals}
    functions = {name: of_equation(terms.conditions.get(name)) for name in terms.residuals if name not in apart}
    functions |= {
        name: partial(integral_sizes, problem, integral, terms.measures[name])
        for name, integral in terms.integrals.items()
    }
    return functions | {data.name: of_data(data) for data in terms.data.values()}
