"""Batches of points for the natural gradient: drawn anew for every step, denser where residuals are large.

Thetas are drawn over the whole box, or from a task pool by weight. For each point of a batch several candidates are
drawn. Half of the batch is taken evenly from them and half in proportion to the residual, so a batch sees the layers
and the thetas that a uniform one would miss.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from clpinn.formulation.domain import Points
from clpinn.formulation.problem import Problem
from clpinn.keys import Key, fold_in, generator, make_key, split
from clpinn.programs import Lowering
from clpinn.training.causality import causal_weights, equal_weights, time_direction
from clpinn.training.residuals import Terms
from clpinn.training.rows import Batch, Rows
from clpinn.training.term_sizes import SizeMeter, TermSize

CONDITIONS_SHARE = 0.3
"""Share of the rows that goes to the conditions, if there are any."""
CANDIDATES = 8
"""Candidates drawn for each point that is taken."""
EDGE_SHARE = 0.1
"""Share of the candidates drawn denser towards the edges of the domain: a fit errs most at corners it never sees."""
UNIFORM_SHARE = 0.5
"""Share of the points taken whatever their residual."""
INTEGRAL_SHARE = 1 / 8
"""Rows of an integral relative to those of another condition: each takes many points."""
TASK_LOSS_POINTS = 1024
"""Points of each term that the loss of a task is computed on."""


@dataclass(frozen=True)
class TaskMix:
    """Tasks that a batch draws its thetas from, in proportion to their weights. None stands for the whole box."""

    thetas: Points
    weights: Float[np.ndarray, " tasks"]

    @staticmethod
    def single(theta: Float[np.ndarray, " parameters"]) -> "TaskMix":
        """One theta alone."""
        return TaskMix(np.asarray(theta, float)[None], np.ones(1))


class Batches:
    """Draws batches of one problem, with about `count` rows each."""

    def __init__(self, rows: Rows, count: int):
        self.rows, self.terms = rows, rows.terms
        self.points = {name: rows.even(points) for name, points in _points_per_term(self.terms, count).items()}
        """Points of a batch by term."""
        self.count = sum(points * len(self.terms.residual_names[name]) for name, points in self.points.items())
        """Rows of a batch."""
        self.time = time_direction(self.terms.problem)

    def lowerings(self) -> list[Lowering]:
        """What compiles the drawing of points near the boundary of a shape, which the first step needs."""
        if self.terms.problem.domain is None:
            return []

        def draw() -> None:
            self.terms.sample("interior", make_key(0), self.terms.problem.parameters.centre[None], edge_share=1.0)

        return [lambda: draw]

    def candidate_points(self, growth: int = 1) -> dict[str, int]:
        """Candidates of a batch by term."""
        several = {name: 1 if name in self.terms.integrals else CANDIDATES for name in self.points}
        return {name: several[name] * growth * count for name, count in self.points.items()}

    def uniform(
        self,
        key: Key,
        points: Mapping[str, int],
        sizes: Mapping[str, TermSize],
        tasks: TaskMix | None,
        edge_share: float = 0.0,
    ) -> dict[str, Batch]:
        """Points of every term, drawn whatever their residual. Weights make a sum of squares a sum of mean squares."""
        terms = self.terms
        batch = {}
        for name, term_key in zip(terms.residuals, split(key, len(terms.residuals)), strict=True):
            theta_key, point_key = split(term_key)
            thetas = self._thetas(theta_key, points[name], tasks)
            x = terms.sample(name, point_key, thetas, edge_share)
            if name in terms.data:
                thetas = terms.measured_thetas(x)
            root = math.sqrt(terms.weights[name] / points[name])
            weight = root / sizes[name].at(terms.problem.parameters, thetas)
            batch[name] = Batch(*(np.asarray(array, self.rows.dtype) for array in (x, thetas, weight)))  # pyright: ignore
        return batch

    def _thetas(self, key: Key, count: int, tasks: TaskMix | None) -> Points:
        if tasks is None:  # a fit over an interval errs most at its ends
            return self.terms.problem.parameters.sample(count, key, "chebyshev")
        # Shuffled: the points of a boundary come face by face, and every task must see all faces.
        chosen = _stratified(tasks.weights, count, generator(key).random(count))
        return tasks.thetas[chosen[np.argsort(generator(fold_in(key, 1)).random(count))]]

    def draw(
        self,
        network: Any,
        key: Key,
        sizes: Mapping[str, TermSize],
        tasks: TaskMix | None = None,
        growth: int = 1,
        robust: bool = False,
        causality: float = 0.0,
    ) -> dict[str, Batch]:
        """A batch, `growth` times as large as usual: candidates with large residuals are taken more often.

        A point that is taken more often has a smaller weight, so the expected sum of squares is that of the candidates.
        In a `robust` batch its weight is smaller still, so the sum resembles one of absolute values. `causality` is the
        strength of causal weights.
        """
        draw_key, choice_key = split(key)
        points = {name: growth * count for name, count in self.points.items()}
        candidates = self.uniform(draw_key, self.candidate_points(growth), sizes, tasks, EDGE_SHARE)
        residuals = self.rows.residuals(network, candidates)
        causal = causal_weights(self.time, np.asarray(candidates["interior"].x), residuals["interior"], causality)
        batch = {}
        for (name, count), offset in zip(points.items(), generator(choice_key).random(len(points)), strict=True):
            weight = (equal_weights if name in self.terms.data else causal)(np.asarray(candidates[name].x))
            norm = np.linalg.norm(residuals[name], axis=1)
            defined = np.isfinite(norm)
            if defined.any():  # a root or logarithm may be undefined at some points for the moment
                weight = np.where(defined, weight, 0.0)
            norm = np.nan_to_num(norm, posinf=0.0) * np.sqrt(weight)
            share = UNIFORM_SHARE * weight / weight.sum()
            share += (1 - UNIFORM_SHARE) * norm / max(norm.sum(), np.finfo(float).tiny)
            chosen = _stratified(share, count, offset)
            part = jax.tree.map(lambda array, chosen=chosen: array[chosen], candidates[name])
            correction = np.sqrt(weight[chosen] / (count * share[chosen]))
            if robust:
                correction = correction / np.sqrt(len(norm) * share[chosen])
            batch[name] = part.reweighted(correction[:, None])
        return batch

    def task_losses(self, network: Any, thetas: Points, key: Key, sizes: Mapping[str, TermSize]) -> np.ndarray:
        """Weighted mean squares of single tasks, each on the same points."""
        points = dict.fromkeys(self.terms.residuals, self.rows.even(TASK_LOSS_POINTS))
        losses = []
        for theta in thetas:
            batch = self.uniform(key, points, sizes, TaskMix.single(theta))
            losses.append(self.rows.value(network, self.without_data(batch))[0])
        return np.array(losses)

    def without_data(self, batch: Mapping[str, Batch]) -> dict[str, Batch]:
        """A batch without measured points, which have thetas of their own."""
        return {name: part for name, part in batch.items() if name not in self.terms.data}


class RowSource(NamedTuple):
    """What draws and computes the rows of one problem."""

    rows: Rows
    sizes: SizeMeter
    batches: Batches


def row_source(problem: Problem, count: int, dtype: Any) -> RowSource:
    """The rows of a problem, about `count` per batch. Kept, so that the same problem is compiled once per process."""
    return _row_source(Terms(problem), count, dtype, tuple(jax.devices()))


@lru_cache(maxsize=16)
def _row_source(terms: Terms, count: int, dtype: Any, devices: tuple[Any, ...]) -> RowSource:
    rows = Rows(terms, dtype)
    return RowSource(rows, SizeMeter(terms, dtype), Batches(rows, count))


def reweighted(batch: Mapping[str, Batch], factors: Mapping[str, Float[np.ndarray, " residuals"]]) -> dict[str, Batch]:
    """A batch whose weights are multiplied by a factor per residual, by term."""
    return {name: part.reweighted(factors[name]) for name, part in batch.items()}


def _points_per_term(terms: Terms, rows: int) -> dict[str, float]:
    """How many points of each term make this number of rows; conditions share their part evenly."""
    share = CONDITIONS_SHARE if len(terms.residuals) > 1 else 0.0
    conditions = max(1, len(terms.residuals) - 1)
    wanted = {name: rows * (1 - share if name == "interior" else share / conditions) for name in terms.residuals}
    wanted |= {name: INTEGRAL_SHARE * wanted[name] for name in terms.integrals}
    return {name: count / len(terms.residual_names[name]) for name, count in wanted.items()}


def _stratified(shares: np.ndarray, count: int, offsets: float | np.ndarray) -> np.ndarray:
    """`count` indices, each as often as its share says, to within one: one draw in each of `count` equal strata."""
    ends = np.cumsum(shares)
    return np.searchsorted(ends / ends[-1], (np.arange(count) + offsets) / count, side="right").clip(0, len(shares) - 1)
