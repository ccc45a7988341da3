"""The compiled programs of an estimate: residuals and outputs of a network with a perturbation, at many points."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from clpinn.formulation.domain import Points
from clpinn.formulation.identity import Identity
from clpinn.formulation.perturbed import perturbation_indices, perturbed_residuals, perturbed_values
from clpinn.formulation.problem import Condition, Integral, Problem
from clpinn.programs import Program

CAPACITY, CHUNK = 16384, 128
"""Points that one call evaluates at most, and at once."""


class PerturbedPrograms:
    """The programs of one problem, in double precision. They serve any number of points and any network of one shape.

    Attributes:
        problem: The problem.
        indices: The derivatives of a perturbation that residuals depend on.
        terms: The equation, as None, and the soft conditions at points.
        integrals: The soft conditions on integrals, whose integrands are numbered behind the terms.
    """

    def __init__(self, problem: Problem):
        self.problem = problem
        self.indices = perturbation_indices(problem)
        self.terms = [None, *(c for c in problem.conditions if isinstance(c, Condition))]
        self.integrals = [c for c in problem.conditions if isinstance(c, Integral)]
        self._residuals = [
            Program(_in_chunks(partial(_residuals, problem, term, tuple(self.indices))))
            for term in (*self.terms, *(integral.condition for integral in self.integrals))
        ]
        self._values = Program(_in_chunks(partial(_values, problem)))

    def residuals(
        self, term: int, network: Any, points: Points, theta: np.ndarray, partials: Float[np.ndarray, "points ..."]
    ) -> tuple[Float[np.ndarray, "points residuals"], Float[np.ndarray, "points residuals outputs indices"]]:
        """Residuals of a term, and their slopes with respect to the perturbation's partials (outputs, indices)."""
        return self._called(self._residuals[term], network, points, theta, partials)

    def values(
        self, network: Any, points: Points, theta: np.ndarray, raw: Float[np.ndarray, "points outputs"]
    ) -> Float[np.ndarray, "points outputs"]:
        """Outputs, if this is added to the raw outputs."""
        return self._called(self._values, network, points, theta, raw)

    def _called(self, program: Program, network: Any, points: Points, theta: np.ndarray, added: np.ndarray) -> Any:
        results = []
        with jax.enable_x64(True):
            for start in range(0, len(points), CAPACITY):
                block = points[start : start + CAPACITY]
                chunks = np.int32(-(-len(block) // CHUNK))
                filled = self._filled(added[start : start + CAPACITY])
                computed = program(network, self._filled(block), np.asarray(theta, float), filled, chunks)
                results.append(jax.tree.map(partial(_first, len(block)), computed))
        return jax.tree.map(lambda *parts: np.concatenate(parts), *results)

    @staticmethod
    def _filled(rows: np.ndarray) -> np.ndarray:
        filled = np.zeros((CAPACITY, *rows.shape[1:]))
        filled[: len(rows)] = rows
        return filled


def _first(count: int, rows: Array) -> np.ndarray:
    return np.asarray(rows)[:count]


@lru_cache(maxsize=16)
def programs_of(identity: Identity) -> PerturbedPrograms:
    """The programs of a problem, one set for all equal problems."""
    return PerturbedPrograms(identity.problem)


def _residuals(
    problem: Problem, term: Condition | None, indices: Any, network: Any, x: Array, theta: Array, partials: Array
) -> tuple[Array, Array]:
    return perturbed_residuals(problem, term, network, x, theta, indices, partials)


def _values(problem: Problem, network: Any, x: Array, theta: Array, raw: Array) -> Array:
    return perturbed_values(problem, network, x, theta, raw)


def _in_chunks(at_point: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one point, mapped over the first chunks of many."""

    def mapped(network: Any, points: Array, theta: Array, added: Array, chunks: Array) -> Any:
        def computed(i: Array) -> Any:
            x, more = (jax.lax.dynamic_slice_in_dim(rows, i * CHUNK, CHUNK) for rows in (points, added))
            return jax.vmap(lambda x, more: at_point(network, x, theta, more))(x, more)

        shapes = jax.eval_shape(computed, jnp.zeros((), jnp.int32))
        zeros = jax.tree.map(lambda shape: jnp.zeros((len(points), *shape.shape[1:]), shape.dtype), shapes)

        def fill(i: Array, filled: Any) -> Any:
            update = partial(jax.lax.dynamic_update_slice_in_dim, start_index=i * CHUNK, axis=0)
            return jax.tree.map(update, filled, computed(i))

        return jax.lax.fori_loop(0, chunks, fill, zeros)

    return mapped
