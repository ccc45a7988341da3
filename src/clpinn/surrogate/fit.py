"""Parameters from measurements: nonlinear least squares through a surrogate, with intervals.

Unknown parameters are searched in the unit cube of their box, each on its scale. The model is linearised at the best
fit. Standard errors and intervals are those of the linearised model (Seber and Wild 1989, Nonlinear Regression, ch. 5).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from clpinn.errors import DomainError
from clpinn.formulation.domain import Axis, Box
from clpinn.formulation.problem import Problem
from clpinn.keys import make_key
from clpinn.shown import html_table
from clpinn.surrogate.measurements import Measurements

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CANDIDATES = 64
"""Thetas all over the box whose misfit is computed. Searches start at the best of them."""
STARTS = 8
REWEIGHTINGS = 5
"""How often the noise of several outputs is estimated and the fit is repeated with it."""
EDGE = 1e-4
"""A parameter this close to an end of its axis, as a fraction of the axis, counts as at the edge."""
CONDITION = 1e8
"""A direction is not determined if its eigenvalue of JᵀJ is smaller than the largest by this factor."""
LEVEL = 0.95
"""Confidence level of intervals."""
SAME = 1e-2
"""Two searches that end this close to each other in the unit cube found the same theta."""


@dataclass(frozen=True, repr=False)
class Fit:
    """Parameters that fit measurements best, and how well the measurements determine them.

    Attributes:
        values: The estimates by parameter.
        standard_errors: Their standard errors.
        intervals: Their 95 % intervals. On a log axis an interval is computed for the logarithm.
        covariance: Covariance of the estimates, in the order of `values`.
        noise: Standard deviation of a measurement by output: estimated from the residuals, or as given.
        measured: The measured values by output, (measurements,); NaN where none was measured.
        fitted: The surrogate's values by output.
        residuals: Measured minus fitted values by output.
        at_edge: Parameters at an end of their axis. The best fit may lie outside the box, and their intervals do not
            hold.
        undetermined: Combinations of parameters, in fractions of their axes, that the measurements do not determine.
        condition: Condition number of JᵀJ, with J the derivative of the weighted residuals in the unit cube.
        notes: Everything that a user should know before using the estimates.
    """

    values: dict[str, float]
    standard_errors: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    covariance: Float[np.ndarray, "unknown unknown"]
    noise: dict[str, float]
    measured: dict[str, np.ndarray]
    fitted: dict[str, np.ndarray]
    residuals: dict[str, np.ndarray]
    at_edge: tuple[str, ...]
    undetermined: tuple[str, ...]
    condition: float
    notes: tuple[str, ...]

    def summary(self) -> dict[str, Any]:
        """All figures as plain values, without the single measurements."""
        return {
            "values": dict(self.values),
            "standard_errors": dict(self.standard_errors),
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "noise": dict(self.noise),
            "measurements": {name: int(np.isfinite(row).sum()) for name, row in self.residuals.items()},
            "at_edge": list(self.at_edge),
            "undetermined": list(self.undetermined),
            "condition": self.condition,
            "notes": list(self.notes),
        }

    def plot(self) -> "Figure":
        """A matplotlib figure: measured against fitted values, and the residuals, one row per output."""
        from clpinn.drawing.fits import plot_fit  # here, because matplotlib takes long to import

        return plot_fit(self.measured, self.fitted, self.noise, "\n".join(self._estimates().values()))

    def __repr__(self) -> str:
        return "\n".join([f"Fit: {', '.join(self._estimates().values())}", *self.notes])

    def _repr_html_(self) -> str:
        rows = {name: text.partition(" = ")[2] for name, text in self._estimates().items()}
        rows |= {f"noise of {name}": f"{noise:.3g}" for name, noise in self.noise.items()}
        return html_table("Fit", rows | {f"note {i}": note for i, note in enumerate(self.notes, 1)})

    def _estimates(self) -> dict[str, str]:
        return {
            name: f"{name} = {value:.6g} ± {self.standard_errors[name]:.2g} (95 % from {low:.6g} to {high:.6g})"
            for (name, value), (low, high) in zip(self.values.items(), self.intervals.values(), strict=True)
        }


def fit(
    problem: Problem,
    function: Callable[..., Mapping[str, Array]],
    dtype: Any,
    measurements: Measurements,
    noise: float | Mapping[str, float] | None = None,
    starts: int = STARTS,
) -> Fit:
    """The parameters of `function` that fit measurements best. It is a JAX function by name, computed in `dtype`."""
    if starts < 1:
        raise DomainError(f"A fit needs at least one start, but got {starts}.")
    unknown, outputs = measurements.unknown, tuple(measurements.values)
    axes = tuple(problem.parameters[name] for name in unknown)
    measured = np.stack(list(measurements.values.values()))
    present = np.isfinite(measured)
    count, size = int(present.sum()), len(unknown)
    given = _given_noise(outputs, noise)
    if count < size + (given is None):
        raise DomainError(
            f"{size} unknown parameters and their intervals need more than {count} measurements. Measure more, or give "
            "values of some parameters."
        )
    model = _model(function, unknown, axes, outputs)
    with jax.enable_x64(dtype == jnp.float64):
        columns = {name: jnp.asarray(column, dtype) for name, column in measurements.columns.items()}

        def misfit(unit: np.ndarray) -> np.ndarray:
            return np.asarray(model.values(unit, columns), float) - measured

        def slopes(unit: np.ndarray) -> np.ndarray:
            return np.asarray(model.slopes(unit, columns), float)

        # Without a given noise, outputs first count relative to how much their values vary.
        spread = np.array([_spread(row[row_present]) for row, row_present in zip(measured, present)])
        least = np.finfo(dtype).eps * spread
        sigma = spread if given is None else given
        first = _best_candidates(misfit, present, sigma, size, starts)
        ends = _searches(misfit, slopes, present, sigma, first, axes)
        for _ in range(0 if given is not None else REWEIGHTINGS if len(outputs) > 1 else 1):
            squares = np.where(present, misfit(ends[0].unit) ** 2, 0).sum(axis=1)
            degrees = present.sum(axis=1) * (1 - size / count)  # those of freedom, shared among the outputs
            sigma = np.maximum(np.sqrt(squares / degrees), least)
            ends = _searches(misfit, slopes, present, sigma, [end.unit for end in ends], axes)
        unit = ends[0].unit
        jacobian = (slopes(unit) / sigma[:, None, None])[present]
        fitted = measured + misfit(unit)
    quantile = _quantile(None if given is not None else count - size)
    errors, directions, condition = _determined(jacobian, unknown, quantile)
    deviations = np.sqrt(np.diag(errors))
    rates = np.array([_rate(axis, position) for axis, position in zip(axes, unit)])
    at_edge = tuple(
        name
        for name, axis, position in zip(unknown, axes, unit)
        if axis.scale != "periodic" and not EDGE < position < 1 - EDGE
    )
    return Fit(
        values=dict(zip(unknown, (_value(axis, position) for axis, position in zip(axes, unit)))),
        standard_errors=dict(zip(unknown, (np.abs(rates) * deviations).tolist())),
        intervals={
            name: (_unwrapped(axis, p - quantile * deviation), _unwrapped(axis, p + quantile * deviation))
            for name, axis, p, deviation in zip(unknown, axes, unit, deviations)
        },
        covariance=rates[:, None] * errors * rates,
        noise=dict(zip(outputs, sigma.tolist())),
        measured=dict(zip(outputs, measured)),
        fitted=dict(zip(outputs, fitted)),
        residuals=dict(zip(outputs, measured - fitted)),
        at_edge=at_edge,
        undetermined=directions,
        condition=condition,
        notes=(
            *measurements.notes,
            *_notes(at_edge, directions, () if directions else _others(ends, unknown, axes, size)),
        ),
    )


# The model and its search ------------------------------------------------------------------------------------


class _Model(NamedTuple):
    """The outputs (outputs, measurements) at a point of the unit cube, and their slopes (.., .., unknown)."""

    values: Callable[..., Array]
    slopes: Callable[..., Array]


@lru_cache(maxsize=16)
def _model(
    function: Callable[..., Mapping[str, Array]],
    unknown: tuple[str, ...],
    axes: tuple[Axis, ...],
    outputs: tuple[str, ...],
) -> _Model:
    """Compiled once for all fits of the same parameters to the same outputs."""

    def values(unit: Array, columns: Mapping[str, Array]) -> Array:
        unit = jnp.asarray(unit, next(iter(columns.values())).dtype)
        theta = {name: _on_axis(axis, unit[i], jnp.exp) for i, (name, axis) in enumerate(zip(unknown, axes))}
        answers = function(**columns, **theta)
        return jnp.stack([answers[name] for name in outputs])

    return _Model(jax.jit(values), jax.jit(jax.jacfwd(values)))


class _End(NamedTuple):
    """Where a search ended, and half the sum of squares of the weighted residuals there."""

    unit: Float[np.ndarray, " unknown"]
    cost: float


def _best_candidates(
    misfit: Callable[[np.ndarray], np.ndarray], present: np.ndarray, sigma: np.ndarray, size: int, starts: int
) -> list[np.ndarray]:
    """Points all over the unit cube, those with the smallest misfit."""
    cube = Box(**{f"axis{i}": (0, 1) for i in range(size)})
    points = cube.sample(max(CANDIDATES, starts), make_key(0))
    costs = np.array([np.sum((misfit(point) / sigma[:, None])[present] ** 2) for point in points])
    finite = np.isfinite(costs)
    if not finite.any():
        raise DomainError(
            "The surrogate has no finite value at the measured points for any theta of the box. Are they in the domain?"
        )
    order = np.argsort(costs[finite])[:starts]
    return list(points[finite][order])


def _searches(
    misfit: Callable[[np.ndarray], np.ndarray],
    slopes: Callable[[np.ndarray], np.ndarray],
    present: np.ndarray,
    sigma: np.ndarray,
    starts: Sequence[np.ndarray],
    axes: tuple[Axis, ...],
) -> list[_End]:
    """The ends of searches from several starts, the best first."""
    from scipy.optimize import least_squares  # here, because it takes long to import

    periodic = np.array([axis.scale == "periodic" for axis in axes])
    bounds = np.where(periodic, -np.inf, 0.0), np.where(periodic, np.inf, 1.0)
    inside = np.where(periodic, -np.inf, EDGE / 100), np.where(periodic, np.inf, 1 - EDGE / 100)
    ends = []

    def jacobian(unit: np.ndarray) -> np.ndarray:
        return (slopes(unit) / sigma[:, None, None])[present]

    untyped: Any = jacobian  # SciPy's types know no function here
    for start in starts:
        solution = least_squares(
            lambda unit: (misfit(unit) / sigma[:, None])[present],
            np.clip(start, *inside),
            untyped,
            bounds=bounds,
            xtol=1e-12,
            ftol=1e-12,
            gtol=1e-12,
        )
        ends.append(_End(solution.x, float(solution.cost)))
    return sorted(ends, key=lambda end: end.cost)


# Statistics --------------------------------------------------------------------------------------------------


def _given_noise(outputs: tuple[str, ...], noise: float | Mapping[str, float] | None) -> np.ndarray | None:
    if noise is None:
        return None
    by_name = noise if isinstance(noise, Mapping) else dict.fromkeys(outputs, noise)
    if set(by_name) != set(outputs) or not all(math.isfinite(s) and s > 0 for s in by_name.values()):
        raise DomainError(f"noise must be a number above zero for each of {', '.join(outputs)}, but got {noise!r}.")
    return np.array([float(by_name[name]) for name in outputs])


def _spread(values: np.ndarray) -> float:
    """How much values vary; their size if they do not."""
    return float(np.std(values) or np.max(np.abs(values)) or 1.0)


def _quantile(degrees: int | None) -> float:
    """Half the width of an interval in standard errors: by the t distribution, or by the normal one without degrees."""
    from scipy.stats import norm, t  # here, because it takes long to import

    return float(norm.ppf((1 + LEVEL) / 2) if degrees is None else t.ppf((1 + LEVEL) / 2, degrees))


def _determined(
    jacobian: Float[np.ndarray, "rows unknown"], unknown: tuple[str, ...], quantile: float
) -> tuple[np.ndarray, tuple[str, ...], float]:
    """The covariance in the unit cube, the directions that are not determined, and the condition number of JᵀJ.

    A direction is not determined if it is close to the null space of J, or if its interval is longer than an axis.
    """
    _, sizes, rows = np.linalg.svd(jacobian, full_matrices=False)
    floored = np.maximum(sizes, max(float(sizes[0]) * np.finfo(float).eps, 1e-100))
    covariance = (rows.T / floored**2) @ rows
    undetermined = []
    for size, row in zip(floored, rows):
        if (floored[0] / size) ** 2 > CONDITION or 2 * quantile / size > 1:
            large = [(part, name) for part, name in zip(row, unknown) if abs(part) > 0.1 * np.max(np.abs(row))]
            sign = math.copysign(1, large[0][0])
            terms = " ".join(f"{sign * part:+.2f} {name}" for part, name in large)
            undetermined.append(terms.removeprefix("+"))
    return covariance, tuple(undetermined), float((floored[0] / floored[-1]) ** 2)


def _others(ends: list[_End], unknown: tuple[str, ...], axes: tuple[Axis, ...], size: int) -> tuple[str, ...]:
    """Thetas far from the best one that fit the measurements about as well."""
    from scipy.stats import chi2

    allowed = ends[0].cost + float(chi2.ppf(LEVEL, size)) / 2
    texts: list[str] = []
    seen = [ends[0].unit]
    for end in ends[1:]:
        if end.cost <= allowed and all(np.max(np.abs(end.unit - other)) > SAME for other in seen):
            seen.append(end.unit)
            texts.append(", ".join(f"{n} = {_value(a, p):.6g}" for n, a, p in zip(unknown, axes, end.unit)))
    return tuple(texts)


def _notes(at_edge: tuple[str, ...], directions: tuple[str, ...], others: tuple[str, ...]) -> list[str]:
    notes = []
    if at_edge:
        notes.append(
            f"At the edge of the box: {', '.join(at_edge)}. The best fit may lie outside, and intervals do not hold "
            "there. Widen the box and train again."
        )
    if directions:
        notes.append(
            f"Not determined by these measurements: {'; '.join(directions)} (in fractions of the axes). Measure "
            "elsewhere or other outputs, or give one of these parameters."
        )
    if others:
        notes.append(f"Other thetas fit about as well: {'; '.join(others)}. More measurements can tell them apart.")
    return notes


# Axes --------------------------------------------------------------------------------------------------------


def _on_axis(axis: Axis, unit: Any, exp: Callable[[Any], Any]) -> Any:
    """The value at a point of the unit interval, also beyond its ends."""
    if axis.scale == "log":
        return exp(math.log(axis.low) + unit * math.log(axis.high / axis.low))
    return axis.low + unit * (axis.high - axis.low)


def _value(axis: Axis, unit: float) -> float:
    """The value of a parameter. An angle is turned back into its axis."""
    return float(_on_axis(axis, unit % 1 if axis.scale == "periodic" else unit, np.exp))


def _unwrapped(axis: Axis, unit: float) -> float:
    """The end of an interval. One on a periodic axis may pass the end of the axis."""
    with np.errstate(over="ignore"):
        return float(_on_axis(axis, unit, np.exp))


def _rate(axis: Axis, unit: float) -> float:
    """The derivative of the value by the position in the unit interval."""
    if axis.scale == "log":
        return _value(axis, unit) * math.log(axis.high / axis.low)
    return axis.high - axis.low
