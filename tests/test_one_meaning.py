"""A point has one meaning: physical coordinates in calls, functions, fields, exports and at the command line."""

import csv
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_surrogate import KEY, made
from typer.testing import CliRunner

import clpinn as cl
from clpinn.cli.app import app
from clpinn.exports.programs import program
from clpinn.formulation.geometry import box_points, placed
from clpinn.formulation.validation import validate
from clpinn.problems import load_problem

pytestmark = pytest.mark.slow


class Sector(cl.Problem):
    """Three quarters of a ring, whose inner radius is a parameter."""

    coordinates = cl.Box(x=(0, 1), y=(0, 1))
    parameters = cl.Box(R=(0.2, 0.8))
    evaluation = cl.Grid(x=np.linspace(0, 1, 7), y=np.linspace(0, 1, 9))

    def place(self, x, y, R):
        radius, angle = R + (1 - R) * x, 1.5 * jnp.pi * y
        return {"x": radius * jnp.cos(angle), "y": radius * jnp.sin(angle)}

    def residual(self, d):
        return d.u_xx + d.u_yy


class Skewed(cl.Problem):
    """A box that is sheared and bent, far from the origin, with axes of very different lengths, and time."""

    coordinates = cl.Box(x=(-1, 1), y=(0, 2), t=(0, 1))
    parameters = cl.Box(R=(0.2, 0.8), m=cl.log(1.0, 3.0))
    evaluation = cl.Grid(x=[-1.0, 1.0], y=[0.0, 1.0, 2.0], t=[0.0, 1.0])

    def place(self, x, y, t, R, m):
        return {"x": 100 + x + m * y + 0.2 * jnp.sin(3 * y), "y": 1e-3 * y * (1 + R * t) + 1e-4 * y**2, "t": t}

    def residual(self, d):
        return d.u_t - d.u_xx


class Graded(Sector):
    """Cells that grow by a factor of 400 along x, and a cubic along y: Newton's method alone misses many points."""

    def place(self, x, y, R):
        return {"x": jnp.exp(6 * x), "y": y**3 + 1e-3 * y + R * x}


class Spiral(Sector):
    """Two turns: points far from each other in the box are neighbours."""

    def place(self, x, y, R):
        radius, angle = 0.5 + 2 * y + R * x, 4 * jnp.pi * y
        return {"x": radius * jnp.cos(angle), "y": radius * jnp.sin(angle)}


PROBLEMS = [load_problem("examples/channel.py:Channel"), Sector(), Skewed(), Graded(), Spiral()]
NAMED = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)


def placed_points(problem, count, seed=0):
    """Box coordinates, thetas and physical coordinates of points inside, some of them on edges and corners."""
    numbers = np.random.default_rng(seed)
    unit = numbers.random((count, len(problem.coordinates)))
    unit[::5] = np.round(unit[::5])
    unit[1::5, 0] = 0.0
    box = np.stack([axis.from_unit(column) for axis, column in zip(problem.coordinates.axes, unit.T)], axis=1)
    thetas = problem.parameters.sample(count, KEY, "uniform")
    with jax.enable_x64(True):
        physical = placed(problem, dict(zip(problem.axes, (*box.T, *thetas.T), strict=True)))
    return box, thetas, np.stack([np.asarray(physical[name]) for name in problem.coordinates], axis=1)


@NAMED
def test_every_point_inside_is_found(problem):
    box, thetas, physical = placed_points(problem, 3000)
    assert np.allclose(box_points(problem, physical, thetas), box, rtol=1e-7, atol=1e-7)


@NAMED
def test_all_ways_to_ask_for_a_point_agree(problem, tmp_path, monkeypatch):
    surrogate = made(problem, jnp.float64)
    box, thetas, physical = (rows[7] for rows in placed_points(problem, 8))
    point, theta = dict(zip(problem.coordinates, physical)), dict(zip(problem.parameters, thetas))
    with jax.enable_x64(True):
        expected = cl.values(problem, surrogate.network, jnp.asarray(box), jnp.asarray(thetas))["u"]
        function = surrogate.function()(**point, **theta)["u"]
        columns = {name: jnp.array([value]) for name, value in (point | theta).items()}
        exported = program(surrogate).call(**columns)["u"][0]
    field = surrogate.field(**point, **theta)
    in_box = surrogate.field(**{f"box_{name}": value for name, value in zip(problem.coordinates, box)}, **theta)
    cl.export(surrogate, tmp_path / "field.csv", **point, **theta)
    with (tmp_path / "field.csv").open() as file:
        (row,) = csv.DictReader(file)
    answers = [surrogate(**point, **theta)["u"], function, exported, field["u"], in_box["u"], float(row["u"])]
    assert np.allclose(answers, expected, rtol=1e-8)
    for dataset in (field, in_box):
        assert {name: float(dataset[name]) for name in point} == pytest.approx(point, abs=1e-12)

    monkeypatch.setattr("clpinn.cli.predict.load_surrogate", lambda *_: surrogate)
    words = [f"{name}={float(value)!r}" for name, value in (point | theta).items()]
    done = CliRunner().invoke(app, ["predict", "run", *words, "--no-error", "--json"], catch_exceptions=False)
    prediction = json.loads(done.stdout)
    assert prediction["values"]["u"] == pytest.approx(float(expected), rel=1e-8)
    assert prediction["theta"] == pytest.approx(theta) and prediction["point"] == pytest.approx(point)
    shown = CliRunner().invoke(app, ["predict", "run", *words, "--no-error"], catch_exceptions=False).stdout
    assert float(shown.rpartition("u = ")[2]) == pytest.approx(float(expected), rel=1e-8)


@NAMED
def test_the_function_has_the_derivatives_of_the_inverse_map(problem):
    surrogate = made(problem, jnp.float64)
    _, thetas, physical = (rows[8] for rows in placed_points(problem, 9))
    point, theta = dict(zip(problem.coordinates, physical)), dict(zip(problem.parameters, thetas))
    parameter = problem.parameters.names[0]

    def u(x, value):
        return surrogate.function()(**point | theta | {"x": x, parameter: value})["u"]

    with jax.enable_x64(True):
        by_x, by_theta = jax.grad(u, (0, 1))(point["x"], theta[parameter])
        curvature = jax.hessian(u)(point["x"], theta[parameter])
    at = point | theta
    assert np.isclose(by_x, surrogate.derivative("u_x", **at), rtol=1e-7)
    assert np.isclose(by_theta, surrogate.derivative(f"u_{parameter}", **at), rtol=1e-7)
    assert np.isclose(curvature, surrogate.derivative("u_xx", **at), rtol=1e-6)


@pytest.mark.parametrize("x64", [False, True])
def test_the_function_finds_points_in_single_precision(x64):
    surrogate = made(Sector(), jnp.float64)
    _, thetas, physical = placed_points(Sector(), 50)
    at = {"x": physical[:, 0], "y": physical[:, 1], "R": thetas[:, 0]}
    with jax.enable_x64(x64):
        assert np.allclose(surrogate.function()(**at)["u"], surrogate(**at)["u"], atol=1e-9 if x64 else 1e-3)


# Fields ------------------------------------------------------------------------------------------------------


def test_a_physical_grid_is_empty_outside_the_domain(tmp_path):
    """Without a warning: a grid over a ring has such points."""
    surrogate = made(Sector(), jnp.float64)
    x, y = np.linspace(-1, 1, 21), np.linspace(-1, 1, 20)
    field = surrogate.field(x=x, y=y, R=[0.3, 0.5])
    assert field["u"].dims == ("R", "x", "y") and "box_x" not in field.coords and field.attrs["axes"] == "x y"
    radius, angle = np.hypot(x[:, None], y), np.mod(np.arctan2(y, x[:, None]), 2 * np.pi)
    for R in (0.3, 0.5):
        inside = (radius >= R) & (radius <= 1) & (angle <= 1.5 * np.pi)
        assert np.array_equal(np.isfinite(field["u"].sel(R=R)), inside)
    i, j = np.argwhere(inside)[3]
    assert float(field["u"][1, i, j]) == pytest.approx(float(surrogate(x=x[i], y=y[j], R=0.5)["u"]), rel=1e-9)


def test_a_coordinate_that_is_left_out_runs_over_the_domain():
    field = made(load_problem("examples/channel.py:Channel")).field({"y": 5}, x=0.5, height=[1.0, 2.0], viscosity=1.0)
    assert field["y"].values.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0] and field["u"].dims == ("height", "y")
    assert np.isfinite(field["u"]).values.tolist() == [[True] * 3 + [False] * 2, [True] * 5]


def test_box_coordinates_go_by_their_own_names():
    channel = made(load_problem("examples/channel.py:Channel"), jnp.float64)
    theta = {"height": 2.0, "viscosity": 1.0}
    line = channel.field({"box_y": 5}, box_x=0.5, **theta)
    assert line["u"].dims == ("box_y",) and line["y"].values.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert np.allclose(line["u"], channel(x=0.5, y=line["y"].values, **theta)["u"], rtol=1e-9)
    with pytest.raises(cl.DomainError, match="physical coordinates .x, y. or of box coordinates .box_x, box_y."):
        channel.field(x=0.5, box_y=0.5, **theta)
    with pytest.raises(cl.DomainError, match="there is no box_z"):
        channel.field(box_z=0.5, **theta)
    with pytest.raises(cl.DomainError, match="there is no box_x"):
        made(cl.problems.Burgers()).field(box_x=0.5, nu=0.1)


# Outside -----------------------------------------------------------------------------------------------------

OUTSIDE = (
    r"The point x = 0.1, y = 0.05 is outside the domain at R = 0.5. The domain there has x from -1 to 1, y from -1"
)


def test_a_point_outside_is_told_in_physical_terms(monkeypatch):
    surrogate = made(Sector(), jnp.float64)
    with pytest.warns(cl.OutsideBoxWarning, match=OUTSIDE):
        answer = surrogate(x=0.1, y=0.05, R=0.5)["u"]
    with jax.enable_x64(True):  # the ring's map goes on inside the hole
        assert np.isfinite(answer) and np.isclose(answer, surrogate.function()(x=0.1, y=0.05, R=0.5)["u"])
    with pytest.warns(cl.OutsideBoxWarning, match=OUTSIDE):
        assert np.isnan(surrogate.field(x=0.1, y=0.05, R=0.5)["u"])
    monkeypatch.setattr("clpinn.cli.predict.load_surrogate", lambda *_: surrogate)
    done = CliRunner().invoke(app, ["predict", "run", "R=0.5", "x=0.1", "y=0.05", "--no-error"], catch_exceptions=False)
    assert "warning: The point x = 0.1, y = 0.05 is outside the domain" in done.stderr
    assert "u = not finite" in done.stdout
    for value in (np.nan, np.inf):
        with pytest.raises(cl.DomainError, match="y must be finite, but a value is not"):
            surrogate(x=0.1, y=[0.5, value], R=0.5)
        with pytest.raises(cl.DomainError, match="must be finite"):
            surrogate.field(x=0.1, y=value, R=0.5)


def test_a_point_that_the_map_never_reaches_is_outside_too():
    class Waves(Sector):
        def place(self, x, y, R):
            return {"x": jnp.sin(x), "y": R * y}

    with pytest.warns(cl.OutsideBoxWarning, match="x = 2, y = 0.1 is outside the domain at R = 0.5"):
        assert np.isnan(made(Waves(), jnp.float64)(x=2.0, y=0.1, R=0.5)["u"])


def test_data_outside_is_told_in_physical_terms():
    class Measured(Sector):
        conditions = (cl.Data("probe", at={"x": [0.1], "y": [0.05], "R": [0.5]}, values={"u": [1.0]}),)

    with pytest.warns(cl.OutsideBoxWarning, match=f"Data 'probe': {OUTSIDE}"):
        validate(Measured())
