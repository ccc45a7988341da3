"""Problems as users write them, for benchmarks/breadth.py: textbook equations, mostly with soft conditions only.

None of them was used to choose a default but those that are marked: they showed what was missing.
"""

import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

import clpinn as cl

pi = jnp.pi


def solved(slope, start, end, names, t, *thetas):
    """Paths of an ordinary differential equation at times and thetas that broadcast."""
    t, *thetas = np.broadcast_arrays(t, *thetas)
    found = np.empty((len(names), *t.shape))
    for theta in np.unique(np.stack([one.ravel() for one in thetas], axis=1), axis=0):
        here = np.all([one == value for one, value in zip(thetas, theta)], axis=0)
        path = solve_ivp(
            lambda _, y, theta=theta: slope(y, *theta), (0, end), start(*theta), "DOP853",
            dense_output=True, rtol=1e-10, atol=1e-12,
        )  # fmt: skip
        found[:, here] = path.sol(t[here])[: len(names)]
    return dict(zip(names, found))


class Wave(cl.Problem):
    """A string: second order in time, two conditions at its start."""

    coordinates = cl.Box(x=(0, 1), t=(0, 2))
    parameters = cl.Box(c=(0.5, 2.0))
    conditions = (
        cl.Condition("ends", lambda d: d.u, on=cl.boundary("x"), points=100),
        cl.Condition("initial", lambda d, x: d.u - jnp.sin(pi * x), on=cl.at(t=0), points=100),
        cl.Condition("velocity", lambda d: d.u_t, on=cl.at(t=0), points=100),
    )

    def residual(self, d, c):
        return d.u_tt - c**2 * d.u_xx

    def reference(self, x, t, c):
        return {"u": jnp.sin(pi * x) * jnp.cos(c * pi * t)}


class Advection(cl.Problem):
    """The convection of Krishnapriyan et al. (2021), up to a speed of 30."""

    coordinates = cl.Box(x=cl.periodic(0, 2 * np.pi), t=(0, 1))
    parameters = cl.Box(beta=(1.0, 30.0))
    conditions = (cl.Condition("initial", lambda d, x: d.u - jnp.sin(x), on=cl.at(t=0), points=200),)

    def residual(self, d, beta):
        return d.u_t + beta * d.u_x

    def reference(self, x, t, beta):
        return {"u": jnp.sin(x - beta * t)}


class Helmholtz(cl.Problem):
    """Up to four half waves a side, the wave number a second parameter."""

    coordinates = cl.Box(x=(-1, 1), y=(-1, 1))
    parameters = cl.Box(a=(1.0, 4.0), k=(1.0, 5.0))
    conditions = (
        cl.Condition(
            "edge",
            lambda d, x, y, a: d.u - jnp.sin(a * pi * x) * jnp.sin(a * pi * y),
            on=cl.boundary("x", "y"),
            points=400,
        ),
    )

    def residual(self, d, x, y, a, k):
        source = (k**2 - 2 * (a * pi) ** 2) * jnp.sin(a * pi * x) * jnp.sin(a * pi * y)
        return d.u_xx + d.u_yy + k**2 * d.u - source

    def reference(self, x, y, a, k):
        return {"u": jnp.sin(a * pi * x) * jnp.sin(a * pi * y)}


class Layer(cl.Problem):
    """Advection and diffusion with a boundary layer down to 1/200."""

    coordinates = cl.Box(x=(0, 1))
    parameters = cl.Box(eps=cl.log(0.005, 1.0))
    conditions = (
        cl.Condition("left", lambda d: d.u, on=cl.at(x=0), points=1),
        cl.Condition("right", lambda d: d.u - 1, on=cl.at(x=1), points=1),
    )

    def residual(self, d, eps):
        return d.u_x - eps * d.u_xx

    def reference(self, x, eps):
        return {"u": (jnp.exp((x - 1) / eps) - jnp.exp(-1 / eps)) / (1 - jnp.exp(-1 / eps))}


class Beam(cl.Problem):
    """A cantilever in SI units: fourth order, stiffness 1e5 to 1e7, a deflection of 1e-4 to 4."""

    coordinates = cl.Box(x=(0, 5.0))
    parameters = cl.Box(EI=cl.log(1e5, 1e7), q=(100.0, 5000.0))
    outputs = ("w",)
    conditions = (
        cl.Condition("clamped", lambda d: {"deflection": d.w, "slope": d.w_x}, on=cl.at(x=0), points=1),
        cl.Condition("free", lambda d: {"moment": d.w_xx, "shear": d.w_xxx}, on=cl.at(x=5.0), points=1),
    )

    def residual(self, d, EI, q):
        return EI * d.w_xxxx - q

    def reference(self, x, EI, q):
        return {"w": q * x**2 * (150 - 20 * x + x**2) / (24 * EI)}


class Plate(cl.Problem):
    """A plate that cools to 300 K: three coordinates, two parameters, one of them in the initial condition."""

    coordinates = cl.Box(x=(0, 1), y=(0, 1), t=(0, 1))
    parameters = cl.Box(a=cl.log(0.01, 0.2), b=(1.0, 3.0))
    outputs = ("T",)
    conditions = (
        cl.Condition("walls", lambda d: d.T - 300.0, on=cl.boundary("x", "y"), points=400),
        cl.Condition(
            "initial",
            lambda d, x, y, b: d.T - 300.0 - 100 * b * jnp.sin(pi * x) * jnp.sin(pi * y),
            on=cl.at(t=0),
            points=400,
        ),
    )

    def residual(self, d, a):
        return d.T_t - a * (d.T_xx + d.T_yy)

    def reference(self, x, y, t, a, b):
        return {"T": 300.0 + 100 * b * jnp.sin(pi * x) * jnp.sin(pi * y) * jnp.exp(-2 * a * pi**2 * t)}


class Schrodinger(cl.Problem):
    """A free packet with a momentum: two outputs."""

    coordinates = cl.Box(x=(-5, 10), t=(0, 1))
    parameters = cl.Box(k=(0.0, 4.0))
    outputs = ("re", "im")
    conditions = (
        cl.Condition(
            "initial",
            lambda d, x, k: {
                "re": d.re - jnp.exp(-(x**2) / 2) * jnp.cos(k * x),
                "im": d.im - jnp.exp(-(x**2) / 2) * jnp.sin(k * x),
            },
            on=cl.at(t=0),
            points=300,
        ),
        cl.Condition("far", lambda d: {"far re": d.re, "far im": d.im}, on=cl.boundary("x"), points=100),
    )

    def residual(self, d):
        return {"first": d.re_t + 0.5 * d.im_xx, "second": d.im_t - 0.5 * d.re_xx}

    def reference(self, x, t, k):
        spread = 1 + 1j * t
        phase = 1j * (k * x - k**2 * t / 2)
        found = jnp.exp(-((x - k * t) ** 2) / (2 * spread) + phase) / jnp.sqrt(spread)
        return {"re": found.real, "im": found.imag}


class Oscillator(cl.Problem):
    """A damped oscillator, up to six periods."""

    coordinates = cl.Box(t=(0, 10))
    parameters = cl.Box(w=(1.0, 4.0), g=cl.log(0.01, 0.3))
    conditions = (cl.Condition("start", lambda d: {"place": d.u - 1, "speed": d.u_t}, on=cl.at(t=0), points=1),)

    def residual(self, d, w, g):
        return d.u_tt + 2 * g * w * d.u_t + w**2 * d.u

    def reference(self, t, w, g):
        damped = w * jnp.sqrt(1 - g**2)
        return {"u": jnp.exp(-g * w * t) * (jnp.cos(damped * t) + g * w / damped * jnp.sin(damped * t))}


class VanDerPol(cl.Problem):
    """Relaxation oscillations. Causality was chosen by this one and examples/predator_prey.py."""

    coordinates = cl.Box(t=(0, 10))
    parameters = cl.Box(mu=(0.5, 3.0))
    candidates = parameters.grid(mu=21)
    conditions = (cl.Condition("start", lambda d: {"place": d.u - 1, "speed": d.u_t}, on=cl.at(t=0), points=1),)

    def residual(self, d, mu):
        return d.u_tt - mu * (1 - d.u**2) * d.u_t + d.u

    def reference(self, t, mu):
        return solved(
            lambda y, mu: [y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]], lambda mu: [1.0, 0.0], 10, ("u",), t, mu
        )


class Pendulum(cl.Problem):
    """From a small amplitude to nearly upright."""

    coordinates = cl.Box(t=(0, 10))
    parameters = cl.Box(a=(0.2, 3.0))
    candidates = parameters.grid(a=21)
    conditions = (cl.Condition("start", lambda d, a: {"place": d.u - a, "speed": d.u_t}, on=cl.at(t=0), points=1),)

    def residual(self, d):
        return d.u_tt + jnp.sin(d.u)

    def reference(self, t, a):
        return solved(lambda y, a: [y[1], -np.sin(y[0])], lambda a: [a, 0.0], 10, ("u",), t, a)


class Epidemic(cl.Problem):
    """Susceptible, infected, recovered (SIR), from a thousandth of the population on: not solved, see the next."""

    coordinates = cl.Box(t=(0, 100))
    parameters = cl.Box(beta=(0.2, 0.6), gamma=(0.05, 0.15))
    outputs = ("S", "I", "R")
    candidates = parameters.grid(beta=6, gamma=6)
    conditions = (
        cl.Condition("start", lambda d: {"S": d.S - 0.999, "I": d.I - 0.001, "R": d.R}, on=cl.at(t=0), points=1),
    )

    def residual(self, d, beta, gamma):
        infections = beta * d.S * d.I
        return {"S": d.S_t + infections, "I": d.I_t - infections + gamma * d.I, "R": d.R_t - gamma * d.I}

    def reference(self, t, beta, gamma):
        return solved(
            lambda y, b, g: [-b * y[0] * y[1], b * y[0] * y[1] - g * y[1], g * y[1]],
            lambda b, g: [0.999, 0.001, 0.0], 100, ("S", "I", "R"), t, beta, gamma,
        )  # fmt: skip


class LogEpidemic(Epidemic):
    """The same epidemics, written for the logarithm of the infected, who grow a hundredfold and more."""

    outputs = ("S", "logI", "R")
    conditions = (
        cl.Condition(
            "start",
            lambda d: {"S": d.S - 0.999, "I": d.logI - jnp.log(0.001), "R": d.R},
            on=cl.at(t=0),
            points=1,
        ),
    )

    def residual(self, d, beta, gamma):
        infected = jnp.exp(d.logI)
        return {"S": d.S_t + beta * d.S * infected, "I": d.logI_t - beta * d.S + gamma, "R": d.R_t - gamma * infected}

    def reference(self, t, beta, gamma):
        found = super().reference(t, beta, gamma)
        return {"S": found["S"], "logI": np.log(found["I"]), "R": found["R"]}
