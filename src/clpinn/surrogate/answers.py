"""Answers of a network with heads: outputs and derivatives at any number of points.

Points are spread out block by block on the host, so that memory is that of the answer. Each theta is answered by its
own network: the base, or the base with a head. Compiled computations take the points chunk by chunk.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from clpinn.errors import DomainError, warn_outside
from clpinn.formulation.domain import Points
from clpinn.formulation.geometry import box_point, box_points, outside_domain
from clpinn.formulation.identity import Identity
from clpinn.formulation.membership import are_inside
from clpinn.formulation.pointwise import named_derivatives, values
from clpinn.formulation.problem import Problem
from clpinn.formulation.thetas import theta_text
from clpinn.networks.architecture import cast, precision
from clpinn.networks.standard import StandardPINN
from clpinn.surrogate.adaptations import Heads
from clpinn.surrogate.box_correction import BoxCorrected, at_theta, for_single_precision
from clpinn.surrogate.corrections import Corrections

CHUNK = 4096
"""Points that one compiled computation evaluates at once."""
MANY = 500
"""A corrected network is made for one theta if so many points are asked for there."""
BLOCK = 16 * CHUNK
"""Points that are spread out at once on the host. This bounds memory, whatever the arrays broadcast to."""


def in_chunks(
    compute: Callable[..., Any], columns: Sequence[Float[np.ndarray, "rows columns"]], size: int, dtype: Any
) -> Iterator[Any]:
    """What `compute` gives for `size` rows of each array at a time, as trees of NumPy arrays in double precision."""
    for start in range(0, len(columns[0]), size):
        chunk = compute(*(jnp.asarray(column[start : start + size], dtype) for column in columns))
        yield jax.tree.map(lambda array: np.asarray(array, dtype=float), chunk)


@dataclass(frozen=True)
class Answers:
    """The answers of a network with heads. `tasks` are the thetas it was trained at, none if all over the box."""

    problem: Problem
    network: Any
    heads: Heads | Corrections | None
    tasks: Points

    def network_at(self, theta: Float[np.ndarray, " parameters"]) -> Any:
        """The network that answers at a theta: the base with its head, or the base alone if no head is used there."""
        if self.heads is not None:
            matches = np.flatnonzero(np.all(self.heads.thetas == theta, axis=1))
            if len(matches):
                return self.heads.network(self.problem, self.network, int(matches[0]))
        return at_theta(self.problem, self.network, theta)

    def named(self, derivatives: tuple[str, ...], given: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
        """Outputs, or derivatives if some are named, at values by name, in physical coordinates."""
        self._require_all(given)
        axes = self.problem.axes
        try:
            columns = [np.asarray(given[name], dtype=float) for name in axes]
            np.broadcast_shapes(*(column.shape for column in columns))
        except ValueError as error:
            shapes = ", ".join(f"{name} {np.shape(given[name])}" for name in axes)
            raise DomainError(f"The values must be numbers that broadcast, but came as {shapes}: {error}.") from None
        return self.at(columns, derivatives, physical=True)

    def at(
        self, columns: list[np.ndarray], derivatives: tuple[str, ...] = (), physical: bool = False
    ) -> dict[str, np.ndarray]:
        """Outputs or derivatives at columns in the order of the problem's axes, which broadcast, block by block.

        Coordinates are `physical` ones, or those of the box.
        """
        problem, count = self.problem, len(self.problem.coordinates)
        moved = physical and problem.place is not None
        if all(column.size for column in columns):
            ends = np.array([[end(column) for column in columns] for end in (np.min, np.max)])
            problem.parameters.check(ends[:, count:])
            self._warn_of_other_thetas(ends[:, count:])
            if not moved:
                problem.coordinates.check(ends[:, :count])
            elif not np.isfinite(ends[:, :count]).all():
                finite = np.isfinite(ends).all(axis=0)
                raise DomainError(f"{problem.axes[int(np.argmin(finite))]} must be finite, but a value is not.")
        columns = list(np.broadcast_arrays(*columns))
        shape, size = columns[0].shape, columns[0].size
        answers = {name: np.empty(size) for name in derivatives or problem.outputs}
        outside = []
        for start in range(0, size, BLOCK):
            block = slice(start, start + BLOCK)
            rows = np.stack([column.flat[block] for column in columns], axis=1)
            points, thetas = rows[:, :count], rows[:, count:]
            if moved:
                points = box_points(problem, points, thetas)
                outside.append(rows[~problem.coordinates.inside(points).all(axis=1)])
            elif problem.domain is not None:
                outside.append(rows[~are_inside(problem, points, thetas)])
            for network, chosen in self._by_network(thetas):
                evaluated = _evaluated(problem, network, derivatives, points[chosen], thetas[chosen])
                for name, column in evaluated.items():
                    answers[name][block][chosen] = column
        outside_rows = np.concatenate([*outside, np.zeros((0, len(problem.axes)))])
        if len(outside_rows):
            warn_outside(outside_domain(problem, outside_rows[:, :count], outside_rows[:, count:]))
        return {name: column.reshape(shape)[()] for name, column in answers.items()}

    def function(self, derivatives: tuple[str, ...]) -> Callable[..., dict[str, Array]]:
        """The answers as a pure JAX function of values by name, which broadcast."""
        problem, count = self.problem, len(self.problem.coordinates)
        # NumPy keeps them in their own precision. JAX would halve it where x64 is off.
        adapted = [] if isinstance(self.heads, Corrections) else self._networks_with_heads
        base, heads = jax.tree.map(np.asarray, (self.network, adapted))

        def answer(row: Array) -> dict[str, Array]:
            theta = row[count:]
            x = box_point(problem, row[:count], theta).x
            network = cast(base if row.dtype == jnp.float64 else for_single_precision(base), row.dtype)
            if isinstance(self.heads, Corrections):
                network = self.heads.at(network, theta)
            answers = _at_point(problem, derivatives, network, x, theta)
            for head_theta, network in heads:
                there = jnp.all(theta == jnp.asarray(head_theta, row.dtype))
                with_head = _at_point(problem, derivatives, cast(network, row.dtype), x, theta)
                answers = {name: jnp.where(there, with_head[name], value) for name, value in answers.items()}
            return answers

        many = jax.jit(jax.vmap(answer))

        def function(**given: ArrayLike) -> dict[str, Array]:
            self._require_all(given)
            dtype = jax.dtypes.canonicalize_dtype(precision(base))
            columns = jnp.broadcast_arrays(*(jnp.asarray(given[name], dtype) for name in problem.axes))
            flat = many(jnp.stack([column.reshape(-1) for column in columns], axis=1))
            return {name: value.reshape(columns[0].shape) for name, value in flat.items()}

        return function

    def _require_all(self, given: Mapping[str, ArrayLike]) -> None:
        axes = self.problem.axes
        missing, unknown = [name for name in axes if name not in given], [name for name in given if name not in axes]
        if missing or unknown:
            raise names_error(axes, missing, unknown)

    def _warn_of_other_thetas(self, ends: Points) -> None:
        """Warn if a standard PINN without heads is asked for another theta than its own."""
        alone = isinstance(self.network, StandardPINN) and self.heads is None and len(self.tasks)
        if alone and not np.all(ends == self.tasks[0]):
            warn_outside(
                f"This is a standard PINN, trained at {theta_text(self.problem.parameters, self.tasks[0])} alone; it "
                "knows no other theta. Ask it there, or train over the whole box: --method free."
            )

    @cached_property
    def _networks_with_heads(self) -> list[tuple[np.ndarray, Any]]:
        """Each theta whose head is used, and the network that answers there."""
        thetas = () if self.heads is None else self.heads.thetas[self.heads.used]
        return [(theta, self.network_at(theta)) for theta in thetas]

    def _by_network(self, thetas: Points) -> Iterator[tuple[Any, np.ndarray]]:
        """Each network that is needed at these rows, and a mask of the rows that it answers."""
        others = np.ones(len(thetas), bool)
        for theta, network in self._networks_with_heads:
            chosen = np.all(thetas == theta, axis=1)
            if chosen.any():
                yield network, chosen
                others &= ~chosen
        remaining = np.flatnonzero(others)
        if isinstance(self.network, BoxCorrected) and len(remaining) >= MANY:
            distinct, numbers, counts = np.unique(thetas[remaining], axis=0, return_inverse=True, return_counts=True)
            for k in np.flatnonzero(counts >= MANY):
                chosen = np.zeros(len(thetas), bool)
                chosen[remaining[numbers.reshape(-1) == k]] = True
                yield at_theta(self.problem, self.network, distinct[k]), chosen
                others &= ~chosen
        if others.any():
            yield self.network, others


def names_error(axes: Sequence[str], missing: list[str], unknown: list[str]) -> DomainError:
    """The error of a call that misses an axis or names one that does not exist."""
    complaints = [f"{', '.join(missing)} is missing"] if missing else []
    complaints += [f"there is no {', '.join(unknown)}"] if unknown else []
    return DomainError(f"A value is needed for each of {', '.join(axes)}, but {' and '.join(complaints)}.")


def _evaluated(
    problem: Problem, network: Any, derivatives: tuple[str, ...], points: Points, thetas: Points
) -> dict[str, np.ndarray]:
    """Outputs or derivatives of one network at points of the box, chunk by chunk."""
    count, dtype = len(points), precision(network)
    # A power of two, so that few sizes are compiled for.
    size = min(CHUNK, 1 << max(count - 1, 0).bit_length())
    total = size * -(-count // size)
    filled = [np.resize(rows, (total, rows.shape[1])) for rows in (points, thetas)]
    with jax.enable_x64(dtype == jnp.float64):
        chunks = list(in_chunks(partial(_chunk, Identity(problem), derivatives, network), filled, size, dtype))
    return {name: np.concatenate([chunk[name] for chunk in chunks])[:count] for name in chunks[0]}


@eqx.filter_jit
def _chunk(identity: Identity, derivatives: tuple[str, ...], network: Any, x: Array, theta: Array) -> dict[str, Array]:
    return jax.vmap(lambda x, theta: _at_point(identity.problem, derivatives, network, x, theta))(x, theta)


def _at_point(problem: Problem, derivatives: tuple[str, ...], network: Any, x: Array, theta: Array) -> dict[str, Array]:
    """Outputs, or derivatives if some are named, at one point of the box."""
    if derivatives:
        return named_derivatives(problem, network, x, theta, list(derivatives))
    return values(problem, network, x, theta)
