"""Residual rows of a task pool: the objective and its gradient, and the loss of single tasks.

A row is one point at one theta. The tasks of a pool share their points, dense ones for active tasks and sparse ones
for replay tasks, so the rows of a term are (tasks × points) and are never stored: each chunk gathers its own. The
gradient is accumulated chunk by chunk inside one compiled loop, whose length follows the number of tasks, so memory
does not grow with the pool and nothing is compiled anew when it does. The chunks of a loop are dealt out over all
JAX devices (CPU cores, GPUs), and the sums are exchanged once at the end.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from clpinn.domain import Points
from clpinn.problem import Condition, Data, Problem, condition_residuals, data_points, residuals, values

Residuals = Callable[[Any, Array, Array], dict[str, Array]]
"""(network, point, theta) -> residuals by name."""

BLOCK = 64
"""Tasks whose losses are computed in one call."""


class Collocation(eqx.Module):
    """Points by term ("interior" and the names of the soft conditions), each of shape (points, coordinates)."""

    points: dict[str, Float[Array, "points coordinates"]]

    @staticmethod
    def sample(problem: Problem, key: Array, fraction: float = 1.0) -> "Collocation":
        """Points of one task; `fraction` thins the interior, conditions and anchors keep all of theirs."""
        interior = problem.interior
        if fraction < 1:
            interior = interior.thinned(fraction, len(problem.coordinates))
        conditions = [condition for condition in problem.conditions if isinstance(condition, Condition)]
        keys = jax.random.split(key, 1 + len(conditions))
        drawn = {"interior": interior.sample(problem.coordinates, keys[0])}
        for condition, condition_key in zip(conditions, keys[1:], strict=True):
            drawn[condition.name] = condition.sample(problem.coordinates, condition_key)
        return Collocation({name: jnp.asarray(points) for name, points in drawn.items()})


class Tasks(eqx.Module):
    """Thetas and weights, padded so that their number may change: rows from `count` on are ignored."""

    thetas: Float[Array, "room parameters"]
    weights: Float[Array, " room"]
    count: Int[Array, ""]

    @staticmethod
    def padded(thetas: Points, weights: np.ndarray, room: int, dtype: Any) -> "Tasks":
        room = max(room, len(thetas), 1)
        padding = room - len(thetas)
        return Tasks(
            jnp.asarray(np.pad(thetas, ((0, padding), (0, 0))), dtype),
            jnp.asarray(np.pad(weights, (0, padding)), dtype),
            jnp.asarray(len(thetas), jnp.int32),
        )


@dataclass(frozen=True, eq=False)
class _Term:
    """Rows of one term for one set of tasks."""

    residuals: Residuals
    weight: float
    points: Array


class Loss:
    """The losses of one problem on fixed points.

    `objective(network, active, replay)` is Σ over tasks of weight × Σ over terms of term weight × mean squared residual
    over the task's points of that term: a sparse task weighs as much as a dense one. Measured data, which has thetas of
    its own, is added once.
    """

    def __init__(
        self,
        problem: Problem,
        dense: Collocation,
        sparse: Collocation,
        dtype: Any,
        chunk: int = 2048,
        batch: float = 1.0,
    ):
        """`batch` is the share of the rows drawn at random at each call; 1 takes all of them, once each."""
        self.problem, self.dtype, self.chunk, self.batch = problem, dtype, chunk, batch
        cast = partial(jax.tree.map, lambda array: jnp.asarray(array, dtype))
        self._dense = _terms(problem, cast(dense.points))
        self._sparse = _terms(problem, cast(sparse.points))
        self._data = _data_terms(problem, dtype)
        self._mesh = Mesh(np.array(jax.devices()), ("rows",))
        self._objective = eqx.filter_jit(self._sharded(self._accumulate))
        self._losses = eqx.filter_jit(self._sharded(self._accumulate_by_task))

    def _sharded(self, function: Callable) -> Callable:
        """The function on every device, all arguments everywhere; it sums its results over "rows"."""
        everywhere = PartitionSpec()
        return jax.shard_map(function, mesh=self._mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)

    def objective(
        self, network: Any, active: Tasks, replay: Tasks, key: Array
    ) -> tuple[Float[Array, ""], Any, dict[str, Float[Array, ""]]]:
        """Value, gradient with respect to the network's arrays, and the value by residual name."""
        return self._objective(network, active, replay, jax.random.key_data(key))

    def task_losses(self, network: Any, thetas: Points) -> Float[np.ndarray, " tasks"]:
        """The complete, unweighted loss of each theta on the dense points."""
        found = []
        for start in range(0, len(thetas), BLOCK):
            block = np.asarray(thetas[start : start + BLOCK])
            tasks = Tasks.padded(block, np.ones(len(block)), BLOCK, self.dtype)
            found.append(np.asarray(self._losses(network, tasks), dtype=float)[: len(block)])
        return np.concatenate(found) if found else np.zeros(0)

    def _accumulate(self, network: Any, active: Tasks, replay: Tasks, key_data: Array) -> Any:
        only_data = Tasks(
            jnp.zeros((1, len(self.problem.parameters)), self.dtype), jnp.ones(1, self.dtype), jnp.int32(1)
        )
        value, gradient, named = jnp.zeros((), self.dtype), jax.tree.map(jnp.zeros_like, network), {}
        groups = [(active, self._dense), (replay, self._sparse), (only_data, self._data)]
        key = jax.random.wrap_key_data(key_data)
        for tasks, terms in groups:
            for term in terms:
                key, term_key = jax.random.split(key)
                v, g, n = self._term(network, tasks, term, term_key)
                value = value + v
                gradient = jax.tree.map(jnp.add, gradient, g)
                named = {name: named.get(name, 0) + n.get(name, 0) for name in {**named, **n}}
        return jax.lax.psum((value, gradient, named), "rows")

    def _term(self, network: Any, tasks: Tasks, term: _Term, key: Array) -> Any:
        """Value, gradient and value by name of one term on this device's share of the chunks."""
        points = len(term.points)
        size = min(self.chunk, len(tasks.weights) * points)
        total = tasks.count * points
        chunks = (total + size - 1) // size
        if self.batch < 1:
            chunks = jnp.ceil(chunks * self.batch).astype(jnp.int32)

        def chunk_loss(network: Any, chunk: Array) -> tuple[Array, dict[str, Array]]:
            row = chunk * size + jnp.arange(size)
            share = term.weight / points
            if self.batch < 1:
                row = jax.random.randint(jax.random.fold_in(key, chunk), (size,), 0, total)
                share = share * total / (chunks * size)
            task = jnp.where(row < total, row // points, 0)
            weight = jnp.where(row < total, tasks.weights[task] * share, 0).astype(self.dtype)
            found = jax.vmap(partial(term.residuals, network))(term.points[row % points], tasks.thetas[task])
            named = {name: jnp.sum(weight * value**2) for name, value in found.items()}
            return sum(named.values(), jnp.zeros((), self.dtype)), named

        step = jax.value_and_grad(chunk_loss, has_aux=True)
        (value, named), gradient = jax.eval_shape(step, network, jnp.int32(0))
        start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (value, gradient, named))
        device, devices = jax.lax.axis_index("rows"), self._mesh.size

        def body(i: Array, carry: Any) -> Any:
            (value, named), gradient = step(network, device + i * devices)
            return jax.tree.map(jnp.add, carry, (value, gradient, named))

        mine = (chunks - device + devices - 1) // devices
        return jax.lax.fori_loop(0, mine, body, start)

    def _accumulate_by_task(self, network: Any, tasks: Tasks) -> Array:
        losses = jnp.zeros(len(tasks.weights), self.dtype)
        device, devices = jax.lax.axis_index("rows"), self._mesh.size
        for term in self._dense:
            points = len(term.points)
            size = min(self.chunk, len(tasks.weights) * points)
            total = tasks.count * points

            def body(i: Array, losses: Array, term=term, points=points, size=size, total=total) -> Array:
                row = (device + i * devices) * size + jnp.arange(size)
                task = jnp.where(row < total, row // points, 0)
                found = jax.vmap(partial(term.residuals, network))(term.points[row % points], tasks.thetas[task])
                square = sum((value**2 for value in found.values()), jnp.zeros((), self.dtype))
                return losses.at[task].add(jnp.where(row < total, square * (term.weight / points), 0))

            chunks = (total + size - 1) // size
            losses = jax.lax.fori_loop(0, (chunks - device + devices - 1) // devices, body, losses)
        return jax.lax.psum(losses, "rows")


def _terms(problem: Problem, points: Mapping[str, Array]) -> list[_Term]:
    terms = [_Term(lambda network, x, theta: residuals(problem, network, x, theta), 1.0, points["interior"])]
    for condition in problem.conditions:
        if isinstance(condition, Condition):
            terms.append(_Term(_condition(problem, condition), condition.weight, points[condition.name]))
    return terms


def _condition(problem: Problem, condition: Condition) -> Residuals:
    return lambda network, x, theta: condition_residuals(problem, condition, network, x, theta)


def _data_terms(problem: Problem, dtype: Any) -> list[_Term]:
    """Measured data: a point carries its coordinates, theta and values; the task's theta is not used."""
    terms = []
    for data in problem.conditions:
        if isinstance(data, Data):
            x, thetas, measured = data_points(problem, data)
            rows = np.concatenate([x, thetas, np.stack(list(measured.values()), axis=1)], axis=1)
            terms.append(_Term(_misfit(problem, data, list(measured)), data.weight, jnp.asarray(rows, dtype)))
    return terms


def _misfit(problem: Problem, data: Data, names: list[str]) -> Residuals:
    x_end = len(problem.coordinates)
    theta_end = x_end + len(problem.parameters)

    def misfit(network: Any, row: Array, theta: Array) -> dict[str, Array]:
        found = values(problem, network, row[:x_end], row[x_end:theta_end])
        return {f"{data.name}_{name}": found[name] - row[theta_end + i] for i, name in enumerate(names)}

    return misfit
