"""Where the coefficients of the equation jump: two materials, a source that is switched on.

The solution is less smooth there, and so must be its error. Splines get a break of low smoothness at such a place.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

SIDE, LINES = 201, 3
"""Values on each axis, and lines along it in every other direction, that are searched."""
STEEP, LEAST = 30.0, 1e-3
"""A step is suspicious if it is so many times its neighbours, and above this fraction of the range."""
ROUNDING = 1e-9
"""Steps below this fraction of the largest number are rounding."""
HALVINGS, STAYS = 40, 0.5
"""Halvings that close in on a jump, and the fraction of the step that must stay."""
APART = 1e-6
"""Jumps on all lines are at the same place, up to this distance. One that is so close to an end is none."""

Evaluate = Callable[[Float[np.ndarray, "points axes"]], Float[np.ndarray, "points numbers"]]


def jumps_by_axis(evaluate: Evaluate, axes: int) -> list[Float[np.ndarray, " jumps"]]:
    """The scaled coordinates of each axis at which numbers jump, on all lines along it.

    `evaluate` gives any numbers at scaled points. A jump at a place that depends on the other coordinates is left out,
    because no product of splines could follow it.
    """
    return [_common(_lines(evaluate, axes, k)) for k in range(axes)]


def _lines(evaluate: Evaluate, axes: int, k: int) -> list[list[float]]:
    """The jumps on each of several lines along an axis."""
    scaled = np.linspace(-1, 1, SIDE)
    # Lines at places without any symmetry, so that they rarely lie on a jump of another axis.
    others = np.linspace(-0.737, 0.813, LINES) if axes > 1 else np.zeros(1)
    starts = [np.delete(row, k) for row in _grid(others, axes)] if axes > 1 else [np.zeros(0)]
    starts = list({tuple(start): start for start in starts}.values())

    def on_line(start: np.ndarray, values: np.ndarray) -> np.ndarray:
        points = np.insert(np.tile(start, (len(values), 1)), k, values, axis=1)
        return evaluate(points)

    return [_on_line(lambda values, start=start: on_line(start, values), scaled) for start in starts]


def _grid(values: np.ndarray, axes: int) -> np.ndarray:
    return np.stack(np.meshgrid(*[values] * axes, indexing="ij"), axis=-1).reshape(-1, axes)


def _on_line(evaluate: Callable[[np.ndarray], np.ndarray], scaled: np.ndarray) -> list[float]:
    numbers = evaluate(scaled)
    if not np.isfinite(numbers).all():
        return []
    steps = np.abs(np.diff(numbers, axis=0))
    around = np.pad(steps, ((1, 1), (0, 0)))
    neighbours = np.maximum(around[:-2], around[2:])
    size = np.ptp(numbers, axis=0)
    rounding = ROUNDING * np.abs(numbers).max(axis=0)
    suspicious = (steps > STEEP * neighbours) & (steps > LEAST * size) & (steps > rounding)
    return [
        place
        for i, j in np.argwhere(suspicious)
        if (place := _closed_in(lambda values, j=j: evaluate(values)[:, j], float(scaled[i]), float(scaled[i + 1])))
        is not None
    ]


def _closed_in(evaluate: Callable[[np.ndarray], np.ndarray], low: float, high: float) -> float | None:
    """The place of a jump between two values; None if it is only steep."""
    first, last = evaluate(np.array([low, high]))
    whole = abs(last - first)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        value = evaluate(np.array([middle]))[0]
        if abs(value - first) > abs(last - value):
            high, last = middle, value
        else:
            low, first = middle, value
    return (low + high) / 2 if abs(last - first) > STAYS * whole else None


def _common(lines: Sequence[Sequence[float]]) -> Float[np.ndarray, " jumps"]:
    """The jumps that all lines share."""
    shared = [
        place for place in lines[0] if all(any(abs(place - other) < APART for other in line) for line in lines[1:])
    ]
    kept: list[float] = []
    for place in sorted(shared):
        if 1 - abs(place) < APART:
            continue
        if not kept or place - kept[-1] > APART:
            kept.append(place)
    return np.array(kept)
