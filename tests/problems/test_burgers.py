"""The Burgers reference against a refinement and against the Fourier-Bessel series."""

import mpmath
import numpy as np
import pytest
from chebyshev import chebyshev
from scipy.integrate import solve_ivp

from clpinn.problems.burgers import cole_hopf

NU = (0.01, 0.013, 0.1, 0.5, 1.0)


def points() -> tuple[np.ndarray, np.ndarray]:
    """Points (x, t), each of shape (n,): a grid, the shock, the edges and early times."""
    x = np.concatenate([np.linspace(-1, 1, 21), [-0.999, -0.02, -0.003, 1e-4, 0.01, 0.05]])
    t = np.array([0.0, 1e-12, 1e-6, 1e-3, 0.05, 0.2, 1 / np.pi, 0.5, 0.7, 1.0])
    return tuple(v.ravel() for v in np.meshgrid(x, t))


def refinement(nu: float, **step: float) -> float:
    """Largest difference of `step`, or the default, to step 0.025; the largest |u| is 1."""
    x, t = points()
    return float(np.abs(cole_hopf(x, t, nu, **step) - cole_hopf(x, t, nu, 0.025)).max())


def independent(nu: float) -> float:
    """Largest difference to the Fourier-Bessel series of the Cole-Hopf variable, 70 digits.

    phi = I_0(z) + 2 sum_k (-1)^k I_k(z) exp(-k^2 pi nu t) cos(k pi x) with z = 1/(2 nu) solves
    phi_t = (nu/pi) phi_xx, and u = -2 (nu/pi) phi_x / phi.
    """
    worst = 0.0
    # The sum falls from exp(z) to exp(-z): it loses 44 digits at nu = 0.01.
    with mpmath.workdps(70):
        z = 1 / (2 * mpmath.mpf(nu))
        terms = 40 + int(1.5 / nu)
        bessel = [(-1) ** k * mpmath.besseli(k, z) for k in range(terms)]
        for x, t in zip(*points(), strict=True):
            c, s = mpmath.cospi(mpmath.mpf(x)), mpmath.sinpi(mpmath.mpf(x))
            decay = mpmath.exp(-mpmath.pi * mpmath.mpf(nu) * mpmath.mpf(t))
            cosine, sine = mpmath.mpf(1), mpmath.mpf(0)
            phi, slope = bessel[0], mpmath.mpf(0)
            factor, ratio = mpmath.mpf(1), decay
            for k in range(1, terms):
                cosine, sine = cosine * c - sine * s, sine * c + cosine * s
                factor, ratio = factor * ratio, ratio * decay**2
                phi += 2 * bessel[k] * factor * cosine
                slope -= 2 * k * bessel[k] * factor * sine
            exact = -2 * mpmath.mpf(nu) * slope / phi
            worst = max(worst, abs(float(exact - mpmath.mpf(cole_hopf(x, t, nu).item()))))
    return worst


def collocation(nu: float, degree: int = 160) -> float:
    """Largest difference to Chebyshev collocation of Burgers' equation, integrated by LSODA."""
    x, slope = chebyshev(degree)
    x, first, second = x[1:-1], slope[1:-1, 1:-1], nu / np.pi * (slope @ slope)[1:-1, 1:-1]
    t = np.linspace(0, 1, 21)
    run = solve_ivp(
        lambda _, u: second @ u - u * (first @ u),
        (0.0, 1.0),
        -np.sin(np.pi * x),
        method="LSODA",
        t_eval=t,
        rtol=1e-11,
        atol=1e-11,
        jac=lambda _, u: second - np.diag(first @ u) - u[:, None] * first,
    )
    return float(np.abs(run.y.T - cole_hopf(x, t[:, None], nu)).max())


@pytest.mark.parametrize("nu", NU)
def test_quadrature_has_converged(nu: float) -> None:
    assert refinement(nu) < 1e-12


def test_quadrature_converges_exponentially() -> None:
    errors = [refinement(1.0, step=step) for step in (0.8, 0.4, 0.2)]
    # Halving the step about squares the error.
    assert errors[0] > 1e-4
    assert errors[1] < errors[0] ** 1.5
    assert errors[2] < errors[1] ** 1.5


@pytest.mark.parametrize("nu", NU)
def test_agrees_with_fourier_bessel_series(nu: float) -> None:
    assert independent(nu) < 1e-11


@pytest.mark.parametrize("nu", [0.1, 1.0])
def test_agrees_with_chebyshev_collocation(nu: float) -> None:
    assert collocation(nu) < 1e-9


def test_initial_and_boundary_values() -> None:
    x = np.linspace(-1, 1, 101)
    assert np.abs(cole_hopf(x, 0.0, 0.01) + np.sin(np.pi * x)).max() < 1e-13
    assert np.abs(cole_hopf([[-1.0], [1.0]], np.linspace(0, 1, 50), 0.01)).max() < 1e-13


def test_broadcasts_across_blocks() -> None:
    x, t, nu = np.linspace(-1, 1, 30), np.linspace(0, 1, 20)[:, None], np.array(NU)[:, None, None]
    u = cole_hopf(x, t, nu)
    assert u.shape == (5, 20, 30)
    assert u[3, 11, 17] == pytest.approx(cole_hopf(x[17], t[11, 0], NU[3]).item(), abs=1e-13)
