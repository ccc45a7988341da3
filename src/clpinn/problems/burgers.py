"""Viscous Burgers equation, and its solution by the Cole-Hopf transformation."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from clpinn.formulation.domain import Box, Grid, log
from clpinn.formulation.problem import Condition, Problem
from clpinn.formulation.regions import Interior, at, boundary


@dataclass(frozen=True)
class Burgers(Problem):
    """A sine wave that steepens into a layer at x = 0. The layer is sharper for smaller nu.

    If `hard`, the initial and boundary values hold exactly. Otherwise they are soft conditions, as in the paper.
    """

    hard: bool = True

    equation = "u_t + u u_x = (nu/π) u_xx"
    coordinates = Box(x=(-1, 1), t=(0, 1))
    parameters = Box(nu=log(0.01, 1.0))
    outputs = ("u",)
    # 300 anchors where the layer forms. The paper gives their number only; their coordinates are our choice.
    interior = Interior(5000, anchors=Grid(x=np.linspace(-0.05, 0.05, 20), t=np.linspace(0.3, 1, 15)).points)
    candidates = Grid(nu=np.linspace(0.01, 1, 100))
    evaluation = Grid(x=np.linspace(-1, 1, 200), t=np.linspace(0, 1, 100))
    reference_kind = "Cole-Hopf quadrature"
    reference_version = 1

    @property
    def conditions(self):
        if self.hard:
            return ()
        return (
            Condition("boundary", lambda d: d.u, on=boundary("x"), points=200),
            Condition("initial", lambda d, x: d.u + jnp.sin(jnp.pi * x), on=at(t=0), points=400, weight=5.0),
        )

    def residual(self, d, nu):
        return d.u_t + d.u * d.u_x - nu / jnp.pi * d.u_xx

    def prior(self, nu):
        """For studies of the prior only, and our choice: the paper's prior is 1, which its exponent 0 gives."""
        return 1 / nu

    @property
    def constrain(self):
        return self._transform if self.hard else None

    def _transform(self, raw, x, t):
        return -jnp.sin(jnp.pi * x) + t * (1 - x**2) * raw

    def reference(self, x, t, nu):
        return {"u": cole_hopf(x, t, nu)}


Floats = NDArray[np.float64]

# Points evaluated at once. A block takes at most 10 MB with its temporaries, so it stays in the processor's cache.
_BLOCK = 512


def cole_hopf(x: ArrayLike, t: ArrayLike, nu: ArrayLike, step: float = 0.1) -> Floats:
    """Solution of u_t + u u_x = (nu/pi) u_xx on [-1, 1], u(x, 0) = -sin(pi x), u(+-1, t) = 0.

    `x`, `t` and `nu` broadcast to the shape of the result. `step` is the spacing of the quadrature nodes.
    """
    x, t, nu = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (x, t, nu)))
    u = np.empty(x.size)
    flat = x.ravel(), t.ravel(), nu.ravel()
    for start in range(0, x.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        u[block] = _quadrature(flat[0][block], flat[1][block], flat[2][block], step)
    return u.reshape(x.shape)


def _quadrature(x: Floats, t: Floats, nu: Floats, step: float) -> Floats:
    """The Cole-Hopf quotient at the points `x`, `t`, `nu`, all of shape (n,).

    Cole (1951), Quart. Appl. Math. 9: u is the mean of -sin(pi (x - c s)), c^2 = 4 nu t / pi,
    under the weight exp(-s^2 - cos(pi (x - c s)) / (2 nu)).
    """
    # The cosine terms of two nodes differ by 1/nu at most, so the weights left out are below exp(-40).
    reach = np.ceil(np.sqrt(40.0 + 1.0 / nu.min()) / step)
    # The integrand is entire and decays, so the trapezoidal rule converges exponentially
    # (Trefethen and Weideman 2014, SIAM Review 56).
    s = step * np.arange(-reach, reach + 1.0)[:, None]
    angle = np.pi * x - np.sqrt(4.0 * np.pi * nu * t) * s
    exponent = np.cos(angle) / (-2.0 * nu) - s**2
    # Scaled so that the largest weight is one: nothing overflows.
    weight = np.exp(exponent - exponent.max(axis=0))
    return -(weight * np.sin(angle)).sum(axis=0) / weight.sum(axis=0)
