"""Splines that represent the corrections of many thetas, each of which has splines of its own."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from clpinn.estimation.meshes import common_breaks
from clpinn.estimation.results import Correction
from clpinn.estimation.splines import Splines, SplineSpace

NUMBERS = 1_000_000
"""Numbers in all modes, at most."""
COARSENING, REPRESENTED = 0.85, 1e-3
"""The common splines are made coarser by this factor as long as the corrections change by less than this fraction."""
TRIED = 12
"""Corrections at which a space is tried."""
SAMPLING = 2
"""Points for each interval of the common splines, at which the corrections are fitted."""


def in_common(corrections: Sequence[Correction]) -> tuple[SplineSpace, Float[np.ndarray, "corrections ..."]]:
    """The coarsest common spline space that represents all corrections, and their coefficients in it."""
    by_axis = list(zip(*(correction.space.axes for correction in corrections)))
    meshes = [[splines.breaks for splines in axis] for axis in by_axis]
    jumps = [_common_jumps(axis) for axis in by_axis]
    finest = np.array([len(common_breaks(axis, math.inf, places)) for axis, (places, _) in zip(meshes, jumps)], float)
    accepted = None
    while True:
        axes = []
        for splines, breaks, most, (places, times) in zip(by_axis, meshes, finest, jumps):
            common = common_breaks(breaks, max(splines[0].degree + 1, most), places)
            multiplicities = np.where(np.isin(common[1:-1], places), times, 1) if len(places) else None
            axes.append(Splines(common, splines[0].degree, splines[0].periodic, multiplicities))
        space = SplineSpace(tuple(axes), corrections[0].space.outputs)
        if accepted is not None and space.counts == accepted.counts:
            break
        if space.size * 8 <= NUMBERS:  # otherwise too many for eight modes
            changed = _projected(space, corrections[:: max(1, len(corrections) // TRIED)])[1]
            if accepted is None or changed <= REPRESENTED:
                accepted = space
            if changed > REPRESENTED:
                break
        finest = finest * COARSENING
    return accepted, _projected(accepted, corrections)[0]


def _common_jumps(splines: Sequence[Splines]) -> tuple[np.ndarray, int]:
    """The breaks at which derivatives may jump at every theta, and how often each is a knot."""
    several = [
        np.zeros(0) if each.multiplicities is None else each.breaks[1:-1][each.multiplicities > 1] for each in splines
    ]
    first = several[0]
    same = all(len(places) == len(first) and np.allclose(places, first) for places in several)
    if not same or not len(first):
        return np.zeros(0), 1
    assert splines[0].multiplicities is not None
    return first, int(splines[0].multiplicities.max())


def _projected(space: SplineSpace, corrections: Sequence[Correction]) -> tuple[np.ndarray, float]:
    """The coefficients of corrections in another spline space, by least squares; and how much they change, relatively.

    Each axis has a few points per interval.
    """
    points = [_inner_points(axis.breaks) for axis in space.axes]
    solvers = [np.linalg.pinv(axis.basis(places)) for axis, places in zip(space.axes, points)]
    rows, changes = [], []
    for correction in corrections:
        values = correction.space.on_grid(correction.coefficients, points)
        coefficients = values
        for k, solver in enumerate(solvers):
            coefficients = np.moveaxis(np.tensordot(solver, coefficients, (1, k + 1)), 0, k + 1)
        rows.append(coefficients)
        apart, whole = (
            np.linalg.norm(array.reshape(space.outputs, -1), axis=1)
            for array in (space.on_grid(coefficients, points) - values, values)
        )
        changes.append(apart / np.where(whole > 0, whole, 1.0))
    return np.array(rows), float(np.median(changes, axis=0).max())


def _inner_points(breaks: np.ndarray) -> np.ndarray:
    """Points in all intervals, and both ends."""
    inner = breaks[:-1, None] + np.diff(breaks)[:, None] * (np.arange(SAMPLING) + 0.5) / SAMPLING
    return np.concatenate([breaks[:1], inner.ravel(), breaks[-1:]])
