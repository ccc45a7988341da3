"""Small problems for tests: solved by hand, trained in a second, with a unique solution, and impossible to train."""

import jax.numpy as jnp

import clpinn as cl


class Known(cl.Problem):
    """u = a x, so that a linear network has an error that can be computed by hand."""

    coordinates = cl.Box(x=(-1, 1))
    parameters = cl.Box(a=(0, 1))
    candidates = cl.Grid(a=[0.0, 0.5, 1.0])
    evaluation = cl.Grid(x=[-1.0, 0.0, 1.0])

    def residual(self, d, a):
        return d.u_x - a

    def reference(self, x, a):
        return {"u": a * x}


class Decay(cl.Problem):
    """u_t + u_x = -k u with u(x, 0) = 1. Its reference does not depend on x."""

    coordinates = cl.Box(x=(0, 1), t=(0, 1))
    parameters = cl.Box(k=(0.5, 2.0))
    interior = cl.Interior(64)
    conditions = (cl.Condition("start", lambda d: d.u - 1, on=cl.at(t=0), points=8),)
    candidates = cl.Grid(k=[0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0])
    evaluation = cl.Grid(x=[0.0, 0.5, 1.0], t=[0.0, 0.25, 0.5, 1.0])

    def residual(self, d, k):
        return d.u_t + k * d.u + d.u_x

    def reference(self, x, t, k):
        return {"u": jnp.exp(-k * t) + 0 * x}


class Inflow(Decay):
    """With a condition at x = 0, so that the solution is unique."""

    conditions = (
        *Decay.conditions,
        cl.Condition("inflow", lambda d, t, k: d.u - jnp.exp(-k * t), on=cl.at(x=0), points=8),
    )


class Hopeless(Decay):
    """A residual that is never finite."""

    def residual(self, d, k):
        return jnp.log(-k) * d.u
