"""The search for thetas at which errors are estimated, and the correction that interpolates them.

Each next theta is where the interpolation knows least, but every third one is drawn evenly over the box. These compare
what is interpolated with what the estimate then says, before it becomes a part of the interpolation. They tell when
further thetas are not needed.
"""

import math
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from clpinn.estimation.results import Estimate
from clpinn.formulation.problem import Problem
from clpinn.formulation.thetas import features
from clpinn.keys import make_key
from clpinn.networks.architecture import cast, precision
from clpinn.surrogate.box_correction import BoxCorrected, BoxCorrection
from clpinn.surrogate.box_kernel import Interpolation, Kernel, fitted_kernel
from clpinn.surrogate.box_modes import NUMBERS, in_common
from clpinn.surrogate.corrections import StackedSplines, periodic_axes

MOST_THETAS = 400
"""Thetas at most."""
COMPARE_EVERY = 3
"""One theta of so many is drawn evenly, and what is interpolated there is compared with the estimate."""
ENOUGH, LAST = 0.003, 4
"""If the last so many comparisons have less than this fraction of their error left, no further theta is needed."""
FEWEST_RESOLVED = 0.25
"""If a smaller fraction of the estimates is resolved, there is nothing to interpolate."""
CANDIDATES = 2000
"""Thetas among which the next one is searched."""
FIT_GROWTH = 1.4
"""The kernel is fitted anew when the number of thetas has grown by this factor."""
FIELD_POINTS = 3000
"""Points on which corrections are compared, at most."""
NEGLECTED = 2e-4
"""Modes that are smaller than this fraction of all are left out."""


class BoxSearch:
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
        self.waiting += [self.next_even() for _ in range(first - len(self.waiting))]
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
        self.comparisons: list[np.ndarray] = []
        """The fraction of each output's error that was left where the interpolation was compared."""
        self.comparison_due = False

    # Thetas ------------------------------------------------------------------------------------------------------

    def next_theta(self) -> np.ndarray:
        """The next theta to estimate the error at."""
        if self.waiting:
            return self.waiting.pop(0)
        self.comparison_due = len(self.thetas) % COMPARE_EVERY == 0
        if self.comparison_due:
            return self.next_even()
        return self.least_known([])

    def least_known(self, others: list[np.ndarray]) -> np.ndarray:
        """The candidate where the interpolation would know least, if it knew these other thetas as well."""
        seen = features(np.array([*self.thetas, *others]), self.problem.parameters)
        interpolation = Interpolation(self.problem, self.kernel, seen, np.zeros((len(seen), 0)))
        return self.candidates[int(np.argmax(interpolation.unknown(self.candidate_features)))]

    def next_even(self) -> np.ndarray:
        """A further theta that is drawn evenly over the box."""
        return next(self.even)

    def add(self, theta: np.ndarray, estimate: Estimate) -> None:
        """Take an estimate in. If a comparison is due, the interpolation is compared with it first."""
        usable = estimate.resolved and estimate.correction is not None
        field = np.zeros((len(self.problem.outputs), len(self.grid)))
        if usable and estimate.correction is not None:
            field = estimate.correction.on_grid(self.problem, self.grid).T
        relative, norms = np.array(list(estimate.relative_l2.values())), np.linalg.norm(field, axis=1)
        size = np.where(np.isfinite(relative) & (norms > 0), relative / np.where(norms > 0, norms, 1.0), 0.0)
        if self.comparison_due and usable:
            left = np.linalg.norm(field - self._interpolation().at(theta), axis=1)
            self.comparisons.append(np.where(size > 0, left / np.where(norms > 0, norms, 1.0), 0.0))
        self.comparison_due = False
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
        """Whether the last comparisons have hardly any error left."""
        return len(self.comparisons) >= LAST and bool(np.all(np.array(self.comparisons[-LAST:]) <= ENOUGH))

    def hopeless(self) -> bool:
        """Whether too few of the estimates are resolved, once the first ones are there."""
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

    # The correction ----------------------------------------------------------------------------------------------

    def corrected(self, network: Any) -> BoxCorrected:
        """The network with the correction that interpolates all estimates."""
        return BoxCorrected(network, _stored(self._correction(), precision(network)))

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


def _stored(correction: BoxCorrection, dtype: Any) -> BoxCorrection:
    """The correction as NumPy arrays in a network's precision; its modes in single precision, which is enough."""
    correction = correction if dtype == np.float64 else correction.for_single_precision()
    with jax.enable_x64(True):
        arrays = jax.tree.map(np.asarray, cast(correction, dtype))
    return eqx.tree_at(lambda tree: tree.modes.coefficients, arrays, arrays.modes.coefficients.astype(np.float32))
