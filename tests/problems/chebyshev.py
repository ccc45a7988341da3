"""Chebyshev collocation for the independent checks of the references."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def chebyshev(degree: int) -> tuple[Floats, Floats]:
    """Chebyshev-Lobatto nodes from 1 to -1, and the differentiation matrix there."""
    k = np.arange(degree + 1)
    # The differences of the nodes as products of sines, which do not cancel.
    gap = -np.sin(np.pi * np.subtract.outer(k, k) / (2 * degree))
    gap *= 2 * np.sin(np.pi * np.add.outer(k, k) / (2 * degree))
    np.fill_diagonal(gap, 1.0)
    weight = (-1.0) ** k * np.where((k == 0) | (k == degree), 0.5, 1.0)
    slope = weight / weight[:, None] / gap
    # Rows sum to zero: the slope of a constant.
    np.fill_diagonal(slope, 0.0)
    np.fill_diagonal(slope, -slope.sum(axis=1))
    return np.cos(np.pi * k / degree), slope
