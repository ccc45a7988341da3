"""A run that ends at a given error: the worst estimated error over the box, looked at while training goes on."""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from clpinn.estimation.estimate import Estimator
from clpinn.formulation.domain import Points
from clpinn.formulation.problem import Problem
from clpinn.formulation.thetas import is_among, spread_thetas, theta_text, to_unit
from clpinn.surrogate.box_correction import at_theta
from clpinn.surrogate.correct_box import BoxResult, correct_box, usual_checks
from clpinn.surrogate.error_map import BOUND
from clpinn.surrogate.error_process import process_through

THETAS, FURTHER = 16, 8
"""Thetas that are looked at first, corners among them; then so many where the error may be largest."""
TIME_SHARE, CORRECTION_SHARE = 0.1, 0.25
"""Shares of the run's time that looking and trying corrections may take. The first look and the first correction, whose
costs are not known, may exceed them for a while."""
FIRST_SECONDS, FIRST_CORRECTION = 5.0, 30.0
"""The first look, and the first correction, are not before these times of training."""
CORRECTION_SECONDS = 5.0
"""The time that the first correction may take. Each further one may take twice the time of the one before."""
PROMISING = 100.0
"""A correction is tried if the error that is known is at most so many times the goal."""


class ErrorGoal:
    """Whether the estimated error is below a goal at every theta that is looked at.

    If a network is not good enough alone, it may be with a correction over the box, if `correct`.
    """

    def __init__(self, problem: Problem, goal: float, thetas: Points | None = None, correct: bool = False):
        self.problem, self.goal = problem, goal
        self.result: BoxResult | None = None
        """The correction with which the goal was reached, if one was needed."""
        self._candidates = problem.candidates.points if thetas is None else thetas
        self._first = spread_thetas(problem, THETAS) if thetas is None else thetas
        self._estimator = Estimator(problem)
        self._look = _Look(problem, goal, self._first, self._candidates)
        self._last = self._look
        self._spent, self._each = 0.0, 0.0
        self._correct, self._spent_correcting, self._next_correction = correct, 0.0, CORRECTION_SECONDS

    def reached(self, network: Any, elapsed: float) -> bool:
        """Whether the goal is reached. Says no without looking if that would take too much of the run's time."""
        return self._reached_alone(network, elapsed) or self._reached_corrected(network, elapsed)

    def _reached_alone(self, network: Any, elapsed: float) -> bool:
        whole = self._each * (len(self._look.thetas) + FURTHER)
        if elapsed < FIRST_SECONDS or self._spent + whole > TIME_SHARE * elapsed:
            return False
        start = time.perf_counter()
        self._last = self._look
        below = self._look.below(self._estimator, lambda theta: network)
        took, looked_at = time.perf_counter() - start, self._look.looked_at
        self._spent += took
        # The first look compiles programs, which the next ones do not.
        self._each = max(took / looked_at if self._each else 0.0, 1e-3, self._each if looked_at < 4 else 0.0)
        return below

    def _reached_corrected(self, network: Any, elapsed: float) -> bool:
        """Whether the network is good enough with a correction, which is made now if it is time."""
        first, known = self._spent_correcting == 0, self._look.known
        promising = np.max(known[np.isfinite(known)], initial=0.0) <= PROMISING * self.goal
        needed = self._spent_correcting + 1.5 * self._next_correction  # it is looked at afterwards
        if not (self._correct and np.isfinite(known).any() and promising and elapsed >= FIRST_CORRECTION):
            return False
        if not first and needed > CORRECTION_SHARE * elapsed:
            return False
        start = time.perf_counter()
        result = correct_box(self._estimator, network, seconds=self._next_correction)
        below = False
        enough = len(result.checks) >= usual_checks(self.problem)  # few checks may miss a narrow peak
        if result.used and enough and result.after.max() <= self.goal:
            look = _Look(self.problem, self.goal, self._first, self._candidates)
            look.known = np.max([high for _, _, high in result.errors.over(look.thetas).values()], axis=0)
            below = look.below(self._estimator, partial(at_theta, self.problem, result.network))
            self._last = look
        self.result = result if below else None
        self._spent_correcting += time.perf_counter() - start
        self._next_correction *= 2
        return below

    def text(self) -> str:
        """Why the goal was not reached."""
        above = self._last.above
        if above is None:
            return f"The estimated error was not looked at before the run ended, so {self.goal:g} is not shown."
        theta, error, reason = above
        place = theta_text(self.problem.parameters, theta)
        where = f" at {place}" if place else ""
        if reason:
            return f"The error{where} is not known, so {self.goal:g} is not shown. {reason}"
        return f"The estimated error is {error:.1e}{where}, above {self.goal:g}, as far as it was looked at."


class _Look:
    """Whether the errors of networks are below a goal, theta by theta.

    Thetas are estimated from the worst to the best that is known, and a look ends at the first one above the goal. So a
    look that fails costs little. One that is not resolved counts as above. If all are below, further candidates are
    looked at, each where a Gaussian process through all errors expects that the error may be largest.
    """

    def __init__(self, problem: Problem, goal: float, thetas: Points, candidates: Points):
        self.problem, self.goal, self.thetas, self.candidates = problem, goal, thetas, candidates
        self.known = np.full(len(thetas), math.inf)
        """The newest error at each theta; infinite where none is known."""
        self.above: tuple[np.ndarray, float, str] | None = None
        """The theta at which the last look ended: its error, and why that is not known, if so."""
        self.looked_at = 0

    def below(self, estimator: Estimator, network_at: Callable[[np.ndarray], Any]) -> bool:
        """Whether all errors are below the goal."""
        self.looked_at, self.above = 0, None
        for i in np.argsort(-np.nan_to_num(self.known, nan=math.inf), kind="stable"):
            if not self._below_at(int(i), estimator, network_at):
                return False
        for _ in range(min(FURTHER, len(self.candidates) - len(self.thetas))):
            self.thetas = np.concatenate([self.thetas, self._suspect()[None]])
            self.known = np.append(self.known, math.inf)
            if not self._below_at(len(self.thetas) - 1, estimator, network_at):
                return False
        return True

    def _below_at(self, i: int, estimator: Estimator, network_at: Callable[[np.ndarray], Any]) -> bool:
        """Whether the error at one of the thetas is below the goal."""
        self.looked_at += 1
        estimate = estimator.at(network_at(self.thetas[i]), self.thetas[i])
        known = [error for error in estimate.relative_l2.values() if not (estimate.resolved and math.isnan(error))]
        error = max(known, default=math.nan)  # an output that is zero has no relative error
        self.known[i] = error if math.isfinite(error) else math.inf
        if estimate.resolved and error <= self.goal:
            return True
        self.above = (self.thetas[i], error, "" if estimate.resolved else estimate.reason)
        return False

    def _suspect(self) -> np.ndarray:
        """The candidate, not yet looked at, where the error may be largest."""
        process = process_through(self.problem, self.thetas, np.log(np.maximum(self.known, 1e-300)))
        mean, deviation = process.mean_and_deviation(to_unit(self.candidates, self.problem.parameters))
        score = np.where(is_among(self.candidates, self.thetas), -np.inf, mean + BOUND * deviation)
        return self.candidates[int(np.argmax(score))]
