"""Eigenmodes of -d^2/dx^2 in piecewise polynomials, shared by the reference solvers."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.polynomial.legendre import leggauss, legvander
from numpy.typing import NDArray
from scipy.linalg import eigh, null_space

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Modes:
    """Galerkin eigenmodes of -d^2/dx^2 on an interval; their slopes are orthonormal.

    degree: degree of the polynomials on the elements.
    breaks: ends of the elements, shape (elements + 1,).
    nodes, weights: Gauss rule with degree + 1 nodes per element, shape (q,).
    inverse: inverse eigenvalues, shape (n,).
    values: modes at the nodes, shape (q, n).
    """

    degree: int
    breaks: Floats
    nodes: Floats
    weights: Floats
    inverse: Floats
    values: Floats

    def project(self, f: Floats) -> Floats:
        """Integrals of `f`, values at the nodes of shape (..., q), with the modes: (..., n)."""
        return (f * self.weights) @ self.values

    def at(self, x: Floats) -> Floats:
        """Values of the modes at the points `x` of shape (m,): shape (m, n)."""
        element, rows = interpolation(x, self.breaks, self.degree)
        by_element = self.values.reshape(self.breaks.size - 1, self.degree + 1, -1)
        return np.einsum("mk,mkn->mn", rows, by_element[element])


def interpolation(x: Floats, breaks: Floats, degree: int) -> tuple[NDArray[np.intp], Floats]:
    """The element of each point in `x`, shape (m,), and the weights of its Gauss nodes, shape (m, degree + 1)."""
    element = np.searchsorted(breaks[1:-1], x, side="right")
    local = 2.0 * (x - breaks[element]) / np.diff(breaks)[element] - 1.0
    nodes, weights = leggauss(degree + 1)
    # Gauss quadrature gives the Legendre coefficients of the interpolant exactly.
    to_coefficients = (legvander(nodes, degree) * (np.arange(degree + 1) + 0.5)).T * weights
    return element, legvander(local, degree) @ to_coefficients


@lru_cache(maxsize=8)
def eigenmodes(breaks: tuple[float, ...], degree: int, left_is_zero: bool) -> Modes:
    """Modes with polynomials of `degree` on the elements between the `breaks`. They are zero at the right end.

    At the left end they are zero if `left_is_zero`. Otherwise their slope is zero there, by the natural condition.
    """
    edges = np.array(breaks)
    size, elements = np.diff(edges), edges.size - 1
    gauss, gauss_weights = leggauss(degree + 1)
    nodes = (edges[:-1, None] + size[:, None] * (gauss + 1.0) / 2.0).ravel()
    weights = (size[:, None] * gauss_weights / 2.0).ravel()
    # The slopes of the basis are the orthonormal Legendre polynomials of each element. Then the stiffness matrix is the
    # identity, and the eigenvalues of the mass matrix are the inverse eigenvalues of the operator. The mass matrix is
    # bounded, so rounding does no harm however small the elements are.
    legendre = legvander(gauss, degree)
    bubbles = (legendre[:, 2:] - legendre[:, :-2]) / np.sqrt(8.0 * np.arange(1, degree) + 4.0)
    basis = np.zeros((elements, degree + 1, elements, degree))
    for e, root in enumerate(np.sqrt(size)):
        basis[:e, :, e, 0] = -root
        basis[e, :, e, 0] = root * (gauss - 1.0) / 2.0
        basis[e, :, e, 1:] = root * bubbles
    values = basis.reshape(nodes.size, elements * degree)
    if left_is_zero:
        at_left = np.zeros((1, elements, degree))
        at_left[0, :, 0] = -np.sqrt(size)
        values = values @ null_space(at_left.reshape(1, -1))
    inverse, vectors = eigh((values.T * weights) @ values)
    return Modes(degree, edges, nodes, weights, inverse, values @ vectors)
