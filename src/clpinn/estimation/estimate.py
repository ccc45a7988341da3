"""The error of a network at one theta, by solving the linearised equations for it.

If û solves R(u) = 0 only nearly, the solution is û + e with R'(û) e = -R(û) to first order. The error e is looked for
in a spline space, by least squares over the equation and the soft conditions; hard conditions hold by the transform.
The space is refined where something is left, until two resolutions agree. They decide whether the estimate is resolved:
what is left of the residual does not (corners and kinks leave much, and move the solution little). A large error takes
more than one Newton step.
"""

import math
import time
from collections.abc import Sequence
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
from clpinn.estimation.cut_domain import cut_domain
from clpinn.estimation.elements import BoxElements, Elements, elements_of
from clpinn.estimation.integral_rows import IntegralRows
from clpinn.estimation.least_squares import assembled, extension, largest_left, relative_weights, solved
from clpinn.estimation.perturbed_programs import PerturbedPrograms, programs_of
from clpinn.estimation.results import Correction, Estimate, relative_difference, relative_norms, scattered
from clpinn.estimation.spaces import INTERVALS, Spaces
from clpinn.estimation.splines import SplineSpace
from clpinn.formulation.identity import Identity
from clpinn.formulation.problem import Problem
from clpinn.networks.architecture import cast

TOLERANCE = 0.15
"""Two resolutions agree if their errors differ by less than this fraction. Two weightings must agree as well."""
FUNCTIONS = 12000
"""Unknowns at most."""
NOT_FINITE = "The error is not estimated: residuals with their derivatives are not finite everywhere."
NOT_DETERMINED = (
    "The equations and conditions do not determine the solution: it can change by as much as it is large, and no "
    "residual changes. Often a value or a mean is missing, as of a pressure."
)
NO_CHANGE, VISIBLE = 1e-10, 1e-2
"""If the residuals change by less than the first, and the solution by more than the second of its size, the solution is
not determined."""
FEWEST = 16
"""Points of the evaluation grid that must be inside the domain: there resolutions are compared."""
LARGE = 0.02
"""A relative error above this takes more Newton steps."""
NEWTON_STEPS, NEWTON_CHANGE = 8, 0.03
"""Newton steps at most, and the relative change at which they end."""
HOPELESS = 5
"""So many resolutions in a row that leave a doubt, or at which Newton's method does not converge, end an estimate."""
SMALL_DOUBT, FALLING, FALLS = 0.5, 0.75, 2
"""A doubt below the first is gone, too, if it fell to the second fraction or less at so many refinements in a row."""


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
        """The outputs of a network at a theta, on the evaluation grid; NaN outside of a domain that is a shape."""
        domain, points = cut_domain(self.problem, theta), self.evaluation.points
        inside = np.ones(len(points), bool) if domain is None else domain.contains(points)
        nothing = np.zeros((int(inside.sum()), len(self.problem.outputs)))
        values = self._programs.values(_double(network), points[inside], np.asarray(theta, float), nothing)
        return scattered(values, inside)

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
    by_term: list[Sequence[Elements]]
    """Where the equation and each condition hold."""
    integrals: list[IntegralRows]
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
    determined: bool
    """Whether every change of the solution changes a residual."""

    @property
    def everywhere(self) -> BoxElements:
        """The elements of the equation."""
        (elements,) = self.by_term[0]
        assert isinstance(elements, BoxElements)
        return elements

    @property
    def counts(self) -> str:
        return " × ".join(map(str, self.space.counts))


class _Search:
    """The search for the error at one theta."""

    def __init__(self, estimator: Estimator, programs: PerturbedPrograms, network: Any, theta: np.ndarray):
        self.estimator, self.programs, self.network, self.theta = estimator, programs, network, theta
        self.problem, self.grid = estimator.problem, estimator.evaluation
        self.domain = cut_domain(self.problem, theta)
        self.spaces = Spaces(programs, network, theta, estimator.functions, self.domain)
        self.inside = np.ones(len(self.grid), bool) if self.domain is None else self.domain.contains(self.grid.points)
        self.base = self._values(np.zeros((int(self.inside.sum()), len(self.problem.outputs))))

    def estimate(self) -> Estimate:
        start = time.monotonic()
        if self.inside.sum() < min(FEWEST, len(self.grid)):
            count = f"{self.inside.sum()} of the {len(self.grid)} points of the evaluation grid are"
            return self.estimator._without_answer(
                f"The error is not estimated: {count} inside the domain. Give the problem a finer grid: `evaluation`."
            )
        space = self.spaces.first()
        if space.size > self.estimator.functions:
            limit = f"the coarsest resolution needs {space.size} functions, more than {self.estimator.functions}"
            return self.estimator._without_answer(f"The error is not estimated: {limit}.")
        before: _Level | None = None
        difference, in_doubt = math.inf, 0
        moves: list[float] = []
        while True:
            began = time.monotonic()
            level = self._level(space)
            if level is None:
                return self.estimator._without_answer(NOT_FINITE)
            error = level.corrected - self.base
            if not level.determined:
                return self._result(level, difference, False, NOT_DETERMINED)
            if before is not None:
                difference = relative_difference(error, before.corrected - self.base, level.corrected)
            doubt = ""
            if level.converged and difference <= self.estimator.tolerance:
                moves.append(self._moved(level))
                if moves[-1] > self.estimator.tolerance:
                    doubt = f"the error moves by {_percent(moves[-1])} if all residuals count alike"
                if not doubt or _vanishing(moves):
                    return self._agreed(level, difference, self._agreement(level, before, difference, doubt))
            else:
                moves.clear()
            in_doubt = in_doubt + 1 if doubt or not level.converged else 0
            space = self.spaces.finer(level.space, level.everywhere, level.left, level.largest_left)
            cost = (time.monotonic() - began) * (space.size / level.space.size) ** 1.5
            if space.size > self.estimator.functions:
                limit = f"a finer resolution needs {space.size} functions, more than {self.estimator.functions}"
            elif in_doubt == HOPELESS:
                limit = f"the last {HOPELESS} resolutions did not change that"
            elif self.estimator.seconds is not None and time.monotonic() - start + cost > self.estimator.seconds:
                limit = f"a finer resolution needs more than {self.estimator.seconds:g} s"
            else:
                before = level
                continue
            return self._result(level, difference, False, self._disagreement(level, before, difference, doubt, limit))

    # One resolution ----------------------------------------------------------------------------------------------

    def _level(self, space: SplineSpace) -> _Level | None:
        """The error in one spline space; None if the residuals are not finite or nothing determines the error."""
        per_interval = self.spaces.points_per_interval(space)
        by_term = [elements_of(self.problem, space, term, per_interval, self.domain) for term in self.programs.terms]
        numbers = range(len(self.programs.integrals))
        integrals = [IntegralRows(self.programs, number, space, self.theta, per_interval) for number in numbers]
        return self._newton(space, by_term, integrals, None)

    def _newton(
        self,
        space: SplineSpace,
        by_term: list[Sequence[Elements]],
        integrals: list[IntegralRows],
        weights: list[np.ndarray] | None,
    ) -> _Level | None:
        """Newton's method from the network. Weights are factors of the rows by block and element."""
        unknowns = np.zeros(space.size)
        everywhere = by_term[0][0]
        assert isinstance(everywhere, BoxElements)
        outside = extension(everywhere, self.spaces.extension_order)
        whole: list[np.ndarray] = []
        relative: list[np.ndarray] = []
        for step in range(1, NEWTON_STEPS + 1):
            terms = list(assembled(self.programs, by_term, self.network, self.theta, unknowns, self._amplitudes))
            blocks = [block for term in terms for block in term]
            wide = [rows.block(self.network, unknowns, self._amplitudes) for rows in integrals]
            finite = (np.isfinite(b.residuals).all() and np.isfinite(b.matrix).all() for b in (*blocks, *wide))
            if not all(finite):
                return None
            if step == 1:
                whole, relative = [block.residuals for block in blocks], relative_weights(blocks)
            least = 1.0
            if weights is not None:
                blocks = [block.times(weight) for block, weight in zip(blocks, weights, strict=True)]
                every = np.concatenate(weights)
                least, middle = float(every.min()), np.full(1, np.median(every))
                wide = [block.times(middle) for block in wide]
            blocks += [block.at(unknowns).times(np.full(len(block.columns), least)) for block in outside]
            solution = solved(space.size, blocks, wide)
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
        weakest, least_change = solution.weakest()
        determined = True
        if least_change < NO_CHANGE:
            # Unknowns that no residual sees may be some that the answer does not see either.
            seen = self._values(raw + self._raw(space, weakest)) - corrected
            determined = not np.any(np.abs(seen) > VISIBLE * self._amplitudes)
        fraction = largest_left(terms, solution.left, whole)
        return _Level(
            space,
            by_term,
            integrals,
            relative,
            left,
            fraction,
            unknowns,
            corrected,
            step,
            bool(converged),
            determined,
        )

    def _moved(self, level: _Level) -> float:
        """How far the error moves if all residuals count alike, relative to the error.

        Where residuals vanish with the correction, it does not matter how they are weighted. Otherwise least squares
        is a compromise, and one that leaves a small residual alone may hide a large error: a start value of 1e-3 from
        which an epidemic grows.
        """
        other = self._newton(level.space, level.by_term, level.integrals, level.relative_weights)
        if other is None or not other.converged:
            return math.inf
        return relative_difference(level.corrected - self.base, other.corrected - self.base, level.corrected)

    def _raw(self, space: SplineSpace, unknowns: np.ndarray) -> Float[np.ndarray, "points outputs"]:
        return self._correction(space, unknowns).on_grid(self.problem, self.grid)[self.inside]

    def _correction(self, space: SplineSpace, unknowns: np.ndarray) -> Correction:
        scale = self._amplitudes.reshape(-1, *[1] * len(space.axes))
        return Correction(space, space.coefficients(unknowns) * scale)

    def _values(self, raw: np.ndarray) -> Float[np.ndarray, "points outputs"]:
        return self.programs.values(self.network, self.grid.points[self.inside], self.theta, raw)

    @cached_property
    def _amplitudes(self) -> Float[np.ndarray, " outputs"]:
        """The size of a perturbation of each output: that of the output itself."""
        spread = self.base.std(axis=0)
        size = np.where(spread > 0, spread, np.abs(self.base).max(axis=0))
        return np.where(size > 0, size, 1.0)

    # Results -----------------------------------------------------------------------------------------------------

    def _agreed(self, level: _Level, difference: float, reason: str) -> Estimate:
        """The result where two resolutions agree."""
        relative = relative_norms(level.corrected - self.base, level.corrected)
        zero = [name for name, error in zip(self.problem.outputs, relative) if math.isnan(error)]
        note = f" {', '.join(zero)} is zero here, so it has no relative error." if zero else ""
        return self._result(level, difference, True, reason + note)

    def _result(self, level: _Level, difference: float, resolved: bool, reason: str) -> Estimate:
        error, names = level.corrected - self.base, self.problem.outputs
        relative = relative_norms(error, level.corrected)
        return Estimate(
            dict(zip(names, relative.tolist())),
            dict(zip(names, np.abs(error).max(axis=0).tolist())),
            scattered(error, self.inside),
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
