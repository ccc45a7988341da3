"""Correcting a network over the whole parameter box.

Errors are estimated at thetas one by one, and interpolated. Each theta is where the interpolation knows least, but
every third one is drawn evenly over the box. These are checks: what is interpolated there is compared with what the
estimate then says, before it becomes a part of the interpolation. The checks decide whether the correction is used.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from clpinn.errors import ProblemError
from clpinn.estimation.estimate import Estimator
from clpinn.estimation.results import Estimate
from clpinn.formulation.domain import Points
from clpinn.formulation.problem import Problem
from clpinn.formulation.thetas import features
from clpinn.keys import make_key
from clpinn.networks.architecture import cast, precision
from clpinn.surrogate.box_correction import BoxCorrected, BoxCorrection
from clpinn.surrogate.box_kernel import Interpolation, Kernel, fitted_kernel
from clpinn.surrogate.box_modes import NUMBERS, in_common
from clpinn.surrogate.corrections import StackedSplines, periodic_axes

THETAS, MOST_THETAS = 48, 400
"""Thetas with one parameter; each further parameter doubles their number. At most, and if there is a bound on time."""
CHECK_EVERY = 3
"""One theta of so many is drawn evenly and serves as a check."""
FEWEST_CHECKS = 4
"""With fewer checks a correction is not used."""
FEWEST_RESOLVED = 0.25
"""If a smaller fraction of the estimates is resolved, there is nothing to interpolate."""
ENOUGH = 0.003
"""If the last checks have less than this fraction of their error left, no further theta is needed."""
MARGIN = 0.7
"""A correction is used if the mean error of an output at the checks falls below this fraction, and no error grows."""
CANDIDATES = 2000
"""Thetas among which the next one is searched."""
FIT_GROWTH = 1.4
"""The kernel is fitted anew when the number of thetas has grown by this factor."""
FIELD_POINTS = 3000
"""Points on which corrections are compared, at most."""
NEGLECTED = 2e-4
"""Modes that are smaller than this fraction of all are left out."""


@dataclass(frozen=True)
class BoxResult:
    """A network that may be corrected over the box, and the evidence.

    Attributes:
        network: The corrected network, or the base if the correction is not used.
        used: Whether the correction is used.
        reason: Why, or why not.
        thetas: Number of thetas with estimated errors.
        resolved: The fraction of them whose estimate is resolved.
        checks: The thetas that were predicted before they were estimated, the last half of them.
        before: Estimated relative L2 errors of the base at the checks (checks, outputs).
        after: The same of the corrected network, as it was at that moment.
    """

    network: Any
    used: bool
    reason: str
    thetas: int
    resolved: float
    checks: Points
    before: Float[np.ndarray, "checks outputs"]
    after: Float[np.ndarray, "checks outputs"]

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
) -> BoxResult:
    """A network with corrections over the box, from estimates at some thetas, or fewer if `seconds` have passed."""
    problem, start = estimator.problem, time.monotonic()
    if len(problem.parameters) == 0:
        raise ProblemError("A problem without parameters has one theta only. Correct it there: surrogate.correct().")
    usual = MOST_THETAS if seconds else min(THETAS * 2 ** (len(problem.parameters) - 1), MOST_THETAS)
    count = usual if thetas is None else thetas
    if count < 1 or (seconds is not None and not seconds > 0):
        raise ProblemError(f"A correction needs at least one theta and a time above zero, got {count} and {seconds}.")
    search = _Search(problem)
    while len(search.estimates) < count and not search.converged() and not search.hopeless():
        theta = search.next_theta()
        search.add(theta, estimator.at(network, theta))
        progress(len(search.estimates), count)
        if seconds is not None and time.monotonic() - start > seconds:
            break
    progress(count, count)
    return search.result(network)


class _Search:
    """The thetas so far, their corrections, and the kernel that interpolates them."""

    def __init__(self, problem: Problem):
        self.problem = problem
        box = problem.parameters
        self.grid = problem.evaluation.selected(problem.evaluation.thinned(FIELD_POINTS))
        corners = np.stack(np.meshgrid(*[[0.0, 1.0]] * len(box), indexing="ij"), axis=-1).reshape(-1, len(box))
        inner = np.random.default_rng(0).random((CANDIDATES, len(box)))
        self.candidates = box.from_unit(np.concatenate([corners, inner]))
        self.candidate_features = features(self.candidates, box)
        self.even = iter(box.sample(10 * MOST_THETAS, make_key(0)))
        first = 3 * len(box) + 3
        self.waiting = [*self.candidates[: min(len(corners), first // 2)]]
        self.waiting += [next(self.even) for _ in range(first - len(self.waiting))]
        self.kernel = Kernel(np.full(box.feature_count, 0.4), np.zeros(box.feature_count))
        self.next_fit = float(first)
        self.thetas: list[np.ndarray] = []
        self.estimates: list[Estimate] = []
        self.fields: list[np.ndarray] = []
        """Corrections of the raw outputs on the grid (outputs, points); zero where the estimate is not resolved."""
        self.sizes: list[np.ndarray] = []
        """Relative error of each output for a correction of norm one."""
        self.products = np.zeros((len(problem.outputs), 0, 0))
        """Inner products of the corrections at each pair of thetas, by output."""
        self.checks: list[_Check] = []
        self.check_due = False

    # Thetas ------------------------------------------------------------------------------------------------------

    def next_theta(self) -> np.ndarray:
        """The next theta to estimate the error at."""
        if self.waiting:
            return self.waiting.pop(0)
        self.check_due = len(self.thetas) % CHECK_EVERY == 0
        if self.check_due:
            return next(self.even)
        return self.candidates[int(np.argmax(self._interpolation().spread(self.candidate_features)))]

    def add(self, theta: np.ndarray, estimate: Estimate) -> None:
        """Take an estimate in. At a check the interpolation is compared with it first."""
        usable = estimate.resolved and estimate.correction is not None
        field = np.zeros((len(self.problem.outputs), len(self.grid)))
        if usable and estimate.correction is not None:
            field = estimate.correction.on_grid(self.problem, self.grid).T
        relative, norms = np.array(list(estimate.relative_l2.values())), np.linalg.norm(field, axis=1)
        size = np.where(np.isfinite(relative) & (norms > 0), relative / np.where(norms > 0, norms, 1.0), 0.0)
        if self.check_due and usable:
            left = np.linalg.norm(field - self._interpolation().at(theta), axis=1)
            self.checks.append(_Check(theta, norms * size, left * size))
        self.check_due = False
        self.thetas.append(theta)
        self.estimates.append(estimate)
        self.fields.append(field)
        self.sizes.append(size)
        newest = np.einsum("iop,op->oi", np.array(self.fields), field)
        self.products = np.pad(self.products, ((0, 0), (0, 1), (0, 1)))
        self.products[:, :, -1] = self.products[:, -1, :] = newest
        if len(self.thetas) >= self.next_fit:
            self.kernel = fitted_kernel(self.kernel, self._seen, self.products, self._counting_sizes)
            self.next_fit = len(self.thetas) * FIT_GROWTH

    def converged(self) -> bool:
        """Whether the last checks have hardly any error left."""
        last = self.checks[-FEWEST_CHECKS:]
        return len(last) == FEWEST_CHECKS and all(np.all(each.after <= ENOUGH * each.before) for each in last)

    def hopeless(self) -> bool:
        """Whether too few of the estimates are resolved."""
        return not self.waiting and self.resolved < FEWEST_RESOLVED

    @property
    def resolved(self) -> float:
        """The fraction of the thetas whose estimate is resolved."""
        return float(np.mean([estimate.resolved for estimate in self.estimates]))

    @property
    def _seen(self) -> Float[np.ndarray, "thetas features"]:
        return features(np.array(self.thetas), self.problem.parameters)

    @property
    def _counting_sizes(self) -> Float[np.ndarray, "thetas outputs"]:
        """The sizes, divided by the usual relative error of each output, so that all outputs count alike."""
        sizes = np.array(self.sizes)
        usual = np.sqrt(np.mean((sizes * np.linalg.norm(self.fields, axis=2)) ** 2, axis=0))
        return sizes / np.where(usual > 0, usual, 1.0)

    def _interpolation(self) -> Interpolation:
        return Interpolation(self.problem, self.kernel, self._seen, np.array(self.fields))

    # The result --------------------------------------------------------------------------------------------------

    def result(self, network: Any) -> BoxResult:
        """The corrected network, if the checks say that it is better."""
        checks = self.checks[-max(FEWEST_CHECKS, math.ceil(len(self.checks) / 2)) :]
        before, after = (
            np.array([getattr(check, when) for check in checks]).reshape(-1, len(self.problem.outputs))
            for when in ("before", "after")
        )
        used, reason = False, f"There are {len(checks)} checks only. Give more thetas, or more time."
        if self.hopeless():
            unresolved = next(estimate for estimate in self.estimates if not estimate.resolved)
            share = f"{100 * self.resolved:.0f} %"
            reason = f"Only {share} of the estimates are resolved. The first that is not: {unresolved.reason}"
        elif len(checks) >= FEWEST_CHECKS:
            share = after.mean(axis=0) / np.where(before.any(axis=0), before.mean(axis=0), 1.0)
            better = share.max() <= 1 and share.min() < MARGIN and np.all(after.max(axis=0) <= before.max(axis=0))
            used = bool(better and before.any())
            largest = before.max(axis=1), after.max(axis=1)  # over the outputs
            figures = f"mean {largest[0].mean():.1e} to {largest[1].mean():.1e}"
            figures += f", largest {largest[0].max():.1e} to {largest[1].max():.1e}"
            where = f"At {len(checks)} thetas that it had not seen, it changes the estimated error: {figures}."
            reason = where if used else f"{where} That is no clear gain. Give more thetas, or train for longer."
        if used:
            network = BoxCorrected(network, _stored(self._correction(), precision(network)))
        thetas = np.array([check.theta for check in checks]).reshape(-1, len(self.problem.parameters))
        return BoxResult(network, used, reason, len(self.thetas), self.resolved, thetas, before, after)

    def _correction(self) -> BoxCorrection:
        sizes = self._counting_sizes
        kernel = fitted_kernel(self.kernel, self._seen, self.products, sizes)
        corrections = [each.correction if each.resolved else None for each in self.estimates]
        space, coefficients = in_common([each for each in corrections if each is not None])
        rows = np.zeros((len(corrections), space.size))
        rows[[each is not None for each in corrections]] = coefficients.reshape(len(coefficients), -1)
        # Principal components of the corrections. Outputs count relative to their usual error, thetas by their own.
        unit = np.median(sizes[sizes.any(axis=1)], axis=0)
        scale = np.repeat(np.where(unit > 0, unit, 1.0), math.prod(space.counts))
        rows = rows * scale
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        errors = np.linalg.norm(sizes * np.linalg.norm(self.fields, axis=2), axis=1, keepdims=True)
        _, values, components = np.linalg.svd(rows * errors / np.where(norms > 0, norms, 1.0), full_matrices=False)
        tails = np.sqrt(np.cumsum(values[::-1] ** 2))[::-1]
        most = max(1, NUMBERS // rows.shape[1])
        components = components[: max(1, min(most, int(np.sum(tails > NEGLECTED * tails[0]))))]
        modes = components / scale
        interpolation = Interpolation(self.problem, kernel, self._seen, rows @ components.T)
        room = [axis.spans for axis in space.axes]
        outputs = len(modes) * space.outputs
        splines = StackedSplines.blank(1, outputs, room, space.axes[0].degree, periodic_axes(self.problem))
        splines.fill(0, space, modes.reshape(outputs, *space.counts))
        return BoxCorrection(kernel, interpolation.places, interpolation.weights, splines)


@dataclass(frozen=True)
class _Check:
    """A theta that was predicted before its error was estimated: relative errors by output, base and corrected."""

    theta: np.ndarray
    before: Float[np.ndarray, " outputs"]
    after: Float[np.ndarray, " outputs"]


def _stored(correction: BoxCorrection, dtype: Any) -> BoxCorrection:
    """The correction as NumPy arrays in a network's precision; its modes in single precision, which is enough."""
    correction = correction if dtype == np.float64 else correction.for_single_precision()
    with jax.enable_x64(True):
        arrays = jax.tree.map(np.asarray, cast(correction, dtype))
    return eqx.tree_at(lambda tree: tree.modes.coefficients, arrays, arrays.modes.coefficients.astype(np.float32))
