"""Errors over the box: where they are estimated, what is said between, and what a file keeps; calibration."""

from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from correcting import rewritten
from polynomials import Cubic

import clpinn as cl
from clpinn.errors import SurrogateError
from clpinn.estimation.results import Estimate
from clpinn.keys import make_key
from clpinn.networks.architecture import Architecture
from clpinn.networks.make import make
from clpinn.surrogate import calibration
from clpinn.surrogate.error_map import ErrorMap, error_map


class Line(cl.Problem):
    """u'' = 0 between two values; the upper one is a parameter, the other parameter does not matter."""

    coordinates = cl.Box(x=(0, 1))
    parameters = cl.Box(a=cl.log(0.1, 10.0), b=(0.0, 1.0))
    evaluation = coordinates.grid(x=11)
    conditions = (
        cl.Condition("low", lambda d: d.u - 1, on=cl.at(x=0), points=1),
        cl.Condition("high", lambda d, a: d.u - 1 - a, on=cl.at(x=1), points=1),
    )

    def residual(self, d):
        return d.u_xx

    def reference(self, x, a):
        return {"u": 1 + a * x}


class FakeEstimator:
    """Errors that are a given function of theta."""

    def __init__(self, problem, error, resolved=lambda theta: True):
        self.problem, self.error, self.resolved, self.asked = problem, error, resolved, []

    def at(self, network, theta):
        self.asked.append(tuple(theta.tolist()))
        error = self.error(theta)
        field = np.full((len(self.problem.evaluation), 1), error)
        return Estimate({"u": error}, {"u": 2 * error}, field, self.resolved(theta), "Because.", {}, 0.0, 1, None)


def smooth(theta):
    return 1e-3 * np.exp(np.sin(3 * np.log10(theta[0])) + theta[1])


def mapped(error=smooth, resolved=lambda theta: True, **options):
    estimator = FakeEstimator(Line(), error, resolved)
    return error_map(estimator, lambda theta: None, **options), estimator


def test_a_map_between_its_thetas():
    found, estimator = mapped()
    assert len(found.thetas) == 36 and len(set(estimator.asked)) == 36
    candidates = Line().candidates.points
    true = np.array([smooth(theta) for theta in candidates])
    low, middle, high = found.over(candidates)["u"]
    assert np.abs(np.log(middle / true)).max() < 0.1
    assert np.all(low <= middle) and np.all(middle <= high)
    assert np.mean((low <= true * 1.001) & (true <= high * 1.001)) > 0.8
    assert found.macro["u"].value == pytest.approx(true.mean(), rel=0.02)
    assert found.worst["u"].value == pytest.approx(true.max(), rel=0.1)
    assert found.macro["u"].low <= found.macro["u"].value <= found.macro["u"].high
    worst = found.worst_at("u")
    assert smooth(np.array(list(worst.values()))) > 0.9 * true.max()


def test_corners_are_among_the_thetas_and_a_peak_is_searched():
    def peak(theta):
        return 1e-4 + 1e-2 * float(theta[0] > 9.9) * float(theta[1] > 0.99)

    found, _ = mapped(peak)
    assert found.worst["u"].value > 5e-3
    assert found.worst_at("u") == {"a": 10.0, "b": 1.0}


def test_the_error_at_one_theta_and_the_nearest_estimate():
    found, _ = mapped()
    here = found.at(a=1.0, b=0.5)["u"]
    assert here.value == pytest.approx(smooth(np.array([1.0, 0.5])), rel=0.1)
    assert found.nearest(found.thetas[5]) == 5
    with pytest.raises(cl.ClpinnError, match="b"):
        found.at(a=1.0)


def test_what_is_not_resolved_enters_no_figure_but_the_share():
    def error(theta):
        return 1e-3 if theta[1] < 0.5 else 1e-9

    found, _ = mapped(error, resolved=lambda theta: theta[1] < 0.5)
    assert 0.2 < found.share_resolved < 0.8
    assert found.macro["u"].value == pytest.approx(1e-3, rel=1e-3)
    assert "not known: the error at" in str(found)
    assert np.all(found.unresolved[:, 1] >= 0.5)
    nothing, _ = mapped(error, resolved=lambda theta: False)
    assert nothing.macro == {} and nothing.summary()["outputs"] == {}
    assert nothing.worst_at("u") == {}
    assert np.isnan(nothing.at(a=1.0, b=0.5)["u"].value)


def test_few_resolved_estimates_say_nothing_between_them():
    only = Line().candidates.points[0]
    found, _ = mapped(lambda theta: 1e-3, resolved=lambda theta: bool(theta[1] == only[1] and theta[0] == only[0]))
    assert found.resolved.sum() <= 1
    assert found.macro == {} and np.isnan(found.at(a=1.0, b=0.5)["u"].value)


def test_an_output_that_is_zero_has_no_figures(tmp_path):
    found, _ = mapped(lambda theta: np.nan)
    assert found.resolved.all() and found.macro == {} and found.summary()["outputs"] == {}
    assert np.isnan(found.at(a=1.0, b=0.5)["u"].value) and not found.knows(np.array([1.0, 0.5]))
    with jax.enable_x64(True):
        network = make(Line(), Architecture(depth=1, width=4), make_key(0))
    cl.Surrogate(Line(), network, errors=found).save(tmp_path / "zero.clpinn")
    assert cl.load(tmp_path / "zero.clpinn", Line()).errors.macro == {}


def test_a_map_of_one_theta_is_about_that_theta():
    theta = np.array([[1.3, 0.4]])
    found, _ = mapped(lambda theta: 1e-3, candidates=theta)
    assert found.worst_at("u") == {"a": 1.3, "b": 0.4}
    assert found.worst["u"].value == pytest.approx(1e-3)


def test_very_many_candidates():
    class Many(Line):
        candidates = Line.parameters.grid(a=60, b=60)

    found = error_map(FakeEstimator(Many(), smooth), lambda theta: None)
    true = np.array([smooth(theta) for theta in Many().candidates.points])
    assert found.macro["u"].value == pytest.approx(true.mean(), rel=0.05)
    assert found.worst["u"].value == pytest.approx(true.max(), rel=0.1)


def test_errors_that_are_not_finite_do_not_stop_a_map():
    found, _ = mapped(lambda theta: np.nan if theta[1] > 0.3 else 1e-3, resolved=lambda theta: theta[1] <= 0.3)
    assert found.macro["u"].value == pytest.approx(1e-3, rel=1e-3)
    alone, _ = mapped(lambda theta: np.nan, resolved=lambda theta: False)
    assert alone.share_resolved == 0


def test_number_and_time_bound_a_map():
    assert len(mapped(count=5)[0].thetas) == 5
    assert len(mapped(seconds=1e-9)[0].thetas) == 1
    done = []
    mapped(count=3, progress=lambda i, of: done.append((i, of)))
    assert done == [(1, 3), (2, 3), (3, 3)]
    for options in ({"count": 0}, {"seconds": 0.0}):
        with pytest.raises(cl.ProblemError, match="at least one theta"):
            mapped(**options)


def test_a_problem_without_parameters():
    class Plain(cl.Problem):
        coordinates = cl.Box(x=(0, 1))

        def residual(self, d):
            return d.u_xx

    found = error_map(FakeEstimator(Plain(), lambda theta: 1e-3), lambda theta: None)
    assert found.macro["u"].value == pytest.approx(1e-3)
    assert found.worst["u"].high == pytest.approx(1e-3)
    assert found.at()["u"].value == pytest.approx(1e-3)


def test_a_map_for_people_and_programs():
    found, _ = mapped(count=8)
    assert found.summary()["thetas"] == 8
    assert set(found.summary()["outputs"]["u"]) == {"macro", "worst", "worst_at"}
    dataset = found.to_dataset()
    assert set(dataset.data_vars) == {"u", "u_low", "u_high"}
    assert dataset["u"].shape == Line().candidates.shape
    rows = found.table()
    assert rows[0]["resolved"] is True and rows[0]["max_abs_u"] == 2 * rows[0]["rel_l2_u"]
    assert "ErrorMap" in repr(found) and "estimated macro" in found._repr_html_()


# Real estimates and files --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def surrogate():
    with jax.enable_x64(True):
        return cl.Surrogate(Line(), make(Line(), Architecture(depth=1, width=4), make_key(0)))


@pytest.fixture(scope="module")
def with_map(surrogate):
    return surrogate.with_errors(surrogate.error_map(8))


def test_the_map_of_a_surrogate(surrogate, with_map):
    found = with_map.errors
    assert found.resolved.all()
    for i, theta in enumerate(found.thetas[:3]):
        named = dict(zip(Line().parameters, theta.tolist()))
        estimate = surrogate.error(**named)
        assert found.relative_l2[i, 0] == estimate.relative_l2["u"]
        np.testing.assert_allclose(found.fields[i, 0], estimate.field["u"].values, rtol=1e-6)
        np.testing.assert_allclose(found.grid.values["x"], estimate.field["x"].values)


def test_a_file_keeps_the_map(with_map, tmp_path):
    path = tmp_path / "mapped.clpinn"
    with_map.save(path)
    loaded = cl.load(path, Line())
    assert isinstance(loaded.errors, ErrorMap)
    assert loaded.errors.reasons == with_map.errors.reasons
    for name in ("thetas", "relative_l2", "largest", "resolved", "fields"):
        np.testing.assert_array_equal(getattr(loaded.errors, name), getattr(with_map.errors, name))
    assert loaded.digest == with_map.digest
    corrected = loaded.correct(a=1.0, b=0.5)
    assert corrected.errors is loaded.errors
    corrected.save(path)
    assert cl.load(path, Line()).errors is not None


def negative(header, arrays):
    arrays["['errors']['relative_l2']"] = -arrays["['errors']['relative_l2']"]


def thetas_not_finite(header, arrays):
    arrays["['errors']['thetas']"] = np.full_like(arrays["['errors']['thetas']"], np.inf)


def fewer_reasons(header, arrays):
    header["errors"] = header["errors"][:-1]


def reasons_that_are_numbers(header, arrays):
    header["errors"] = list(range(len(header["errors"])))


def no_fields(header, arrays):
    del arrays["['errors']['fields']"]


@pytest.mark.parametrize("change", [negative, thetas_not_finite, fewer_reasons, reasons_that_are_numbers, no_fields])
def test_damaged_maps_are_refused(with_map, tmp_path, change):
    path = tmp_path / "damaged.clpinn"
    with_map.save(path)
    rewritten(path, change)
    with pytest.raises(SurrogateError, match="holds no surrogate|other structure|other shapes"):
        cl.load(path, Line())


# Calibration ---------------------------------------------------------------------------------------------------


def true_solver(x, a, b):
    return 1 + a * x


def test_the_bound_of_a_perfect_estimate_is_the_estimate(surrogate):
    found = cl.calibrate(surrogate, true_solver, n=9, coverage=0.9)
    assert found.factors["u"] == pytest.approx(1.0, abs=1e-3)
    estimate = surrogate.error(a=1.0, b=0.5)
    assert found.bound(estimate)["u"] == found.factors["u"] * estimate.relative_l2["u"]
    assert len(found.thetas) == 9
    assert "coverage 90%" in repr(found) and "Calibration" in found._repr_html_()


def test_the_factor_is_the_right_score(surrogate, monkeypatch):
    """With estimates of 1 the scores are the true errors: the k-th smallest of them is the factor."""
    monkeypatch.setattr(
        cl.Surrogate, "error_many", lambda self, thetas: [SimpleNamespace(relative_l2={"u": 1.0})] * len(thetas)
    )
    for n, coverage, rank in ((19, 0.95, 19), (19, 0.9, 18), (9, 0.9, 9), (10, 0.5, 6)):
        found = cl.calibrate(surrogate, true_solver, n=n, coverage=coverage)
        assert found.factors["u"] == np.sort(found.scores["u"])[rank - 1]


def test_coverage_holds_at_further_thetas(surrogate, monkeypatch):
    """Scores that depend on theta alone: over many calibrations the bound holds as often as stated."""
    monkeypatch.setattr(
        cl.Surrogate, "error_many", lambda self, thetas: [SimpleNamespace(relative_l2={"u": 1.0})] * len(thetas)
    )
    monkeypatch.setattr(calibration, "_answers", lambda surrogate, theta: {"u": np.array([1 + theta[1]])})
    monkeypatch.setattr(calibration, "_solved", lambda problem, solver, theta: {"u": np.array([1.0])})
    further = np.random.default_rng(0).uniform(size=400)  # the score is b, which is drawn evenly
    for n, coverage in ((3, 0.25), (9, 0.9)):
        held = [
            further[seed] <= cl.calibrate(surrogate, true_solver, n, coverage, seed).factors["u"] for seed in range(400)
        ]
        assert np.mean(held) == pytest.approx(coverage, abs=0.06)


def test_calibration_by_data(surrogate):
    thetas = Line().parameters.sample(9, make_key(3))
    x = np.linspace(0, 1, 11)
    data = {
        "x": np.tile(x, 9),
        "a": np.repeat(thetas[:, 0], 11),
        "b": np.repeat(thetas[:, 1], 11),
        "u": np.concatenate([1 + a * x for a in thetas[:, 0]]),
    }
    found = cl.calibrate(surrogate, data, coverage=0.9)
    assert len(found.thetas) == 9
    assert found.factors["u"] == pytest.approx(1.0, abs=1e-3)
    assert len(cl.calibrate(surrogate, data, n=4, coverage=0.5).thetas) == 4
    del data["b"]
    with pytest.raises(cl.DomainError, match="needs a column for each of x, a, b"):
        cl.calibrate(surrogate, data)


def test_a_calibration_that_cannot_be():
    surrogate = cl.Surrogate(Line(), eqx.tree_at(lambda n: n.bias, Cubic(1, 1), jnp.array([1.0])))
    with pytest.raises(cl.ProblemError, match="needs at least 19 thetas, but got 9"):
        cl.calibrate(surrogate, true_solver, n=9, coverage=0.95)
    with pytest.raises(cl.ProblemError, match="between 0 and 1"):
        cl.calibrate(surrogate, true_solver, coverage=1.0)
    with pytest.raises(cl.ClpinnError, match="solver"):
        cl.calibrate(surrogate, lambda x, a, b: {"v": x}, n=1, coverage=0.5)
