"""Heat in a rod, over its diffusivity: the smallest complete problem, with its exact solution."""

import jax.numpy as jnp

import clpinn as cl


class Heat(cl.Problem):
    """u_t = kappa u_xx: a sine that decays."""

    coordinates = cl.Box(x=(0, 1), t=(0, 1))
    parameters = cl.Box(kappa=cl.log(0.01, 1.0))
    outputs = ("u",)
    conditions = (cl.Condition("ends", lambda d: d.u, on=cl.boundary("x"), points=100),)

    def residual(self, d, kappa):
        return d.u_t - kappa * d.u_xx

    def constrain(self, raw, x, t):
        return jnp.sin(jnp.pi * x) + t * raw

    def reference(self, x, t, kappa):
        return {"u": jnp.exp(-kappa * jnp.pi**2 * t) * jnp.sin(jnp.pi * x)}
