"""Rows of a batch: scaled residuals, their sum of squares and their Jacobian, computed over all JAX devices.

A row is one residual at one point with one theta, multiplied by its weight.
"""

import math
from collections.abc import Callable, Mapping, Sequence
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
        self._residuals = Program(self._sharded(self._weighted, by_row))
        self._squares = Program(self._sharded(self._sums_of_squares, replicated))
        self._jacobians = Program(self._sharded(self._differentiated, (by_row, by_row, replicated)))

    def _sharded(self, function: Callable, out: Any) -> Callable:
        """The function on every device, each with its share of the points."""
        split = (PartitionSpec(), PartitionSpec("rows"))
        return jax.shard_map(function, mesh=self._mesh, in_specs=split, out_specs=out, check_vma=False)

    def even(self, points: float) -> int:
        """The number of points rounded up, so that every device gets the same share in equal chunks."""
        devices = self._mesh.size
        share = max(1, math.ceil(points / devices))
        chunk = _chunk(share)
        return devices * chunk * math.ceil(share / chunk)

    def lowerings(
        self, network: Any, drawn: Mapping[str, int], evaluated: Sequence[Mapping[str, int]]
    ) -> list[Lowering]:
        """What traces and compiles the programs for batches of some sizes, points by term; the longest first.

        Batches that are `drawn` are differentiated, of those that are `evaluated` the residuals are computed.
        """
        batch = self._batch_shape(drawn)
        residuals = [partial(self._residuals.lowered, network, self._batch_shape(points)) for points in evaluated]
        squares = partial(self._squares.lowered, network, batch)
        return [partial(self._jacobians.lowered, network, batch), *residuals, squares]

    def _batch_shape(self, points: Mapping[str, int]) -> dict[str, Batch]:
        """A batch with shapes in place of arrays."""
        problem = self.terms.problem

        def shape(count: int, columns: int) -> Any:
            return jax.ShapeDtypeStruct((count, columns), self.dtype)

        batch = {}
        for name, count in points.items():
            measured = self.terms.measured.get(name)
            columns = len(problem.coordinates) if measured is None else measured.shape[1]
            residuals = len(self.terms.residual_names[name])
            batch[name] = Batch(shape(count, columns), shape(count, len(problem.parameters)), shape(count, residuals))
        return batch

    # On the host ---------------------------------------------------------------------------------------------------

    def residuals(self, network: Any, batch: Mapping[str, Batch]) -> dict[str, Float[np.ndarray, "points residuals"]]:
        """The scaled residuals of each term."""
        return jax.tree.map(np.asarray, self._residuals(network, dict(batch)))

    def value(self, network: Any, batch: Mapping[str, Batch]) -> tuple[float, dict[str, float]]:
        """The sum of squares of a batch, and the same by residual name."""
        squares = {name: float(square) for name, square in self._squares(network, dict(batch)).items()}
        return sum(squares.values()), squares

    def linearised(self, network: Any, batch: Mapping[str, Batch]) -> LinearisedRows:
        """All rows of a batch and their derivatives, balanced.

        The rows of each residual are multiplied by one factor, so that their derivatives have the same mean square but
        for the weight of the condition. A residual that does not depend on the network's weights keeps its rows.
        """
        residuals, slopes, balance = self._jacobians(network, dict(batch))
        residuals, balance = jax.tree.map(np.asarray, (residuals, balance))
        rows = np.concatenate([(residuals[name] * balance[name]).reshape(-1) for name in residuals])
        jacobian = _gathered(jax.tree.leaves(network), residuals, slopes, balance)
        squares: dict[str, float] = {}
        for name in residuals:
            sums = np.sum(residuals[name] ** 2, axis=0)
            for key, square in zip(self.terms.residual_names[name], sums, strict=True):
                squares[key] = squares.get(key, 0.0) + float(square)  # two terms may use the same name
        return LinearisedRows(rows, jacobian, squares, balance)

    # On the devices ------------------------------------------------------------------------------------------------

    def at(self, name: str, network: Any, point: Batch) -> Float[Array, " residuals"]:
        """The scaled residuals of a term at one point of a batch."""
        residuals = self.terms.residuals[name](network, point.x, point.theta)
        return jnp.stack([residuals[key] for key in self.terms.residual_names[name]]) * point.weight

    def _weighted(self, network: Any, batch: Mapping[str, Batch]) -> dict[str, Float[Array, "points residuals"]]:
        return {name: jax.vmap(partial(self.at, name, network))(part) for name, part in batch.items()}

    def _sums_of_squares(self, network: Any, batch: dict[str, Batch]) -> dict[str, Array]:
        squares = {}
        for name, rows in self._weighted(network, batch).items():
            for key, square in zip(self.terms.residual_names[name], jnp.sum(rows**2, axis=0), strict=True):
                squares[key] = squares.get(key, 0.0) + square  # two terms may use the same name
        return jax.lax.psum(squares, "rows")

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
