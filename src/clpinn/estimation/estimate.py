"""The error of a network at one theta, by solving the linearised equations for it.

If û solves R(u) = 0 only nearly, the solution is û + e with R'(û) e = -R(û) to first order. The error e is looked for
in a spline space, by least squares over the equation and the soft conditions; hard conditions hold by the transform.
The space is refined where something is left, until two resolutions agree. They decide whether the estimate is resolved:
what is left of the residual does not (corners and kinks leave much, and move the solution little). A large error takes
more than one Newton step.
"""

import math
import time
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.linalg import LinAlgError

from clpinn.errors import ProblemError
from clpinn.estimation.jumps import jumps_by_axis
from clpinn.estimation.least_squares import assembled, largest_left, relative_weights, solved
from clpinn.estimation.meshes import Breaks, curvature_breaks, refined_breaks, with_jumps
from clpinn.estimation.perturbed_programs import PerturbedPrograms, programs_of
from clpinn.estimation.results import Correction, Estimate, relative_difference, relative_norms
from clpinn.estimation.splines import Splines, SplineSpace
from clpinn.formulation.domain import Grid
from clpinn.formulation.identity import Identity
from clpinn.formulation.perturbed import from_scaled
from clpinn.formulation.problem import Problem
from clpinn.networks.architecture import cast

TOLERANCE = 0.15
"""Two resolutions agree if their errors differ by less than this fraction. Two weightings must agree as well."""
FUNCTIONS = 12000
"""Unknowns at most."""
INTERVALS = {1: 24, 2: 12, 3: 6}
"""Intervals of each axis at the start, by the number of coordinates. More coordinates have too many products."""
DEGREE, DEGREE_3 = 5, 4
"""Degree of the splines, with up to two and with three coordinates. An equation of high order gets a higher one."""
ABOVE_ORDER = 3
"""The degree is at least the highest order of a derivative plus this."""
OVERSAMPLING = 2.0
"""Points on an axis for each spline, at least."""
NOT_FINITE = "The error is not estimated: residuals with their derivatives are not finite everywhere."
LARGE = 0.02
"""A relative error above this takes more Newton steps."""
NEWTON_STEPS, NEWTON_CHANGE = 8, 0.03
"""Newton steps at most, and the relative change at which they end."""
HOPELESS = 5
"""So many resolutions in a row that leave a doubt, or at which Newton's method does not converge, end an estimate."""
SMALL_DOUBT, FALLING, FALLS = 0.5, 0.75, 2
"""A doubt below the first is gone, too, if it fell to the second fraction or less at so many refinements in a row."""
NEARLY_SOLVED = 0.05
"""If only this fraction of the residual is left, the next resolution is a little finer and not much."""
LITTLE, SLOW, FAST = 1.2, 1.15, 0.65
"""Growth of the number of intervals: a little, or for an axis with none and with most of what is left (SLOW + FAST)."""
SAMPLES = {1: 801, 2: 129, 3: 33}
"""Values on each axis of the grid on which the surrogate's curvature is seen."""


class Estimator:
    """Estimates the error of networks that solve one problem."""

    def __init__(
        self, problem: Problem, tolerance: float = TOLERANCE, functions: int = FUNCTIONS, seconds: float | None = None
    ):
        """Estimates end when resolutions agree within `tolerance`, or before `functions` are exceeded.

        No finer resolution is begun if it would end after `seconds`, by the time that those before took.
        """
        if not (0 < tolerance < 1) or functions < 1 or (seconds is not None and not seconds > 0):
            raise ProblemError(
                "An estimate needs a tolerance between 0 and 1, at least one function and a time above zero, but got "
                f"{tolerance}, {functions} and {seconds}."
            )
        self.problem = problem
        self.tolerance, self.functions, self.seconds = tolerance, functions, seconds
        self.evaluation = problem.evaluation

    def at(self, network: Any, theta: Float[np.ndarray, " parameters"]) -> Estimate:
        """The error of a network at a theta."""
        if self._impossible is not None:
            return self._without_answer(self._impossible)
        try:
            return _Search(self, self._programs, _double(network), np.asarray(theta, float)).estimate()
        except (MemoryError, ArithmeticError, LinAlgError, ValueError) as error:
            # An estimate comes at the end of long work, which must not be lost for it.
            return self._without_answer(f"The error is not estimated: {type(error).__name__}: {error}")

    def outputs(self, network: Any, theta: Float[np.ndarray, " parameters"]) -> Float[np.ndarray, "points outputs"]:
        """The outputs of a network at a theta, on the evaluation grid."""
        nothing = np.zeros((len(self.evaluation), len(self.problem.outputs)))
        return self._programs.values(_double(network), self.evaluation.points, np.asarray(theta, float), nothing)

    @cached_property
    def _programs(self) -> PerturbedPrograms:
        return programs_of(Identity(self.problem))

    @cached_property
    def _impossible(self) -> str | None:
        """Why there are no estimates for this problem, if so."""
        coordinates = len(self.problem.coordinates)
        if coordinates not in INTERVALS:
            return f"The error is not estimated: the problem has {coordinates} coordinates, and splines serve up to 3."
        try:
            _ = self._programs
        except ProblemError as error:
            return f"The error is not estimated: {error}."
        return None

    def _without_answer(self, reason: str) -> Estimate:
        nothing = dict.fromkeys(self.problem.outputs, math.nan)
        error = np.full((len(self.evaluation), len(self.problem.outputs)), math.nan)
        return Estimate(nothing, nothing, error, False, reason, {}, math.nan, 0, None)


@dataclass(frozen=True)
class _Level:
    """The error at one resolution."""

    space: SplineSpace
    per_interval: list[int]
    """Points of the equation in an interval of each axis."""
    relative_weights: list[Float[np.ndarray, " elements"]]
    """Factors that make all residuals of the network count alike, by block."""
    left: list[Float[np.ndarray, "elements rows"]]
    """What is left of the equation's residuals, by block."""
    largest_left: float
    """The largest fraction of any residual that is left."""
    unknowns: np.ndarray
    corrected: Float[np.ndarray, "points outputs"]
    steps: int
    converged: bool

    @property
    def counts(self) -> str:
        return " × ".join(map(str, self.space.counts))


class _Search:
    """The search for the error at one theta."""

    def __init__(self, estimator: Estimator, programs: PerturbedPrograms, network: Any, theta: np.ndarray):
        self.estimator, self.programs, self.network, self.theta = estimator, programs, network, theta
        self.problem, self.grid = estimator.problem, estimator.evaluation
        order = max(max(index) for index in programs.indices)
        few = len(self.problem.coordinates) < 3
        self.degree = max(DEGREE if few else DEGREE_3, order + ABOVE_ORDER)
        self.base = self._values(np.zeros((len(self.grid), len(self.problem.outputs))))

    def estimate(self) -> Estimate:
        start = time.monotonic()
        breaks = self._first_breaks()
        size = self._space(breaks).size
        if size > self.estimator.functions:
            limit = f"the coarsest resolution needs {size} functions, more than {self.estimator.functions}"
            return self.estimator._without_answer(f"The error is not estimated: {limit}.")
        before: _Level | None = None
        difference, in_doubt = math.inf, 0
        moves: list[float] = []
        while True:
            began = time.monotonic()
            level = self._level(breaks)
            if level is None:
                return self.estimator._without_answer(NOT_FINITE)
            error = level.corrected - self.base
            if before is not None:
                difference = relative_difference(error, before.corrected - self.base, level.corrected)
            doubt = ""
            if level.converged and difference <= self.estimator.tolerance:
                moves.append(self._moved(level))
                if moves[-1] > self.estimator.tolerance:
                    doubt = f"the error moves by {_percent(moves[-1])} if all residuals count alike"
                if not doubt or _vanishing(moves):
                    return self._result(level, difference, True, self._agreement(level, before, difference, doubt))
            else:
                moves.clear()
            in_doubt = in_doubt + 1 if doubt or not level.converged else 0
            breaks = self._refined(level)
            needed = self._space(breaks).size
            cost = (time.monotonic() - began) * (needed / level.space.size) ** 1.5
            if needed > self.estimator.functions:
                limit = f"a finer resolution needs {needed} functions, more than {self.estimator.functions}"
            elif in_doubt == HOPELESS:
                limit = f"the last {HOPELESS} resolutions did not change that"
            elif self.estimator.seconds is not None and time.monotonic() - start + cost > self.estimator.seconds:
                limit = f"a finer resolution needs more than {self.estimator.seconds:g} s"
            else:
                before = level
                continue
            return self._result(level, difference, False, self._disagreement(level, before, difference, doubt, limit))

    # One resolution ----------------------------------------------------------------------------------------------

    def _level(self, breaks: list[Breaks]) -> _Level | None:
        """The error in one spline space; None if the residuals are not finite or nothing determines the error."""
        space = self._space(breaks)
        per_interval = [
            max(self.degree - 1, math.ceil(OVERSAMPLING * axis.count / axis.intervals)) for axis in space.axes
        ]
        return self._newton(space, per_interval, None)

    def _newton(self, space: SplineSpace, per_interval: list[int], weights: list[np.ndarray] | None) -> _Level | None:
        """Newton's method from the network. Weights are factors of the rows by block and element."""
        unknowns = np.zeros(space.size)
        whole: list[np.ndarray] = []
        relative: list[np.ndarray] = []
        for step in range(1, NEWTON_STEPS + 1):
            terms = list(
                assembled(self.programs, space, self.network, self.theta, unknowns, self._amplitudes, per_interval)
            )
            blocks = [block for term in terms for block in term]
            if not all(np.isfinite(block.residuals).all() and np.isfinite(block.matrix).all() for block in blocks):
                return None
            if step == 1:
                whole, relative = [block.residuals for block in blocks], relative_weights(blocks)
            if weights is not None:
                blocks = [block.times(weight) for block, weight in zip(blocks, weights, strict=True)]
            solution = solved(space.size, blocks)
            if solution is None:
                return None
            unknowns = unknowns + solution.unknowns
            raw, change = (self._raw(space, vector) for vector in (unknowns, solution.unknowns))
            corrected = self._values(raw)
            if not np.isfinite(corrected).all():
                return None
            moved = np.linalg.norm(change) / max(float(np.linalg.norm(raw)), 1e-300)
            small = np.nan_to_num(relative_norms(corrected - self.base, corrected), nan=math.inf).max() < LARGE
            converged = moved < NEWTON_CHANGE or (step == 1 and small)
            if converged:
                break
        left = solution.left[: len(terms[0])]
        fraction = largest_left(terms, solution.left, whole)
        return _Level(space, per_interval, relative, left, fraction, unknowns, corrected, step, bool(converged))

    def _moved(self, level: _Level) -> float:
        """How far the error moves if all residuals count alike, relative to the error.

        Where residuals vanish with the correction, it does not matter how they are weighted. Otherwise least squares
        is a compromise, and one that leaves a small residual alone may hide a large error: a start value of 1e-3 from
        which an epidemic grows.
        """
        other = self._newton(level.space, level.per_interval, level.relative_weights)
        if other is None or not other.converged:
            return math.inf
        return relative_difference(level.corrected - self.base, other.corrected - self.base, level.corrected)

    def _raw(self, space: SplineSpace, unknowns: np.ndarray) -> Float[np.ndarray, "points outputs"]:
        return self._correction(space, unknowns).on_grid(self.problem, self.grid)

    def _correction(self, space: SplineSpace, unknowns: np.ndarray) -> Correction:
        scale = self._amplitudes.reshape(-1, *[1] * len(space.axes))
        return Correction(space, space.coefficients(unknowns) * scale)

    def _values(self, raw: np.ndarray) -> Float[np.ndarray, "points outputs"]:
        return self.programs.values(self.network, self.grid.points, self.theta, raw)

    # Meshes ------------------------------------------------------------------------------------------------------

    @cached_property
    def _amplitudes(self) -> Float[np.ndarray, " outputs"]:
        """The size of a perturbation of each output: that of the output itself."""
        spread = self.base.std(axis=0)
        size = np.where(spread > 0, spread, np.abs(self.base).max(axis=0))
        return np.where(size > 0, size, 1.0)

    def _first_breaks(self) -> list[Breaks]:
        box, side = self.problem.coordinates, SAMPLES[len(self.problem.coordinates)]
        scaled = np.linspace(-1, 1, side)
        points = Grid(**{name: from_scaled(axis, scaled) for name, axis in zip(box, box.axes)}).points
        nothing = np.zeros((len(points), len(self.problem.outputs)))
        values = self.programs.values(self.network, points, self.theta, nothing)
        intervals = INTERVALS[len(box)]
        counts = [max(intervals, self.degree + 1)] * len(box)
        breaks = curvature_breaks(scaled, values.reshape(*[side] * len(box), -1), counts)
        return [with_jumps(each, jumps) for each, jumps in zip(breaks, self._jumps, strict=True)]

    @cached_property
    def _jumps(self) -> list[Breaks]:
        """Where the equation's coefficients or sources jump, by axis; a periodic axis is not searched."""
        axes = self.problem.coordinates.axes
        shape = (len(self.problem.outputs), len(self.programs.indices))

        def numbers(scaled: np.ndarray) -> np.ndarray:
            points = np.stack([from_scaled(axis, column) for axis, column in zip(axes, scaled.T)], axis=1)
            residuals, slopes = self.programs.residuals(
                0, self.network, points, self.theta, np.zeros((len(points), *shape))
            )
            return np.concatenate([residuals, slopes.reshape(len(points), -1)], axis=1)

        found = jumps_by_axis(numbers, len(axes))
        return [np.zeros(0) if axis.scale == "periodic" else jumps for axis, jumps in zip(axes, found)]

    def _multiplicities(self, k: int, breaks: Breaks) -> np.ndarray | None:
        """How often each inner break is a knot: at a jump the highest derivatives may jump, those below may not."""
        if not len(self._jumps[k]):
            return None
        order = max(1, *(index[k] for index in self.programs.indices))
        return np.where(np.isin(breaks[1:-1], self._jumps[k]), self.degree + 1 - order, 1)

    def _refined(self, level: _Level) -> list[Breaks]:
        """The breaks of the next resolution. All axes grow, those along which most is left most."""
        axes = level.space.axes
        left = _left_by_axis(level)
        total = np.array([float(part.sum()) for part in left])
        share = np.sqrt(total / total.max()) if total.max() > 0 else np.zeros(len(axes))
        growth = np.full(len(axes), LITTLE) if level.largest_left < NEARLY_SOLVED else SLOW + FAST * share
        while True:
            counts = [max(axis.intervals + 1, math.ceil(axis.intervals * factor)) for axis, factor in zip(axes, growth)]
            breaks = [
                with_jumps(refined_breaks(axis.breaks, part, count, axis.periodic), jumps)
                for axis, part, count, jumps in zip(axes, left, counts, self._jumps, strict=True)
            ]
            # Rather a smaller step than none, if the next one would be too large.
            if self._space(breaks).size <= self.estimator.functions or growth.max() <= LITTLE:
                return breaks
            growth = np.maximum(1 + 0.8 * (growth - 1), np.minimum(growth, LITTLE))

    def _space(self, breaks: list[Breaks]) -> SplineSpace:
        splines = [
            Splines(each, self.degree, axis.scale == "periodic", self._multiplicities(k, each))
            for k, (each, axis) in enumerate(zip(breaks, self.problem.coordinates.axes, strict=True))
        ]
        return SplineSpace(tuple(splines), len(self.problem.outputs))

    # Results -----------------------------------------------------------------------------------------------------

    def _result(self, level: _Level, difference: float, resolved: bool, reason: str) -> Estimate:
        error = level.corrected - self.base
        names = self.problem.outputs
        relative = relative_norms(error, level.corrected)
        return Estimate(
            dict(zip(names, relative.tolist())),
            dict(zip(names, np.abs(error).max(axis=0).tolist())),
            error,
            resolved,
            reason,
            dict(zip(self.problem.coordinates, level.space.counts)),
            difference,
            level.steps,
            self._correction(level.space, level.unknowns),
        )

    def _agreement(self, level: _Level, before: _Level | None, difference: float, doubt: str) -> str:
        assert before is not None
        steps = f", {level.steps} Newton steps" if level.steps > 1 else ""
        splines = f"{before.counts} and {level.counts} splines"
        vanishing = f" Though {doubt}, it moves by less with each resolution." if doubt else ""
        return f"Two resolutions agree to {_percent(difference)}: {splines}{steps}.{vanishing}"

    def _disagreement(self, level: _Level, before: _Level | None, difference: float, doubt: str, limit: str) -> str:
        if not level.converged:
            return (
                f"Newton's method does not converge in {level.steps} steps with {level.counts} splines, so the error "
                f"is too large to be estimated from here, or the equations have no solution nearby; {limit}."
            )
        if doubt:
            return f"Two resolutions agree, but {doubt}: small residuals may hide a large error; {limit}."
        if before is None:
            return f"There is one resolution only, {level.counts} splines: {limit}."
        return (
            f"Two resolutions, {before.counts} and {level.counts} splines, differ by {_percent(difference)}, more "
            f"than {_percent(self.estimator.tolerance)}; {limit}."
        )


def _left_by_axis(level: _Level) -> list[Float[np.ndarray, " intervals"]]:
    """How much is left of the equation's residual by interval of each axis: its variation along that axis.

    What the splines of an axis do not resolve varies along it inside the intervals.
    """
    axes = level.space.axes
    left = np.concatenate(level.left)
    left = left.reshape(*(axis.intervals for axis in axes), *level.per_interval, -1)
    by_axis = []
    for k in range(len(axes)):
        varying = left - left.mean(axis=len(axes) + k, keepdims=True)
        by_axis.append(np.sum(varying**2, axis=tuple(j for j in range(left.ndim) if j != k)))
    return by_axis


def _vanishing(moves: list[float]) -> bool:
    """Whether a doubt falls by much with each refinement. Where a small residual hides a large error, it stays."""
    last = moves[-FALLS - 1 :]
    falls = all(after <= FALLING * before for before, after in pairwise(last))
    return len(last) > FALLS and falls and last[-1] <= SMALL_DOUBT


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2g} %"


def _double(network: Any) -> Any:
    with jax.enable_x64(True):
        return cast(network, jnp.float64)
