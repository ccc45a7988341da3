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
from clpinn.formulation.integrals import integral_rows
from clpinn.formulation.problem import Condition, Integral, Problem
from clpinn.keys import Key, split, words
from clpinn.training.residuals import Terms

INTEGRAL_TIMES = 32
"""Times at which an integral is taken."""
BLOCK = 64
"""Tasks whose losses are computed in one call."""


class Collocation(eqx.Module):
    """Points by term ("interior" and the names of the soft conditions), each of shape (points, coordinates).

    All tasks share them, unless the domain is a shape: then `at_theta` draws those of a task.
    """

    points: dict[str, Float[Array, "points coordinates"]]
    at_theta: Callable[[np.ndarray], dict[str, Points]] | None = eqx.field(static=True, default=None)

    def of(self, theta: np.ndarray) -> dict[str, Any]:
        """The points of the task at a theta."""
        return self.points if self.at_theta is None else self.at_theta(theta)

    @staticmethod
    def sample(problem: Problem, key: Key, fraction: float = 1.0, interior: int | None = None) -> "Collocation":
        """Points of one task; `fraction` thins the interior, while conditions and anchors keep all their points.

        `interior` is a number of points in place of the problem's own.
        """
        if problem.domain is not None:
            draw = _ShapePoints(Terms(problem), key, fraction, interior)
            points = draw(problem.parameters.centre)
            return Collocation({name: jnp.asarray(part) for name, part in points.items()}, draw)
        region = problem.interior if interior is None else replace(problem.interior, points=interior)
        if fraction < 1:
            region = region.thinned(fraction, len(problem.coordinates))
        conditions = [condition for condition in problem.conditions if isinstance(condition, Condition)]
        keys = split(key, 1 + len(conditions))
        drawn = {"interior": region.sample(problem.coordinates, keys[0])}
        for condition, condition_key in zip(conditions, keys[1:], strict=True):
            drawn[condition.name] = condition.sample(problem.coordinates, condition_key)
        thetas = np.tile(problem.parameters.centre, (integral_times(problem), 1))
        for condition in problem.conditions:
            if isinstance(condition, Integral):  # its nodes do not depend on theta in a box
                drawn[condition.name] = integral_rows(problem, condition, thetas, key)
        return Collocation({name: jnp.asarray(points) for name, points in drawn.items()})


def integral_times(problem: Problem) -> int:
    """Rows of an integral for one task: one, or one for each of some times."""
    return INTEGRAL_TIMES if "t" in problem.coordinates.names else 1


class _ShapePoints:
    """Points of a task in the shape of its theta, the same whenever they are asked for."""

    def __init__(self, terms: Terms, key: Key, fraction: float, interior: int | None):
        problem = terms.problem
        count = problem.interior.points if interior is None else interior
        self._counts = {"interior": max(1, round(fraction * count))}
        self._counts |= {name: condition.points for name, condition in terms.conditions.items()}
        self._counts |= dict.fromkeys(terms.integrals, integral_times(problem))
        self._terms, self._keys = terms, dict(zip(self._counts, split(key, len(self._counts)), strict=True))
        self._drawn: dict[bytes, dict[str, Points]] = {}

    def __call__(self, theta: np.ndarray) -> dict[str, Points]:
        theta = np.asarray(theta, float)
        if theta.tobytes() not in self._drawn:
            self._drawn[theta.tobytes()] = {
                name: self._terms.sample(name, self._keys[name], np.tile(theta, (count, 1)))
                for name, count in self._counts.items()
            }
        return self._drawn[theta.tobytes()]


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
    """Points of one term in one array: dense ones for active tasks first, then sparse ones for replay tasks.

    The first axis has a row per task, or a single row that all share.
    """

    both: Float[Array, "tasks points coordinates"]
    dense: int = eqx.field(static=True)

    @property
    def sparse(self) -> int:
        return self.both.shape[1] - self.dense

    def at(self, task: Int[Array, " rows"], point: Int[Array, " rows"]) -> Float[Array, "rows coordinates"]:
        """The points with these numbers, of tasks with these numbers."""
        return self.both[0][point] if len(self.both) == 1 else self.both[task, point]


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
    return _TaskRows(points.at(task, point), thetas[task], task, jnp.where(inside, shares[task], 0))


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
            name: _Points(jnp.concatenate([dense.points[name], sparse.points[name]]).astype(dtype)[None], len(points))
            for name, points in dense.points.items()
        }
        self._by_theta = (
            None if dense.at_theta is None or sparse.at_theta is None else (dense.at_theta, sparse.at_theta)
        )
        self._of_tasks: tuple[bytes, dict[str, _Points]] = b"", self._points
        self._measured = {
            name: _Points(jnp.asarray(rows, dtype)[None], len(rows)) for name, rows in terms.measured.items()
        }
        self._batch_rows = batch_rows
        self._sums = _compiled(terms, dtype, chunk, batch, batch_rows, tuple(jax.devices()))

    def objective(
        self, network: Any, active: Tasks, replay: Tasks, key: Key
    ) -> tuple[Float[Array, ""], Any, dict[str, Float[Array, ""]]]:
        """Value, gradient with respect to the network's arrays, and the value by residual name."""
        points = self._task_points(active, replay) | self._measured
        drawn = None if self._batch_rows is None else self._drawn_rows(self._batch_rows, active, replay)
        return self._sums.objective(network, points, active, replay, jnp.array(words(key), jnp.uint32), drawn)

    def _task_points(self, *tasks: Tasks) -> dict[str, _Points]:
        """The points by term that these tasks have, in this order."""
        if self._by_theta is None:
            return self._points
        thetas = np.concatenate([np.asarray(part.thetas, float) for part in tasks])
        known = np.concatenate([np.arange(len(part.thetas)) < int(part.count) for part in tasks])
        key = thetas.tobytes() + known.tobytes()
        if key != self._of_tasks[0]:
            points = {name: np.zeros((len(thetas), *part.both.shape[1:])) for name, part in self._points.items()}
            for i in np.flatnonzero(known):
                dense, sparse = (draw(thetas[i]) for draw in self._by_theta)
                for name, part in points.items():
                    part[i] = np.concatenate([dense[name], sparse[name]])
            placed = {
                name: _Points(jnp.asarray(part, self.dtype), self._points[name].dense) for name, part in points.items()
            }
            self._of_tasks = key, placed
        return self._of_tasks[1]

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
            values = self._sums.task_losses(network, self._task_points(tasks), tasks)
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
