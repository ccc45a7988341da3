"""The natural stage: what the validation loss is."""

import numpy as np
import pytest

from clpinn.training.stages.natural import capped_loss, largest_mean_square

WEIGHTS = {"interior": 1.0, "start": 1.0}


def test_a_validation_residual_counts_at_most_as_its_terms():
    rows = {"interior": np.sqrt([[0.5 / 2], [100.0]]), "start": np.sqrt([[0.25 / 4]] * 4)}
    assert capped_loss(rows, WEIGHTS) == pytest.approx((0.5 + 1) / 2 + 0.25)
    assert largest_mean_square(rows, WEIGHTS) == pytest.approx(0.75)
    rows["interior"][0] = np.nan  # counts as the most
    assert capped_loss(rows, WEIGHTS) == pytest.approx(1 + 0.25) and largest_mean_square(rows, WEIGHTS) == 1
