"""A run that ends at a given error: the worst estimated error over the box, looked at while training goes on."""

import math
import time
from typing import Any

import numpy as np

from clpinn.estimation.estimate import Estimator
from clpinn.formulation.domain import Points
from clpinn.formulation.problem import Problem
from clpinn.formulation.thetas import is_among, spread_thetas, theta_text, to_unit
from clpinn.surrogate.error_map import BOUND
from clpinn.surrogate.error_process import process_through

THETAS, FURTHER = 16, 8
"""Thetas that are looked at first, corners among them; then so many where the error may be largest."""
TIME_SHARE = 0.1
"""Share of the run's time that looking may take. The first look, whose cost is not known, may exceed it for a while."""
FIRST_SECONDS = 5.0
"""The first look is not before this time of training."""


class ErrorGoal:
    """Whether the estimated error of a network is below a goal at every theta that is looked at.

    Thetas are estimated from the worst to the best of the last look, and a look ends at the first one above the goal.
    So a look that fails costs little. One that is not resolved counts as above. If all are below, further candidates
    are looked at, each where a Gaussian process through all errors expects that the error may be largest.
    """

    def __init__(self, problem: Problem, goal: float, thetas: Points | None = None):
        self.problem, self.goal = problem, goal
        self._candidates = problem.candidates.points if thetas is None else thetas
        self._thetas = spread_thetas(problem, THETAS) if thetas is None else thetas
        self._known = np.full(len(self._thetas), math.inf)
        self._estimator = Estimator(problem)
        self._spent, self._each = 0.0, 0.0
        self._above: tuple[np.ndarray, float, str] | None = None

    def reached(self, network: Any, elapsed: float) -> bool:
        """Whether the goal is reached. Says no without looking if that would take too much of the run's time."""
        whole = self._each * (len(self._thetas) + FURTHER)
        if elapsed < FIRST_SECONDS or self._spent + whole > TIME_SHARE * elapsed:
            return False
        start = time.perf_counter()
        looked_at = 0
        self._above = None
        for i in np.argsort(-self._known, kind="stable"):
            looked_at += 1
            if not self._below(network, int(i)):
                break
        else:
            for _ in range(min(FURTHER, len(self._candidates) - len(self._thetas))):
                self._thetas = np.concatenate([self._thetas, self._suspect()[None]])
                self._known = np.append(self._known, math.inf)
                looked_at += 1
                if not self._below(network, len(self._thetas) - 1):
                    break
        took = time.perf_counter() - start
        self._spent += took
        # The first look compiles programs, which the next ones do not.
        self._each = max(took / looked_at if self._each else 0.0, 1e-3, self._each if looked_at < 4 else 0.0)
        return self._above is None

    def _below(self, network: Any, i: int) -> bool:
        """Whether the error at one of the thetas is below the goal."""
        estimate = self._estimator.at(network, self._thetas[i])
        known = [error for error in estimate.relative_l2.values() if not (estimate.resolved and math.isnan(error))]
        error = max(known, default=math.nan)  # an output that is zero has no relative error
        self._known[i] = error if math.isfinite(error) else math.inf
        if estimate.resolved and error <= self.goal:
            return True
        self._above = (self._thetas[i], error, "" if estimate.resolved else estimate.reason)
        return False

    def _suspect(self) -> np.ndarray:
        """The candidate, not yet looked at, where the error may be largest."""
        process = process_through(self.problem, self._thetas, np.log(np.maximum(self._known, 1e-300)))
        mean, deviation = process.mean_and_deviation(to_unit(self._candidates, self.problem.parameters))
        score = np.where(is_among(self._candidates, self._thetas), -np.inf, mean + BOUND * deviation)
        return self._candidates[int(np.argmax(score))]

    def text(self) -> str:
        """Why the goal was not reached."""
        if self._above is None:
            return f"The estimated error was not looked at before the run ended, so {self.goal:g} is not shown."
        theta, error, reason = self._above
        place = theta_text(self.problem.parameters, theta)
        where = f" at {place}" if place else ""
        if reason:
            return f"The error{where} is not known, so {self.goal:g} is not shown. {reason}"
        return f"The estimated error is {error:.1e}{where}, above {self.goal:g}, as far as it was looked at."
