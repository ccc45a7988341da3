"""The Allen-Cahn reference against refinements and against Chebyshev collocation with LSODA."""

from functools import lru_cache

import numpy as np
import pytest
from chebyshev import chebyshev
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from clpinn.problems.allen_cahn import solve

Floats = NDArray[np.float64]

CORNERS = ((0.001, 3.0), (0.001, 5.0), (0.1, 3.0), (0.1, 5.0))
INTERIOR = ((0.0017, 4.9), (0.006, 4.3), (0.042, 3.4))


def points() -> tuple[Floats, Floats]:
    """Points x, shape (n,), and t, shape (m,): a grid refined at x = 1 and at t = 0."""
    x = np.concatenate([np.linspace(-1, 1, 121), 1 - np.geomspace(1e-7, 0.1, 60)])
    return x, np.sort(np.concatenate([np.linspace(0, 1, 41), np.geomspace(1e-10, 0.02, 40)]))


@lru_cache
def fine(nu: float, rho: float) -> Floats:
    """Values at the points, shape (m, n), with degrees 26 in x and 22 in t."""
    x, t = points()
    return solve(nu, rho, 26, 22)(x, t[:, None])


def refinement(nu: float, rho: float, **degrees: int) -> float:
    """Largest difference of `degrees`, or the default, to the fine ones; the largest |u| is 1."""
    x, t = points()
    return float(np.abs(solve(nu, rho, **degrees)(x, t[:, None]) - fine(nu, rho)).max())


def collocation(nu: float, rho: float, degree: int = 700) -> tuple[Floats, Floats]:
    """Nodes x in [0, 1), shape (n,), and values at the times of `points`, shape (m, n).

    Chebyshev collocation on the whole of [-1, 1] for even solutions, integrated by LSODA.
    """
    x, slope = chebyshev(degree)
    half = degree // 2
    second = nu * (slope @ slope)[1 : half + 1]
    # u is even: add the columns of -x to those of x.
    folded = second[:, : half + 1].copy()
    folded[:, :half] += second[:, :half:-1]
    matrix, boundary = folded[:, 1:], -folded[:, 0]
    x = x[1 : half + 1]
    run = solve_ivp(
        lambda _, u: matrix @ u + boundary + rho * (u - u**3),
        (0.0, 1.0),
        x**2 * np.cos(np.pi * x),
        method="LSODA",
        t_eval=points()[1],
        rtol=1e-12,
        atol=1e-12,
        jac=lambda _, u: matrix + np.diag(rho * (1 - 3 * u**2)),
    )
    return x, run.y.T


def independent(nu: float, rho: float) -> float:
    """Largest difference to Chebyshev collocation; the largest |u| is 1."""
    x, u = collocation(nu, rho)
    return float(np.abs(u - solve(nu, rho)(x, points()[1][:, None])).max())


@pytest.mark.parametrize("theta", CORNERS + INTERIOR)
def test_has_converged(theta: tuple[float, float]) -> None:
    assert refinement(*theta) < 1e-10


@pytest.mark.parametrize("theta", CORNERS)
def test_converges_exponentially(theta: tuple[float, float]) -> None:
    in_x = [refinement(*theta, degree=degree) for degree in (8, 12, 16)]
    in_t = [refinement(*theta, time_degree=degree) for degree in (4, 8, 12)]
    for errors in (in_x, in_t):
        assert errors[0] > 1e-8
        assert errors[1] < errors[0] / 10
        assert errors[2] < errors[1] / 10


@pytest.mark.parametrize("theta", CORNERS + INTERIOR)
def test_agrees_with_chebyshev_collocation(theta: tuple[float, float]) -> None:
    assert independent(*theta) < 5e-10


def test_initial_and_boundary_values() -> None:
    u = solve(0.1, 5.0)
    x, t = points()
    assert np.abs(u(x, 0.0) - x**2 * np.cos(np.pi * x)).max() < 1e-12
    assert np.abs(u([[-1.0], [1.0]], t) + 1.0).max() < 1e-12


def test_points_broadcast() -> None:
    u = solve(0.01, 4.0)
    x, t = np.linspace(-1, 1, 101), np.linspace(0, 1, 57)[:, None]
    assert u(x, t).shape == (57, 101)
    assert u(x, t)[31, 17] == pytest.approx(u(x[17], t[31, 0]).item(), abs=1e-14)
