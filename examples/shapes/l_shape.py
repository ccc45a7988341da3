"""Laplace's equation on an L-shape. The parameter is the share of the solution that is singular at the inner corner."""

import jax.numpy as jnp

import clpinn as cl


class LShape(cl.Problem):
    coordinates = cl.Box(x=(-1, 1), y=(-1, 1))
    parameters = cl.Box(a=(0, 1))
    outputs = ("u",)
    conditions = (cl.Condition("boundary", lambda d, x, y, a: d.u - exact(x, y, a), on=cl.on()),)

    def domain(self):
        return cl.Rectangle(x=(-1, 1), y=(-1, 1)) - cl.Rectangle(x=(0, 1), y=(-1, 0), name="notch")

    def residual(self, d):
        return d.u_xx + d.u_yy

    def reference(self, x, y, a):
        return {"u": exact(x, y, a)}


def exact(x, y, a):
    angle = jnp.mod(jnp.arctan2(y, x), 2 * jnp.pi)
    return a * (x**2 + y**2) ** (1 / 3) * jnp.sin(2 / 3 * angle) + (1 - a) * (x**2 - y**2) / 2
