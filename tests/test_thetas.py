"""Thetas: shape, sameness, distances, text."""

import numpy as np
import pytest
from small import Known

import clpinn as cl
from clpinn.formulation.thetas import (
    checked_thetas,
    coverage_hole,
    is_among,
    nearest_distance,
    parse_thetas,
    parse_values,
    theta_text,
    to_unit,
)

PLANE = cl.Box(nu=(0, 2), rho=(0, 4))


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=float).reshape(-1, 1)


def test_thetas_get_a_row_each():
    assert checked_thetas(Known(), [0.5]).shape == (1, 1)
    assert checked_thetas(Known(), [[0.5], [1.0]]).tolist() == [[0.5], [1.0]]
    with pytest.raises(cl.ProblemError, match=r"need 1 columns \(a\), but got the shape \(1, 2\)"):
        checked_thetas(Known(), [0.5, 1.0])
    with pytest.warns(cl.OutsideBoxWarning, match="a is 2"):
        checked_thetas(Known(), [2.0])
    with pytest.raises(cl.DomainError, match="a is 2"):
        checked_thetas(Known(), [2.0], forbid_outside=True)


def test_is_among_compares_whole_rows_exactly():
    others = np.array([[1.0, 2.0], [3.0, 4.0]])
    thetas = np.array([[3.0, 4.0], [1.0, 4.0], [1.0, np.nextafter(2.0, 3.0)], [1.0, 2.0]])
    assert is_among(thetas, others).tolist() == [True, False, False, True]
    assert is_among(thetas, np.zeros((0, 2))).tolist() == [False] * 4
    assert is_among(np.zeros((0, 2)), others).shape == (0,)
    # Without parameters there is only one theta.
    assert is_among(np.zeros((1, 0)), np.zeros((1, 0))).tolist() == [True]


def test_unit_cube_follows_the_scale_of_each_axis():
    box = cl.Box(a=cl.log(0.001, 1), b=(2, 4))
    assert np.allclose(to_unit(np.array([[0.01, 2.5], [1.0, 4.0]]), box), [[1 / 3, 0.25], [1, 1]])


def test_nearest_distance_by_hand():
    distances = nearest_distance(np.array([[0.0, 0.0], [1.0, 4.0]]), np.array([[2.0, 0.0], [0.0, 4.0]]), PLANE)
    assert np.allclose(distances, [1.0, 0.5])
    assert nearest_distance(np.array([[0.0, 0.0]]), np.zeros((0, 2)), PLANE).tolist() == [np.inf]


def test_coverage_hole_by_hand():
    line = cl.Box(nu=(0, 10))
    assert coverage_hole(column(0, 2, 5, 10), column(0, 10), line) == pytest.approx(0.5)
    assert coverage_hole(column(0, 10), column(0, 10), line) == 0
    decades = cl.Box(a=cl.log(0.001, 1))
    assert coverage_hole(column(0.001, 0.01, 1), column(0.001, 1), decades) == pytest.approx(1 / 3)
    assert coverage_hole(np.array([[2.0, 4.0]]), np.array([[0.0, 0.0]]), PLANE) == pytest.approx(np.sqrt(2))


def test_text():
    assert theta_text(["nu", "rho"], np.array([0.03, 4.0])) == "nu = 0.03, rho = 4"
    assert theta_text([], []) == ""
    with pytest.raises(ValueError):
        theta_text(["nu", "rho"], [0.03])


def test_words_become_thetas_in_the_order_of_the_box():
    assert parse_thetas(PLANE, ["rho=3", "nu=0.5,1e-2"]).tolist() == [[0.5, 3.0], [0.01, 3.0]]
    assert parse_thetas(PLANE, ["nu=1,2", "rho=3,4"]).tolist() == [[1.0, 3.0], [2.0, 4.0]]
    # Values alone may name coordinates too.
    assert {name: row.tolist() for name, row in parse_values(["nu=1", "t=0.5,0.6"]).items()} == {
        "nu": [1.0],
        "t": [0.5, 0.6],
    }


@pytest.mark.parametrize(
    "words, message",
    [
        (["nu"], "given as name=number, such as nu=0.0113, but got 'nu'"),
        (["nu=a"], "but got 'nu=a'"),
        (["nu=1,"], "but got 'nu=1,'"),
        (["nu=1"], "No value for 'rho'"),
        (["nu=1", "rho=1", "mu=2"], "Unknown axis 'mu'"),
        (["nu=1,2", "rho=1,2,3"], "as many values of each parameter.*2 of nu, 3 of rho"),
    ],
)
def test_words_that_are_no_thetas(words, message):
    with pytest.raises(cl.ClpinnError, match=message):
        parse_thetas(PLANE, words)
