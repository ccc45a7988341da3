"""Where splines need to be fine: breaks of each axis from the surrogate itself, and from what a solution left over."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

EVEN_SHARE = 0.5
"""Part of the first breaks that is spread evenly; the others follow the curvature of the surrogate."""
OUTSIDE = 0.05
"""The first density of breaks where no part of the domain is, relative to the mean."""
SHARPEST = 6.0
"""The density of breaks changes at most by this factor from one mesh to the next."""
NEIGHBOURS = 0.4
"""The density of an interval is at least this fraction of its neighbours'."""
FINEST = 1e4
"""The density of breaks is at most this many times its mean: finer intervals would drown in rounding."""
NEAR = 0.25
"""A break this close to a jump, in units of the interval that the jump is in, is replaced by it."""
ORDER = 4
"""Squares of what is left fall about like this power of the squared width of an interval."""

Breaks = Float[np.ndarray, " breaks"]


def curvature_breaks(
    scaled: Float[np.ndarray, " values"], values: Float[np.ndarray, "... outputs"], counts: Sequence[int]
) -> list[Breaks]:
    """Breaks for these numbers of intervals, denser where the outputs bend.

    `values` are outputs on a regular grid, with the same scaled values on every axis. A layer gets about as many
    intervals whether it is thick or thin: the density is the square root of the second derivative. Outside of a domain
    that is a shape values are NaN, and breaks are few.
    """
    axes = tuple(range(values.ndim - 1))
    seen = values[np.isfinite(values).all(axis=-1)]
    spread = seen.std(axis=0) if len(seen) else np.zeros(values.shape[-1])
    values = values / np.where(spread > 0, spread, 1.0)
    breaks = []
    for k, count in zip(axes, counts, strict=True):
        bend = np.diff(values, 2, axis=k) / (scaled[1] - scaled[0]) ** 2
        others = tuple(j for j in axes if j != k)
        mean_square = np.mean(np.nan_to_num(bend) ** 2, axis=others).sum(axis=-1)
        density = np.pad(mean_square**0.25, 1, mode="edge")
        mean = density.mean()
        density = EVEN_SHARE + (1 - EVEN_SHARE) * (density / mean if mean > 0 else np.ones_like(density))
        density = np.where(np.isfinite(values).any(axis=(*others, -1)), density, OUTSIDE)
        density = np.convolve(np.pad(density, 2, mode="edge"), np.full(5, 0.2), "valid")
        breaks.append(equidistributed(scaled, (density[1:] + density[:-1]) / 2, count))
    return breaks


def refined_breaks(breaks: Breaks, left: Float[np.ndarray, " intervals"], count: int, periodic: bool) -> Breaks:
    """`count` intervals, denser where more is left. `left` are sums of squares by interval."""
    mean = left.mean()
    factor = np.maximum(left / mean, 1e-30) ** (1 / (2 * ORDER)) if mean > 0 else np.ones_like(left)
    density = np.clip(factor, 1 / SHARPEST, SHARPEST) / np.diff(breaks)
    for _ in range(2):
        around = np.pad(density, 1, mode="wrap" if periodic else "edge")
        density = np.maximum(density, NEIGHBOURS * np.maximum(around[:-2], around[2:]))
    widths = np.diff(breaks)
    density = np.minimum(density, FINEST * (density @ widths) / widths.sum())
    return equidistributed(breaks, density * np.diff(breaks), count)


def with_jumps(breaks: Breaks, jumps: Breaks) -> Breaks:
    """The breaks and the jumps. Breaks that are very close to a jump go."""
    for jump in jumps:
        i = int(np.clip(np.searchsorted(breaks, jump), 1, len(breaks) - 1))
        near = NEAR * (breaks[i] - breaks[i - 1])
        inner = breaks[1:-1][np.abs(breaks[1:-1] - jump) > near]
        breaks = np.concatenate([breaks[:1], inner, [jump], breaks[-1:]])
        breaks.sort()
    return breaks


def common_breaks(meshes: Sequence[Breaks], most: float, jumps: Breaks) -> Breaks:
    """Breaks that are nowhere coarser than any of these meshes, or at most this many intervals in all; and jumps."""
    points = np.unique(np.concatenate(meshes))
    middles = (points[1:] + points[:-1]) / 2
    density = np.max([1 / np.diff(mesh)[np.searchsorted(mesh, middles) - 1] for mesh in meshes], axis=0)
    amounts = density * np.diff(points)
    return with_jumps(equidistributed(points, amounts, int(min(np.ceil(amounts.sum()), most))), jumps)


def equidistributed(points: np.ndarray, amounts: np.ndarray, count: int) -> Breaks:
    """Breaks that divide the amounts between points into equal parts."""
    total = np.concatenate([[0.0], np.cumsum(amounts)])
    breaks = np.interp(np.linspace(0, total[-1], count + 1), total, points)
    breaks[0], breaks[-1] = points[0], points[-1]
    return breaks
