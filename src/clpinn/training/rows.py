"""Mini-batches of residual rows for the natural gradient: fresh at every step, adapted, on a common scale.

A row is one residual at one point with one theta. Thetas are drawn over the whole box, or from a task pool by weight.
Of several candidates for each row those with a large residual are taken more often, so a batch sees the layers and the
thetas that a uniform one would miss. Before that, residuals are divided by the typical size of their own terms at that
theta, so that equations, outputs and tasks of very different amplitude count alike.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float

from clpinn.calculus.jets import Jet, linear
from clpinn.formulation.domain import At, Boundary, Box, Points, generator
from clpinn.formulation.problem import Condition, Data, Problem, magnitudes, values
from clpinn.machine import on_all_cores
from clpinn.networks.architecture import Architecture
from clpinn.networks.make import make
from clpinn.training.pool_loss import measured_rows, terms

CONDITIONS_SHARE = 0.3
"""Share of the rows that goes to the conditions, if there are any."""
CANDIDATES = 8
"""Points drawn for each that is taken."""
EDGE_SHARE = 0.1
"""Share of them that is drawn denser towards the edges of the domain: a fit errs most at corners that it never sees."""
UNIFORM_SHARE = 0.5
"""Share of the points taken without regard to their residual."""
SCALE_TASKS, SCALE_POINTS, SCALE_POINTS_ALONE = 64, 64, 1024
"""Thetas and points of each that an estimate of the residuals' scale is made of; points of one at a single theta."""
SCALE_RANGE, SCALE_FLOOR = 1e-3, 1e-6
"""A task is never counted as smaller than this, relative to the largest; nothing ever is, relative to what it was."""
BALANCE_RANGE = 1e-12
"""The smallest mean square of a residual's derivatives that is balanced, relative to the largest."""
CHUNK = 256
"""Rows differentiated at once on a device."""


class Batch(eqx.Module):
    """Points of one term, and what each of its residuals is multiplied by there."""

    x: Float[Array, "points coordinates"]
    theta: Float[Array, "points parameters"]
    scale: Float[Array, "points residuals"]


class Scale(eqx.Module):
    """The size of the terms of one term's residuals, as a function of theta: exp of a quadratic polynomial."""

    coefficients: Float[np.ndarray, "features residuals"]
    limits: Float[np.ndarray, "2 residuals"]
    largest: Float[np.ndarray, " residuals"]
    """The largest size met in the run."""

    def at(self, box: Box, thetas: Points) -> Float[np.ndarray, "thetas residuals"]:
        return np.exp(np.clip(_features(box, thetas) @ self.coefficients, *self.limits))


def _features(box: Box, thetas: Points) -> np.ndarray:
    """1, and the scaled parameters with their products of two."""
    unit = [2 * axis.to_unit(thetas[:, i]) - 1 for i, axis in enumerate(box.axes)]
    products = [a * b for i, a in enumerate(unit) for b in unit[: i + 1]]
    return np.stack([np.ones(len(thetas)), *unit, *products], axis=1)


@dataclass(frozen=True)
class Pool:
    """Thetas to draw from, with probabilities; None in place of a pool stands for the whole box."""

    thetas: Points
    shares: Float[np.ndarray, " tasks"]


class Linearised(NamedTuple):
    """The rows of a batch and their derivatives with respect to the network's flattened arrays, both balanced."""

    rows: Float[np.ndarray, " rows"]
    jacobian: Float[np.ndarray, "rows parameters"]
    named: dict[str, float]
    """Sums of squares by residual name, before the rows were balanced."""
    balance: dict[str, Float[np.ndarray, " residuals"]]
    """The factors, by term."""


def _ones(points: Points) -> Float[np.ndarray, " points"]:
    return np.ones(len(points))


class Rows:
    """Residual rows of one problem: batches, their values and their Jacobian, over all JAX devices."""

    def __init__(self, problem: Problem, rows: int, dtype: Any):
        self.problem, self.dtype = problem, dtype
        self._functions, self._weights = terms(problem)
        self._data = measured_rows(problem)
        self._conditions = {c.name: c for c in problem.conditions if isinstance(c, Condition)}
        self._flow = flow(problem)
        self._mesh = Mesh(np.array(jax.devices()), ("rows",))
        x, theta = np.zeros(len(problem.coordinates)), np.zeros(len(problem.parameters))
        # Stands in for a network where only names are asked for.
        shape = make(problem, Architecture("fnn", 1, 1), jax.random.key(0))
        self._names: dict[str, list[str]] = {}
        for name, function in self._functions.items():
            point = self._data[name][0] if name in self._data else x
            self._names[name] = list(jax.eval_shape(function, shape, jnp.asarray(point), theta))
        share = CONDITIONS_SHARE if len(self._functions) > 1 else 0.0
        others = max(1, len(self._functions) - 1)
        wanted = {name: rows * (1 - share if name == "interior" else share / others) for name in self._functions}
        self.points = {name: self.even(rows / len(self._names[name])) for name, rows in wanted.items()}
        self.count = sum(count * len(self._names[name]) for name, count in self.points.items())
        self._residuals = jax.jit(self._sharded(self.scaled, PartitionSpec("rows")))
        self._values = jax.jit(self._sharded(self._sum, PartitionSpec()))
        by_row = PartitionSpec("rows")
        self._jacobians = jax.jit(self._sharded(self._differentiated, (by_row, by_row, PartitionSpec())))
        self._magnitudes = {name: jax.jit(jax.vmap(f, in_axes=(None, 0, 0))) for name, f in self._sizes_at().items()}

    def even(self, points: float) -> int:
        """A number of points, hardly more, that every device gets the same share of, in equal chunks."""
        devices = self._mesh.size
        share = max(1, math.ceil(points / devices))
        chunk = _chunk(share)
        return devices * chunk * math.ceil(share / chunk)

    @property
    def has_time(self) -> bool:
        return self._flow is not None

    # Drawing -----------------------------------------------------------------------------------------------------

    def uniform(
        self,
        key: Array,
        points: Mapping[str, int],
        scales: Mapping[str, Scale],
        pool: Pool | None,
        edge_share: float = 0.0,
    ) -> dict[str, Batch]:
        """Points of every term drawn without regard to their residual, a share of the inner ones denser at edges."""
        batch = {}
        for name, term_key in zip(self._functions, jax.random.split(key, len(self._functions)), strict=True):
            theta_key, point_key = jax.random.split(term_key)
            thetas = self._thetas(theta_key, points[name], pool)
            x = self._positions(name, point_key, points[name], edge_share)
            if name in self._data:  # a measured point has a theta of its own
                start = len(self.problem.coordinates)
                thetas = x[:, start : start + len(self.problem.parameters)]
            weight = math.sqrt(self._weights[name] / points[name])
            scale = weight / scales[name].at(self.problem.parameters, thetas)
            batch[name] = Batch(*(np.asarray(part, self.dtype) for part in (x, thetas, scale)))  # pyright: ignore
        return batch

    def _thetas(self, key: Array, count: int, pool: Pool | None) -> Points:
        if pool is None:  # a fit over an interval errs most at its ends
            return self.problem.parameters.sample(count, key, "chebyshev")
        # Shuffled: the points of a boundary come face by face, and every task is to see all faces.
        taken = _stratified(pool.shares, count, generator(key).random(count))
        return pool.thetas[taken[np.argsort(generator(jax.random.fold_in(key, 1)).random(count))]]

    def _positions(self, name: str, key: Array, count: int, edge_share: float = 0.0) -> Points:
        if name in self._data:
            rows = self._data[name]
            return rows[(generator(key).random(count) * len(rows)).astype(int)]
        if name == "interior":
            found = self.problem.coordinates.sample(count, key, "uniform")
            edges = int(edge_share * count)
            if edges:
                found[:edges] = self.problem.coordinates.sample(edges, jax.random.fold_in(key, 1), "chebyshev")
            return found
        drawn = self._conditions[name].on.sample(self.problem.coordinates, count, key, "uniform")
        return np.resize(drawn, (count, drawn.shape[1]))  # a region may be a single point

    def draw(
        self,
        network: Any,
        key: Array,
        scales: Mapping[str, Scale],
        pool: Pool | None = None,
        growth: int = 1,
        robust: bool = False,
        causality: float = 0.0,
    ) -> dict[str, Batch]:
        """A batch, `growth` times as large as the usual: of the candidates, those with large residuals more often.

        What is taken more often counts less each time, so that the expected sum of squares is that of the candidates.
        In a `robust` batch it counts less still, so that the sum is like that of absolute values. With
        `causality` rows count less the larger the residuals before their time are (see `causal`).
        """
        draw_key, take_key = jax.random.split(key)
        points = {name: growth * count for name, count in self.points.items()}
        many = {name: CANDIDATES * count for name, count in points.items()}
        candidates = self.uniform(draw_key, many, scales, pool, EDGE_SHARE)
        found = self.residuals(network, candidates)
        weigh = self.causal(candidates, found, causality)
        batch = {}
        for (name, count), start in zip(points.items(), generator(take_key).random(len(points)), strict=True):
            weight = (_ones if name in self._data else weigh)(np.asarray(candidates[name].x))
            size = np.linalg.norm(found[name], axis=1)
            defined = np.isfinite(size)
            if defined.any():  # a root or logarithm may be undefined at some points for the moment
                weight = np.where(defined, weight, 0.0)
            size = np.nan_to_num(size, posinf=0.0) * np.sqrt(weight)
            share = UNIFORM_SHARE * weight / weight.sum()
            share += (1 - UNIFORM_SHARE) * size / max(size.sum(), np.finfo(float).tiny)
            taken = _stratified(share, count, start)
            part = jax.tree.map(lambda array, taken=taken: array[taken], candidates[name])
            count_as = np.sqrt(weight[taken] / (count * share[taken]))
            if robust:
                count_as = count_as / np.sqrt(len(size) * share[taken])
            batch[name] = eqx.tree_at(lambda b: b.scale, part, part.scale * count_as[:, None])
        return batch

    def causal(
        self, batch: Mapping[str, Batch], found: Mapping[str, np.ndarray], causality: float
    ) -> Callable[[Points], np.ndarray]:
        """Weights of points by their time, where the residuals of a batch are `found`.

        One over one plus `causality` times the mean square before them. So a solution is found from its start on:
        residuals alone are small, too, on a path that left it early (Wang, Sankaran and Perdikaris 2022, there with an
        exponential). Once all residuals are small the weights are one. Without time they always are.
        """
        if self._flow is None or causality == 0:
            return _ones
        axis, sign = self._flow
        times = sign * np.asarray(batch["interior"].x)[:, axis]
        order = np.argsort(times, kind="stable")
        squares = np.sum(np.nan_to_num(found["interior"]).clip(-1, 1) ** 2, axis=1)  # finite whatever was found
        before = np.cumsum(squares[order])

        def weights(points: Points) -> np.ndarray:
            return 1 / (1 + causality * np.interp(sign * points[:, axis], times[order], before, left=0.0))

        return weights

    # The common scale --------------------------------------------------------------------------------------------

    def unscaled(self) -> dict[str, Scale]:
        """Scales of one, before anything was measured."""
        count = _features(self.problem.parameters, self.problem.parameters.corners()).shape[1]
        return {
            name: Scale(np.zeros((count, len(names))), np.zeros((2, len(names))), np.zeros(len(names)))
            for name, names in self._names.items()
        }

    def scales(
        self,
        network: Any,
        key: Array,
        before: Mapping[str, Scale] | None = None,
        weigh: Callable[[Points], np.ndarray] = _ones,
        theta: Float[np.ndarray, " parameters"] | None = None,
    ) -> dict[str, Scale]:
        """The size of the terms of all residuals as the network has them now, measured inside the domain.

        That of a condition is, too: u = 0 on the boundary is to be judged by how large u is elsewhere. `before` are
        the scales until now. `weigh` gives the points' weights: what a network says of times that it has not come to
        is no measure of anything. With a `theta` they are those there alone, in place of a fit over the box.
        """
        before = before or self.unscaled()
        theta_key, point_key = jax.random.split(key)
        box = self.problem.parameters
        tasks = max(SCALE_TASKS, 2 * len(next(iter(before.values())).coefficients))
        thetas, points = box.sample(tasks, theta_key, "uniform"), tasks * SCALE_POINTS
        if theta is not None:
            thetas, points = np.asarray(theta, float)[None], SCALE_POINTS_ALONE
        inside = self._positions("interior", point_key, points)
        found = {}
        for name, names in self._names.items():
            sizes = self._sizes(name, network, inside, thetas, weigh)
            size = np.stack([sum(sizes[key].values()) for key in names], axis=1)
            high = size.max(axis=0)
            largest = np.maximum(high, before[name].largest)
            floor = np.maximum(SCALE_RANGE * high, SCALE_FLOOR * largest)
            size = np.log(np.maximum(size, np.where(floor > 0, floor, 1.0)))
            coefficients = np.linalg.lstsq(_features(box, thetas), size, rcond=None)[0]
            found[name] = Scale(coefficients, np.stack([size.min(axis=0), size.max(axis=0)]), largest)
        return found

    def amplitudes(self, network: Any, key: Array) -> Float[np.ndarray, " outputs"]:
        """What the outputs of a fresh network are to be multiplied by to be as large as their equations ask.

        Where u'' = 1e6 meets a network of size one, that is some 1e6: sources over the terms with outputs, the largest
        of all residuals. Where v' = 1e6 u does, v is to be as large as its equation's other terms, the least of all
        equations that it is in. A solution is rougher than a fresh network, which lets it look too large: a tenth of it
        is taken. Nothing is made smaller, as what starts small may grow.
        """
        sources, others = (dict.fromkeys(self.problem.outputs, start) for start in (0.0, math.inf))
        for name, source, sizes in self._typical(network, key):
            total = sum(sizes.values())
            for output, size in sizes.items():
                sources[output] = max(sources[output], source / total)
                if name == "interior":  # u = 0 on a boundary tells nothing
                    others[output] = min(others[output], total / size)
        found = [max(sources[output], others[output]) for output in self.problem.outputs]
        return np.array([max(1.0, 0.1 * size) if math.isfinite(size) else 1.0 for size in found])

    def overshot(self, network: Any, key: Array) -> Bool[np.ndarray, " outputs"]:
        """Outputs whose terms are far larger than the source of every residual that they are in and that has one.

        What a source asks for is less where the equation is not linear: of exp(u) = 1e6 u is 14.
        """
        far: dict[str, list[bool]] = {output: [] for output in self.problem.outputs}
        for _, source, sizes in self._typical(network, key):
            for output, size in sizes.items():
                far[output] += [size > 10 * source] * (source > 0)
        return np.array([bool(found) and all(found) for found in far.values()])

    def _typical(self, network: Any, key: Array) -> Iterator[tuple[str, float, dict[str, float]]]:
        """Of every residual: its term, its source, and what each output adds to it, where that is anything."""
        for name in [name for name in self._functions if name not in self._data]:
            theta_key, point_key, key = jax.random.split(key, 3)
            thetas = self.problem.parameters.sample(SCALE_TASKS, theta_key, "uniform")
            here = self._positions(name, point_key, SCALE_TASKS * SCALE_POINTS)
            for parts in self._sizes(name, network, here, thetas).values():
                sizes = {output: float(np.median(part)) for output, part in parts.items()}
                source = sizes.pop("")
                yield name, source, {output: size for output, size in sizes.items() if size > 0}

    def _sizes(
        self,
        name: str,
        network: Any,
        x: Points,
        thetas: Points,
        weigh: Callable[[Points], np.ndarray] = _ones,
    ) -> dict[str, dict[str, np.ndarray]]:
        """Root mean squares of the parts of a term's residuals, by residual and output, of each theta."""
        theta = np.repeat(thetas, len(x) // len(thetas), axis=0)
        weight = weigh(x).reshape(len(thetas), -1)
        found = self._magnitudes[name](network, jnp.asarray(x, self.dtype), jnp.asarray(theta, self.dtype))

        def mean(part: Array) -> np.ndarray:
            square = np.asarray(part, float).reshape(len(thetas), -1) ** 2
            known = np.isfinite(square)  # a condition need not be defined inside the domain
            total = np.sum(weight, axis=1, where=known)
            return np.sqrt(np.sum(weight * square, axis=1, where=known) / np.where(total > 0, total, 1.0))

        return jax.tree.map(mean, found)

    def _sizes_at(self) -> dict[str, Callable[..., dict[str, dict[str, Array]]]]:
        """Sizes of the residuals' terms at one point, by term; of a measured output that output's own."""
        problem = self.problem

        def of_data(data: Data) -> Callable[..., dict[str, dict[str, Array]]]:
            def size(network: Any, x: Array, theta: Array) -> dict[str, dict[str, Array]]:
                found = values(problem, network, x, theta)
                zero = dict.fromkeys(("", *problem.outputs), jnp.zeros_like(x[0]))
                return {f"{data.name}_{output}": zero | {output: jnp.abs(found[output])} for output in data.values}

            return size

        def of_equation(condition: Condition | None) -> Callable[..., dict[str, dict[str, Array]]]:
            return lambda network, x, theta: magnitudes(problem, condition, network, x, theta)

        found = {name: of_equation(self._conditions.get(name)) for name in self._functions if name not in self._data}
        return found | {data.name: of_data(data) for data in problem.conditions if isinstance(data, Data)}

    # Values and the Jacobian -------------------------------------------------------------------------------------

    def value(self, network: Any, batch: Mapping[str, Batch]) -> tuple[float, dict[str, float]]:
        """The sum of squares of a batch, and by residual name."""
        named = {key: float(part) for key, part in self._values(network, dict(batch)).items()}
        return sum(named.values()), named

    def residuals(self, network: Any, batch: Mapping[str, Batch]) -> dict[str, Float[np.ndarray, "points residuals"]]:
        """The scaled residuals of each term."""
        return jax.tree.map(np.asarray, self._residuals(network, dict(batch)))

    def capped(self, found: Mapping[str, np.ndarray]) -> float:
        """The sum of squares of residuals of an even batch, each at most that of a residual as large as its terms.

        One that is not finite counts as such.
        """
        return float(sum(np.sum(np.fmin(f**2, self._weights[name] / len(f))) for name, f in found.items()))

    def largest(self, found: Mapping[str, np.ndarray]) -> float:
        """The same of the single residual with the largest, whatever its weight."""
        share = {name: self._weights[name] / len(f) for name, f in found.items()}
        return max(
            float(np.max(np.sum(np.fmin(f**2 / share[name], 1.0), axis=0)) / len(f)) for name, f in found.items()
        )

    def jacobian(self, network: Any, batch: Mapping[str, Batch]) -> Linearised:
        """All rows of a batch and their derivatives, balanced.

        Balanced: the rows of each residual are multiplied by one factor, so that their derivatives have the same mean
        square, but for the weight of the condition. A residual that no weight of the network moves is left as it is.
        """
        found, slopes, balance = self._jacobians(network, dict(batch))
        found, balance = jax.tree.map(np.asarray, (found, balance))
        rows = np.concatenate([(found[name] * balance[name]).reshape(-1) for name in found])
        leaves = jax.tree.leaves(network)
        jacobian = np.empty((len(rows), sum(leaf.size for leaf in leaves)))
        parts, first = [], 0
        for name in found:
            count, column = found[name].shape[1], 0
            for leaf, slope in zip(leaves, jax.tree.leaves(slopes[name]), strict=True):
                for shard in slope.addressable_shards:
                    start = first + count * (shard.index[0].start or 0)
                    parts.append((start, column, np.asarray(shard.data), balance[name]))
                column += leaf.size
            first += found[name].size

        def fill(part: tuple[int, int, np.ndarray, np.ndarray]) -> None:
            """Put one device's derivatives by one of the network's arrays where they belong."""
            start, column, slope, factors = part
            points, count, *shape = slope.shape
            size = math.prod(shape)
            block = jacobian[start : start + points * count, column : column + size].reshape(points, count, size)
            np.multiply(slope.reshape(points, count, size), factors[:, None], out=block)

        on_all_cores(fill, parts)
        named: dict[str, float] = {}
        for name in found:
            for key, part in zip(self._names[name], np.sum(found[name] ** 2, axis=0), strict=True):
                named[key] = named.get(key, 0.0) + float(part)  # two terms may use the same name
        return Linearised(rows, jacobian, named, balance)

    def task_losses(self, network: Any, thetas: Points, key: Array, scales: Mapping[str, Scale]) -> np.ndarray:
        """Weighted mean squares of single tasks, each on the same points."""
        points = dict.fromkeys(self._functions, self.even(1024))
        losses = []
        for theta in thetas:
            one = Pool(np.asarray(theta)[None], np.ones(1))
            found = self.uniform(key, points, scales, one)
            losses.append(self.value(network, self.without_data(found))[0])
        return np.array(losses)

    def without_data(self, batch: Mapping[str, Batch]) -> dict[str, Batch]:
        """A batch without measured points, which have thetas of their own."""
        return {name: part for name, part in batch.items() if name not in self._data}

    def _sharded(self, function: Callable, out: Any) -> Callable:
        """The function on every device, each with its share of the points."""
        split = (PartitionSpec(), PartitionSpec("rows"))
        return jax.shard_map(function, mesh=self._mesh, in_specs=split, out_specs=out, check_vma=False)

    def at(self, name: str, network: Any, point: Batch) -> Float[Array, " residuals"]:
        """The scaled residuals of a term at one point of a batch."""
        found = self._functions[name](network, point.x, point.theta)
        return jnp.stack([found[key] for key in self._names[name]]) * point.scale

    def scaled(self, network: Any, batch: Mapping[str, Batch]) -> dict[str, Float[Array, "points residuals"]]:
        """The residuals of each term."""
        return {name: jax.vmap(partial(self.at, name, network))(part) for name, part in batch.items()}

    def _sum(self, network: Any, batch: dict[str, Batch]) -> dict[str, Array]:
        named = {}
        for name, rows in self.scaled(network, batch).items():
            for key, part in zip(self._names[name], jnp.sum(rows**2, axis=0), strict=True):
                named[key] = named.get(key, 0.0) + part  # two terms may use the same name
        return jax.lax.psum(named, "rows")

    def _differentiated(self, network: Any, batch: dict[str, Batch]) -> tuple[dict, dict, dict[str, Array]]:
        """Residuals, their derivatives, and what balances them, by term.

        Derivatives are a tree like the network, each leaf with (points, residuals) before its own shape.
        """
        rows, jacobians = {}, {}
        for name, part in batch.items():

            def one(point: Batch, name=name) -> tuple[Array, Any]:
                return with_derivatives(lambda network: self.at(name, network, point), network)

            rows[name], jacobians[name] = jax.lax.map(one, part, batch_size=_chunk(len(part.x)))

        def mean_square(jacobian: Any, residuals: int) -> Array:
            squares = [jnp.sum(leaf**2, axis=tuple(range(2, leaf.ndim))) for leaf in jax.tree.leaves(jacobian)]
            return jax.lax.pmean(jnp.mean(sum(squares, jnp.zeros(residuals)), axis=0), "rows")

        squares = {
            name: mean_square(jacobian, rows[name].shape[1]) / self._weights[name]
            for name, jacobian in jacobians.items()
        }
        largest = jnp.max(jnp.concatenate(list(squares.values())))
        balance = {
            name: jnp.sqrt(jnp.where(square > BALANCE_RANGE * largest, largest / square, 1.0))
            for name, square in squares.items()
        }
        return rows, jacobians, balance


def flow(problem: Problem) -> tuple[int, float] | None:
    """Which coordinate time is, and its sign: it runs away from the end that a condition holds, forwards by default.

    Time is called t. None where there is none, it is periodic, or conditions hold both ends or a moment between.
    """
    if "t" not in problem.coordinates.names or problem.coordinates["t"].scale == "periodic":
        return None
    axis = problem.coordinates["t"]
    held = _held_exactly(problem, (axis.low, axis.high))
    for condition in problem.conditions:
        if isinstance(condition, Condition):
            on = condition.on
            held |= {axis.low, axis.high} if isinstance(on, Boundary) and "t" in on.names else set()
            held |= {time for name, time in on.fixed if name == "t"} if isinstance(on, At) else set()
    if not held < {axis.low, axis.high}:
        return None
    return problem.coordinates.names.index("t"), -1.0 if axis.high in held else 1.0


def _held_exactly(problem: Problem, times: tuple[float, ...]) -> set[float]:
    """Times of the box at which the hard transform holds an output: there the network has no say."""
    if problem.constrain is None:
        return set()
    inside = problem.coordinates.sample(16, jax.random.key(0), "uniform")
    thetas = jnp.asarray(problem.parameters.sample(16, jax.random.key(1), "uniform"))

    @jax.jit
    def say(x: Array) -> Float[Array, " outputs"]:
        """How far the outputs move with the network's, at the most."""

        def outputs(raw: float) -> Array:
            def network(coordinates: Jet, parameters: Jet) -> Jet:
                weight = jnp.zeros((len(coordinates.value), len(problem.outputs)))
                return linear(coordinates, weight, jnp.full(len(problem.outputs), raw))

            found = jax.vmap(lambda x, theta: values(problem, network, x, theta))(x, thetas)
            return jnp.stack([found[name] for name in problem.outputs])

        return jnp.max(jnp.abs(outputs(1.7) - outputs(0.3)), axis=1)

    usual = say(jnp.asarray(inside))
    held = set()
    for time in times:
        inside[:, problem.coordinates.names.index("t")] = time
        held |= {time} if jnp.any((say(jnp.asarray(inside)) <= 1e-6 * usual) & (usual > 0)) else set()
    return held


def _chunk(points: int) -> int:
    """Points differentiated at once, so that these are done in equal parts."""
    return math.ceil(points / math.ceil(points / CHUNK))


def with_derivatives(residuals: Callable[[Any], Array], parameters: Any) -> tuple[Float[Array, " residuals"], Any]:
    """The residuals at one point and their derivatives: a tree like `parameters`, residuals before each shape."""
    row, pull = jax.vjp(residuals, parameters)
    return row, jax.vmap(lambda unit: pull(unit)[0])(jnp.eye(len(row), dtype=row.dtype))


def _stratified(shares: np.ndarray, count: int, offsets: float | np.ndarray) -> np.ndarray:
    """`count` indices, each as often as its share says, to within one: one draw in each of `count` equal strata."""
    ends = np.cumsum(shares)
    return np.searchsorted(ends / ends[-1], (np.arange(count) + offsets) / count, side="right").clip(0, len(shares) - 1)
