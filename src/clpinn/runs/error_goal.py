"""A run that ends at a given error: the worst estimated error over the box, looked at while training goes on."""

import math
import time
from typing import Any

import numpy as np

from clpinn.estimation.estimate import Estimator
from clpinn.formulation.domain import Points
from clpinn.formulation.problem import Problem
from clpinn.formulation.thetas import theta_text, to_unit

THETAS = 16
"""Thetas that are looked at, corners of the candidates among them."""
MOST_CORNERS = 8
TIME_SHARE = 0.1
"""Share of the run's time that looking may take."""
FIRST_SECONDS = 5.0
"""The first look is not before this time of training."""


class ErrorGoal:
    """Whether the estimated error of a network is below a goal at every theta that is looked at.

    Thetas are estimated from the worst to the best of the last look, and a look ends at the first one above the goal.
    So a look that fails costs little. One that is not resolved counts as above.
    """

    def __init__(self, problem: Problem, goal: float, thetas: Points | None = None):
        self.problem, self.goal = problem, goal
        self._thetas = spread_thetas(problem, THETAS) if thetas is None else thetas
        self._known = np.full(len(self._thetas), math.inf)
        self._estimator = Estimator(problem)
        self._spent, self._each = 0.0, 0.0
        self._above: tuple[np.ndarray, float, str] | None = None

    def reached(self, network: Any, elapsed: float) -> bool:
        """Whether the goal is reached. Says no without looking if that would take too much of the run's time."""
        whole = self._each * len(self._thetas)
        if elapsed < FIRST_SECONDS or self._spent + whole > TIME_SHARE * elapsed:
            return False
        start = time.perf_counter()
        looked_at = 0
        self._above = None
        for i in np.argsort(-self._known, kind="stable"):
            estimate = self._estimator.at(network, self._thetas[i])
            looked_at += 1
            error = max(estimate.relative_l2.values())
            self._known[i] = error if math.isfinite(error) else math.inf
            if not (estimate.resolved and error <= self.goal):
                self._above = (self._thetas[i], error, "" if estimate.resolved else estimate.reason)
                break
        took = time.perf_counter() - start
        self._spent += took
        # The first look compiles programs, which the next ones do not.
        self._each = max(took / looked_at if self._each else 0.0, 1e-3, self._each if looked_at < 4 else 0.0)
        return self._above is None

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


def spread_thetas(problem: Problem, count: int) -> Points:
    """Candidates all over the box: corners first, then each as far as possible from those before."""
    candidates = problem.candidates.points
    unit = to_unit(candidates, problem.parameters)
    if len(candidates) <= count:
        return candidates
    corners = np.all((unit <= unit.min(axis=0) + 1e-9) | (unit >= unit.max(axis=0) - 1e-9), axis=1)
    chosen = list(np.flatnonzero(corners)[:MOST_CORNERS])
    while len(chosen) < count:
        distance = np.min(np.linalg.norm(unit[:, None] - unit[chosen], axis=2), axis=1)
        chosen.append(int(np.argmax(distance)))
    return candidates[chosen]
