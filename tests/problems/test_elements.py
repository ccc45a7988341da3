"""The eigenmodes against the sines and cosines."""

import numpy as np
import pytest

from clpinn.problems.elements import eigenmodes

BREAKS = (0.0, 0.3, 0.7, 0.95, 0.999, 1.0)


@pytest.mark.parametrize(("left_is_zero", "shift"), [(True, 1.0), (False, 0.5)])
def test_modes_are_sines_and_cosines(left_is_zero: bool, shift: float) -> None:
    modes = eigenmodes(BREAKS, 16, left_is_zero)
    frequency = np.pi * (np.arange(6) + shift)
    assert modes.inverse[::-1][:6] == pytest.approx(1 / frequency**2, abs=1e-14)
    x = np.concatenate([np.linspace(0, 1, 57), BREAKS])
    exact = np.sqrt(2) / frequency * np.sin(frequency * (1 - x[:, None]))
    assert np.abs(modes.at(x)[:, ::-1][:, :6]) == pytest.approx(np.abs(exact), abs=1e-10)
