"""Estimated errors where conditions on integrals determine the solution: exact, and noticed if they are wrong."""

import jax.numpy as jnp
import numpy as np
import pytest
from polynomials import Cubic, outputs_on_grid

import clpinn as cl
from clpinn.estimation.estimate import Estimator
from clpinn.estimation.least_squares import Block, solved
from clpinn.formulation.references import reference_at


class Fluxes(cl.Problem):
    """Fluxes through all walls: the mean determines the constant."""

    coordinates = cl.Box(x=(0, 2), y=(-1, 1))
    parameters = cl.Box(a=(0.5, 2))
    evaluation = coordinates.grid(x=11, y=11)
    conditions = (
        cl.Condition("sides", lambda d, x, a: d.u_x - 2 * a * x, on=cl.boundary("x")),
        cl.Condition("ends", lambda d, y, a: d.u_y + 2 * a * y, on=cl.boundary("y")),
        cl.Integral("mean", lambda d: d.u, on=cl.at(), equals=lambda a: 4 * (3 + a)),
    )

    def residual(self, d):
        return d.u_xx + d.u_yy

    def reference(self, x, y, a):
        return {"u": 3 + a * (x**2 - y**2)}


class Disk(cl.Problem):
    """The same in a disk, by the mean over the boundary and the mean of another output over the disk."""

    coordinates = cl.Box(x=(-1, 1), y=(-1, 1))
    parameters = cl.Box(a=(0.5, 2))
    outputs = ("u", "v")
    evaluation = coordinates.grid(x=11, y=11)
    conditions = (
        cl.Condition(
            "rim",
            lambda d, x, y, nx, ny, a: {"u": d.u_n - a * (y * nx + x * ny), "v": d.v_n - nx},
            on=cl.on(),
        ),
        cl.Integral("rim mean", lambda d: d.u, on=cl.on("disk"), equals=2 * jnp.pi),
        cl.Integral("mean", lambda d: d.v, on=cl.at(), equals=2 * jnp.pi),
    )

    def domain(self):
        return cl.Disk((0, 0), 1)

    def residual(self, d):
        return {"u": d.u_xx + d.u_yy, "v": d.v_xx + d.v_yy}

    def reference(self, x, y, a):
        return {"u": 1 + a * x * y, "v": 2 + x + 0 * a}


class Rod(cl.Problem):
    """Heat: the amount at every time in place of what happens at one end."""

    coordinates = cl.Box(x=(0, 1), t=(0, 1))
    parameters = cl.Box(a=(0.5, 2))
    evaluation = coordinates.grid(x=11, t=11)
    conditions = (
        cl.Condition("start", lambda d, x, a: d.u - a * x**2, on=cl.at(t=0)),
        cl.Condition("left", lambda d: d.u_x, on=cl.at(x=0)),
        cl.Integral("amount", lambda d: d.u, on=cl.at(), equals=lambda a, t: a * (1 / 3 + 2 * t)),
    )

    def residual(self, d):
        return d.u_t - d.u_xx

    def reference(self, x, t, a):
        return {"u": a * (x**2 + 2 * t)}


def truth(problem, network, theta):
    """The true error on the evaluation grid (points, outputs), NaN outside."""
    return reference_at(problem, problem.evaluation.points, theta).T - outputs_on_grid(problem, network, theta)


@pytest.mark.parametrize("kind", [Fluxes, Disk, Rod])
def test_a_polynomial_error_comes_back(kind):
    problem, theta = kind(), np.array([1.3])
    network = Cubic(2, len(problem.outputs))
    estimate, error = Estimator(problem).at(network, theta), truth(problem, network, theta)
    assert estimate.resolved, estimate.reason
    np.testing.assert_allclose(estimate.error, error, atol=1e-5 * np.nanmax(np.abs(error)))


def test_a_wrong_integral_is_noticed():
    class Wrong(Fluxes):
        conditions = (*Fluxes.conditions[:2], cl.Integral("mean", lambda d: d.u, on=cl.at(), equals=1.0))

    network, theta = Cubic(2, 1), np.array([1.3])
    estimate, error = Estimator(Wrong()).at(network, theta), truth(Fluxes(), network, theta)
    shift = estimate.error - error
    np.testing.assert_allclose(shift, (1.0 - 4 * 4.3) / 4, rtol=1e-4)


def test_wide_rows_take_part_in_least_squares():
    """A band of differences that leaves the constant open, and two rows of all unknowns."""
    size = 30
    draw = np.random.default_rng(0).normal
    columns = np.arange(size - 1)[:, None] + np.arange(2)
    matrix = np.tile(np.array([[[-1.0, 1.0]]]), (size - 1, 1, 1))
    band = Block(matrix, columns, draw(size=(size - 1, 1)), 1)
    wide = Block(draw(size=(1, 2, size)), np.arange(size)[None], draw(size=(1, 2)), 2)
    dense = np.zeros((size + 1, size))
    dense[np.arange(size - 1)[:, None], columns] = matrix[:, 0]
    dense[size - 1 :] = wide.matrix[0]
    right = np.concatenate([band.residuals.ravel(), wide.residuals.ravel()])
    expected = np.linalg.lstsq(dense, -right, rcond=None)[0]
    solution = solved(size, [band], [wide])
    assert solution is not None
    np.testing.assert_allclose(solution.unknowns, expected, atol=1e-10)
