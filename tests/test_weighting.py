import numpy as np
import pytest

from clpinn.training.weighting import Dynamic, Equal

NAN = np.nan


def test_equal_ignores_losses_and_prior():
    weights = Equal().weights(np.array([1.0, np.inf, 3.0]), np.full(3, NAN), np.array([1.0, 5.0, 9.0]))
    assert weights.tolist() == [1, 1, 1]


def test_dynamic_by_hand():
    # Shares 1/4 and 3/4. Decreases (3-1)/(3+1) = 1/2 and (1-3)/(1+3) = -1/2.
    # Exponents: 2/4 - 2/2 = -1/2 and 6/4 + 1 = 5/2, so the second weighs e^3 / 2 as much with priors 2 and 1.
    weights = Dynamic(2, -2).weights(np.array([1.0, 3.0]), np.array([3.0, 1.0]), np.array([2.0, 1.0]))
    first = 2 / (1 + np.exp(3) / 2)
    assert weights == pytest.approx([first, 2 - first], rel=1e-14)


def test_a_task_without_previous_loss_has_no_second_term():
    # Exponents 1/4 and 3/4 - (1-3)/(1+3) = 5/4.
    weights = Dynamic(1, -1).weights(np.array([1.0, 3.0]), np.array([NAN, 1.0]), np.ones(2))
    assert weights[1] / weights[0] == pytest.approx(np.e, rel=1e-14)
    assert weights.sum() == pytest.approx(2, rel=1e-14)


def test_only_the_prior_is_left_where_losses_are_equal_and_steady():
    weights = Dynamic(2, -2).weights(np.full(3, 4.0), np.full(3, 4.0), np.array([1.0, 2.0, 3.0]))
    assert weights == pytest.approx([0.5, 1.0, 1.5], rel=1e-14)


def test_zero_losses_are_no_division_by_zero():
    weights = Dynamic(1, -1).weights(np.zeros(3), np.array([0.0, NAN, 1.0]), np.ones(3))
    # Equal shares; decreases 0 (nothing to divide by), none, 1.
    relative = np.array([1, 1, np.exp(-1)])
    assert weights == pytest.approx(3 * relative / relative.sum(), rel=1e-14)


def test_large_exponents_and_priors_do_not_overflow():
    weights = Dynamic(5000, -5000).weights(np.array([1.0, 3.0]), np.array([3.0, 1.0]), np.array([1.0, 1e300]))
    assert weights == pytest.approx([0, 2])


def test_a_diverged_loss_takes_the_limit():
    # Shares 0 and 1; decreases 0 and -1.
    for diverged in (np.inf, NAN):
        weights = Dynamic(1, -1).weights(np.array([2.0, diverged]), np.array([2.0, 5.0]), np.ones(2))
        assert weights[1] / weights[0] == pytest.approx(np.exp(2), rel=1e-12)
