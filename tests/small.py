"""Small problems for tests: solved by hand, trained in a second, with a unique solution, and impossible to train.

Also a made-up map of estimated errors for any problem.
"""

import jax.numpy as jnp
import numpy as np

import clpinn as cl
from clpinn.formulation.thetas import to_unit
from clpinn.surrogate.error_map import ErrorMap


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


def made_up_map(problem: cl.Problem, unresolved: int | None = None) -> ErrorMap:
    """A map whose errors vary by a factor of ten over the box and whose fields are random; every tenth candidate."""
    thetas, outputs = problem.candidates.points[:: max(1, len(problem.candidates) // 10)], len(problem.outputs)
    resolved = np.arange(len(thetas)) != (-1 if unresolved is None else unresolved)
    across = to_unit(thetas, problem.parameters).sum(axis=1, keepdims=True) / max(1, len(problem.parameters))
    relative = 1e-3 * 10.0 ** (across**2) * np.arange(1, outputs + 1)
    blank = ErrorMap(problem, thetas, relative, 3 * relative, resolved, np.zeros((1, 1, 1)), ())
    size = (len(thetas), outputs, len(blank.grid))
    fields = 1e-3 * np.random.default_rng(0).normal(size=size).astype(np.float32)
    reasons = tuple("Two resolutions agree." if known else "Only one resolution fits." for known in resolved)
    return ErrorMap(problem, thetas, relative, 3 * relative, resolved, fields, reasons)
