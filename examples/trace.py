"""A trace product in a thin layer, in SI units: quantities from 1e-7 to 1e5, two outputs, no hard conditions."""

import jax.numpy as jnp

import clpinn as cl

WIDTH, RATE, YIELD = 0.01, 2.0, 1e-4


class Trace(cl.Problem):
    """u_t = kappa u_xx - r u, w_t = kappa w_xx + y r u: a substance u decays into a trace w of a ten-thousandth.

    Nothing is scaled by hand, because every residual is divided by the size of its own terms. The sum y u + w only
    diffuses. This gives the exact solution.
    """

    coordinates = cl.Box(x=(0, WIDTH), t=(0, 1))
    parameters = cl.Box(kappa=cl.log(1e-7, 1e-5))
    outputs = ("u", "w")
    conditions = (
        cl.Condition(
            "start", lambda d, x: {"u": d.u - 1 - jnp.sin(jnp.pi * x / WIDTH), "w": d.w}, on=cl.at(t=0), points=200
        ),
        cl.Condition("flux", lambda d, t, kappa: d.u_x - flux(t, kappa), on=cl.at(x=0), points=100),
        cl.Condition("wall", lambda d, t: d.u - jnp.exp(-RATE * t), on=cl.at(x=WIDTH), points=100),
        cl.Condition("walls", lambda d, t: d.w - YIELD * (1 - jnp.exp(-RATE * t)), on=cl.boundary("x"), points=200),
    )

    def residual(self, d, kappa):
        return {
            "substance": d.u_t - kappa * d.u_xx + RATE * d.u,
            "trace": d.w_t - kappa * d.w_xx - YIELD * RATE * d.u,
        }

    def reference(self, x, t, kappa):
        spread = 1 + jnp.exp(-kappa * (jnp.pi / WIDTH) ** 2 * t) * jnp.sin(jnp.pi * x / WIDTH)
        return {"u": jnp.exp(-RATE * t) * spread, "w": YIELD * (1 - jnp.exp(-RATE * t)) * spread}


def flux(t, kappa):
    """u_x at x = 0: 314 at the start."""
    return jnp.pi / WIDTH * jnp.exp(-RATE * t - kappa * (jnp.pi / WIDTH) ** 2 * t)
