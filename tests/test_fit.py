"""Parameters from measurements: known ones are recovered, intervals cover, weak data is told."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from running import natural_for
from small import Inflow
from test_one_meaning import Sector
from test_surrogate import made
from typer.testing import CliRunner

import clpinn as cl
from clpinn.cli.app import app
from clpinn.formulation.validation import validate
from clpinn.surrogate.fit import fit
from clpinn.surrogate.measurements import read


class Wave(cl.Problem):
    """A model that is written down: no network is needed to fit it."""

    coordinates = cl.Box(x=(0, 1))
    parameters = cl.Box(k=cl.log(0.1, 10.0), h=(0.0, 4.0))
    outputs = ("u", "v")

    def residual(self, d):
        return {"u": d.u_x, "v": d.v_x}


def wave(x, k, h):
    return {"u": h * jnp.exp(-k * x), "v": 1e4 * (k + h * x)}


def line(x, k, h):
    return {"u": k + h * x, "v": 0 * x * k * h}


def product_only(x, k, h):
    return {"u": k * (h + 1) * x, "v": 0 * x * k * h}


X = np.linspace(0, 1, 12)
TRUE = {"k": 0.7, "h": 1.3}


def fitted(function, data, dtype=jnp.float64, unknown=None, noise=None, problem=None, **known) -> cl.Fit:
    problem = problem or Wave()
    return fit(problem, function, dtype, read(problem, data, unknown, known), noise)


def test_parameters_are_recovered_from_exact_data():
    result = fitted(wave, {"x": X, "u": wave(X, **TRUE)["u"]}, unknown=("k", "h"))
    assert result.values == pytest.approx(TRUE, rel=1e-6)
    assert result.at_edge == () and result.undetermined == () and result.notes == ()
    assert np.max(np.abs(result.residuals["u"])) < 1e-6 and result.noise["u"] < 1e-6
    single = fitted(wave, {"x": X, "u": wave(X, **TRUE)["u"]}, jnp.float32)
    assert single.values == pytest.approx(TRUE, rel=1e-4)


def test_intervals_of_a_linear_model_are_those_of_textbooks():
    """Exactly: estimates, standard errors and t intervals of a straight line."""
    numbers = np.random.default_rng(1)
    u = 0.7 + 1.3 * X + 0.01 * numbers.standard_normal(len(X))
    problem = type("Line", (Wave,), {"parameters": cl.Box(k=(0.1, 10.0), h=(0.0, 4.0))})()
    result = fitted(line, {"x": X, "u": u}, problem=problem)
    design = np.stack([np.ones(12), X], axis=1)
    exact, (square,), *_ = np.linalg.lstsq(design, u)
    covariance = square / 10 * np.linalg.inv(design.T @ design)
    assert list(result.values.values()) == pytest.approx(exact, rel=1e-7)
    assert np.allclose(result.covariance, covariance, rtol=1e-6)
    assert result.noise["u"] == pytest.approx(np.sqrt(square / 10))
    half = 2.2281388519649385 * np.sqrt(covariance[0, 0])  # t for 10 degrees of freedom
    assert result.intervals["k"] == pytest.approx((exact[0] - half, exact[0] + half), rel=1e-7)
    given = fitted(line, {"x": X, "u": u}, problem=problem, noise=0.01)
    half = 1.959963984540054 * 0.01 * np.sqrt(np.linalg.inv(design.T @ design)[0, 0])
    assert given.intervals["k"] == pytest.approx((exact[0] - half, exact[0] + half), rel=1e-7)


def test_intervals_cover_the_truth_in_95_of_100_draws():
    numbers = np.random.default_rng(0)
    inside = {"k": 0, "h": 0}
    draws = 300
    problem = Wave()
    for _ in range(draws):
        u = wave(X, **TRUE)["u"] + 0.02 * numbers.standard_normal(len(X))
        result = fit(problem, wave, jnp.float64, read(problem, {"x": X, "u": u}), starts=1)
        for name, (low, high) in result.intervals.items():
            inside[name] += low <= TRUE[name] <= high
    for covered in inside.values():  # three standard deviations of a binomial count are 0.038
        assert abs(covered / draws - 0.95) < 0.038


def test_outputs_count_by_their_own_noise():
    """v is measured 10,000 times more coarsely; alone it says little, and it must not drown u."""
    numbers = np.random.default_rng(2)
    exact = wave(X, **TRUE)
    noise = {"u": 0.001, "v": 2000.0}
    data = {"x": X} | {name: exact[name] + noise[name] * numbers.standard_normal(len(X)) for name in noise}
    result = fitted(wave, data)
    for name in noise:
        assert 0.4 * noise[name] < result.noise[name] < 2.5 * noise[name]
    alone = fitted(wave, {"x": X, "u": data["u"]})
    assert result.values == pytest.approx(alone.values, rel=2e-3)
    assert result.values == pytest.approx(TRUE, rel=2e-2)
    given = fitted(wave, data, noise=noise)
    assert given.noise == noise and given.values == pytest.approx(alone.values, rel=2e-3)


def test_what_is_known_and_what_was_not_measured():
    exact = wave(X, **TRUE)
    known = fitted(wave, {"x": X, "u": exact["u"]}, unknown=("k",), h=1.3)
    assert list(known.values) == ["k"] and known.values["k"] == pytest.approx(0.7, rel=1e-7)
    by_row = {"x": np.tile(X, 2), "h": np.repeat([1.3, 2.0], 12)}
    by_row["u"] = wave(by_row["x"], 0.7, by_row["h"])["u"]
    assert fitted(wave, by_row).values == pytest.approx({"k": 0.7}, rel=1e-7)
    holes = {"x": X, "u": np.where(X < 0.3, np.nan, exact["u"]), "v": np.where(X > 0.8, exact["v"], np.nan)}
    result = fitted(wave, holes)
    assert result.values == pytest.approx(TRUE, rel=1e-6)
    assert result.summary()["measurements"] == {"u": int((X >= 0.3).sum()), "v": int((X > 0.8).sum())}


def test_weak_data_is_told():
    edge = fitted(wave, {"x": X, "u": 4.3 * np.exp(-0.7 * X)})
    assert edge.at_edge == ("h",) and edge.values["h"] == pytest.approx(4.0, rel=1e-3)
    assert "At the edge of the box: h. The best fit may lie outside" in repr(edge)
    vague = fitted(product_only, {"x": X, "u": 2 * X})
    assert len(vague.undetermined) == 1 and "k" in vague.undetermined[0] and "h" in vague.undetermined[0]
    assert vague.condition > 1e12 and "Not determined by these measurements" in repr(vague)
    numbers = np.random.default_rng(0)
    noisy = fitted(wave, {"x": X, "u": 1.3 + 5.0 * numbers.standard_normal(len(X))})
    assert noisy.undetermined  # the intervals are longer than the box

    def even(x, k, h):
        return {"u": (h - 2) ** 2 * k * (1 + x), "v": 0 * x * k * h}

    twofold = fitted(even, {"x": X, "u": even(X, 1.0, 1.0)["u"] + 1e-3 * numbers.standard_normal(12)}, k=1.0)
    assert "Other thetas fit about as well: h = " in repr(twofold)


@pytest.mark.parametrize(
    ("data", "given", "message"),
    [
        ({"x": X}, {}, "column for some of the outputs u, v and for each of x, but has x"),
        ({"u": X}, {}, "for each of x, but has u. A value that holds for all measurements can be given by name"),
        (
            {"x": X, "u": X},
            {"unknown": ("nu",)},
            "unknown must name some of the parameters k, h, each once, but got nu",
        ),
        ({"x": X, "u": X}, {"unknown": ("k",)}, "for each of x, h, but has x, u"),
        ({"x": X, "u": X}, {"k": 1.0, "h": 1.0}, "but got none"),
        ({"x": X, "u": X}, {"q": 1.0}, "There is no q"),
        ({"x": X, "u": X[:5]}, {}, r"must be numbers that broadcast, but came as x \(12,\), u \(5,\)"),
        ({"x": X[:2], "u": X[:2]}, {}, "2 unknown parameters and their intervals need more than 2 measurements"),
        ({"x": [0.1, np.nan, 0.3], "u": [1, 2, 3]}, {}, "x is not finite at one or more measurements"),
        ({"x": X, "u": X * np.nan}, {}, "no finite value of u"),
        ({"x": X, "u": X}, {"noise": -1.0}, "noise must be a number above zero for each of u, but got -1.0"),
        (
            3,
            {},
            "a dict of arrays by name, a pandas.DataFrame, an xarray.Dataset or the path of a CSV file, but got int",
        ),
    ],
)
def test_data_that_cannot_be_fitted_is_told(data, given, message):
    with pytest.raises(cl.DomainError, match=message):
        fitted(wave, data, **given)


def test_points_outside_are_warned_of():
    with pytest.warns(cl.OutsideBoxWarning, match="x is 0 to 2, outside its box"):
        fitted(wave, {"x": 2 * X, "u": wave(2 * X, **TRUE)["u"]})


# Files and objects -------------------------------------------------------------------------------------------


def test_data_comes_in_many_forms(tmp_path):
    import xarray

    pandas = pytest.importorskip("pandas")
    u = np.asarray(wave(X, **TRUE)["u"])
    path = tmp_path / "data.csv"
    rows = "".join(f"{x!r}, {value!r}, probe {i}\n" for i, (x, value) in enumerate(zip(X.tolist(), u.tolist())))
    path.write_text("\ufeff# measured today\nx, u, name\n" + rows + "0.5, , not measured\n\n")
    frame = pandas.DataFrame({"x": X, "u": u})
    dataset = xarray.Dataset({"u": ("x", u)}, {"x": X})
    for data in (path, str(path), frame, dataset, {"x": X.tolist(), "u": u.tolist()}):
        assert fitted(wave, data).values == pytest.approx(TRUE, rel=1e-6)
    assert fitted(wave, path).notes == ("Ignored columns of the data: name.",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "There is no file .*data.csv. Give a CSV file"),
        ("x,u\n", "needs a line of names and at least one line of numbers, but has 1 lines"),
        ("x,u\n1,2\n3\n", "line 3: expected 2 cells, but got 1"),
        ("x,u\n1,low\n2,3\n3,4\n4,5\n", "must be numbers"),
        (b"\xff\xfe\x00", "is no CSV file"),
    ],
)
def test_files_that_hold_no_data_are_told(tmp_path, text, message):
    path = tmp_path / "data.csv"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(cl.DomainError, match=message):
        read(Wave(), path)


def test_a_fit_is_shown_and_drawn(tmp_path):
    u = wave(X, **TRUE)["u"] + 0.01 * np.random.default_rng(0).standard_normal(12)
    result = fitted(wave, {"x": X, "u": u, "<b>": 0 * X})
    assert repr(result).startswith("Fit: k = 0.") and "± " in repr(result) and len(repr(result)) < 300
    assert "&lt;b&gt;" in result._repr_html_() and "<b>" not in result._repr_html_()
    figure = result.plot()
    left, right = figure.axes
    assert np.array_equal(left.lines[0].get_ydata(), u)
    assert np.allclose(right.lines[0].get_ydata(), result.residuals["u"])
    assert np.allclose(result.measured["u"] - result.fitted["u"], result.residuals["u"])
    json.dumps(result.summary())


# Surrogates --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A rough surrogate of exp(-k t)."""
    folder = tmp_path_factory.mktemp("run") / "run"
    settings = natural_for("free", "network.width=20", "network.depth=2", "steps=40", problem=Inflow())
    return cl.run(Inflow(), settings, folder, name="tests/small.py:Inflow")


def test_a_surrogate_finds_its_own_parameter_and_nearly_the_true_one(run):
    numbers = np.random.default_rng(0)
    x, t = numbers.random(40), numbers.random(40)
    own = run.surrogate.fit({"x": x, "t": t, "u": run.surrogate(x=x, t=t, k=1.2)["u"]}, unknown=("k",))
    assert own.values["k"] == pytest.approx(1.2, rel=1e-8)
    true = run.surrogate.fit({"x": x, "t": t, "u": np.exp(-1.2 * t) + 0.01 * numbers.standard_normal(40)})
    assert true.values["k"] == pytest.approx(1.2, rel=0.05)
    assert true.standard_errors["k"] < 0.05


def test_a_surrogate_with_place_is_fitted_at_physical_points():
    surrogate = made(Sector(), jnp.float64)
    angle = np.linspace(0.1, 4, 15)
    x, y = 0.9 * np.cos(angle), 0.9 * np.sin(angle)
    result = surrogate.fit({"x": x, "y": y, "u": surrogate(x=x, y=y, R=0.4)["u"]})
    assert result.values["R"] == pytest.approx(0.4, rel=1e-7)


def test_the_command(run, tmp_path):
    t = np.linspace(0, 1, 20)
    u = run.surrogate(x=0.5, t=t, k=1.2)["u"]
    path = tmp_path / "data.csv"
    path.write_text("t,u\n" + "".join(f"{a!r},{b!r}\n" for a, b in zip(t.tolist(), u.tolist())))
    picture = tmp_path / "fit.png"
    words = ["fit", str(run.folder), str(path), "x=0.5", "--unknown", "k", "--problem", "tests/small.py:Inflow"]
    done = CliRunner().invoke(app, [*words, "--plot", str(picture), "--json"], catch_exceptions=False)
    about = json.loads(done.stdout)
    assert about["values"]["k"] == pytest.approx(1.2, rel=1e-8) and about["plot"] == str(picture)
    assert about["intervals"]["k"][0] <= 1.2 * (1 + 1e-9) and picture.read_bytes().startswith(b"\x89PNG")
    shown = CliRunner().invoke(app, [*words, "--noise", "0.01"], catch_exceptions=False).stdout
    assert "95 % interval" in shown and "noise of u: 0.01, 20 measurements" in shown and "│ k " in shown


def test_data_without_thetas_points_to_the_fit():
    class Measured(Inflow):
        conditions = (*Inflow.conditions, cl.Data("probe", at={"x": [0.1], "t": [0.5]}, values={"u": [1.0]}))

    with pytest.raises(cl.ProblemError, match=r"fit them afterwards: surrogate.fit\(data, unknown=\('k',\)\)"):
        validate(Measured())
