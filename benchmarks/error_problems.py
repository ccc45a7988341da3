"""Problems of kinds that benchmarks/user_problems.py has not, for benchmarks/error.py.

The last three mislead: their residuals become small though the solution is wrong, or there is none. An estimate of the
error must not look good there.
"""

import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

import clpinn as cl

pi = jnp.pi
DIFFUSION = 0.01


def front(x, t, r):
    """An exact front of the Fisher-KPP equation (Ablowitz and Zeppetella 1979), at x = 0 at half time."""
    return 1 / (1 + jnp.exp(jnp.sqrt(r / (6 * DIFFUSION)) * x - 5 * r / 6 * (t - 0.5))) ** 2


class Front(cl.Problem):
    """A reaction front that grows from little: 1e-11 at the highest growth rate."""

    coordinates = cl.Box(x=(0, 1), t=(0, 1))
    parameters = cl.Box(r=(1.0, 30.0))
    conditions = (
        cl.Condition("initial", lambda d, x, r: d.u - front(x, 0.0, r), on=cl.at(t=0)),
        cl.Condition("ends", lambda d, x, t, r: d.u - front(x, t, r), on=cl.boundary("x")),
    )

    def residual(self, d, r):
        return d.u_t - DIFFUSION * d.u_xx - r * d.u * (1 - d.u)

    def reference(self, x, t, r):
        return {"u": front(x, t, r)}


def soliton(x, t, c):
    return c / 2 / jnp.cosh(jnp.sqrt(c) / 2 * (x - c * t + 2)) ** 2


class Soliton(cl.Problem):
    """A soliton of the Korteweg-de Vries equation: third order in space."""

    coordinates = cl.Box(x=(-6, 6), t=(0, 1))
    parameters = cl.Box(c=(1.0, 4.0))
    conditions = (
        cl.Condition("initial", lambda d, x, c: d.u - soliton(x, 0.0, c), on=cl.at(t=0)),
        cl.Condition("ends", lambda d, x, t, c: d.u - soliton(x, t, c), on=cl.boundary("x")),
        cl.Condition(
            "slope",
            lambda d, t, c: d.u_x + jnp.sqrt(c) * jnp.tanh(jnp.sqrt(c) / 2 * (8 - c * t)) * soliton(6.0, t, c),
            on=cl.at(x=6),
        ),
    )

    def residual(self, d):
        return d.u_t + 6 * d.u * d.u_x + d.u_xxx

    def reference(self, x, t, c):
        return {"u": soliton(x, t, c)}


RATE = 0.05


def price(S, t, sigma):
    """The value of a call with strike 1 at maturity 1 (Black and Scholes 1973)."""
    left = jnp.maximum(1 - t, 1e-12)
    width = sigma * jnp.sqrt(left)
    above = (jnp.log(jnp.maximum(S, 1e-12)) + (RATE + sigma**2 / 2) * left) / width
    return S * norm.cdf(above) - jnp.exp(-RATE * left) * norm.cdf(above - width)


class Option(cl.Problem):
    """The price of a call: a backward problem whose end value has a kink."""

    coordinates = cl.Box(S=(0, 2), t=(0, 1))
    parameters = cl.Box(sigma=(0.1, 0.5))
    outputs = ("V",)
    conditions = (
        cl.Condition("payoff", lambda d, S: d.V - jnp.maximum(S - 1, 0), on=cl.at(t=1)),
        cl.Condition("worthless", lambda d: d.V, on=cl.at(S=0)),
        cl.Condition("far", lambda d, t, sigma: d.V - price(2.0, t, sigma), on=cl.at(S=2)),
    )

    def residual(self, d, S, sigma):
        return d.V_t + 0.5 * sigma**2 * S**2 * d.V_SS + RATE * S * d.V_S - RATE * d.V

    def reference(self, S, t, sigma):
        return {"V": price(S, t, sigma)}


class Composite(cl.Problem):
    """Heat through two materials, the flux as an output whose derivative vanishes."""

    coordinates = cl.Box(x=(0, 1))
    parameters = cl.Box(k=cl.log(0.1, 10.0))
    outputs = ("T", "q")
    conditions = (
        cl.Condition("warm", lambda d: d.T - 1, on=cl.at(x=0), points=1),
        cl.Condition("cold", lambda d: d.T, on=cl.at(x=1), points=1),
    )

    def residual(self, d, x, k):
        return {"law": d.q + jnp.where(x < 0.5, 1.0, k) * d.T_x, "balance": d.q_x}

    def reference(self, x, k):
        q = 1 / (0.5 + 0.5 / k)
        return {"T": jnp.where(x < 0.5, 1 - q * x, q / k * (1 - x)), "q": q + 0 * x}


class Logistic(cl.Problem):
    """Logistic growth at every x, up to a rate of 20."""

    coordinates = cl.Box(x=(0, 1), t=(0, 1))
    parameters = cl.Box(r=(1.0, 20.0))
    conditions = (cl.Condition("initial", lambda d, x: d.u - 0.01 * (1 + 0.5 * jnp.sin(2 * pi * x)), on=cl.at(t=0)),)

    def residual(self, d, r):
        return d.u_t - r * d.u * (1 - d.u)

    def reference(self, x, t, r):
        start = 0.01 * (1 + 0.5 * jnp.sin(2 * pi * x))
        return {"u": start / (start + (1 - start) * jnp.exp(-r * t))}


class BlowUp(cl.Problem):
    """A solution that blows up at t = 1/a, inside the box if a is above 1. There is no solution afterwards."""

    coordinates = cl.Box(x=(0, 1), t=(0, 1))
    parameters = cl.Box(a=(0.5, 1.5))
    conditions = (cl.Condition("initial", lambda d, x: d.u - 1 - 0.1 * jnp.cos(pi * x), on=cl.at(t=0)),)

    def residual(self, d, a):
        return d.u_t - a * d.u**2


class ManyPeriods(cl.Problem):
    """Advection over up to ten periods."""

    coordinates = cl.Box(x=cl.periodic(0, 2 * np.pi), t=(0, 1))
    parameters = cl.Box(beta=(40.0, 63.0))
    conditions = (cl.Condition("initial", lambda d, x: d.u - jnp.sin(x), on=cl.at(t=0)),)

    def residual(self, d, beta):
        return d.u_t + beta * d.u_x

    def reference(self, x, t, beta):
        return {"u": jnp.sin(x - beta * t)}


class BackwardHeat(cl.Problem):
    """Heat backwards in time: an error in the start value grows without bound."""

    coordinates = cl.Box(x=(0, 1), t=(0, 1))
    parameters = cl.Box(kappa=(0.05, 0.5))
    conditions = (
        cl.Condition("initial", lambda d, x: d.u - jnp.sin(pi * x) - 0.1 * jnp.sin(3 * pi * x), on=cl.at(t=0)),
        cl.Condition("ends", lambda d: d.u, on=cl.boundary("x")),
    )

    def residual(self, d, kappa):
        return d.u_t + kappa * d.u_xx

    def reference(self, x, t, kappa):
        first, third = (jnp.sin(n * pi * x) * jnp.exp(kappa * (n * pi) ** 2 * t) for n in (1, 3))
        return {"u": first + 0.1 * third}
