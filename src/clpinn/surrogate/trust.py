"""How well a network fulfils the equations at a theta: norms of its residuals on fresh points.

A norm is a root mean square of residuals, each divided by the size of its equation's own terms and weighted as in
training: 1e-3 means that the terms cancel to about a thousandth. It tells where a surrogate is weak, and needs no
reference. It bounds no error: how far a residual moves the solution depends on the equation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from clpinn.formulation.problem import Problem
from clpinn.training.batches import TaskMix, row_source

POINTS = 512
"""Points of each term at a theta."""
THETAS = 128
"""Thetas all over the box that one is compared with."""
NOTE = (
    "Norms of residuals on fresh points, relative to the size of the equations' own terms: an indicator of where the "
    "surrogate is weak, no bound of its error."
)


@dataclass(frozen=True)
class Trust:
    """Residual norms at one theta by name, and their totals all over the box and at the thetas that were trained."""

    theta: Mapping[str, float]
    norms: Mapping[str, float]
    box: Float[np.ndarray, " thetas"]
    trained: Float[np.ndarray, " tasks"]
    note: str = NOTE

    @property
    def norm(self) -> float:
        """All terms together."""
        return sum(part**2 for part in self.norms.values()) ** 0.5

    @property
    def rank(self) -> float:
        """The share of the box where the norm is smaller."""
        return float(np.mean(self.box < self.norm))

    def summary(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "theta": dict(self.theta),
            "norm": self.norm,
            "norms": dict(self.norms),
            "rank": self.rank,
            "box_median": float(np.median(self.box)),
            "box_90": float(np.quantile(self.box, 0.9)),
            "box_largest": float(np.max(self.box)),
            "trained_median": float(np.median(self.trained)) if len(self.trained) else None,
            "note": self.note,
        }

    def __str__(self) -> str:
        about = self.summary()
        where = ", ".join(f"{name} = {value:g}" for name, value in self.theta.items())
        text = (
            f"Residual norm {self.norm:.1e}{f' at {where}' if where else ''}; over the box the median is "
            f"{about['box_median']:.1e}, 90 % are below {about['box_90']:.1e}, none above {about['box_largest']:.1e}"
        )
        if len(self.trained):
            text += f"; at the trained thetas the median is {about['trained_median']:.1e}"
        parts = ", ".join(f"{name} {part:.1e}" for name, part in self.norms.items())
        return f"{text}. By name: {parts}. {self.note}"


class ResidualNorms:
    """Residual norms of networks, in double precision, on the same fresh points at every theta."""

    def __init__(self, problem: Problem, seed: int = 0):
        self._size_key, theta_key, self._point_key = jax.random.split(jax.random.key(seed), 3)
        self.thetas = problem.parameters.sample(THETAS if len(problem.parameters) else 1, theta_key)
        with jax.enable_x64(True):
            self._rows, self._sizes, self._batches = row_source(problem, POINTS, jnp.float64)
        self._points = dict.fromkeys(self._batches.points, self._rows.even(POINTS))

    def at(self, network: Any, theta: Float[np.ndarray, " parameters"]) -> dict[str, float]:
        """Norms by residual name at one theta, of the network that answers there."""
        with jax.enable_x64(True):
            network = _double(network)
            sizes = self._sizes.measure(network, self._size_key, theta=theta)
            batch = self._batches.uniform(self._point_key, self._points, sizes, TaskMix.single(theta))
            found = self._rows.value(network, self._batches.without_data(batch))[1]
        return {name: part**0.5 for name, part in found.items()}

    def total(self, network: Any, theta: Float[np.ndarray, " parameters"]) -> float:
        return sum(part**2 for part in self.at(network, theta).values()) ** 0.5


def _double(network: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), jnp.float64), network)
