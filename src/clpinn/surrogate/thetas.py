"""Thetas: sameness and text. To be replaced by formulation/thetas.py, which holds the same functions."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool

from clpinn.formulation.domain import Points


def is_among(thetas: Points, others: Points) -> Bool[np.ndarray, " thetas"]:
    """For each theta, whether exactly the same values are a row of `others`."""
    return np.any(np.all(np.asarray(thetas)[:, None] == np.asarray(others), axis=2), axis=1)


def theta_text(names: Iterable[str], theta: Iterable[float]) -> str:
    """A theta for people: "nu = 0.03, rho = 4"."""
    return ", ".join(f"{name} = {value:g}" for name, value in zip(names, theta, strict=True))
