"""Residual rows of a task pool: the objective and its gradient, and the loss of single tasks.

A row is one point at one theta. The tasks of a pool share their points, dense ones for active tasks and sparse ones
for replay tasks, so the rows of a term are (active tasks × dense points), then (replay tasks × sparse points), and are
never stored: each chunk gathers its own. The gradient is accumulated chunk by chunk inside one compiled loop, whose
length follows the number of tasks, so memory does not grow with the pool and nothing is compiled anew when it does. The
chunks of a loop are dealt out over all JAX devices (CPU cores, GPUs), and the sums are exchanged once at the end.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from clpinn.formulation.domain import Points
from clpinn.formulation.geometry import data_points
from clpinn.formulation.pointwise import condition_residuals, residuals, values
from clpinn.formulation.problem import Condition, Data, Problem

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


class _Points(eqx.Module):
    """Points of one term: dense for active tasks, sparse for replay tasks, in one array."""

    both: Float[Array, "points coordinates"]
    dense: int = eqx.field(static=True)

    @property
    def sparse(self) -> int:
        return len(self.both) - self.dense


class _Rows(eqx.Module):
    """Some rows of a term: point, theta, the task each belongs to, and its weight (zero past the end)."""

    x: Float[Array, "rows coordinates"]
    theta: Float[Array, "rows parameters"]
    task: Int[Array, " rows"]
    weight: Float[Array, " rows"]


def _count(points: _Points, active: Tasks, replay: Tasks) -> Array:
    return active.count * points.dense + replay.count * points.sparse


def _gather(points: _Points, active: Tasks, replay: Tasks, row: Array) -> _Rows:
    """Rows by number. A weight is the task's over its number of points, so that a sparse task counts as much."""
    first = active.count * points.dense
    later = row - first
    is_active = row < first
    inside = row < _count(points, active, replay)
    task = jnp.where(is_active, row // points.dense, len(active.weights) + later // max(points.sparse, 1))
    point = jnp.where(is_active, row % points.dense, points.dense + later % max(points.sparse, 1))
    task, point = jnp.where(inside, task, 0), jnp.where(inside, point, 0)
    thetas = jnp.concatenate([active.thetas, replay.thetas])
    shares = jnp.concatenate([active.weights / points.dense, replay.weights / max(points.sparse, 1)])
    return _Rows(points.both[point], thetas[task], task, jnp.where(inside, shares[task], 0))


class Loss:
    """The losses of one problem on fixed points.

    `objective(network, active, replay, key)` is Σ over tasks of weight × Σ over terms of term weight × mean squared
    residual over the task's points of that term. Measured data, which has thetas of its own, is added once.
    """

    def __init__(
        self,
        problem: Problem,
        dense: Collocation,
        sparse: Collocation,
        dtype: Any,
        chunk: int = 512,
        batch: float = 1.0,
    ):
        """`batch` is the share of the rows drawn at random at each call; 1 takes all of them, once each."""
        self.problem, self.dtype, self.chunk, self.batch = problem, dtype, chunk, batch
        self._residuals, self._weights = terms(problem)
        self._points = {
            name: _Points(jnp.concatenate([dense.points[name], sparse.points[name]]).astype(dtype), len(points))
            for name, points in dense.points.items()
        }
        self._measured = {
            name: _Points(jnp.asarray(rows, dtype), len(rows)) for name, rows in measured_rows(problem).items()
        }
        self._mesh = Mesh(np.array(jax.devices()), ("rows",))
        self._objective = jax.jit(self._sharded(self._accumulate))
        self._losses = jax.jit(self._sharded(self._accumulate_by_task))

    def _sharded(self, function: Callable) -> Callable:
        """The function on every device, all arguments everywhere; it sums its results over "rows"."""
        everywhere = PartitionSpec()
        return jax.shard_map(function, mesh=self._mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)

    def objective(
        self, network: Any, active: Tasks, replay: Tasks, key: Array
    ) -> tuple[Float[Array, ""], Any, dict[str, Float[Array, ""]]]:
        """Value, gradient with respect to the network's arrays, and the value by residual name."""
        points = self._points | self._measured
        return self._objective(network, points, active, replay, jax.random.key_data(key))

    def task_losses(self, network: Any, thetas: Points) -> Float[np.ndarray, " tasks"]:
        """The complete, unweighted loss of each theta on the dense points."""
        found = []
        for start in range(0, len(thetas), BLOCK):
            block = np.asarray(thetas[start : start + BLOCK])
            tasks = Tasks.padded(block, np.ones(len(block)), BLOCK, self.dtype)
            found.append(np.asarray(self._losses(network, self._points, tasks), dtype=float)[: len(block)])
        return np.concatenate(found) if found else np.zeros(0)

    def _none(self) -> Tasks:
        return Tasks.padded(np.zeros((0, len(self.problem.parameters))), np.zeros(0), 1, self.dtype)

    def _accumulate(
        self, network: Any, points: dict[str, _Points], active: Tasks, replay: Tasks, key_data: Array
    ) -> Any:
        one = Tasks.padded(np.zeros((1, len(self.problem.parameters))), np.ones(1), 1, self.dtype)
        value, gradient, named = jnp.zeros((), self.dtype), jax.tree.map(jnp.zeros_like, network), {}
        key = jax.random.wrap_key_data(key_data)
        for name, term_points in points.items():
            key, term_key = jax.random.split(key)
            tasks = (one, self._none()) if name in self._measured else (active, replay)
            v, g, n = self._term(network, name, term_points, *tasks, term_key)
            value, gradient, named = value + v, jax.tree.map(jnp.add, gradient, g), named | n
        return jax.lax.psum((value, gradient, named), "rows")

    def _term(self, network: Any, name: str, points: _Points, active: Tasks, replay: Tasks, key: Array) -> Any:
        """Value, gradient and value by residual name of one term, on this device's share of the chunks."""
        size, total = self._size(points, active, replay), _count(points, active, replay)
        chunks = (total + size - 1) // size
        drawn = chunks if self.batch == 1 else jnp.ceil(chunks * self.batch).astype(jnp.int32)

        def chunk_loss(network: Any, chunk: Array) -> tuple[Array, dict[str, Array]]:
            row, scale = chunk * size + jnp.arange(size), 1.0
            if self.batch < 1:
                row = jax.random.randint(jax.random.fold_in(key, chunk), (size,), 0, total)
                scale = (total / (drawn * size)).astype(self.dtype)
            rows = _gather(points, active, replay, row)
            found = jax.vmap(partial(self._residuals[name], network))(rows.x, rows.theta)
            weight = rows.weight * (self._weights[name] * scale)
            named = {key: jnp.sum(weight * value**2) for key, value in found.items()}
            return sum(named.values(), jnp.zeros((), self.dtype)), named

        def body(chunk: Array) -> Any:
            (value, named), gradient = jax.value_and_grad(chunk_loss, has_aux=True)(network, chunk)
            return value, gradient, named

        names = jax.eval_shape(self._residuals[name], network, points.both[0], active.thetas[0])
        zero = jnp.zeros((), self.dtype)
        start = (zero, jax.tree.map(jnp.zeros_like, network), dict.fromkeys(names, zero))
        return self._over_chunks(body, drawn, start)

    def _accumulate_by_task(self, network: Any, points: dict[str, _Points], tasks: Tasks) -> Array:
        """The loss of each task, shape (room,)."""
        losses, none = jnp.zeros(len(tasks.weights), self.dtype), self._none()
        for name, term_points in points.items():
            size = self._size(term_points, tasks, none)

            def body(chunk: Array, name=name, term_points=term_points, size=size) -> Array:
                rows = _gather(term_points, tasks, none, chunk * size + jnp.arange(size))
                found = jax.vmap(partial(self._residuals[name], network))(rows.x, rows.theta)
                square = sum((value**2 for value in found.values()), jnp.zeros((), self.dtype))
                parts = square * rows.weight * self._weights[name]
                return jnp.zeros(len(tasks.weights), self.dtype).at[rows.task].add(parts)

            total = _count(term_points, tasks, none)
            losses = self._over_chunks(body, (total + size - 1) // size, losses)
        return jax.lax.psum(losses, "rows")

    def _size(self, points: _Points, active: Tasks, replay: Tasks) -> int:
        """Rows of a chunk; no more than there can be."""
        return min(self.chunk, len(active.weights) * points.dense + len(replay.weights) * points.sparse)

    def _over_chunks(self, body: Callable[[Array], Any], chunks: Array, start: Any) -> Any:
        """`start` plus body(chunk) over this device's chunks: every so many-th, starting with its own number."""
        device, devices = jax.lax.axis_index("rows"), self._mesh.size
        mine = (chunks - device + devices - 1) // devices
        return jax.lax.fori_loop(
            0, mine, lambda i, total: jax.tree.map(jnp.add, total, body(device + i * devices)), start
        )


def terms(problem: Problem) -> tuple[dict[str, Residuals], dict[str, float]]:
    """Residuals and weight of each term, by its name."""
    functions: dict[str, Residuals] = {"interior": lambda network, x, theta: residuals(problem, network, x, theta)}
    weights = {"interior": 1.0}
    for condition in problem.conditions:
        is_data = isinstance(condition, Data)
        functions[condition.name] = _misfit(problem, condition) if is_data else _condition(problem, condition)
        weights[condition.name] = condition.weight
    return functions, weights


def _condition(problem: Problem, condition: Condition) -> Residuals:
    return lambda network, x, theta: condition_residuals(problem, condition, network, x, theta)


def _misfit(problem: Problem, data: Data) -> Residuals:
    """Output minus value; a point carries its coordinates, theta and values, and the task's theta is not used."""
    x_end = len(problem.coordinates)
    theta_end = x_end + len(problem.parameters)

    def misfit(network: Any, row: Array, theta: Array) -> dict[str, Array]:
        found = values(problem, network, row[:x_end], row[x_end:theta_end])
        return {f"{data.name}_{name}": found[name] - row[theta_end + i] for i, name in enumerate(data.values)}

    return misfit


def measured_rows(problem: Problem) -> dict[str, Float[np.ndarray, "rows columns"]]:
    """Data conditions by name, a row each measured point: coordinates, theta and values."""
    found = {}
    for data in problem.conditions:
        if isinstance(data, Data):
            x, thetas, measured = data_points(problem, data)
            found[data.name] = np.concatenate([x, thetas, np.stack(list(measured.values()), axis=1)], axis=1)
    return found
