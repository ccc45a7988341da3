"""Correcting a network over the whole parameter box.

Errors are estimated at some thetas, and interpolated between them. Then they are estimated at further thetas, which the
correction does not know. These checks decide whether it is used, and say how wrong the corrected network is.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from clpinn.errors import ProblemError
from clpinn.estimation.estimate import Estimator
from clpinn.estimation.results import Estimate, remaining
from clpinn.formulation.domain import Points
from clpinn.formulation.problem import Problem
from clpinn.surrogate.box_correction import BoxCorrected, at_theta
from clpinn.surrogate.box_search import FEWEST_RESOLVED, MOST_THETAS, BoxSearch
from clpinn.surrogate.error_map import ErrorMap, map_of

THETAS = 48
"""Thetas with one parameter, if there is no bound on time. Each further parameter doubles their number."""
CHECKS, MORE_CHECKS = 12, 6
"""Checks with one parameter, and how many more each further parameter needs."""
EVEN_CHECKS = 0.6
"""This share of the checks is drawn evenly; the others are placed where the correction knows least."""
FEWEST_CHECKS = 4
"""With fewer resolved checks a correction is not used. So many are made even if the time is over, but for a search that
did not get beyond its first thetas."""
CHECKS_SHARE = 0.4
"""The share of the time that is kept for the checks, at most."""
MARGIN = 0.7
"""A correction is used if the mean error of an output at the checks falls below this fraction, and no error grows."""


@dataclass(frozen=True)
class BoxResult:
    """A network that may be corrected over the box, and the evidence.

    Attributes:
        network: The corrected network, or the base if the correction is not used.
        used: Whether the correction is used.
        reason: Why, or why not.
        thetas: Number of thetas that the correction is made of.
        resolved: The fraction of all estimates that are resolved.
        checks: The resolved thetas that the correction does not know.
        before: Estimated relative L2 errors of the base at the checks (checks, outputs).
        after: The same of the corrected network.
        errors: The map of the network's estimated errors. That of a corrected network has the checks only.
    """

    network: Any
    used: bool
    reason: str
    thetas: int
    resolved: float
    checks: Points
    before: Float[np.ndarray, "checks outputs"]
    after: Float[np.ndarray, "checks outputs"]
    errors: ErrorMap

    def summary(self, outputs: Sequence[str]) -> dict[str, Any]:
        """All figures in plain values."""
        figures = {}
        for k, name in enumerate(outputs) if len(self.checks) else ():
            figures[name] = {
                when: {"macro": float(errors[:, k].mean()), "worst": float(errors[:, k].max())}
                for when, errors in (("before", self.before), ("after", self.after))
            }
        facts = {"used": self.used, "reason": self.reason, "thetas": self.thetas, "resolved": self.resolved}
        return facts | {"checks": self.checks.tolist(), "outputs": figures}


def correct_box(
    estimator: Estimator,
    network: Any,
    thetas: int | None = None,
    seconds: float | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
    stop: Callable[[], bool] = lambda: False,
) -> BoxResult:
    """A network with a correction over the box, and its checks.

    The correction is made of `thetas` thetas; of fewer if it is good enough already, if `seconds` would be over, or if
    `stop` says so.
    """
    problem, start = estimator.problem, time.monotonic()
    parameters = len(problem.parameters)
    if parameters == 0:
        raise ProblemError("A problem without parameters has one theta only. Correct it there: surrogate.correct().")
    usual = MOST_THETAS if seconds else min(THETAS * 2 ** (parameters - 1), MOST_THETAS)
    count, checks = usual if thetas is None else thetas, usual_checks(problem)
    if count < 1 or (seconds is not None and not seconds > 0):
        raise ProblemError(f"A correction needs at least one theta and a time above zero, got {count} and {seconds}.")

    search, times = BoxSearch(problem), [start]

    def over(share: float) -> bool:
        """Whether this share of the time is over."""
        return seconds is not None and time.monotonic() - start >= share * seconds

    def share_for_search() -> float:
        each = np.diff(times[1:] if len(times) > 2 else times).mean()  # the first one compiles programs
        return 1 - min(CHECKS_SHARE, checks * float(each) / (seconds or np.inf))

    while not search.thetas or not (len(search.thetas) >= count or search.converged() or search.hopeless() or stop()):
        theta = search.next_theta()
        search.add(theta, estimator.at(network, theta))
        times.append(time.monotonic())
        done, expected = len(search.thetas), count
        if seconds is not None:
            expected = min(count, max(done, round(done * share_for_search() * seconds / (times[-1] - start + 1e-9))))
        progress(done, expected + checks)
        if over(share_for_search()):
            break
    corrected = search.corrected(network) if any(each.resolved for each in search.estimates) else None
    evidence = _Checks(estimator, network, corrected)
    fewest = 0 if search.waiting else FEWEST_CHECKS  # a correction of fewer than the first thetas is hardly worth it
    while len(evidence.thetas) < checks and not stop() and not (len(evidence.thetas) >= fewest and over(1.0)):
        even = len(evidence.thetas) < EVEN_CHECKS * checks
        evidence.add(search.next_even() if even else search.least_known(evidence.thetas))
        progress(len(search.thetas) + len(evidence.thetas), len(search.thetas) + checks)
    progress(1, 1)
    estimates = search.estimates + evidence.before
    known = np.array([estimate.resolved for estimate in evidence.before], bool)
    before, after = (_relative(each, known, len(problem.outputs)) for each in (evidence.before, evidence.after))
    resolved = float(np.mean([estimate.resolved for estimate in estimates]))
    used, reason = _verdict(before, after)
    if resolved < FEWEST_RESOLVED:
        unresolved = next(estimate for estimate in estimates if not estimate.resolved)
        used, share = False, f"{100 * resolved:.0f} %"
        reason = f"Only {share} of the estimates are resolved. The first that is not: {unresolved.reason}"
    at = np.array(evidence.thetas).reshape(-1, parameters)
    if used:
        errors = map_of(problem, at, evidence.after)
    else:
        errors = map_of(problem, np.concatenate([np.array(search.thetas), at]), estimates)
    answering = corrected if used else network
    return BoxResult(answering, used, reason, len(search.thetas), resolved, at[known], before, after, errors)


def usual_checks(problem: Problem) -> int:
    """The number of checks if there is time for all."""
    return CHECKS + MORE_CHECKS * (len(problem.parameters) - 1)


class _Checks:
    """Thetas that a correction does not know: the error of the base, and what the correction leaves of it."""

    def __init__(self, estimator: Estimator, base: Any, corrected: BoxCorrected | None):
        self.estimator, self.base, self.corrected = estimator, base, corrected
        self.thetas: list[np.ndarray] = []
        self.before: list[Estimate] = []
        self.after: list[Estimate] = []

    def add(self, theta: np.ndarray) -> None:
        estimate = self.estimator.at(self.base, theta)
        self.thetas.append(theta)
        self.before.append(estimate)
        if self.corrected is not None and estimate.resolved:
            corrected = at_theta(self.estimator.problem, self.corrected, theta)
            estimate = remaining(estimate, *(self.estimator.outputs(each, theta) for each in (self.base, corrected)))
        self.after.append(estimate)


def _relative(estimates: Sequence[Estimate], known: np.ndarray, outputs: int) -> Float[np.ndarray, "checks outputs"]:
    """Relative errors at the checks that are resolved; zero for an output that is zero."""
    table = np.array([list(estimate.relative_l2.values()) for estimate in estimates]).reshape(-1, outputs)
    return np.nan_to_num(table[known])


def _verdict(before: np.ndarray, after: np.ndarray) -> tuple[bool, str]:
    """Whether a correction is used, by the errors at its checks without and with it; and why."""
    if len(before) < FEWEST_CHECKS:
        return False, f"There are {len(before)} checks only. Give more time."
    share = after.mean(axis=0) / np.where(before.any(axis=0), before.mean(axis=0), 1.0)
    better = share.max() <= 1 and share.min() < MARGIN and np.all(after.max(axis=0) <= before.max(axis=0))
    largest = before.max(axis=1), after.max(axis=1)  # over the outputs
    figures = f"mean {largest[0].mean():.1e} to {largest[1].mean():.1e}"
    figures += f", largest {largest[0].max():.1e} to {largest[1].max():.1e}"
    where = f"At {len(before)} thetas that it does not know, it changes the estimated error: {figures}."
    if better and before.any():
        return True, where
    return False, f"{where} That is no clear gain. Give more thetas, or train for longer."
