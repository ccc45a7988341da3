"""Estimated errors turned into bounds with a stated coverage, by a handful of true solutions (conformal prediction).

The score of a theta is its true error divided by the estimated one. If all thetas are drawn alike, the score of the
next one is at most the k-th smallest of n scores with a probability of at least k / (n + 1), whatever the estimates are
worth (Vovk, Gammerman and Shafer 2005).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from clpinn.errors import DomainError, ProblemError
from clpinn.formulation.calls import with_keys
from clpinn.formulation.domain import Points
from clpinn.formulation.geometry import placed
from clpinn.formulation.problem import Problem
from clpinn.keys import make_key
from clpinn.shown import html_table
from clpinn.surrogate.error import ErrorEstimate
from clpinn.surrogate.measurements import columns_of
from clpinn.surrogate.surrogate import Surrogate

THETAS, COVERAGE = 19, 0.95


@dataclass(frozen=True, repr=False)
class Calibration:
    """How far estimated errors are to be trusted, from true solutions at some thetas.

    Attributes:
        coverage: The probability with which a bound holds at a further theta that is drawn like these.
        factors: What an estimate is multiplied by to be such a bound, by output.
        thetas: Where the truth was known, (thetas, parameters).
        scores: True errors divided by estimated ones, by output, (thetas,).
    """

    coverage: float
    factors: Mapping[str, float]
    thetas: Points
    scores: Mapping[str, Float[np.ndarray, " thetas"]]

    def bound(self, estimate: ErrorEstimate) -> dict[str, float]:
        """What the relative L2 error at the theta of an estimate is below, with the stated coverage, by output."""
        return {name: factor * estimate.relative_l2[name] for name, factor in self.factors.items()}

    def __repr__(self) -> str:
        return f"Calibration: {', '.join(f'{name} {text}' for name, text in self._facts().items())}"

    def _repr_html_(self) -> str:
        return html_table("Calibration", self._facts())

    def _facts(self) -> dict[str, str]:
        factors = {f"factor of {name}": f"{factor:.3g}" for name, factor in self.factors.items()}
        return {"coverage": f"{self.coverage:.0%}", "thetas": str(len(self.thetas))} | factors


def calibrate(
    surrogate: Surrogate,
    truth: Any,
    n: int = THETAS,
    coverage: float = COVERAGE,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Calibration:
    """Bounds of the error with a stated coverage, from true solutions at `n` thetas.

    Args:
        surrogate: The surrogate whose errors are estimated.
        truth: A solver, `solver(x=..., t=..., nu=0.03)`: arrays of physical coordinates and a theta by name; it gives
            the outputs by name, or an array if there is one output. Thetas are drawn over the parameter box. Or data,
            as for `surrogate.fit`, with columns of all coordinates and parameters; its thetas count as drawn.
        n: Number of thetas; with data at most so many.
        coverage: The probability with which a bound shall hold. 9 thetas are enough for 90 %, 19 for 95 %.
        seed: Seed of the thetas.
        progress: Called with the number of thetas done, and of all.

    Example:
        `cl.calibrate(surrogate, solver, n=19).bound(surrogate.error(nu=0.03))`
    """
    if not 0 < coverage < 1 or n < 1:
        raise ProblemError(f"A calibration needs thetas and a coverage between 0 and 1, but got {n} and {coverage}.")
    problem = surrogate.problem
    if callable(truth):
        _rank(n, coverage)  # before the solver runs
    true = _of_solver(surrogate, truth, n, seed) if callable(truth) else _of_data(surrogate, truth, n, seed)
    thetas, scores = [], {name: [] for name in problem.outputs}
    for theta, errors in true:
        estimate = surrogate.error_many(theta[None])[0]
        thetas.append(theta)
        for name, error in errors.items():
            estimated = estimate.relative_l2[name]
            scores[name].append(error / estimated if estimated > 0 else math.inf)
        progress(len(thetas), len(true))
    rank = _rank(len(thetas), coverage)
    known = {name: np.array(row) for name, row in scores.items() if len(row) == len(thetas)}
    factors = {name: float(np.sort(np.nan_to_num(row, nan=np.inf))[rank - 1]) for name, row in known.items()}
    return Calibration(coverage, factors, np.array(thetas), known)


def _rank(count: int, coverage: float) -> int:
    """Which of the sorted scores bounds a further one; an error if there are too few."""
    rank = math.ceil((count + 1) * coverage - 1e-9)
    if rank > count:
        enough = math.ceil(coverage / (1 - coverage) - 1e-9)
        raise ProblemError(
            f"A coverage of {coverage:g} needs at least {enough} thetas, but got {count}. Give more, or ask for at "
            f"most {count / (count + 1):.3g}."
        )
    return rank


Truth = list[tuple[np.ndarray, dict[str, float]]]
"""Thetas, and the true relative L2 errors by output there."""


def _of_solver(surrogate: Surrogate, solver: Callable[..., Any], n: int, seed: int) -> Truth:
    problem = surrogate.problem
    return [
        (theta, _relative(problem, _answers(surrogate, theta), _solved(problem, solver, theta)))
        for theta in problem.parameters.sample(n, make_key(seed), "uniform")  # independent, as the coverage needs
    ]


def _physical(problem: Problem, theta: np.ndarray) -> dict[str, np.ndarray]:
    """The physical coordinates of the evaluation grid at a theta."""
    points = problem.evaluation.points
    with jax.enable_x64(True):
        given = dict(zip(problem.axes, (*points.T, *theta), strict=True))
        moved = placed(problem, given)
        return {name: np.broadcast_to(np.asarray(moved[name], float), len(points)) for name in problem.coordinates}


def _solved(problem: Problem, solver: Callable[..., Any], theta: np.ndarray) -> dict[str, np.ndarray]:
    physical, named = _physical(problem, theta), dict(zip(problem.parameters, theta.tolist()))
    solution = solver(**physical, **named)
    if len(problem.outputs) == 1 and not isinstance(solution, Mapping):
        solution = {problem.outputs[0]: solution}
    by_name = with_keys(solution, problem.outputs, "solver")
    count = len(problem.evaluation)
    return {name: np.broadcast_to(np.asarray(by_name[name], float), count) for name in problem.outputs}


def _answers(surrogate: Surrogate, theta: np.ndarray) -> dict[str, np.ndarray]:
    problem = surrogate.problem
    answers = surrogate(**_physical(problem, theta), **dict(zip(problem.parameters, theta.tolist())))
    return {name: np.broadcast_to(answers[name], len(problem.evaluation)) for name in problem.outputs}


def _of_data(surrogate: Surrogate, data: Any, n: int, seed: int) -> Truth:
    problem = surrogate.problem
    given = columns_of(data)
    missing = [name for name in problem.axes if name not in given]
    measured = [name for name in problem.outputs if name in given]
    if missing or not measured:
        raise DomainError(
            f"Data to calibrate with needs a column for each of {', '.join(problem.axes)} and for some of the outputs "
            f"{', '.join(problem.outputs)}, but has {', '.join(given) or 'nothing'}."
        )
    arrays = np.broadcast_arrays(*(np.asarray(given[name], float) for name in (*problem.axes, *measured)))
    columns = dict(zip((*problem.axes, *measured), (array.ravel() for array in arrays)))
    rows = np.stack([columns[name] for name in problem.parameters], axis=1) if len(problem.parameters) else None
    thetas = np.zeros((1, 0)) if rows is None else np.unique(rows, axis=0)
    if len(thetas) > n:
        thetas = thetas[np.random.default_rng(seed).choice(len(thetas), n, replace=False)]
    found = []
    for theta in thetas:
        here = slice(None) if rows is None else np.all(rows == theta, axis=1)
        at = {name: columns[name][here] for name in problem.axes}
        exact = {name: columns[name][here] for name in measured}
        answers = surrogate(**at)
        found.append((theta, _relative(problem, answers, exact)))
    return found


def _relative(problem: Problem, answers: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Relative L2 errors by output, over the values that are known."""
    errors = {}
    for name in (name for name in problem.outputs if name in exact):
        known = np.isfinite(exact[name])
        size = float(np.linalg.norm(exact[name][known]))
        if size == 0:
            raise DomainError(f"The truth of {name} is zero or not finite at a theta, so it has no relative error.")
        errors[name] = float(np.linalg.norm((answers[name] - exact[name])[known])) / size
    return errors
