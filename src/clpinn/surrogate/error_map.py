"""Estimated errors over the whole parameter box: estimates at some tens of thetas, a Gaussian process between them.

The process is over the logarithm of the error, in the unit cube of the parameters. Half of the thetas are
drawn evenly, some are corners. The others are placed one by one: in turn where the error may be largest, and where the
process knows least. Estimates that are not resolved do not enter the figures, only their share does: nobody knows the
error there.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Bool, Float

from clpinn.errors import ProblemError
from clpinn.estimation.estimate import Estimator
from clpinn.estimation.results import Estimate
from clpinn.formulation.domain import Grid, Points
from clpinn.formulation.problem import Problem
from clpinn.formulation.thetas import checked_thetas, is_among, one_theta, theta_text, to_unit
from clpinn.keys import make_key
from clpinn.shown import html_table
from clpinn.surrogate.error_process import LEVELS, Process, process_through

if TYPE_CHECKING:
    import xarray

THETAS, MORE_THETAS = 24, 12
"""Thetas of a map with one parameter, and how many more each further parameter needs."""
EVEN, CORNERS = 0.5, 0.2
"""Shares of the thetas that are drawn evenly, and at most at corners; the others are placed where they tell most."""
FIELD_POINTS = 1000
"""Points of an error field that a map keeps, at most."""
MOST_CANDIDATES = 1300
"""Candidates that macro and worst are over, at most: draws of the process take time by their third power."""
FEWEST = 3
"""With fewer resolved estimates nothing is said between them, unless the map has no others."""
LOWEST = 1e-300
BOUND = 2.0
"""The next theta has the largest mean plus this many deviations, or the largest deviation."""
NOTE = (
    "Errors are estimated by solving the linearised equations for them; no reference is used. Between the estimates a "
    "Gaussian process interpolates."
)


@dataclass(frozen=True)
class Spread:
    """An estimated figure with the ends of its 90 % spread."""

    value: float
    low: float
    high: float

    def summary(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}

    def __str__(self) -> str:
        return f"{self.value:.1e} ({self.low:.1e} to {self.high:.1e})"


@dataclass(frozen=True, repr=False)
class ErrorMap:
    """Estimated errors of a surrogate over its parameter box.

    Attributes:
        problem: The problem.
        thetas: Where errors were estimated, (thetas, parameters).
        relative_l2: Estimated relative L2 errors, (thetas, outputs).
        largest: Estimated largest errors, (thetas, outputs).
        resolved: Whether each estimate can be trusted, (thetas,).
        fields: Error fields at the thetas on the points of `grid`, (thetas, outputs, points): solution minus surrogate.
        reasons: Why each estimate is resolved, or what limits it.
    """

    problem: Problem
    thetas: Points
    relative_l2: Float[np.ndarray, "thetas outputs"]
    largest: Float[np.ndarray, "thetas outputs"]
    resolved: Bool[np.ndarray, " thetas"]
    fields: Float[np.ndarray, "thetas outputs points"]
    reasons: tuple[str, ...]

    @property
    def grid(self) -> Grid:
        """The points of the error fields: a selection of the evaluation grid, in box coordinates."""
        return self.problem.evaluation.selected(field_indices(self.problem))

    @property
    def share_resolved(self) -> float:
        """The fraction of the thetas whose estimate is resolved."""
        return float(np.mean(self.resolved))

    @property
    def unresolved(self) -> Points:
        """The thetas whose estimate is not resolved."""
        return self.thetas[~self.resolved]

    # Figures over the box ----------------------------------------------------------------------------------------

    @property
    def macro(self) -> dict[str, Spread]:
        """The mean relative L2 error over the candidate thetas, by output."""
        return {name: _spread(draws.mean(axis=1)) for name, draws in self._draws.items()}

    @property
    def worst(self) -> dict[str, Spread]:
        """The largest relative L2 error over the candidate thetas, by output."""
        return {name: _spread(draws.max(axis=1)) for name, draws in self._draws.items()}

    def worst_at(self, output: str) -> dict[str, float]:
        """The candidate theta with the largest expected error."""
        if output not in self._draws:
            return {}
        worst = self._figure_thetas[int(np.argmax(np.median(self._draws[output], axis=0)))]
        return dict(zip(self.problem.parameters, worst.tolist()))

    @cached_property
    def _draws(self) -> dict[str, Float[np.ndarray, "draws candidates"]]:
        """Possible errors at the candidates, by output that has a process."""
        unit = to_unit(self._figure_thetas, self.problem.parameters)
        return {name: process.draws(unit) for name, process in self.processes.items()}

    @cached_property
    def _figure_thetas(self) -> Points:
        """The thetas that macro and worst are over: the candidates, or an even selection and corners of very many."""
        if len(self.thetas) == 1:
            return self.thetas
        candidates = self.problem.candidates.points
        if len(candidates) <= MOST_CANDIDATES:
            return candidates
        chosen = np.random.default_rng(0).choice(len(candidates), MOST_CANDIDATES, replace=False)
        return np.concatenate([candidates[chosen], self.thetas])

    @cached_property
    def processes(self) -> dict[str, Process]:
        """The process of each output of which enough is known. An output that is zero has no relative error."""
        processes = {}
        for name, errors in zip(self.problem.outputs, self.relative_l2.T, strict=True):
            known = self.resolved & np.isfinite(errors)
            if known.sum() >= min(FEWEST, len(self.thetas)):
                processes[name] = process_through(self.problem, self.thetas[known], _logarithm(errors[known]))
        return processes

    def over(self, thetas: Points) -> dict[str, Float[np.ndarray, "levels thetas"]]:
        """Low end, middle and high end of the spread of the error at thetas, by output; NaN if too little is known."""
        unit, unknown = to_unit(thetas, self.problem.parameters), np.full((len(LEVELS), len(thetas)), math.nan)
        spreads = {name: process.spread(unit) for name, process in self.processes.items()}
        return {name: spreads.get(name, unknown) for name in self.problem.outputs}

    def nearest(self, theta: Float[np.ndarray, " parameters"]) -> int:
        """The number of the map's theta that is nearest to another one."""
        box = self.problem.parameters
        return int(np.argmin(np.linalg.norm(to_unit(self.thetas, box) - to_unit(np.asarray(theta)[None], box), axis=1)))

    def knows(self, theta: Float[np.ndarray, " parameters"]) -> bool:
        """Whether the error at a theta is known: the nearest estimate is resolved, and others tell how errors vary.

        A map of one theta, such as that of a standard PINN, knows the error there only.
        """
        several = len(self.thetas) > 1 or np.array_equal(self.thetas[0], theta)
        return bool(several and self.processes and self.resolved[self.nearest(theta)])

    def at(self, **theta: float) -> dict[str, Spread]:
        """The error at one theta by output, interpolated. `surrogate.error` computes it there."""
        row = checked_thetas(self.problem, one_theta(self.problem.parameters, theta), forbid_outside=True)
        return {
            name: Spread(float(middle[0]), float(low[0]), float(high[0]))
            for name, (low, middle, high) in self.over(row).items()
        }

    # For people --------------------------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """All figures over the box as plain values."""
        outputs = {
            name: {"macro": self.macro[name].summary(), "worst": self.worst[name].summary()}
            | {"worst_at": self.worst_at(name)}
            for name in self._draws
        }
        return {"thetas": len(self.thetas), "resolved": self.share_resolved, "outputs": outputs}

    def to_dataset(self) -> "xarray.Dataset":
        """Over the candidates: NAME, NAME_low and NAME_high are the relative L2 error of an output and its spread."""
        import xarray  # here, because it takes long to import

        candidates = self.problem.candidates
        columns = {}
        for name, (low, middle, high) in self.over(candidates.points).items():
            columns |= {name: middle, f"{name}_low": low, f"{name}_high": high}
        dims = list(candidates.values)
        shaped = {name: (dims, column.reshape(candidates.shape)) for name, column in columns.items()}
        return xarray.Dataset(shaped, dict(candidates.values), {"comment": NOTE, "resolved": self.share_resolved})

    def table(self) -> list[dict[str, Any]]:
        """One row per theta of the map."""
        rows = []
        for i, theta in enumerate(self.thetas):
            row: dict[str, Any] = dict(zip(self.problem.parameters, theta.tolist()))
            for j, name in enumerate(self.problem.outputs):
                row[f"rel_l2_{name}"], row[f"max_abs_{name}"] = self.relative_l2[i, j], self.largest[i, j]
            rows.append(row | {"resolved": bool(self.resolved[i]), "reason": self.reasons[i]})
        return rows

    def __repr__(self) -> str:
        return f"ErrorMap: {', '.join(f'{name} {text}' for name, text in self._facts().items())}"

    def _repr_html_(self) -> str:
        return html_table("Estimated errors over the box", self._facts() | {"note": NOTE})

    def __str__(self) -> str:
        return "\n".join(f"{name}: {text}" for name, text in self._facts().items())

    def _facts(self) -> dict[str, str]:
        facts = {"thetas": f"{len(self.thetas)}, {int(self.resolved.sum())} resolved"}
        for name in self._draws:
            facts[f"estimated macro relative L2 of {name}"] = str(self.macro[name])
            place = self.worst_at(name)
            at = f" at {theta_text(place, place.values(), digits=4)}" if place else ""
            facts[f"estimated worst relative L2 of {name}"] = f"{self.worst[name]}{at}"
        if not self.resolved.all():
            first = theta_text(self.problem.parameters, self.unresolved[0], digits=4)
            facts["not known"] = f"the error at {len(self.unresolved)} thetas" + (f", such as {first}" if first else "")
        return facts


# Making a map ------------------------------------------------------------------------------------------------


def error_map(
    estimator: Estimator,
    network_at: Callable[[np.ndarray], Any],
    count: int | None = None,
    seconds: float | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
    candidates: Points | None = None,
) -> ErrorMap:
    """The map of a surrogate: estimates at `count` thetas, or at fewer if `seconds` have passed.

    The thetas are chosen from `candidates`, by default those of the problem.
    """
    count = usual_count(estimator.problem) if count is None else count
    if count < 1 or (seconds is not None and not seconds > 0):
        raise ProblemError(f"A map needs at least one theta and a time above zero, but got {count} and {seconds}.")
    problem, start = estimator.problem, time.monotonic()
    candidates = problem.candidates.points if candidates is None else candidates
    count = min(count, len(candidates))
    waiting = list(_first_thetas(problem, candidates, math.ceil(EVEN * count), math.floor(CORNERS * count)))
    thetas: list[np.ndarray] = []
    estimates: list[Estimate] = []
    while len(thetas) < count:
        theta = waiting.pop(0) if waiting else _next_theta(problem, candidates, np.array(thetas), estimates)
        thetas.append(theta)
        estimates.append(estimator.at(network_at(theta), theta))
        progress(len(thetas), count)
        if seconds is not None and time.monotonic() - start > seconds:
            break
    return map_of(problem, np.array(thetas), estimates)


def usual_count(problem: Problem) -> int:
    """The number of thetas of a map if nothing else is said."""
    return THETAS + MORE_THETAS * max(0, len(problem.parameters) - 1)


def _first_thetas(problem: Problem, candidates: Points, count: int, most_corners: int) -> Points:
    """Candidates that are drawn evenly over the box, nearest to the points of a Sobol sequence; then some corners."""
    unit, box = to_unit(candidates, problem.parameters), problem.parameters
    chosen: list[int] = []
    for point in to_unit(box.sample(count, make_key(0)), box):
        distance = np.linalg.norm(unit - point, axis=1)
        distance[chosen] = np.inf
        chosen.append(int(np.argmin(distance)))
    corners = np.flatnonzero(np.all((unit == unit.min(axis=0)) | (unit == unit.max(axis=0)), axis=1))
    return candidates[list(dict.fromkeys([*chosen, *corners[:most_corners]]))]


def _next_theta(problem: Problem, candidates: Points, thetas: Points, estimates: Sequence[Estimate]) -> np.ndarray:
    """The candidate that tells most: the one with the largest upper bound, and every other time the least known one."""
    errors = np.array([list(estimate.relative_l2.values()) for estimate in estimates])
    finite = np.where(np.isfinite(errors), errors, np.nanmax(errors[np.isfinite(errors)], initial=LOWEST))
    process = process_through(problem, thetas, _logarithm(finite).mean(axis=1))
    mean, deviation = process.mean_and_deviation(to_unit(candidates, problem.parameters))
    score = mean + BOUND * deviation if len(thetas) % 2 else deviation
    return candidates[int(np.argmax(np.where(is_among(candidates, thetas), -np.inf, score)))]


def map_of(problem: Problem, thetas: Points, estimates: Sequence[Estimate]) -> ErrorMap:
    """The map of estimates at thetas (thetas, parameters)."""
    chosen = np.ix_(*field_indices(problem).values())
    shape = problem.evaluation.shape
    fields = [[column.reshape(shape)[chosen].ravel() for column in estimate.error.T] for estimate in estimates]
    return ErrorMap(
        problem,
        thetas,
        np.array([list(estimate.relative_l2.values()) for estimate in estimates]),
        np.array([list(estimate.largest.values()) for estimate in estimates]),
        np.array([estimate.resolved for estimate in estimates]),
        np.array(fields, np.float32),
        tuple(estimate.reason for estimate in estimates),
    )


def field_indices(problem: Problem) -> dict[str, np.ndarray]:
    """The values of each axis of the evaluation grid at which error fields are kept."""
    return problem.evaluation.thinned(FIELD_POINTS)


# Files -------------------------------------------------------------------------------------------------------

ARRAYS = ("thetas", "relative_l2", "largest", "resolved", "fields")


def to_arrays(map_: ErrorMap | None) -> dict[str, np.ndarray] | None:
    """The arrays of a map, for a file."""
    return None if map_ is None else {name: getattr(map_, name) for name in ARRAYS}


def blank_arrays(problem: Problem, count: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of the arrays that a map of `count` thetas has."""
    outputs, points = len(problem.outputs), math.prod(map(len, field_indices(problem).values()))
    shapes = {"thetas": (count, len(problem.parameters)), "resolved": (count,), "fields": (count, outputs, points)}
    return {name: jax.ShapeDtypeStruct(shapes.get(name, (count, outputs)), float) for name in ARRAYS}


def from_arrays(problem: Problem, arrays: Mapping[str, np.ndarray], reasons: Sequence[Any]) -> ErrorMap:
    """A map from the arrays of a file, which may hold anything: a ValueError if they are no map."""
    count = len(arrays["thetas"])
    if count < 1 or len(reasons) != count or not all(isinstance(reason, str) for reason in reasons):
        raise ValueError("an error map without thetas or reasons")
    kinds = {name: arrays[name].dtype.kind for name in ARRAYS}
    if kinds != dict.fromkeys(ARRAYS, "f") | {"resolved": "b"} or not problem.parameters.inside(arrays["thetas"]).all():
        raise ValueError("an error map at thetas outside the box, or of other numbers")
    if np.isinf(arrays["relative_l2"][arrays["resolved"]]).any() or (arrays["relative_l2"] < 0).any():
        raise ValueError("an error map with errors that are infinite or negative")
    return ErrorMap(problem, **{name: arrays[name] for name in ARRAYS}, reasons=tuple(reasons))


# Numbers -----------------------------------------------------------------------------------------------------


def _logarithm(errors: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(errors, LOWEST))


def _spread(draws: Float[np.ndarray, " draws"]) -> Spread:
    low, middle, high = np.quantile(draws, LEVELS).tolist()
    return Spread(middle, low, high)
