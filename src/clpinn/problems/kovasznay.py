"""Kovasznay flow: a steady solution of the incompressible Navier-Stokes equations (Kovasznay, 1948)."""

import jax.numpy as jnp
import numpy as np

from clpinn.formulation.domain import Box, Grid
from clpinn.formulation.problem import Condition, Problem
from clpinn.formulation.regions import Interior, at, boundary


def kovasznay(x, y, Re, xp=jnp):
    """The exact velocity (u, v) and pressure p behind a grid, for arrays of `xp` that broadcast."""
    # Re/2 - sqrt(Re²/4 + 4π²) without the cancellation at large Re.
    zeta = -4 * xp.pi**2 / (Re / 2 + xp.sqrt(Re**2 / 4 + 4 * xp.pi**2))
    wave = xp.exp(zeta * x)
    return {
        "u": 1 - wave * xp.cos(2 * xp.pi * y),
        "v": zeta / (2 * xp.pi) * wave * xp.sin(2 * xp.pi * y),
        "p": (1 - wave**2) / 2 + 0 * y,
    }


def _velocity(d, x, y, Re):
    exact = kovasznay(x, y, Re)
    return {"velocity_u": d.u - exact["u"], "velocity_v": d.v - exact["v"]}


def _pressure(d, x, y, Re):
    return d.p - kovasznay(x, y, Re)["p"]


class Kovasznay(Problem):
    """Steady flow behind a grid. The exact velocity is given on the boundary, the pressure at the outlet."""

    equation = "(u·∇)u = -∇p + ∇²u/Re, ∇·u = 0"
    coordinates = Box(x=(-0.5, 1.0), y=(-0.5, 1.5))
    parameters = Box(Re=(5.0, 500.0))
    outputs = ("u", "v", "p")
    # The paper gives 3474 points per task in all. How they are divided is our choice.
    interior = Interior(2674)
    conditions = (
        Condition("velocity", _velocity, on=boundary("x", "y"), points=600),
        Condition("pressure", _pressure, on=at(x=1.0), points=200),
    )
    candidates = Grid(Re=np.linspace(5, 500, 100))
    evaluation = Grid(x=np.linspace(-0.5, 1.0, 100), y=np.linspace(-0.5, 1.5, 100))
    reference_kind = "analytic"

    def residual(self, d, Re):
        return {
            "momentum_x": d.u * d.u_x + d.v * d.u_y + d.p_x - (d.u_xx + d.u_yy) / Re,
            "momentum_y": d.u * d.v_x + d.v * d.v_y + d.p_y - (d.v_xx + d.v_yy) / Re,
            "continuity": d.u_x + d.v_y,
        }

    def prior(self, Re):
        return np.log10(Re)

    def reference(self, x, y, Re):
        return kovasznay(x, y, Re, np)
