"""The equations of examples/shapes on boxes: what their compilation is compared with in benchmarks/shapes.py.

Each has the coordinates, the parameters and the outputs of the example whose name it has, and as many conditions of the
same kinds. It is compiled, not solved.
"""

import jax.numpy as jnp

import clpinn as cl

NU = 0.3


class Annulus(cl.Problem):
    coordinates = cl.Box(x=(-1, 1), y=(-1, 1))
    parameters = cl.Box(r=(0.2, 0.6), q=(-1, 1))
    outputs = ("u",)
    conditions = (cl.Condition("outer", lambda d, q: d.u_x - q, on=cl.at(x=1)),)

    def residual(self, d):
        return d.u_xx + d.u_yy + 4

    def constrain(self, raw, x, y, r):
        return 1 + r * (1 + x) * raw


class LShape(cl.Problem):
    coordinates = cl.Box(x=(-1, 1), y=(-1, 1))
    parameters = cl.Box(a=(0, 1))
    outputs = ("u",)
    conditions = (cl.Condition("boundary", lambda d, x, y, a: d.u - exact(x, y, a), on=cl.boundary("x", "y")),)

    def residual(self, d):
        return d.u_xx + d.u_yy


def exact(x, y, a):
    angle = jnp.mod(jnp.arctan2(y, x), 2 * jnp.pi)
    return a * (x**2 + y**2) ** (1 / 3) * jnp.sin(2 / 3 * angle) + (1 - a) * (x**2 - y**2) / 2


class Fin(cl.Problem):
    coordinates = cl.Box(x=(0, 4), y=(0, 1))
    parameters = cl.Box(length=(1, 4), h=cl.log(0.1, 2))
    outputs = ("T",)
    conditions = (
        cl.Condition("sides", lambda d, h: d.T_y + h * d.T, on=cl.at(y=1)),
        cl.Condition("symmetry", lambda d: d.T_y, on=cl.at(y=0)),
    )

    def residual(self, d):
        return d.T_xx + d.T_yy

    def constrain(self, raw, x):
        return 1 + x * raw


class BallHeat(cl.Problem):
    coordinates = cl.Box(x=(-1, 1), y=(-1, 1), z=(-1, 1), t=(0, 1))
    parameters = cl.Box(k=cl.log(0.03, 0.3))
    outputs = ("u",)
    conditions = (cl.Condition("surface", lambda d: d.u, on=cl.boundary("x", "y", "z")),)

    def residual(self, d, k):
        return d.u_t - k * (d.u_xx + d.u_yy + d.u_zz)

    def constrain(self, raw, x, y, z, t):
        return jnp.sinc(jnp.sqrt(x**2 + y**2 + z**2 + 1e-12)) + t * raw


def stress(d):
    sxx, syy = ((a + NU * b) / (1 - NU**2) for a, b in ((d.u_x, d.v_y), (d.v_y, d.u_x)))
    return sxx, syy, (d.u_y + d.v_x) / (2 + 2 * NU)


def traction(d):
    sxx, _, sxy = stress(d)
    return {"x": sxx, "y": sxy}


class PlateWithHole(cl.Problem):
    coordinates = cl.Box(x=(0, 1), y=(0, 1))
    parameters = cl.Box(r=(0.1, 0.3), load=(-1, 1))
    outputs = ("u", "v")
    conditions = (
        cl.Condition("hole", traction, on=cl.at(x=0)),
        cl.Condition("far", lambda d, x, load: {"u": d.u - x, "v": d.v - load * x}, on=cl.at(x=1)),
        cl.Condition("symmetry", lambda d: d.u_y, on=cl.at(y=0)),
    )

    def residual(self, d):
        mixed, shear = (1 + NU) / 2, (1 - NU) / 2
        return {
            "x": d.u_xx + shear * d.u_yy + mixed * d.v_xy,
            "y": d.v_yy + shear * d.v_xx + mixed * d.u_xy,
        }

    def constrain(self, raw, x, y):
        return {"u": x * raw["u"], "v": y * raw["v"]}


class Cylinder(cl.Problem):
    coordinates = cl.Box(x=(0, 4), y=(0, 1))
    parameters = cl.Box(radius=(0.2, 0.4), Re=cl.log(1, 40))
    outputs = ("u", "v", "p")
    conditions = (
        cl.Condition("outlet", lambda d, radius, Re: {"x": 2 * radius / Re * d.u_x - d.p, "y": d.v_x}, on=cl.at(x=4)),
        cl.Condition("symmetry", lambda d: d.u_y, on=cl.at(y=0)),
    )

    def residual(self, d, radius, Re):
        nu = 2 * radius / Re
        return {
            "x": d.u * d.u_x + d.v * d.u_y + d.p_x - nu * (d.u_xx + d.u_yy),
            "y": d.u * d.v_x + d.v * d.v_y + d.p_y - nu * (d.v_xx + d.v_yy),
            "mass": d.u_x + d.v_y,
        }

    def constrain(self, raw, x, y, radius, Re):
        factor = (1 - y**2) * x / (1 + x)
        u = 1 - y**2 + factor * raw["u"]
        return {"u": u, "v": factor * y * raw["v"], "p": (1 + 40 * radius / Re) * raw["p"]}


class TwoMaterials(cl.Problem):
    coordinates = cl.Box(x=(-1, 1), y=(-1, 1))
    parameters = cl.Box(r=(0.3, 0.7), k=cl.log(0.1, 10))
    outputs = ("core", "shell")
    conditions = (
        cl.Condition("temperature", lambda d: d.core - d.shell, on=cl.at(x=0)),
        cl.Condition("flux", lambda d, k: k * d.core_x - d.shell_x, on=cl.at(x=0)),
    )

    def residual(self, d, k):
        return k * (d.core_xx + d.core_yy) + d.shell_xx + d.shell_yy

    def constrain(self, raw, x, y, r):
        s = jnp.sqrt(x**2 + y**2 + 1e-30) / r
        shell = x + (1 - x**2) * raw["shell"]
        return {"core": jnp.where(s < 1, raw["core"], 0.0), "shell": jnp.where(s > 1, shell, 0.0)}
