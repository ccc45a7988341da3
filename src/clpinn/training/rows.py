"""Rows of a batch: scaled residuals, their sum of squares and their Jacobian, computed over all JAX devices.

A row is one residual at one point with one theta, multiplied by its weight.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float

from clpinn.machine import on_all_cores
from clpinn.programs import Lowering, Program
from clpinn.training.residuals import Terms

BALANCE_RANGE = 1e-12
"""The smallest mean square of a residual's derivatives that is balanced, relative to the largest."""
CHUNK = 256
"""Points differentiated at once on a device."""
EVALUATED_POINTS, EVALUATED_CHUNK = 2048, 64
"""Points of a term that a device evaluates in one call at most, and at once."""


class Batch(eqx.Module):
    """Points of one term, and the weight of each of its residuals there."""

    x: Float[Array, "points coordinates"]
    theta: Float[Array, "points parameters"]
    weight: Float[Array, "points residuals"]

    def reweighted(self, factor: Any) -> "Batch":
        """The same points, their weights multiplied by a factor."""
        return eqx.tree_at(lambda batch: batch.weight, self, self.weight * factor)


class LinearisedRows(NamedTuple):
    """The rows of a batch and their derivatives with respect to the network's flattened arrays, both balanced."""

    rows: Float[np.ndarray, " rows"]
    jacobian: Float[np.ndarray, "rows parameters"]
    squares: dict[str, float]
    """Sums of squares by residual name, before the rows were balanced."""
    balance: dict[str, Float[np.ndarray, " residuals"]]
    """The factor of each residual, by term."""


class Rows:
    """The rows of one problem's batches, as functions of a network."""

    def __init__(self, terms: Terms, dtype: Any):
        self.terms, self.dtype = terms, dtype
        self._mesh = Mesh(np.array(jax.devices()), ("rows",))
        by_row, replicated = PartitionSpec("rows"), PartitionSpec()
        self._residuals = Program(self._sharded(self._evaluated, (replicated, by_row, replicated), by_row))
        self._jacobians = Program(
            self._sharded(self._differentiated, (replicated, by_row), (by_row, by_row, replicated))
        )
        # The batch that one call evaluates at most.
        self._capacity = self._batch_shape(dict.fromkeys(terms.residuals, self._mesh.size * EVALUATED_POINTS))

    def _sharded(self, function: Callable, arguments: Any, results: Any) -> Callable:
        """The function on every device, each with its share of the points."""
        return jax.shard_map(function, mesh=self._mesh, in_specs=arguments, out_specs=results, check_vma=False)

    def even(self, points: float) -> int:
        """The number of points rounded up, so that every device gets the same share in equal chunks."""
        devices = self._mesh.size
        share = max(1, math.ceil(points / devices))
        chunk = _chunk(share)
        return devices * chunk * math.ceil(share / chunk)

    def lowerings(self, network: Any, points: Mapping[str, int]) -> list[Lowering]:
        """What traces and compiles the programs for batches with these points by term, the longest first."""
        chunks = dict.fromkeys(self._capacity, jax.ShapeDtypeStruct((), np.int32))
        return [
            partial(self._jacobians.lowered, network, self._batch_shape(points)),
            partial(self._residuals.lowered, network, self._capacity, chunks),
        ]

    def _batch_shape(self, points: Mapping[str, int]) -> dict[str, Batch]:
        """A batch with shapes in place of arrays."""
        problem = self.terms.problem

        def shape(count: int, columns: int) -> Any:
            return jax.ShapeDtypeStruct((count, columns), self.dtype)

        batch = {}
        for name, count in points.items():
            columns = self.terms.columns(name)
            residuals = len(self.terms.residual_names[name])
            batch[name] = Batch(shape(count, columns), shape(count, len(problem.parameters)), shape(count, residuals))
        return batch

    # On the host ---------------------------------------------------------------------------------------------------

    def residuals(self, network: Any, batch: Mapping[str, Batch]) -> dict[str, Float[np.ndarray, "points residuals"]]:
        """The scaled residuals of each term. The number of its points must be a multiple of the number of devices.

        One program serves batches of any size. Its arrays hold EVALUATED_POINTS per device and term, and it computes
        only the chunks that have points. A larger batch takes several calls.
        """
        shares = {name: jax.tree.map(self._by_device, part) for name, part in batch.items()}
        residuals: dict[str, np.ndarray] = {name: np.empty_like(part.weight) for name, part in shares.items()}
        for start in range(0, max(part.shape[1] for part in residuals.values()), EVALUATED_POINTS):
            window = slice(start, start + EVALUATED_POINTS)
            filled = jax.tree.map(lambda shape: np.zeros(shape.shape, shape.dtype), self._capacity)
            chunks = dict.fromkeys(filled, np.int32(0))
            for name, part in shares.items():
                for target, source in zip(jax.tree.leaves(filled[name]), jax.tree.leaves(part), strict=True):
                    points = source[:, window]
                    self._by_device(target)[:, : points.shape[1]] = points
                chunks[name] = np.int32(math.ceil(points.shape[1] / EVALUATED_CHUNK))
            computed = self._residuals(network, filled, chunks)
            for name, part in residuals.items():
                target = part[:, window]
                target[:] = self._by_device(np.asarray(computed[name]))[:, : target.shape[1]]
        return {name: part.reshape(-1, part.shape[2]) for name, part in residuals.items()}

    def _by_device(self, array: Any) -> np.ndarray:
        """The rows of an array by device: (rows, columns) -> (devices, rows per device, columns)."""
        return np.asarray(array).reshape(self._mesh.size, len(array) // self._mesh.size, array.shape[1])

    def value(self, network: Any, batch: Mapping[str, Batch]) -> tuple[float, dict[str, float]]:
        """The sum of squares of a batch, and the same by residual name."""
        squares = self._squares(self.residuals(network, batch))
        return sum(squares.values()), squares

    def _squares(self, residuals: Mapping[str, Float[np.ndarray, "points residuals"]]) -> dict[str, float]:
        """Sums of squares by residual name."""
        squares: dict[str, float] = {}
        for name, part in residuals.items():
            for key, square in zip(self.terms.residual_names[name], np.sum(part**2, axis=0), strict=True):
                squares[key] = squares.get(key, 0.0) + float(square)  # two terms may use the same name
        return squares

    def linearised(self, network: Any, batch: Mapping[str, Batch]) -> LinearisedRows:
        """All rows of a batch and their derivatives, balanced.

        The rows of each residual are multiplied by one factor, so that their derivatives have the same mean square but
        for the weight of the condition. A residual that does not depend on the network's weights keeps its rows.
        """
        residuals, slopes, balance = self._jacobians(network, dict(batch))
        residuals, balance = jax.tree.map(np.asarray, (residuals, balance))
        rows = np.concatenate([(residuals[name] * balance[name]).reshape(-1) for name in residuals])
        jacobian = _gathered(jax.tree.leaves(network), residuals, slopes, balance)
        return LinearisedRows(rows, jacobian, self._squares(residuals), balance)

    # On the devices ------------------------------------------------------------------------------------------------

    def at(self, name: str, network: Any, point: Batch) -> Float[Array, " residuals"]:
        """The scaled residuals of a term at one point of a batch."""
        residuals = self.terms.residuals[name](network, point.x, point.theta)
        return jnp.stack([residuals[key] for key in self.terms.residual_names[name]]) * point.weight

    def _evaluated(
        self, network: Any, batch: Mapping[str, Batch], chunks: Mapping[str, Array]
    ) -> dict[str, Float[Array, "points residuals"]]:
        """The scaled residuals in the first chunks of each term, zeros after them."""

        def of_term(name: str, part: Batch) -> Array:
            def fill(i: Array, residuals: Array) -> Array:
                start = i * EVALUATED_CHUNK
                points = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, EVALUATED_CHUNK), part)
                computed = jax.vmap(partial(self.at, name, network))(points)
                return jax.lax.dynamic_update_slice_in_dim(residuals, computed, start, axis=0)

            return jax.lax.fori_loop(0, chunks[name], fill, jnp.zeros_like(part.weight))

        return {name: of_term(name, part) for name, part in batch.items()}

    def _differentiated(self, network: Any, batch: dict[str, Batch]) -> tuple[dict, dict, dict[str, Array]]:
        """Residuals, their derivatives, and the factors that balance them, by term.

        Derivatives are a tree like the network, each leaf with (points, residuals) before its own shape.
        """
        rows, jacobians = {}, {}
        for name, part in batch.items():

            def at_point(point: Batch, name=name) -> tuple[Array, Any]:
                return with_derivatives(lambda network: self.at(name, network, point), network)

            rows[name], jacobians[name] = jax.lax.map(at_point, part, batch_size=_chunk(len(part.x)))

        def mean_square(jacobian: Any, residuals: int) -> Array:
            squares = [jnp.sum(leaf**2, axis=tuple(range(2, leaf.ndim))) for leaf in jax.tree.leaves(jacobian)]
            return jax.lax.pmean(jnp.mean(sum(squares, jnp.zeros(residuals)), axis=0), "rows")

        squares = {
            name: mean_square(jacobian, rows[name].shape[1]) / self.terms.weights[name]
            for name, jacobian in jacobians.items()
        }
        largest = jnp.max(jnp.concatenate(list(squares.values())))
        balance = {
            name: jnp.sqrt(jnp.where(square > BALANCE_RANGE * largest, largest / square, 1.0))
            for name, square in squares.items()
        }
        return rows, jacobians, balance


def with_derivatives(residuals: Callable[[Any], Array], parameters: Any) -> tuple[Float[Array, " residuals"], Any]:
    """The residuals at one point and their derivatives: a tree like `parameters`, residuals before each shape."""
    row, pull = jax.vjp(residuals, parameters)
    return row, jax.vmap(lambda unit: pull(unit)[0])(jnp.eye(len(row), dtype=row.dtype))


def _chunk(points: int) -> int:
    """Points differentiated at once, so that all chunks are equal."""
    return math.ceil(points / math.ceil(points / CHUNK))


def _gathered(
    leaves: list[Any],
    residuals: Mapping[str, np.ndarray],
    slopes: Mapping[str, Any],
    balance: Mapping[str, np.ndarray],
) -> Float[np.ndarray, "rows parameters"]:
    """The derivatives of all devices in one matrix, balanced: a row per residual, a column per weight."""
    jacobian = np.empty((sum(part.size for part in residuals.values()), sum(leaf.size for leaf in leaves)))
    blocks, first = [], 0
    for name in residuals:
        count, column = residuals[name].shape[1], 0
        for leaf, slope in zip(leaves, jax.tree.leaves(slopes[name]), strict=True):
            for shard in slope.addressable_shards:
                start = first + count * (shard.index[0].start or 0)
                blocks.append((start, column, np.asarray(shard.data), balance[name]))
            column += leaf.size
        first += residuals[name].size

    def fill(block: tuple[int, int, np.ndarray, np.ndarray]) -> None:
        """Copy the derivatives that one device has for one of the network's arrays."""
        start, column, slope, factors = block
        points, count, *shape = slope.shape
        size = math.prod(shape)
        target = jacobian[start : start + points * count, column : column + size].reshape(points, count, size)
        np.multiply(slope.reshape(points, count, size), factors[:, None], out=target)

    on_all_cores(fill, blocks)
    return jacobian
