"""A large plate with a circular hole under tension (Kirsch, 1898). Parameters: the radius, and the load along y.

A quarter of the plate; the load along x and the stiffness are 1. u and v are displacements.
"""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np

import clpinn as cl

NU = 0.3


def stress(d):
    """Hooke's law in the plane."""
    sxx, syy = ((a + NU * b) / (1 - NU**2) for a, b in ((d.u_x, d.v_y), (d.v_y, d.u_x)))
    return sxx, syy, (d.u_y + d.v_x) / (2 + 2 * NU)


def traction(d, nx, ny):
    sxx, syy, sxy = stress(d)
    return {"x": sxx * nx + sxy * ny, "y": sxy * nx + syy * ny}


def displacement(along, across, r):
    """Of an infinite plate with load 1 along the first axis, by the exact solution."""
    angle, s = jnp.arctan2(across, along), jnp.sqrt(along**2 + across**2) / r
    c, k = (1 + NU) * r / 4, (3 - NU) / (1 + NU)
    u = s * (k + 1) * jnp.cos(angle) + 2 / s * ((1 + k) * jnp.cos(angle) + (1 - 1 / s**2) * jnp.cos(3 * angle))
    v = s * (k - 3) * jnp.sin(angle) + 2 / s * ((1 - k) * jnp.sin(angle) + (1 - 1 / s**2) * jnp.sin(3 * angle))
    return c * u, c * v


def exact(x, y, r, load):
    (u, v), (turned_v, turned_u) = displacement(x, y, r), displacement(y, x, r)
    return {"u": u + load * turned_u, "v": v + load * turned_v}


class PlateWithHole(cl.Problem):
    coordinates = cl.Box(x=(0, 1), y=(0, 1))
    parameters = cl.Box(r=(0.1, 0.3), load=(-1, 1))
    outputs = ("u", "v")
    conditions = (
        cl.Condition("hole", traction, on=cl.on("hole")),
        cl.Condition(
            "far",
            lambda d, x, y, r, load: {k: d[k] - e for k, e in exact(x, y, r, load).items()},
            on=cl.on("right", "top"),
        ),
        cl.Condition("symmetry", lambda d, nx: jnp.where(nx < 0, d.v_x, d.u_y), on=cl.on("left", "bottom")),
    )

    def domain(self, r):
        return cl.Rectangle(x=(0, 1), y=(0, 1)) - cl.Disk((0, 0), r, name="hole")

    def residual(self, d):  # equilibrium, times 1 - NU²
        mixed, shear = (1 + NU) / 2, (1 - NU) / 2
        return {
            "x": d.u_xx + shear * d.u_yy + mixed * d.v_xy,
            "y": d.v_yy + shear * d.v_xx + mixed * d.u_xy,
        }

    def constrain(self, raw, x, y):
        return {"u": x * raw["u"], "v": y * raw["v"]}

    def reference(self, x, y, r, load):
        return exact(x, y, r, load)


def concentration(surrogate, r, load):
    """The largest stress along the hole, over the load along x. The exact solution has 3 - load."""
    angle = np.linspace(0, np.pi / 2, 91)
    nx, ny = np.cos(angle), np.sin(angle)
    at = {"x": r * nx, "y": r * ny, "r": r, "load": load}
    slopes = {name: np.asarray(surrogate.derivative(name, **at)) for name in ("u_x", "u_y", "v_x", "v_y")}
    sxx, syy, sxy = stress(SimpleNamespace(**slopes))
    return float(np.max(sxx * ny**2 + syy * nx**2 - 2 * sxy * nx * ny))
