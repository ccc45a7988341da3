"""Problems and networks that the tests of rows, batches, sizes and causality share."""

import jax
import jax.numpy as jnp

import clpinn as cl
from clpinn.networks.architecture import Architecture
from clpinn.networks.make import make
from clpinn.training.batches import TaskMix, row_source
from clpinn.training.rows import Batch


def tiny(problem: cl.Problem, seed: int = 0, width: int = 4):
    return make(problem, Architecture("fnn", width, 1), jax.random.key(seed), jnp.float64)


class Waves(cl.Problem):
    """u = sin(x + 2 t), with an amplitude."""

    coordinates = cl.Box(x=(-1, 1), t=(-1, 1))
    parameters = cl.Box(a=(1, 5))

    def reference(self, x, t, a):
        return {"u": a * jnp.sin(x + 2 * t)}


class Small(cl.Problem):
    """Two terms that compile quickly."""

    coordinates = cl.Box(x=(0, 1))
    parameters = cl.Box(a=cl.log(0.1, 1))
    conditions = (cl.Condition("end", lambda d, a: d.u - a, on=cl.boundary("x"), points=2, weight=3.0),)

    def residual(self, d, a):
        return d.u_x - a * d.u**2


class Chained(cl.Problem):
    """v' = 1e6 u: nothing but u says how large v is."""

    coordinates = cl.Box(x=(-1, 1))
    outputs = ("u", "v")
    conditions = (cl.Condition("start", lambda d: d.v, on=cl.at(x=-1), points=1),)

    def residual(self, d):
        return {"first": d.u_x + d.u, "second": d.v_x - 1e6 * d.u}


class Mixed(cl.Problem):
    """Several residuals whose names are not in alphabetical order, conditions with weights, data of two outputs."""

    coordinates = cl.Box(x=(0, 1), t=(0, 2))
    parameters = cl.Box(nu=cl.log(0.01, 1), c=(1, 2))
    outputs = ("u", "v")
    conditions = (
        cl.Condition("walls", lambda d, t: {"right": d.u - t, "left": d.v_x}, on=cl.boundary("x"), points=4, weight=3),
        cl.Condition("begin", lambda d, x: d.u * d.v - x, on=cl.at(t=0), points=4, weight=0.25),
        cl.Data(
            "sensors",
            {"x": [0.1, 0.2, 0.9], "t": [0, 1, 2], "nu": [0.5, 0.6, 0.02], "c": [1, 2, 1.5]},
            {"v": [1, 2, 3], "u": [-4, 5, -6]},
            weight=0.5,
        ),
    )

    def residual(self, d, nu, c, x):
        return {"z": d.u_t - nu * d.u_xx, "a": 5 * d.v_t + c * d.u * d.v_x - x}


WEIGHTS = {"walls": 3, "begin": 0.25, "sensors": 0.5}
TERMS = {"interior": ["a", "z"], "walls": ["left", "right"], "begin": ["begin"], "sensors": ["sensors_u", "sensors_v"]}


class Setup:
    """One problem, network and rows for many tests, so that little is compiled."""

    def __init__(self, rows: int = 80):
        self.problem = Mixed()
        self.network = tiny(self.problem, width=3)
        self.source = row_source(self.problem, rows, jnp.float64)
        self.sizes = self.source.sizes.measure(self.network, jax.random.key(5))

    def draw(self, seed: int, tasks: TaskMix | None = None) -> dict[str, Batch]:
        return self.source.batches.draw(self.network, jax.random.key(seed), self.sizes, tasks)
