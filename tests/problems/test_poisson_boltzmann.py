"""The Poisson-Boltzmann reference against refinements and against a sine series."""

import itertools

import numpy as np
import pytest
from chebyshev import chebyshev
from numpy.polynomial.chebyshev import chebfit, chebval
from numpy.typing import NDArray

from clpinn.problems.poisson_boltzmann import solve

Floats = NDArray[np.float64]
Theta = tuple[float, float, float, float]

CORNERS: tuple[Theta, ...] = tuple(itertools.product((1.0, 2.0), (3.0, 4.0), (5.0, 10.0), (5.0, 15.0)))
# Here the source at the corners of the square is largest, and so is the singularity.
WORST: Theta = (1.5, 3.5, 10.0, 15.0)
INTERIOR: tuple[Theta, ...] = (WORST, (1.63, 3.21, 6.9, 12.3), (1.11, 3.77, 8.2, 5.4))


def grid() -> Floats:
    """Coordinates of shape (n,): equally spaced and close to the ends."""
    near = np.geomspace(1e-7, 0.3, 60)
    return np.concatenate([near - 1, np.linspace(-1, 1, 101), 1 - near])


def largest(theta: Theta) -> float:
    """The largest |u|."""
    return float(np.abs(solve(*theta).on_grid(grid(), grid())).max())


def refinement(theta: Theta, **degree: int) -> float:
    """Largest difference of `degree`, or the default, to degree 28, over the largest |u|."""
    x = grid()
    difference = solve(*theta, **degree).on_grid(x, x) - solve(*theta, degree=28).on_grid(x, x)
    return float(np.abs(difference).max()) / largest(theta)


def sine_series(theta: Theta, x: Floats, y: Floats, terms: int = 400_000) -> Floats:
    """Values at the points `x`, `y`, both of shape (m,) and inside: shape (m,).

    u = 0.2 + P + H with P = x^2 sin(a x) v0(y) + x cos(a x) v1(y) + sin(a x) v2(y) + v3(y), which
    solves the equation and is zero at y = +-1. H takes P to zero at x = +-1. It is a series of
    sines in y times sinh and cosh in x, which decay exponentially from x = +-1.
    """
    mu1, mu2, k, A = theta
    a, b = mu1 * np.pi, mu2 * np.pi
    v = _products(theta, y)
    u = 0.2 + x**2 * np.sin(a * x) * v[0] + x * np.cos(a * x) * v[1] + np.sin(a * x) * v[2] + v[3]

    n = np.arange(1, terms + 1)
    w = n * np.pi / 2
    # Coefficients of 1, sin(b y) and y^2 sin(b y) in sin(w (y + 1)): odd n, even n and even n.
    sign = np.where(n % 2 == 1, 0.0, np.where(n % 4 == 0, 1.0, -1.0))
    one = np.where(n % 2 == 1, 2 / w, 0.0)
    (low, low2), (high, high2) = _cosine_moments(b - w), _cosine_moments(b + w)
    sine, sine2 = sign * (low - high) / 2, sign * (low2 - high2) / 2
    # The equations of v0, ..., v3 in sine coefficients.
    square = w**2 + k**2
    c0 = A * sine / (square + a**2)
    c1 = 4 * a * c0 / (square + a**2)
    c2 = (A * ((mu1**2 + mu2**2) * sine + sine2) + 2 * c0 - 2 * a * c1) / (square + a**2)
    odd = np.sin(a) * (c0 + c2) + np.cos(a) * c1
    even = -0.2 * k**2 * one / square
    kappa = np.sqrt(square)
    far = np.exp(-2 * kappa)
    for i in range(x.size):
        m = min(terms, int(40 / (1 - abs(x[i]))))
        right, left = (np.exp(-kappa[:m] * distance) for distance in (1 - x[i], 1 + x[i]))
        sinh, cosh = (right - left) / (1 - far[:m]), (right + left) / (1 + far[:m])
        u[i] -= (odd[:m] * sinh + even[:m] * cosh) @ np.sin(w[:m] * (y[i] + 1))
    return u


def _products(theta: Theta, y: Floats) -> Floats:
    """v0, ..., v3 of `sine_series` at `y`, shape (4, m), by Chebyshev collocation."""
    mu1, mu2, k, A = theta
    a = mu1 * np.pi
    nodes, slope = chebyshev(64)

    def solve_in_y(shift: float, source: Floats) -> Floats:
        """-v'' + shift v = source with v(+-1) = 0."""
        matrix = shift * np.eye(65) - slope @ slope
        return np.pad(np.linalg.solve(matrix[1:-1, 1:-1], source[1:-1]), 1)

    sine = np.sin(mu2 * np.pi * nodes)
    shift = a**2 + k**2
    v0 = solve_in_y(shift, A * sine)
    v1 = solve_in_y(shift, 4 * a * v0)
    v2 = solve_in_y(shift, A * (mu1**2 + mu2**2 + nodes**2) * sine + 2 * v0 - 2 * a * v1)
    v3 = solve_in_y(k**2, np.full(65, -0.2 * k**2))
    return chebval(y, chebfit(nodes, np.stack([v0, v1, v2, v3], axis=1), 64))


def _cosine_moments(c: Floats) -> tuple[Floats, Floats]:
    """Integrals over [-1, 1] of cos(c y) and y^2 cos(c y), each of the shape of `c`."""
    zero = c == 0
    c = np.where(zero, 1.0, c)
    first = 2 * np.sin(c) / c
    second = first + 4 * np.cos(c) / c**2 - 4 * np.sin(c) / c**3
    return np.where(zero, 2.0, first), np.where(zero, 2 / 3, second)


def independent(theta: Theta) -> float:
    """Largest difference to the sine series over the largest |u|, up to 1e-5 from the corners."""
    near = np.array([1e-5, 1e-4, 1e-3, 1e-2, 0.1])
    line = np.concatenate([1 - near, [0.63, 0.35, 0.0, -0.5], near - 1])
    x, y = (v.ravel() for v in np.meshgrid(line, line))
    return float(np.abs(solve(*theta)(x, y) - sine_series(theta, x, y)).max()) / largest(theta)


@pytest.mark.parametrize("theta", CORNERS + INTERIOR)
def test_has_converged(theta: Theta) -> None:
    assert refinement(theta) < 1e-10


@pytest.mark.parametrize("theta", [WORST, CORNERS[0], CORNERS[-1]])
def test_converges_exponentially(theta: Theta) -> None:
    errors = [refinement(theta, degree=degree) for degree in (8, 12, 16)]
    assert errors[0] > 1e-6
    assert errors[1] < errors[0] / 100
    assert errors[2] < errors[1] / 100


@pytest.mark.parametrize("theta", [*INTERIOR, CORNERS[0], CORNERS[-1]])
def test_agrees_with_sine_series(theta: Theta) -> None:
    assert independent(theta) < 1e-10


def test_boundary_values() -> None:
    u = solve(*WORST).on_grid(grid(), np.array([-1.0, 1.0]))
    assert np.abs(u - 0.2).max() < 1e-12


def test_points_agree_with_grid() -> None:
    u = solve(*WORST)
    x, y = np.linspace(-1, 1, 41), np.linspace(-1, 1, 37)
    assert u(x[:, None], y) == pytest.approx(u.on_grid(x, y), abs=1e-13)
