"""Events of a run: what its settings do to the selection of tasks and to their weights."""

import numpy as np
import pytest
from running import settings_for
from small import Decay

from clpinn.errors import SettingsError
from clpinn.training.trainer import Trainer


class Stated(Decay):
    """With a prior."""

    def prior(self, k):
        return 4 * k


def events_of(*more, problem=None, method="acr"):
    trainer = Trainer(problem or Stated(), settings_for(method, *more, problem=problem or Stated()))
    return trainer.events, trainer.init()


# The prior --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [1, 0, -1, 0.5])
def test_the_exponent_of_the_prior_in_the_training_weights(exponent):
    events, state = events_of(f"weights.prior={exponent}")
    expected = (4 * state.pool.thetas[:, 0]) ** exponent  # losses are alike, so nothing else is left
    assert state.weights == pytest.approx(expected * len(expected) / expected.sum(), rel=1e-12)


@pytest.mark.parametrize("exponent", [1, -1, 0.5])
def test_the_exponent_of_the_prior_in_the_scores_of_the_search(exponent):
    events, state = events_of(f"tasks.search_prior={exponent}")
    _, record = events.hold(state, lambda thetas: 1 + thetas[:, 0])
    assert record is not None
    losses, thetas = np.array(record["losses"]), np.array(record["queried"])[:, 0]
    assert np.array(record["scores"]) == pytest.approx(losses * (4 * thetas) ** exponent, rel=1e-12)
    without, state = events_of("tasks.search_prior=0")
    _, record = without.hold(state, lambda thetas: 1 + thetas[:, 0])
    assert record is not None and record["scores"] == record["losses"]


def test_a_power_of_the_prior_that_overflows_is_named():
    class Steep(Decay):
        def prior(self, k):
            return 1e-200 * k

    with pytest.raises(SettingsError, match="weights.prior=-2 must be finite, but overflows at k = 0.5"):
        events_of("weights.prior=-2", problem=Steep())
