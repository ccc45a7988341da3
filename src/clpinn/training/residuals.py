"""A problem as rows: its terms, the residuals of each term at one point, and the points where they are taken.

A term is the equation, called "interior", or one condition. A measured point carries its coordinates, its theta and its
values in one array, so the theta that is given with it is not used.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from clpinn.formulation.domain import Points
from clpinn.formulation.geometry import data_points
from clpinn.formulation.identity import Identity
from clpinn.formulation.integrals import integral_columns, integral_residuals, integral_rows
from clpinn.formulation.pointwise import condition_residuals, constant_network, normal_names, residuals, values
from clpinn.formulation.problem import Condition, Data, Integral, Problem
from clpinn.formulation.shaped_points import inside_points, region_points
from clpinn.keys import Key, fold_in, generator, make_key

Residuals = Callable[[Any, Array, Array], dict[str, Array]]
"""(network, point, theta) -> residuals by name."""


class Terms:
    """The terms of one problem by name, the equation first. Two of the same problem are equal."""

    def __init__(self, problem: Problem):
        self.problem, self.identity = problem, Identity(problem)
        self.residuals: dict[str, Residuals] = {"interior": _equation(problem)}
        self.weights = {"interior": 1.0}
        self.conditions: dict[str, Condition] = {}
        self.integrals: dict[str, Integral] = {}
        self.data: dict[str, Data] = {}
        for condition in problem.conditions:
            self.weights[condition.name] = condition.weight
            if isinstance(condition, Data):
                self.data[condition.name] = condition
                self.residuals[condition.name] = _misfit(problem, condition)
            elif isinstance(condition, Integral):
                self.integrals[condition.name] = condition
                self.residuals[condition.name] = partial(integral_residuals, problem, condition)
            else:
                self.conditions[condition.name] = condition
                self.residuals[condition.name] = _condition(problem, condition)
        self.measured = {name: _measured(problem, data) for name, data in self.data.items()}
        middle, key = problem.parameters.centre[None], make_key(0)
        rules = {name: integral_rows(problem, each, middle, key)[0] for name, each in self.integrals.items()}
        self._integral_columns = {name: len(rule) for name, rule in rules.items()}
        self.measures = {
            name: float(rule.reshape(-1, integral_columns(problem, self.integrals[name]))[:, -1].sum())
            for name, rule in rules.items()
        }
        """What each integral is over: a length, an area, a volume, in the middle of the parameter box."""
        self.residual_names = {name: self._names(name) for name in self.residuals}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Terms) and other.identity == self.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def _names(self, name: str) -> list[str]:
        """The names of a term's residuals, by an abstract trace."""
        point, theta = np.zeros(self.columns(name)), np.zeros(len(self.problem.parameters))
        network = constant_network(self.problem, 0.0)
        return list(jax.eval_shape(lambda x, theta: self.residuals[name](network, x, theta), point, theta))

    def columns(self, name: str) -> int:
        """Numbers of a point of a term: coordinates, with a normal, or a theta and measured values; or many nodes."""
        if name in self.measured:
            return self.measured[name].shape[1]
        if name in self.integrals:
            return self._integral_columns[name]
        return len(self.problem.coordinates) + len(normal_names(self.problem, self.conditions.get(name)))

    def sample(self, name: str, key: Key, thetas: Points, edge_share: float = 0.0) -> Points:
        """A random point of a term for each theta, uniform over its region; of the interior some denser at edges.

        In a box the thetas have no part in it. Measured points have thetas of their own.
        """
        count = len(thetas)
        if name in self.measured:
            rows = self.measured[name]
            return rows[(generator(key).random(count) * len(rows)).astype(int)]
        if name in self.integrals:
            return integral_rows(self.problem, self.integrals[name], thetas, key)
        box = self.problem.coordinates
        if self.problem.domain is not None:
            if name == "interior":
                return inside_points(self.problem, thetas, key, edge_share)
            return region_points(self.problem, self.conditions[name].on, thetas, key)
        if name == "interior":
            points = box.sample(count, key, "uniform")
            edges = int(edge_share * count)
            if edges:
                points[:edges] = box.sample(edges, fold_in(key, 1), "chebyshev")
            return points
        drawn = self.conditions[name].on.sample(box, count, key, "uniform")
        return np.resize(drawn, (count, drawn.shape[1]))  # a region may be a single point

    def measured_thetas(self, points: Points) -> Points:
        """The thetas that measured points carry."""
        start = len(self.problem.coordinates)
        return points[:, start : start + len(self.problem.parameters)]


def _equation(problem: Problem) -> Residuals:
    return lambda network, x, theta: residuals(problem, network, x, theta)


def _condition(problem: Problem, condition: Condition) -> Residuals:
    return lambda network, x, theta: condition_residuals(problem, condition, network, x, theta)


def _misfit(problem: Problem, data: Data) -> Residuals:
    """Output minus measured value."""
    x_end = len(problem.coordinates)
    theta_end = x_end + len(problem.parameters)

    def misfit(network: Any, row: Array, theta: Array) -> dict[str, Array]:
        outputs = values(problem, network, row[:x_end], row[x_end:theta_end])
        return {f"{data.name}_{name}": outputs[name] - row[theta_end + i] for i, name in enumerate(data.values)}

    return misfit


def _measured(problem: Problem, data: Data) -> Float[np.ndarray, "rows columns"]:
    """One row per measured point: coordinates in the box, theta, values."""
    x, thetas, measured = data_points(problem, data)
    return np.concatenate([x, thetas, np.stack(list(measured.values()), axis=1)], axis=1)
