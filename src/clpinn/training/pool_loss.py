"""The paper's objective: the loss of a task pool with its gradient, and the loss of single tasks.

The tasks of a pool share their points: dense points for active tasks, sparse points for replay tasks. So the rows of a
term are (active tasks × dense points), then (replay tasks × sparse points). They are never stored: each chunk gathers
its own. One compiled loop accumulates the gradient chunk by chunk, and its length follows the number of tasks. So
memory does not grow with the pool, and a growing pool compiles nothing. The chunks are dealt out over all JAX devices
(CPU cores, GPUs), which exchange their sums once at the end.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from clpinn.formulation.domain import Points
from clpinn.formulation.problem import Condition, Problem
from clpinn.keys import Key, split, words
from clpinn.training.residuals import Terms

BLOCK = 64
"""Tasks whose losses are computed in one call."""


class Collocation(eqx.Module):
    """Points by term ("interior" and the names of the soft conditions), each of shape (points, coordinates)."""

    points: dict[str, Float[Array, "points coordinates"]]

    @staticmethod
    def sample(problem: Problem, key: Key, fraction: float = 1.0, interior: int | None = None) -> "Collocation":
        """Points of one task; `fraction` thins the interior, while conditions and anchors keep all their points.

        `interior` is a number of points in place of the problem's own.
        """
        region = problem.interior if interior is None else replace(problem.interior, points=interior)
        if fraction < 1:
            region = region.thinned(fraction, len(problem.coordinates))
        conditions = [condition for condition in problem.conditions if isinstance(condition, Condition)]
        keys = split(key, 1 + len(conditions))
        drawn = {"interior": region.sample(problem.coordinates, keys[0])}
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
    """Points of one term in one array: dense ones for active tasks first, then sparse ones for replay tasks."""

    both: Float[Array, "points coordinates"]
    dense: int = eqx.field(static=True)

    @property
    def sparse(self) -> int:
        return len(self.both) - self.dense


class _TaskRows(eqx.Module):
    """Rows of a term: point, theta, number of the task, and weight (zero past the end)."""

    x: Float[Array, "rows coordinates"]
    theta: Float[Array, "rows parameters"]
    task: Int[Array, " rows"]
    weight: Float[Array, " rows"]


def _count(points: _Points, active: Tasks, replay: Tasks) -> Array:
    return active.count * points.dense + replay.count * points.sparse


def _gather(points: _Points, active: Tasks, replay: Tasks, row: Array) -> _TaskRows:
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
    return _TaskRows(points.both[point], thetas[task], task, jnp.where(inside, shares[task], 0))


class PoolLoss:
    """The losses of one problem on fixed points.

    `objective(network, active, replay, key)` is Σ over tasks of weight × Σ over terms of term weight × mean squared
    residual over the task's points of that term. Measured data has thetas of its own and is added once.
    """

    def __init__(
        self,
        problem: Problem,
        dense: Collocation,
        sparse: Collocation,
        dtype: Any,
        chunk: int = 512,
        batch: float = 1.0,
        batch_rows: int | None = None,
    ):
        """`batch` is the share of the rows drawn at random at each call; 1 takes each row once.

        `batch_rows` is their number instead, spread over the terms in proportion to their rows, at least one for each.
        If a pool has no more rows than that, each is taken once.
        """
        terms = Terms(problem)
        self.dtype = dtype
        self._points = {
            name: _Points(jnp.concatenate([dense.points[name], sparse.points[name]]).astype(dtype), len(points))
            for name, points in dense.points.items()
        }
        self._measured = {name: _Points(jnp.asarray(rows, dtype), len(rows)) for name, rows in terms.measured.items()}
        self._batch_rows = batch_rows
        self._sums = _compiled(terms, dtype, chunk, batch, batch_rows, tuple(jax.devices()))

    def objective(
        self, network: Any, active: Tasks, replay: Tasks, key: Key
    ) -> tuple[Float[Array, ""], Any, dict[str, Float[Array, ""]]]:
        """Value, gradient with respect to the network's arrays, and the value by residual name."""
        points = self._points | self._measured
        drawn = None if self._batch_rows is None else self._drawn_rows(self._batch_rows, active, replay)
        return self._sums.objective(network, points, active, replay, jnp.array(words(key), jnp.uint32), drawn)

    def _drawn_rows(self, rows: int, active: Tasks, replay: Tasks) -> dict[str, Int[Array, ""]]:
        """Rows to draw of each term."""
        dense, sparse = int(active.count), int(replay.count)
        totals = {name: points.dense * dense + points.sparse * sparse for name, points in self._points.items()}
        totals |= {name: points.dense for name, points in self._measured.items()}
        share = Fraction(min(rows, sum(totals.values())), max(1, sum(totals.values())))
        ends = [round(share * end) for end in accumulate(totals.values(), initial=0)]
        counts = {name: max(1, after - before) for name, (before, after) in zip(totals, pairwise(ends), strict=True)}
        return {name: jnp.asarray(count, jnp.int32) for name, count in counts.items()}

    def task_losses(self, network: Any, thetas: Points) -> Float[np.ndarray, " tasks"]:
        """The complete, unweighted loss of each theta on the dense points."""
        losses = []
        for start in range(0, len(thetas), BLOCK):
            block = np.asarray(thetas[start : start + BLOCK])
            tasks = Tasks.padded(block, np.ones(len(block)), BLOCK, self.dtype)
            values = self._sums.task_losses(network, self._points, tasks)
            losses.append(np.asarray(values, dtype=float)[: len(block)])
        return np.concatenate(losses) if losses else np.zeros(0)


class _Sums:
    """Sums over the rows of a pool, compiled for all devices."""

    def __init__(
        self,
        terms: Terms,
        dtype: Any,
        chunk: int,
        batch: float,
        batch_rows: int | None,
        devices: tuple[Any, ...],
    ):
        self.terms, self.dtype, self.chunk, self.batch, self.batch_rows = terms, dtype, chunk, batch, batch_rows
        self._mesh = Mesh(np.array(devices), ("rows",))
        self.objective = jax.jit(self._sharded(self._accumulate))
        self.task_losses = jax.jit(self._sharded(self._accumulate_by_task))

    def _sharded(self, function: Callable) -> Callable:
        """The function on every device, all arguments everywhere; it sums its results over "rows"."""
        everywhere = PartitionSpec()
        return jax.shard_map(function, mesh=self._mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)

    def _tasks(self, count: int) -> Tasks:
        """No task, or one at theta zero, of weight one."""
        thetas = np.zeros((count, len(self.terms.problem.parameters)))
        return Tasks.padded(thetas, np.ones(count), 1, self.dtype)

    def _accumulate(
        self,
        network: Any,
        points: dict[str, _Points],
        active: Tasks,
        replay: Tasks,
        key_data: Array,
        drawn_rows: dict[str, Array] | None,
    ) -> Any:
        value, gradient, named = jnp.zeros((), self.dtype), jax.tree.map(jnp.zeros_like, network), {}
        key = jax.random.wrap_key_data(key_data)
        for name, term_points in points.items():
            key, term_key = jax.random.split(key)
            tasks = (self._tasks(1), self._tasks(0)) if name in self.terms.measured else (active, replay)
            drawn = None if drawn_rows is None else drawn_rows[name]
            v, g, n = self._term(network, name, term_points, *tasks, term_key, drawn)
            value, gradient, named = value + v, jax.tree.map(jnp.add, gradient, g), named | n
        return jax.lax.psum((value, gradient, named), "rows")

    def _term(
        self,
        network: Any,
        name: str,
        points: _Points,
        active: Tasks,
        replay: Tasks,
        key: Array,
        drawn_rows: Array | None,
    ) -> Any:
        """Value, gradient and value by residual name of one term, on this device's share of the chunks."""
        size, total = self._chunk_size(points, active, replay), _count(points, active, replay)
        size = size if self.batch_rows is None else min(size, self.batch_rows)
        chunks = ((total if drawn_rows is None else drawn_rows) + size - 1) // size
        drawn = chunks if self.batch == 1 else jnp.ceil(chunks * self.batch).astype(jnp.int32)

        def chunk_loss(network: Any, chunk: Array) -> tuple[Array, dict[str, Array]]:
            row, factor = chunk * size + jnp.arange(size), 1.0
            if drawn_rows is not None:
                chosen = jax.random.randint(jax.random.fold_in(key, chunk), (size,), 0, total)
                chosen = jnp.where(drawn_rows < total, chosen, row)
                row = jnp.where(row < drawn_rows, chosen, total)  # a row past the end has no weight
                factor = (total / drawn_rows).astype(self.dtype)
            elif self.batch < 1:
                row = jax.random.randint(jax.random.fold_in(key, chunk), (size,), 0, total)
                factor = (total / (drawn * size)).astype(self.dtype)
            rows = _gather(points, active, replay, row)
            residuals = jax.vmap(partial(self.terms.residuals[name], network))(rows.x, rows.theta)
            weight = rows.weight * (self.terms.weights[name] * factor)
            named = {key: jnp.sum(weight * value**2) for key, value in residuals.items()}
            return sum(named.values(), jnp.zeros((), self.dtype)), named

        def body(chunk: Array) -> Any:
            (value, named), gradient = jax.value_and_grad(chunk_loss, has_aux=True)(network, chunk)
            return value, gradient, named

        zero = jnp.zeros((), self.dtype)
        names = self.terms.residual_names[name]
        start = (zero, jax.tree.map(jnp.zeros_like, network), dict.fromkeys(names, zero))
        return self._over_chunks(body, drawn, start)

    def _accumulate_by_task(self, network: Any, points: dict[str, _Points], tasks: Tasks) -> Array:
        """The loss of each task, shape (room,)."""
        losses, none = jnp.zeros(len(tasks.weights), self.dtype), self._tasks(0)
        for name, term_points in points.items():
            size = self._chunk_size(term_points, tasks, none)

            def body(chunk: Array, name=name, term_points=term_points, size=size) -> Array:
                rows = _gather(term_points, tasks, none, chunk * size + jnp.arange(size))
                residuals = jax.vmap(partial(self.terms.residuals[name], network))(rows.x, rows.theta)
                square = sum((value**2 for value in residuals.values()), jnp.zeros((), self.dtype))
                weighted = square * rows.weight * self.terms.weights[name]
                return jnp.zeros(len(tasks.weights), self.dtype).at[rows.task].add(weighted)

            total = _count(term_points, tasks, none)
            losses = self._over_chunks(body, (total + size - 1) // size, losses)
        return jax.lax.psum(losses, "rows")

    def _chunk_size(self, points: _Points, active: Tasks, replay: Tasks) -> int:
        """Rows of a chunk; no more than there can be."""
        return min(self.chunk, len(active.weights) * points.dense + len(replay.weights) * points.sparse)

    def _over_chunks(self, body: Callable[[Array], Any], chunks: Array, start: Any) -> Any:
        """`start` plus body(chunk) over this device's chunks: every so many-th, starting with its own number."""
        device, devices = jax.lax.axis_index("rows"), self._mesh.size
        mine = (chunks - device + devices - 1) // devices
        return jax.lax.fori_loop(
            0, mine, lambda i, total: jax.tree.map(jnp.add, total, body(device + i * devices)), start
        )


_compiled = lru_cache(maxsize=16)(_Sums)
"""Compiled sums are kept, so that a second run of the same problem compiles nothing."""
