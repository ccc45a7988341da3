"""Estimated errors and corrections in shapes: exact where they can be, NaN outside, flagged at singular corners."""

import jax.numpy as jnp
import numpy as np
import pytest
from polynomials import Cubic, outputs_on_grid

import clpinn as cl
from clpinn.estimation.elements import _grouped, _thinned
from clpinn.estimation.estimate import Estimator
from clpinn.formulation.references import reference_at

plane = cl.Box(x=(-1, 1), y=(-1, 1))


class Ring(cl.Problem):
    """A value on one circle, a flux through the other; the outer circle does not touch the box."""

    coordinates = plane
    parameters = cl.Box(r=(0.2, 0.6))
    candidates = parameters.grid(r=3)
    evaluation = coordinates.grid(x=21, y=21)
    conditions = (
        cl.Condition("inner", lambda d, x, y: d.u - x * y - 1, on=cl.on("inner")),
        cl.Condition("outer", lambda d, x, y, nx, ny: d.u_n - y * nx - x * ny, on=cl.on("outer")),
    )

    def domain(self, r):
        return cl.Disk((0, 0), 0.95, name="outer") - cl.Disk((0.1, 0), r, name="inner")

    def residual(self, d):
        return d.u_xx + d.u_yy

    def reference(self, x, y):
        return {"u": 1 + x * y}


class Wedge(cl.Problem):
    """A triangle with a Robin condition, a part of a side, and a hard condition on another side."""

    coordinates = cl.Box(x=(0, 2), y=(0, 1))
    parameters = cl.Box(h=(0.5, 1))
    evaluation = coordinates.grid(x=31, y=31)
    conditions = (
        cl.Condition("slope", lambda d, x, y, nx, ny: d.u_n + d.u - y * (nx + x) - x * ny, on=cl.on("slope")),
        cl.Condition("wall, below", lambda d: d.u, on=cl.on("wall", y=(0, 0.3))),
        cl.Condition("wall, above", lambda d, y: d.u_n + y, on=cl.on("wall", y=(0.3, 1))),
    )
    base = cl.vanishing("base")

    def domain(self, h):
        return cl.Polygon([(0, 0), (2, 0), (0, h)], sides=("base", "slope", "wall"))

    def residual(self, d):
        return d.u_xx + d.u_yy

    def constrain(self, raw, x, y):
        return y * raw

    def reference(self, x, y):
        return {"u": x * y}


class Cooling(cl.Problem):
    """Heat in a disk with a hole: two coordinates and time, a section and a start."""

    coordinates = cl.Box(x=(-1, 1), y=(-1, 1), t=(0, 1))
    parameters = cl.Box(k=(0.5, 2))
    evaluation = coordinates.grid(x=9, y=9, t=5)
    conditions = (
        cl.Condition("start", lambda d, x, y: d.u - x**2 - y**2, on=cl.at(t=0)),
        cl.Condition("outer", lambda d, x, y, t, k: d.u - x**2 - y**2 - 4 * k * t, on=cl.on("disk")),
        cl.Condition("hole", lambda d, x, y, nx, ny: d.u_n - 2 * (x * nx + y * ny), on=cl.on("hole")),
    )

    def domain(self):
        return cl.Disk((0, 0), 0.9) - cl.Disk((0, 0), 0.3, name="hole")

    def residual(self, d, k):
        return d.u_t - k * (d.u_xx + d.u_yy)

    def reference(self, x, y, t, k):
        return {"u": x**2 + y**2 + 4 * k * t}


class Stokes(cl.Problem):
    """Three outputs: a shear flow around nothing but a hole with its exact values."""

    coordinates = plane
    parameters = cl.Box(a=(0.5, 2))
    outputs = ("u", "v", "p")
    evaluation = coordinates.grid(x=15, y=15)
    conditions = (
        cl.Condition("flow", lambda d, y, a: {"u": d.u - a * y**2, "v": d.v}, on=cl.on()),
        cl.Condition("pressure", lambda d, a: d.p - 2 * a, on=cl.on("right")),
    )

    def domain(self):
        return cl.Rectangle(x=(-1, 1), y=(-1, 1)) - cl.Disk((0, 0), 0.4)

    def residual(self, d):
        return {
            "x": d.p_x - d.u_xx - d.u_yy,
            "y": d.p_y - d.v_xx - d.v_yy,
            "mass": d.u_x + d.v_y,
        }

    def reference(self, x, y, a):
        return {"u": a * y**2, "v": 0 * x, "p": 2 * a * x}


def truth(problem, network, theta):
    """The true error on the evaluation grid (points, outputs), NaN outside."""
    return reference_at(problem, problem.evaluation.points, np.array(theta)).T - outputs_on_grid(
        problem, network, theta
    )


@pytest.mark.parametrize(
    ("problem", "theta"), [(Ring(), (0.35,)), (Wedge(), (0.8,)), (Cooling(), (1.3,)), (Stokes(), (1.1,))]
)
def test_a_polynomial_error_comes_back(problem, theta):
    network = Cubic(len(problem.coordinates), len(problem.outputs))
    estimate, error = Estimator(problem).at(network, np.array(theta)), truth(problem, network, theta)
    assert estimate.resolved, estimate.reason
    inside = np.isfinite(error)
    assert 0 < inside.sum() < inside.size
    np.testing.assert_array_equal(np.isfinite(estimate.error), inside)
    np.testing.assert_allclose(estimate.error, error, atol=2e-6 * np.nanmax(np.abs(error)))
    for i, name in enumerate(problem.outputs):
        assert estimate.largest[name] == pytest.approx(np.nanmax(np.abs(error[:, i])), rel=1e-5)


@pytest.mark.parametrize("term", [0, 1, 2])
def test_a_wrong_equation_or_condition_is_noticed(term, monkeypatch):
    problem, network = Ring(), Cubic(2, 1)
    estimator, error = Estimator(problem), truth(Ring(), network, (0.35,))
    right = type(estimator._programs).residuals

    def wrong(programs, number, *arguments):
        found, slopes = right(programs, number, *arguments)
        return found + (0.1 if number == term else 0.0), slopes

    monkeypatch.setattr(type(estimator._programs), "residuals", wrong)
    estimate = estimator.at(network, np.array([0.35]))
    assert np.nanmax(np.abs(estimate.error - error)) > 1e-3 * np.nanmax(np.abs(error))


def test_a_singular_corner_is_not_resolved():
    """Least squares cannot see the singular part of a solution at a corner that points inwards."""

    class LShape(cl.Problem):
        coordinates = plane
        parameters = cl.Box(a=(0.5, 1))
        conditions = (cl.Condition("walls", lambda d, x, y, a: d.u - a * corner(x, y), on=cl.on()),)

        def domain(self):
            return cl.Rectangle(x=(-1, 1), y=(-1, 1)) - cl.Rectangle(x=(0, 1), y=(-1, 0), name="notch")

        def residual(self, d):
            return d.u_xx + d.u_yy

    def corner(x, y):
        return (x**2 + y**2) ** (1 / 3) * jnp.sin(2 / 3 * jnp.mod(jnp.arctan2(y, x), 2 * jnp.pi))

    estimate = Estimator(LShape(), functions=2500).at(Cubic(2, 1), np.array([0.8]))
    assert not estimate.resolved


def test_maps_and_corrections_over_the_box():
    problem, network = Ring(), Cubic(2, 1)
    surrogate = cl.Surrogate(problem, network)
    better = surrogate.correct(r=0.3)
    points = better.points(200, r=0.3)
    np.testing.assert_allclose(points["u"], 1 + points["x"] * points["y"], atol=1e-5)
    everywhere = surrogate.correct_box(thetas=8)
    assert everywhere.record["box_correction"]["used"], everywhere.record["box_correction"]["reason"]
    points = everywhere.points(200, r=0.47)
    np.testing.assert_allclose(points["u"], 1 + points["x"] * points["y"], atol=1e-3)
    errors = surrogate.error_map(thetas=5)
    assert errors.share_resolved == 1
    assert np.isnan(errors.fields).any()
    field = surrogate.error(r=0.3).field["u"]
    assert np.isnan(field.sel(x=0, y=0))
    assert np.isfinite(field.sel(x=0, y=0.5))


def test_points_of_a_cell_are_thinned_evenly_and_padded():
    places = np.array([[0, 1]] * 9 + [[2, 0]] * 2)
    kept, factor = _thinned(places, 3)
    assert sorted(kept.tolist()) == [2, 5, 8, 9, 10]
    assert factor[np.argsort(kept)].tolist() == [3, 3, 3, 1, 1]
    cells, rows, real = _grouped(places[kept])
    assert sorted(map(tuple, cells.tolist())) == [(0, 1), (2, 0)]
    assert rows.shape == (2, 3)
    assert real.sum() == 5
