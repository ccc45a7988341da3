"""A Schaffer-like function of two coordinates and a parameter. No PDE: the residual is u minus the function."""

import jax.numpy as jnp
import numpy as np

from clpinn.formulation.domain import Box, Grid, log
from clpinn.formulation.problem import Problem
from clpinn.formulation.regions import Interior


class Schaffer(Problem):
    """A function with many extrema, damped more for larger a."""

    equation = "u = (sin(x² + y²) - 0.5) / (1 + a (x² + y²))²"
    coordinates = Box(x=(-5, 5), y=(-5, 5))
    parameters = Box(a=log(0.001, 1.0))
    outputs = ("u",)
    interior = Interior(2500)
    candidates = Grid(a=[*(m * 10.0**e for e in (-3, -2, -1) for m in range(1, 10)), 1.0])
    evaluation = Grid(x=-5 + 0.1 * np.arange(100), y=-5 + 0.1 * np.arange(100))
    reference_kind = "analytic"

    def residual(self, d, x, y, a):
        return d.u - schaffer(x, y, a)

    def prior(self, a):
        return np.exp(1.5 * (np.log10(a) + 3))

    def reference(self, x, y, a):
        return {"u": schaffer(x, y, a, np)}


def schaffer(x, y, a, xp=jnp):
    """The function itself, for arrays of `xp` (jax.numpy or numpy) that broadcast."""
    square = x**2 + y**2
    return (xp.sin(square) - 0.5) / (1 + a * square) ** 2
