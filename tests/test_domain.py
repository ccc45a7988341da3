import math

import jax
import numpy as np
import pytest

import clpinn as cl
from clpinn.errors import OutsideBoxWarning
from clpinn.formulation.regions import At

KEY = jax.random.key(7)
BOX = cl.Box(x=(-1, 3), nu=cl.log(0.01, 1.0), phi=cl.periodic(0, 2 * math.pi))


def test_names_corners_and_features():
    assert BOX.names == ("x", "nu", "phi")
    assert BOX.feature_count == 4
    corners = cl.Box(x=(-1, 3), y=(0, 1)).corners()
    assert corners.tolist() == [[-1, 0], [-1, 1], [3, 0], [3, 1]]
    assert cl.Box().corners().shape == (1, 0)


def test_log_axis_is_even_in_the_logarithm():
    assert np.allclose(cl.log(0.001, 1).spaced(4), [0.001, 0.01, 0.1, 1])
    assert np.allclose(cl.log(0.001, 1).to_unit(np.array([0.001, 0.01, 1])), [0, 1 / 3, 1])


def test_periodic_grid_has_one_end():
    assert np.allclose(cl.periodic(0, 1).spaced(4), [0, 0.25, 0.5, 0.75])


def test_grid_runs_last_axis_fastest():
    grid = cl.Box(x=(0, 1), y=(0, 2)).grid(x=2, y=3)
    assert grid.shape == (2, 3) and len(grid) == 6
    assert grid.points.tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]


@pytest.mark.parametrize("sampler", ["sobol", "latin", "uniform", "chebyshev"])
def test_samplers_fill_the_box_and_follow_the_key(sampler):
    points = BOX.sample(300, KEY, sampler)
    assert points.shape == (300, 3) and points.dtype == np.float64
    assert BOX.outside(points) == []
    assert np.array_equal(points, BOX.sample(300, KEY, sampler))
    assert not np.array_equal(points, BOX.sample(300, jax.random.key(8), sampler))
    # Half of the points lie below the middle of each axis, on the scale of the axis.
    middle = [axis.from_unit(np.array(0.5)) for axis in BOX.axes]
    below = (points < middle).mean(axis=0)
    assert np.all(np.abs(below - 0.5) < (0.01 if sampler in ("sobol", "latin") else 0.12))


def test_chebyshev_points_are_denser_towards_the_ends():
    """The density is 1 / (π sqrt(x (1 - x))), so each outer tenth holds a fraction arccos(0.8) / π."""
    points = cl.Box(x=(0, 1)).sample(20_000, KEY, "chebyshev")[:, 0]
    for outer in (points < 0.1, points > 0.9):
        assert np.mean(outer) == pytest.approx(np.arccos(0.8) / np.pi, abs=0.01)
    assert np.mean(np.abs(points - 0.5) < 0.05) == pytest.approx(0.0638, abs=0.006)


def test_grid_sampler():
    points = cl.Box(x=(0, 1), y=(0, 1)).sample(9, KEY, "grid")
    assert np.allclose(points, cl.Box(x=(0, 1), y=(0, 1)).grid(x=3, y=3).points)


def test_boundary_shares_points_by_length():
    box = cl.Box(x=(0, 1), y=(0, 3))
    points = cl.boundary("x", "y").sample(box, 80, KEY)
    assert len(points) == 80
    counts = [np.sum(points[:, 0] == 0), np.sum(points[:, 0] == 1), np.sum(points[:, 1] == 0)]
    assert np.allclose(counts, [30, 30, 10], atol=1)
    assert len(cl.boundary("x", "y").sample(cl.Box(x=(0, 1), y=(0, 1000)), 10, KEY)) == 10


def test_at_fixes_an_axis():
    points = cl.at(t=0).sample(cl.Box(x=(-1, 1), t=(0, 1)), 16, KEY)
    assert points.shape == (16, 2) and np.all(points[:, 1] == 0) and len(set(points[:, 0])) == 16
    assert At((("x", 1.0),)).sample(cl.Box(x=(0, 1)), 5, KEY).tolist() == [[1.0]]


def test_at_takes_a_part_of_an_axis():
    box = cl.Box(x=(0, 1), y=cl.log(0.1, 10), phi=cl.periodic(0, 6))
    points = cl.at(x=1, y=(1, 10), phi=(1, 2)).sample(box, 400, KEY)
    assert points.shape == (400, 3) and np.all(points[:, 0] == 1)
    low, high = points[:, 1:].min(axis=0), points[:, 1:].max(axis=0)
    assert np.allclose(low, [1, 1], atol=0.02) and np.allclose(high, [10, 2], atol=0.1) and np.all(low >= 1)
    # Even on the scale of the axis, as everywhere.
    assert np.median(points[:, 1]) == pytest.approx(np.sqrt(10), rel=0.02)
    assert np.median(points[:, 2]) == pytest.approx(1.5, rel=0.02)


def test_interior_appends_anchors():
    anchors = np.array([[0.5, 0.25], [0.1, 0.2]])
    interior = cl.Interior(10, anchors=anchors)
    points = interior.sample(cl.Box(x=(0, 1), t=(0, 1)), KEY)
    assert interior.count == len(points) == 12
    assert np.array_equal(points[-2:], anchors)
    only = cl.Interior(0, anchors=anchors)
    assert np.array_equal(only.sample(cl.Box(x=(0, 1), t=(0, 1)), KEY), anchors)


def test_interior_is_thinned():
    box = cl.Box(x=(0, 1), t=(0, 1))
    interior = cl.Interior(200, anchors=np.array([[0.5, 0.5]]))
    dense, sparse = interior.sample(box, KEY), interior.thinned(0.1, 2).sample(box, KEY)
    assert len(sparse) == 21 and {tuple(p) for p in sparse} <= {tuple(p) for p in dense}
    assert cl.Interior(5041, sampler="grid").thinned(0.1, 2).points == 529


def test_outside_warns_and_names_the_axis_or_raises():
    box = cl.Box(nu=cl.log(0.01, 1))
    with pytest.warns(OutsideBoxWarning, match=r"nu is 2, outside its box \[0.01, 1\]"):
        box.check(np.array([[2.0]]))
    with pytest.raises(cl.DomainError, match="nu is 2"):
        box.check(np.array([[2.0]]), forbid=True)
    with pytest.raises(cl.DomainError):
        box.check(np.array([[np.nan]]))
    box.check(np.array([[0.5]]))
    with pytest.raises(cl.DomainError):
        cl.Box(a=cl.log(1e-7, 1)).check(np.array([[-5e-7]]), forbid=True)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: cl.Box(a=cl.log(0, 1)), "above zero"),
        (lambda: cl.Box(a=cl.log(-1, 1)), "above zero"),
        (lambda: cl.Box(x=(1, 1)), "Axis 'x'.*low < high"),
        (lambda: cl.Box(x=(0, math.inf)), "finite"),
        (lambda: cl.Box(x=(0, 1, 2)), r"Axis 'x' needs a pair \(low, high\)"),
        (lambda: cl.Box(x=3), r"Axis 'x' needs a pair \(low, high\)"),
        (lambda: cl.Box(d=(0, 1)), "cannot be called 'd'"),
        (lambda: cl.Box(x=(0, 1))["y"], "Unknown axis 'y'. This box has x"),
        (lambda: cl.Box(x=(0, 1)).grid(y=3), "Unknown axis 'y'"),
        (lambda: cl.Box(x=(0, 1), y=(0, 1)).grid(x=3), "No value for 'y'"),
        (lambda: cl.Box(x=(0, 1)).grid(x=0), "at least one value"),
        (lambda: cl.Grid(x=[]), "non-empty"),
        (lambda: cl.Box(x=(0, 1)).sample(0, KEY), "at least one point"),
        (lambda: cl.Box(x=(0, 1), y=(0, 1)).sample(10, KEY, "grid"), "nearest is 9"),
        (lambda: cl.Box(x=(0, 1)).sample(4, KEY, "halton"), "Unknown sampler"),
        (lambda: cl.at(t=2).sample(cl.Box(x=(0, 1), t=(0, 1)), 4, KEY), "t is 2"),
        (lambda: cl.at(x=1, y=(0, 2)).sample(cl.Box(x=(0, 1), y=(0, 1)), 4, KEY), r"part of y .* \[0, 1\].* \(0, 2\)"),
        (lambda: cl.at(y=(0.5, 0.5)).sample(cl.Box(x=(0, 1), y=(0, 1)), 4, KEY), "low < high"),
        (lambda: cl.at(z=(0, 1)).sample(cl.Box(x=(0, 1), y=(0, 1)), 4, KEY), "Unknown axis 'z'"),
        (lambda: cl.at(y=(0, 1, 2)), r"at\(y=...\) needs a number, or a pair"),
        (lambda: cl.at(y="left"), r"at\(y=...\) needs a number"),
        (lambda: cl.boundary("x", "y").sample(cl.Box(x=(0, 1), y=(0, 1)), 2, KEY), "4 faces and 2 points"),
        (lambda: cl.Interior(4, anchors=np.zeros((2, 3))).sample(cl.Box(x=(0, 1)), KEY), "shape"),
    ],
)
def test_the_error_says_what_is_wrong(make, message):
    with pytest.raises(cl.DomainError, match=message):
        make()
