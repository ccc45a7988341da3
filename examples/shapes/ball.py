"""Heat leaves a ball through its surface: three coordinates and time. The parameter is the conductivity."""

import jax.numpy as jnp

import clpinn as cl


class BallHeat(cl.Problem):
    coordinates = cl.Box(x=(-1, 1), y=(-1, 1), z=(-1, 1), t=(0, 1))
    parameters = cl.Box(k=cl.log(0.03, 0.3))
    outputs = ("u",)
    conditions = (cl.Condition("surface", lambda d: d.u, on=cl.on("ball")),)

    def domain(self):
        return cl.Ball((0, 0, 0), 1)

    def residual(self, d, k):
        return d.u_t - k * (d.u_xx + d.u_yy + d.u_zz)

    def constrain(self, raw, x, y, z, t):
        return start(x, y, z) + t * raw

    def reference(self, x, y, z, t, k):
        return {"u": jnp.exp(-k * jnp.pi**2 * t) * start(x, y, z)}


def start(x, y, z):
    return jnp.sinc(jnp.sqrt(x**2 + y**2 + z**2 + 1e-12))
