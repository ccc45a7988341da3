"""Thetas: their shape, sameness, distances, and text form.

Several thetas are an array of shape (thetas, parameters), with columns in the order of the parameter box.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from clpinn.errors import ClpinnError, DomainError, ProblemError
from clpinn.formulation.domain import Box, Points
from clpinn.formulation.problem import Problem

Theta = Float[np.ndarray, " parameters"]
Thetas = Float[np.ndarray, "thetas parameters"]

SAME = 1e-9
"""Thetas closer than this in the unit cube are the same task: grids reach the corners only up to rounding."""
MOST_CORNERS = 8
"""Corners of the candidates among thetas that are spread over the box."""


def checked_thetas(problem: Problem, thetas: ArrayLike, forbid_outside: bool = False) -> Points:
    """Thetas as an array of shape (thetas, parameters). One outside the box gives a warning, or an error on request."""
    rows = np.atleast_2d(np.asarray(thetas, dtype=float))
    if rows.shape[1] != len(problem.parameters):
        raise ProblemError(
            f"Thetas need {len(problem.parameters)} columns ({', '.join(problem.parameters)}), but got the shape "
            f"{rows.shape}."
        )
    problem.parameters.check(rows, forbid_outside)
    return rows


def one_theta(box: Box, theta: Mapping[str, Any]) -> list[list[float]]:
    """A theta by name as (1, parameters). Each value must be one number."""
    box.require(theta, complete=True)
    try:
        return [[float(np.asarray(theta[name]).reshape(())) for name in box]]
    except (TypeError, ValueError):
        given = ", ".join(f"{name} = {value!r:.40}" for name, value in theta.items())
        raise DomainError(f"One number is needed for each of {', '.join(box)}, but got {given}.") from None


def is_among(thetas: Thetas, others: Thetas) -> Bool[np.ndarray, " thetas"]:
    """For each theta, whether exactly the same values are a row of `others`."""
    thetas, others = np.asarray(thetas, dtype=float), np.asarray(others, dtype=float)
    return (thetas[:, None, :] == others[None, :, :]).all(axis=-1).any(axis=1)


def unseen_thetas(candidates: Thetas, trained: Thetas, most: int | None = None, seed: int = 0) -> Thetas:
    """The candidates that were not trained, in their order; or `most` of them, drawn at random."""
    seen = np.any(np.all(np.isclose(candidates[:, None], trained, rtol=1e-9, atol=0), axis=2), axis=1)
    unseen = candidates[~seen]
    if len(unseen) == 0:
        raise DomainError("Every candidate was trained, so none is unseen. Name the thetas to adapt to.")
    if most is None or most >= len(unseen):
        return unseen
    return unseen[np.sort(np.random.default_rng(seed).choice(len(unseen), most, replace=False))]


# Distances --------------------------------------------------------------------------------------------------


def to_unit(thetas: Thetas, box: Box) -> Thetas:
    """Thetas in the unit cube, each axis on its scale. Euclidean distances in the cube are called normalised."""
    thetas = np.asarray(thetas, dtype=float)
    unit = np.zeros(thetas.shape)
    for column, axis in enumerate(box.axes):
        unit[:, column] = axis.to_unit(thetas[:, column])
    return unit


def features(thetas: Thetas, box: Box) -> Float[np.ndarray, "thetas features"]:
    """Thetas as networks see them, from -1 to 1; a periodic axis has a sine and a cosine."""
    columns = []
    for axis, unit in zip(box.axes, to_unit(thetas, box).T, strict=True):
        scaled = 2 * unit - 1
        columns += [np.sin(np.pi * scaled), np.cos(np.pi * scaled)] if axis.scale == "periodic" else [scaled]
    return np.stack(columns, axis=1)


def nearest_distance(thetas: Thetas, others: Thetas, box: Box) -> Float[np.ndarray, " thetas"]:
    """Normalised distance from each theta to the nearest of the others; infinite if there are none."""
    from scipy.spatial.distance import cdist  # here, because it takes long to import

    return cdist(to_unit(thetas, box), to_unit(others, box)).min(axis=1, initial=np.inf)


def same_as_any(thetas: Thetas, others: Thetas, box: Box) -> Bool[np.ndarray, " thetas"]:
    """For each theta, whether it is the same task as one of the others."""
    if len(others) == 0:
        return np.zeros(len(thetas), bool)
    return nearest_distance(thetas, others, box) <= SAME


def coverage_hole(candidates: Thetas, trained: Thetas, box: Box) -> float:
    """The largest normalised distance from any candidate to its nearest trained theta."""
    return float(nearest_distance(candidates, trained, box).max())


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


# Text -------------------------------------------------------------------------------------------------------


def theta_text(names: Iterable[str], theta: Iterable[float], digits: int = 6) -> str:
    """A theta for people: "nu = 0.03, rho = 4"; nothing where there are no parameters."""
    return ", ".join(f"{name} = {value:.{digits}g}" for name, value in zip(names, theta, strict=True))


def parse_values(words: list[str]) -> dict[str, Float[np.ndarray, " values"]]:
    """Rows of values by name, from words such as "nu=0.01,0.02" and "rho=4"."""
    values: dict[str, np.ndarray] = {}
    for word in words:
        name, equals, text = word.partition("=")
        try:
            values[name] = np.array([float(number) for number in text.split(",")])
        except ValueError:
            equals = ""
        if not equals:
            raise ClpinnError(f"A value is given as name=number, such as nu=0.0113, but got {word!r}.")
    return values


def parse_thetas(box: Box, words: list[str]) -> Thetas:
    """Thetas of shape (thetas, parameters), from words such as "nu=0.01,0.02" and "rho=4".

    Each parameter has the same number of values, or a single one that holds for all thetas.
    """
    values = parse_values(words)
    box.require(values, complete=True)
    try:
        return np.stack(np.broadcast_arrays(*(values[name] for name in box)), axis=1)
    except ValueError:
        counts = ", ".join(f"{len(row)} of {name}" for name, row in values.items())
        raise ClpinnError(f"Give as many values of each parameter, or a single one, but got {counts}.") from None
