"""Linearised Poisson-Boltzmann equation with four parameters, and its solution by spectral elements."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from clpinn.formulation.domain import Box
from clpinn.formulation.problem import Problem
from clpinn.formulation.references import by_theta
from clpinn.formulation.regions import Interior
from clpinn.problems.elements import Modes, eigenmodes


class PoissonBoltzmann(Problem):
    """A screened potential with an oscillating source."""

    equation = "-Δu + k² u = A (mu1² + x² + mu2² + y²) sin(mu1 π x) sin(mu2 π y)"
    coordinates = Box(x=(-1, 1), y=(-1, 1))
    parameters = Box(mu1=(1.0, 2.0), mu2=(3.0, 4.0), k=(5.0, 10.0), A=(5.0, 15.0))
    outputs = ("u",)
    # The paper counts 5041 points per task. 5041 = 71 × 71, so we take a regular grid.
    interior = Interior(5041, sampler="grid")
    candidates = parameters.grid(mu1=6, mu2=6, k=6, A=6)
    evaluation = coordinates.grid(x=100, y=100)
    reference_kind = "spectral elements"
    reference_version = 1

    def residual(self, d, x, y, mu1, mu2, k, A):
        sines = jnp.sin(mu1 * jnp.pi * x) * jnp.sin(mu2 * jnp.pi * y)
        source = A * (mu1**2 + x**2 + mu2**2 + y**2) * sines
        return -(d.u_xx + d.u_yy) + k**2 * d.u - source

    def constrain(self, raw, x, y):
        return BOUNDARY_VALUE + (1 - x**2) * (1 - y**2) * raw

    def reference(self, x, y, mu1, mu2, k, A):
        return {"u": by_theta(solve, self.coordinates, (x, y), (mu1, mu2, k, A))}


Floats = NDArray[np.float64]

BOUNDARY_VALUE = 0.2
# The solution behaves like r^2 log r at the corners. Elements that shrink towards the ends restore exponential
# convergence (Schwab 1998, p- and hp-Finite Element Methods).
_BREAKS = (0.0, *(1.0 - 0.5 * 0.25 ** np.arange(7)), 1.0)
# Points evaluated at once.
_BLOCK = 1024


@dataclass(frozen=True)
class Solution:
    """The solution u = 0.2 + a part even in x and in y + a part odd in x and in y.

    degree: degree of the polynomials.
    even, odd: coefficients of the parts in products of the modes on [0, 1], shape (n, n).
    """

    degree: int
    even: Floats
    odd: Floats

    def __call__(self, x: ArrayLike, y: ArrayLike) -> Floats:
        """Values at the points `x`, `y`, which broadcast to the shape of the result."""
        x, y = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (x, y)))
        across, column = np.unique(x, return_inverse=True)
        up, row = np.unique(y, return_inverse=True)
        if across.size * up.size <= 4 * x.size:  # the points form a grid, which is far cheaper
            return self.on_grid(across, up)[column, row].reshape(x.shape)
        u = np.empty(x.size)
        for start in range(0, x.size, _BLOCK):
            block = slice(start, start + _BLOCK)
            (even_x, odd_x), (even_y, odd_y) = (_modes_at(v.ravel()[block], self.degree) for v in (x, y))
            even, odd = (even_x @ self.even) * even_y, (odd_x @ self.odd) * odd_y
            u[block] = BOUNDARY_VALUE + even.sum(axis=1) + odd.sum(axis=1)
        return u.reshape(x.shape)

    def on_grid(self, x: Floats, y: Floats) -> Floats:
        """Values on the tensor grid of `x`, shape (m,), and `y`, shape (n,): shape (m, n)."""
        (even_x, odd_x), (even_y, odd_y) = (_modes_at(v, self.degree) for v in (x, y))
        return BOUNDARY_VALUE + even_x @ self.even @ even_y.T + odd_x @ self.odd @ odd_y.T


def solve(mu1: float, mu2: float, k: float, A: float, degree: int = 20) -> Solution:
    """Solution of -(u_xx + u_yy) + k^2 u = f on [-1, 1]^2 with u = 0.2 on the boundary.

    f = A (mu1^2 + x^2 + mu2^2 + y^2) sin(mu1 pi x) sin(mu2 pi y). A Galerkin method with polynomials of `degree` on
    the elements, solved by diagonalisation (Lynch et al. 1964, Numer. Math. 6).
    """
    even, odd = _modes(degree)

    def moments(mu: float) -> Floats:
        """Integrals of sin(mu pi x) and (mu^2 + x^2) sin(mu pi x) with odd modes: (2, n)."""
        sine = np.sin(mu * np.pi * odd.nodes)
        return odd.project(np.stack([sine, (mu**2 + odd.nodes**2) * sine]))

    constant = even.project(np.ones_like(even.nodes))
    source_even = -BOUNDARY_VALUE * k**2 * np.outer(constant, constant)
    source_odd = A * moments(mu1).T @ moments(mu2)[::-1]
    return Solution(degree, _divide(source_even, even, k), _divide(source_odd, odd, k))


def _divide(source: Floats, modes: Modes, k: float) -> Floats:
    """Coefficients, shape (n, n), from the integrals of the source with products of modes."""
    row, column = modes.inverse[:, None], modes.inverse
    return source / (row + column + k**2 * row * column)


def _modes(degree: int) -> tuple[Modes, Modes]:
    """Even and odd modes, as functions on [0, 1]."""
    return eigenmodes(_BREAKS, degree, False), eigenmodes(_BREAKS, degree, True)


def _modes_at(x: Floats, degree: int) -> tuple[Floats, Floats]:
    """Values of the even and of the odd modes at the points `x` of shape (m,): shape (m, n)."""
    even, odd = (modes.at(np.abs(x)) for modes in _modes(degree))
    return even, np.sign(x)[:, None] * odd
