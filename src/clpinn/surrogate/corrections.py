"""Corrections at single thetas: the estimated error, added to the network's raw outputs as splines.

All corrections of a surrogate have arrays of one shape, filled up to the largest number of intervals, so that one
compiled program serves them all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from clpinn.calculus import jets
from clpinn.calculus.jets import Jet
from clpinn.errors import ProblemError
from clpinn.estimation.estimate import Estimator
from clpinn.estimation.results import Estimate
from clpinn.estimation.splines import SplineSpace
from clpinn.formulation.domain import Points
from clpinn.formulation.problem import Problem
from clpinn.formulation.thetas import checked_thetas, is_among
from clpinn.networks.architecture import cast, precision
from clpinn.shown import html_table

OUTSIDE = 1e-6
"""A point that is further outside the box than this gets the correction at the end of the axis."""
WAY = "correction"


class StackedSplines(eqx.Module):
    """Tensor products of B-splines at several thetas, in arrays of one shape.

    Attributes:
        knots: Knots by theta and axis, filled up with the last one.
        intervals: Numbers of intervals between knots by theta and axis.
        coefficients: Coefficients by theta and output, filled up with zeros.
        degree: Degree of the splines.
        periodic: Whether each axis is periodic.
    """

    knots: Any
    intervals: Any
    coefficients: Any
    degree: int = eqx.field(static=True)
    periodic: tuple[bool, ...] = eqx.field(static=True)

    @staticmethod
    def blank(
        count: int, outputs: int, room: Sequence[int], degree: int, periodic: Sequence[bool], dtype: Any = float
    ) -> "StackedSplines":
        """Splines at `count` thetas that are zero, with room for these numbers of intervals by axis."""
        knot_shape, interval_shape, shape = _array_shapes(count, outputs, room, degree, periodic)
        knots = np.zeros(knot_shape, dtype)
        knots[..., degree + 1 :] = 1.0
        intervals = np.ones(interval_shape, np.int32)
        return StackedSplines(knots, intervals, np.zeros(shape, dtype), degree, tuple(periodic))

    @staticmethod
    def shapes(problem: Problem, count: int, outputs: int, room: Sequence[int], degree: int) -> "StackedSplines":
        """Splines of a problem's coordinates with shapes in place of arrays."""
        periodic = periodic_axes(problem)
        knots, intervals, coefficients = (
            jax.ShapeDtypeStruct(sizes, float) for sizes in _array_shapes(count, outputs, room, degree, periodic)
        )
        return StackedSplines(knots, intervals, coefficients, degree, tuple(periodic))

    @property
    def room(self) -> list[int]:
        """The largest number of intervals by axis."""
        sizes = zip(self.coefficients.shape[2:], self.periodic, strict=True)
        return [size if cyclic else size - self.degree for size, cyclic in sizes]

    def fill(self, i: int, space: SplineSpace, coefficients: Float[np.ndarray, "outputs ..."]) -> None:
        """Write the splines of one theta into the arrays, which are NumPy's."""
        for k, axis in enumerate(space.axes):
            self.knots[i, k] = axis.knots[-1]
            self.knots[i, k, : len(axis.knots)] = axis.knots
            self.intervals[i, k] = axis.spans
        self.coefficients[i][tuple(map(slice, coefficients.shape))] = coefficients

    def widened(self, room: Sequence[int]) -> "StackedSplines":
        """The same splines with room for more intervals."""
        count, outputs = self.coefficients.shape[:2]
        dtype = self.coefficients.dtype
        wide = StackedSplines.blank(count, outputs, room, self.degree, self.periodic, dtype)
        wide.coefficients[tuple(map(slice, self.coefficients.shape))] = self.coefficients
        more = wide.knots.shape[2] - self.knots.shape[2]
        knots = np.pad(self.knots, ((0, 0), (0, 0), (0, more)), mode="edge")
        return StackedSplines(knots, np.asarray(self.intervals), wide.coefficients, self.degree, self.periodic)

    def check(self) -> None:
        """Raise a ValueError unless the arrays are splines: those of a file may hold anything."""
        kinds = self.intervals.dtype.kind, self.knots.dtype.kind, self.coefficients.dtype.kind
        inside = (self.intervals >= 1) & (self.intervals <= np.array(self.room))
        if kinds != ("i", "f", "f") or not inside.all():
            raise ValueError("corrections that are no splines")
        finite = np.isfinite(self.knots).all() and np.isfinite(self.coefficients).all()
        last = np.take_along_axis(self.knots, self.intervals[:, :, None] + self.degree, axis=2)[:, :, 0]
        spanned = last > self.knots[:, :, self.degree]
        if not (finite and spanned.all() and np.all(np.diff(self.knots, axis=2) >= 0)):
            raise ValueError("corrections that are no splines")

    def value(self, number: Any, features: Sequence[Array]) -> Float[Array, " outputs"]:
        """The splines of one theta at a point, which is given by the features of its coordinates."""
        degree, remaining = self.degree, list(features)
        columns, factors = [], []
        for k, periodic in enumerate(self.periodic):
            if periodic:
                sine, cosine = remaining.pop(0), remaining.pop(0)
                scaled = jnp.arctan2(sine, cosine) / jnp.pi
            else:
                scaled = inside(remaining.pop(0))
            knots, intervals = self.knots[number, k], self.intervals[number, k]
            passed = knots[degree:] <= jax.lax.stop_gradient(scaled)
            place = jnp.clip(jnp.sum(passed.astype(jnp.int32)) - 1, 0, intervals - 1)
            column = place + jnp.arange(degree + 1)
            shape = [-1 if j == k else 1 for j in range(len(self.periodic))]
            columns.append((column % intervals if periodic else column).reshape(shape))
            local_knots = jnp.take(knots, place + jnp.arange(2 * degree + 2), mode="clip")
            factors.append(_basis(local_knots, degree, scaled))
        # Rows of one table, so that exports need to look up rows only.
        sizes = self.coefficients.shape[2:]
        rows = number
        for column, size in zip(columns, sizes):
            rows = rows * size + column
        table = jnp.moveaxis(jnp.asarray(self.coefficients), 1, -1).reshape(-1, self.coefficients.shape[1])
        total = jnp.take(table, rows.reshape(-1), axis=0, mode="clip").reshape(*rows.shape, -1)
        for factor in factors:
            total = jnp.tensordot(factor, total, 1)
        return total


def inside(scaled: Any, xp: Any = jnp) -> Any:
    """A scaled value, or the nearer end of [-1, 1] for one that is outside."""
    return xp.where(xp.abs(scaled) > 1 + OUTSIDE, xp.sign(scaled), scaled)


def _array_shapes(
    count: int, outputs: int, room: Sequence[int], degree: int, periodic: Sequence[bool]
) -> list[tuple[int, ...]]:
    """The shapes of knots, intervals and coefficients."""
    sizes = [number if cyclic else number + degree for number, cyclic in zip(room, periodic, strict=True)]
    return [(count, len(sizes), max(room) + 2 * degree + 1), (count, len(sizes)), (count, outputs, *sizes)]


def _basis(knots: Float[Array, " knots"], degree: int, value: Array) -> Float[Array, " splines"]:
    """The splines that are not zero between the two knots in the middle (the recursion of Cox and de Boor)."""
    basis = [jnp.ones_like(value)]
    for order in range(1, degree + 1):
        left = [value - knots[degree + 1 - i] for i in range(order + 1)]
        right = [knots[degree + i] - value for i in range(order + 1)]
        parts = [basis[i] / (knots[degree + i + 1] - knots[degree + 1 - (order - i)]) for i in range(order)]
        zero = [jnp.zeros_like(value)]
        rising = zip([*parts, *zero], right[1:] + zero)
        falling = zip([*zero, *parts], zero + left[order:0:-1])
        basis = [a * b + c * d for (a, b), (c, d) in zip(rising, falling)]
    return jnp.stack(basis)


def composed(function: Callable[[list[Array]], Array], features: Jet) -> Jet:
    """The jet of a function of features that gives an array."""
    named = {str(i): features[i] for i in range(len(features.value))}

    def array(**values: Array) -> dict[str, Array]:
        return {"array": function([values[name] for name in named])}

    return jets.compose(array, named, features.keep)["array"]


class Corrected(eqx.Module):
    """A network with the correction of one theta, whose number is negative if there is none."""

    base: Any
    splines: StackedSplines
    number: Any

    def __call__(self, coordinates: Any, parameters: Any) -> Any:
        raw = self.base(coordinates, parameters)
        if not isinstance(coordinates, Jet):
            return raw + self._added(coordinates)
        return raw + composed(self._added, coordinates)

    def _added(self, features: Any) -> Float[Array, " outputs"]:
        number = jnp.asarray(self.number)
        return jnp.where(number >= 0, self.splines.value(jnp.maximum(number, 0), list(features)), 0.0)


class Corrections(eqx.Module):
    """Corrections at several thetas, with the evidence for each. They stand in for the heads of a surrogate.

    A correction is the error that was estimated at its theta. It is used only if that estimate is resolved.

    Attributes:
        thetas: The thetas.
        splines: The corrections of the raw outputs; zero where they are not used.
        used: Whether each is used: whether the estimate is resolved.
        error_before: Estimated relative L2 error of the base, by theta and output.
        difference: How far two resolutions of the error are apart, relative to it: about what is left of the error.
        reasons: Why each estimate is resolved, or what limits it.
        way: How the surrogate was adapted, as for heads.
    """

    thetas: Points
    splines: StackedSplines
    used: Bool[np.ndarray, " thetas"]
    error_before: Float[np.ndarray, "thetas outputs"]
    difference: Float[np.ndarray, " thetas"]
    reasons: tuple[str, ...] = eqx.field(static=True)
    way: str = eqx.field(static=True, default=WAY)

    @staticmethod
    def of(problem: Problem, thetas: Points, estimates: Sequence[Estimate], dtype: Any) -> "Corrections":
        """The corrections that estimates at these thetas give, in a network's precision."""
        used = np.array([estimate.resolved and estimate.correction is not None for estimate in estimates])
        spaces = [each.correction.space for each, ok in zip(estimates, used) if ok and each.correction is not None]
        degree = spaces[0].axes[0].degree if spaces else 1
        numbers = [[axis.spans for axis in space.axes] for space in spaces]
        room = np.max([[1] * len(problem.coordinates), *numbers], axis=0).tolist()
        splines = StackedSplines.blank(len(thetas), len(problem.outputs), room, degree, periodic_axes(problem), dtype)
        for i, estimate in enumerate(estimates):
            if used[i] and estimate.correction is not None:
                splines.fill(i, estimate.correction.space, estimate.correction.coefficients)
        before = np.array([list(estimate.relative_l2.values()) for estimate in estimates])
        difference = np.array([estimate.difference for estimate in estimates])
        return Corrections(thetas, splines, used, before, difference, tuple(each.reason for each in estimates))

    @staticmethod
    def blank(problem: Problem, count: int, shape: Mapping[str, Any]) -> "Corrections":
        """Corrections at `count` thetas with shapes in place of arrays; `shape` is what `shape` gives."""
        outputs = len(problem.outputs)

        def blank(*sizes: int) -> Any:
            return jax.ShapeDtypeStruct(sizes, float)

        return Corrections(
            blank(count, len(problem.parameters)),
            StackedSplines.shapes(problem, count, outputs, shape["room"], int(shape["degree"])),
            blank(count),
            blank(count, outputs),
            blank(count),
            tuple(map(str, shape["reasons"])),
        )

    def shape(self) -> dict[str, Any]:
        """What `blank` needs besides the arrays, in plain values."""
        return {"room": self.splines.room, "degree": self.splines.degree, "reasons": list(self.reasons)}

    def check(self) -> None:
        """Raise a ValueError unless the arrays can be used: those of a file may hold anything."""
        self.splines.check()
        if len(self.reasons) != len(self.thetas) or self.used.dtype != bool:
            raise ValueError("corrections without their reasons")
        if self.thetas.dtype.kind != "f" or not np.isfinite(self.thetas).all():
            raise ValueError("corrections at thetas that are not finite")

    def joined(self, others: Any) -> "Corrections":
        """These corrections and others. At a theta that both have, the other replaces this one."""
        if not isinstance(others, Corrections):
            raise ProblemError(
                f"A surrogate with corrections cannot take adaptations by {others.way!r}. Adapt the base."
            )
        kept = ~is_among(self.thetas, others.thetas)
        degree = max(self.splines.degree, others.splines.degree)
        room = np.maximum(self.splines.room, others.splines.room).tolist()
        reasons = (*(reason for reason, keep in zip(self.reasons, kept) if keep), *others.reasons)
        first, second = (
            replace(each, splines=each._splines_with(degree, room), reasons=reasons) for each in (self, others)
        )
        return jax.tree.map(lambda a, b: np.concatenate([np.asarray(a)[kept], np.asarray(b)]), first, second)

    def _splines_with(self, degree: int, room: Sequence[int]) -> StackedSplines:
        """The splines with more room. Those of another degree are of a surrogate that uses no correction."""
        splines = self.splines
        if splines.degree == degree:
            return splines.widened(room)
        count, outputs = splines.coefficients.shape[:2]
        return StackedSplines.blank(count, outputs, room, degree, splines.periodic, splines.coefficients.dtype)

    def reason(self, i: int) -> str:
        """Why the correction of a theta is used, or not."""
        verdict = "The correction is used" if self.used[i] else "The correction is not used, the base stays"
        return f"{verdict}. {self.reasons[i]}"

    def network(self, problem: Problem, base: Any, i: int, always: bool = False) -> Any:
        """The base with the correction of a theta, or the base alone if that correction is not used."""
        if not self.used[i]:
            return base
        with jax.enable_x64(precision(base) == jnp.float64):
            one = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[i : i + 1]), self.splines)
            return Corrected(base, one, jnp.zeros((), jnp.int32))

    def at(self, base: Any, theta: Float[Array, " parameters"]) -> Corrected:
        """The network that answers at a theta that may be traced: with its correction if one is used there."""
        dtype = theta.dtype
        there = jnp.all(jnp.asarray(self.thetas, dtype) == theta, axis=1) & jnp.asarray(self.used)
        return Corrected(base, cast(self.splines, dtype), jnp.where(there.any(), there.argmax(), -1))

    def __repr__(self) -> str:
        return f"Corrections: {len(self.thetas)} thetas, {int(np.sum(self.used))} used"

    def _repr_html_(self) -> str:
        rows = {
            ", ".join(f"{value:.6g}" for value in theta): self.reason(i) for i, theta in enumerate(self.thetas[:10])
        }
        more = {"more": f"{len(self.thetas) - 10} thetas"} if len(self.thetas) > 10 else {}
        return html_table(repr(self), rows | more)


def corrections_at(
    estimator: Estimator, network: Any, thetas: ArrayLike, progress: Callable[[int, int], None]
) -> Corrections:
    """The corrections of a network at thetas (thetas, parameters)."""
    problem = estimator.problem
    rows = checked_thetas(problem, thetas, forbid_outside=True)
    if len(rows) == 0:
        raise ProblemError("Thetas to correct need at least one row, but got none.")
    estimates = []
    for theta in rows:
        estimates.append(estimator.at(network, theta))
        progress(len(estimates), len(rows))
    return Corrections.of(problem, rows, estimates, precision(network))


def periodic_axes(problem: Problem) -> list[bool]:
    """Whether each coordinate is periodic."""
    return [axis.scale == "periodic" for axis in problem.coordinates.axes]
