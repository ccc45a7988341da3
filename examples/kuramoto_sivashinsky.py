"""The Kuramoto-Sivashinsky equation with a travelling shock: a fourth derivative, checked by an exact solution."""

import math

import jax.numpy as jnp

import clpinn as cl


class KuramotoSivashinsky(cl.Problem):
    """u_t + u u_x + u_xx + u_xxxx = 0; a shock that travels with speed c (Kuramoto and Tsuzuki, 1976)."""

    coordinates = cl.Box(x=(-30, 30), t=(0, 4))
    parameters = cl.Box(c=(0, 5))
    outputs = ("u",)
    conditions = (
        cl.Condition("ends", lambda d, x, t, c: d.u - shock(x, t, c), on=cl.boundary("x"), points=200),
        cl.Condition("slopes", lambda d: d.u_x, on=cl.boundary("x"), points=200),
        cl.Condition("initial", lambda d, x, t, c: d.u - shock(x, t, c), on=cl.at(t=0), points=400),
    )

    def residual(self, d):
        return d.u_t + d.u * d.u_x + d.u_xx + d.u_xxxx

    def reference(self, x, t, c):
        return {"u": shock(x, t, c)}


def shock(x, t, c):
    """The exact solution: a shock that travels with speed c."""
    root = math.sqrt(11 / 19)
    y = jnp.tanh(root / 2 * (x - c * t + 10))
    return c + 15 / 19 * root * (-9 * y + 11 * y**3)
