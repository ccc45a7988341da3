"""Causality: the direction of time, and weights that fall with the residuals before."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from row_problems import Chained, Waves, tiny

import clpinn as cl
from clpinn.training.batches import row_source
from clpinn.training.causality import causal_weights, time_direction


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


class Timed(cl.Problem):
    coordinates = cl.Box(x=(0, 1), t=(0, 2))

    def residual(self, d):
        return d.u_t


def with_conditions(*regions) -> cl.Problem:
    problem = Timed()
    problem.conditions = tuple(cl.Condition(f"{i}", lambda d: d.u, on=on, points=8) for i, on in enumerate(regions))
    return problem


@pytest.mark.parametrize(
    "regions, direction",
    [
        ([], (1, 1.0)),
        ([cl.at(t=0)], (1, 1.0)),
        ([cl.at(t=0), cl.boundary("x")], (1, 1.0)),
        ([cl.at(t=2)], (1, -1.0)),
        ([cl.at(t=0), cl.at(t=2)], None),
        ([cl.boundary("x", "t")], None),
    ],
)
def test_time_starts_at_the_end_where_a_condition_is_imposed(regions, direction):
    assert time_direction(with_conditions(*regions)) == direction


@pytest.mark.parametrize(
    "constrain, direction",
    [
        (lambda self, raw, t: 1 + t * raw, (1, 1.0)),
        (lambda self, raw, x, t: jnp.sin(x) + 1e-9 * (2 - t) * raw, (1, -1.0)),
        (lambda self, raw, x, t: x + jnp.sin(jnp.pi * t) * raw, None),
        (lambda self, raw, x: x * raw, (1, 1.0)),
    ],
)
def test_time_starts_at_the_end_where_the_hard_transform_holds(constrain, direction):
    assert time_direction(type("Hard", (Timed,), {"constrain": constrain})()) == direction


def test_time_has_no_direction_with_a_condition_in_between():
    assert time_direction(with_conditions(cl.at(t=1.0))) is None


def test_periodic_time_has_no_direction():
    assert time_direction(Waves()) == (1, 1.0)
    problem = Timed()
    problem.coordinates = cl.Box(x=(0, 1), t=cl.periodic(0, 2))
    assert time_direction(problem) is None and time_direction(Chained()) is None


def test_causal_weights_fall_with_the_residuals_before():
    """w = 1 / (1 + 1e5 L), where L is the part of the mean square at earlier times."""
    times, squares = np.array([1.5, 0.5, 1.0]), np.array([[4e-5], [1e-5], [2e-5]])
    for region, expected in (
        (cl.at(t=0), {0.0: 1, 0.5: 1 / 2, 0.75: 1 / 3, 1.0: 1 / 4, 1.5: 1 / 8, 2.0: 1 / 8}),
        (cl.at(t=2), {2.0: 1, 1.5: 1 / 5, 1.0: 1 / 7, 0.5: 1 / 8, 0.0: 1 / 8}),
    ):
        points = np.stack([0 * times, times], axis=1)
        weights = causal_weights(time_direction(with_conditions(region)), points, np.sqrt(squares), 1e5)
        asked = np.array([[0.3, time] for time in expected])
        np.testing.assert_allclose(weights(asked), list(expected.values()), rtol=1e-12)


def test_a_causal_batch_has_the_weighted_mean_square():
    """Over many draws the sum of squares is that of all candidates, each with its weight."""

    class Late(cl.Problem):
        coordinates = cl.Box(t=(0, 1))

        def residual(self, d, t):
            return 0 * d.u + jnp.where(t > 0.5, 0.01 * t, 0.0)

    problem = Late()
    network, source = tiny(problem), row_source(problem, 512, jnp.float64)
    sizes, square = source.sizes.ones(), 7 / 24 * 1e-4
    for causality, expected in ((1e5, np.log1p(1e5 * square) / 1e5), (0, square)):  # dL / (1 + 1e5 L), or dL
        drawn = [source.batches.draw(network, jax.random.key(seed), sizes, causality=causality) for seed in range(20)]
        sums = [source.rows.value(network, batch)[0] for batch in drawn]
        assert np.mean(sums) == pytest.approx(expected, rel=0.05)
        early = np.mean([np.mean(batch["interior"].x < 0.5) for batch in drawn])
        assert (early > 0.3) == (causality > 0)  # rows go where they count


def test_causal_weights_stand_residuals_that_are_not_finite():
    points, residuals = np.array([[0.0, 0.5], [0.0, 1.0], [0.0, 1.5]]), np.array([[np.inf], [np.nan], [1e300]])
    weights = causal_weights((1, 1.0), points, residuals, 1e5)
    np.testing.assert_allclose(weights(np.array([[0.0, 0.0], [0.0, 2.0]])), [1, 1 / (1 + 2e5)], rtol=1e-12)
