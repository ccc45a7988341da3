"""Poisson's equation between two circles. Parameters: the inner radius, and the flux through the outer circle."""

import jax.numpy as jnp

import clpinn as cl


class Annulus(cl.Problem):
    coordinates = cl.Box(x=(-1, 1), y=(-1, 1))
    parameters = cl.Box(r=(0.2, 0.6), q=(-1, 1))
    outputs = ("u",)
    conditions = (cl.Condition("outer", lambda d, q: d.u_n - q, on=cl.on("outer")),)
    inner = cl.vanishing("inner")

    def domain(self, r):
        return cl.Disk((0, 0), 1, name="outer") - cl.Disk((0, 0), r, name="inner")

    def residual(self, d):
        return d.u_xx + d.u_yy + 4

    def constrain(self, raw, x, y, r):  # u = 1 on the inner circle
        return 1 + self.inner(raw, x=x, y=y, r=r)

    def reference(self, x, y, r, q):
        s = jnp.sqrt(x**2 + y**2)
        return {"u": 1 + r**2 - s**2 + (q + 2) * jnp.log(s / r)}
