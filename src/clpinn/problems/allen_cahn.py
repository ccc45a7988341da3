"""Allen-Cahn equation, and its solution by spectral elements in space and collocation in time."""

from dataclasses import dataclass
from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from numpy.polynomial.legendre import legder, legvander
from numpy.typing import ArrayLike, NDArray

from clpinn.formulation.domain import Box, Grid, log
from clpinn.formulation.problem import Problem
from clpinn.formulation.references import by_theta
from clpinn.formulation.regions import Interior
from clpinn.problems.elements import eigenmodes, interpolation


class AllenCahn(Problem):
    """Two phases, separated by interfaces of width about sqrt(2 nu / rho)."""

    equation = "u_t = nu u_xx + rho (u - u³)"
    coordinates = Box(x=(-1, 1), t=(0, 1))
    parameters = Box(nu=log(0.001, 0.1), rho=(3.0, 5.0))
    outputs = ("u",)
    # The paper counts 10082 points per task. All conditions are hard here, so all points carry the equation.
    interior = Interior(10082)
    candidates = Grid(nu=[*(m * 10.0**e for e in (-3, -2) for m in range(1, 10)), 0.1], rho=np.linspace(3, 5, 5))
    evaluation = Grid(x=np.linspace(-1, 1, 201), t=np.linspace(0, 1, 101))
    reference_kind = "spectral elements"
    reference_version = 1

    def residual(self, d, nu, rho):
        return d.u_t - nu * d.u_xx - rho * (d.u - d.u**3)

    def constrain(self, raw, x, t):
        return x**2 * jnp.cos(jnp.pi * x) + t * (1 - x**2) * raw

    def prior(self, nu, rho):
        return rho**3 * np.exp(-2 * np.log10(nu))

    def reference(self, x, t, nu, rho):
        return {"u": by_theta(_solve_once, self.coordinates, (x, t), (nu, rho))}


Floats = NDArray[np.float64]

# Initial and boundary values are incompatible: u = -1 at x = 1 demands u_xx = 0 there, but the initial values have
# another u_xx. This makes a layer of width sqrt(nu t), so elements shrink towards x = 1, time segments towards t = 0.
_X_BREAKS = (*np.linspace(0.0, 0.75, 16), *(1.0 - 0.2 * 0.25 ** np.arange(8)), 1.0)
_T_BREAKS = np.array([0.0, *(0.1 * 0.25 ** np.arange(13, 0, -1)), *np.linspace(0.1, 1.0, 10)])
# Points evaluated at once.
_BLOCK = 4096


@dataclass(frozen=True)
class Solution:
    """The solution, even in x: a polynomial on each product of a time segment and an element of [0, 1].

    x_breaks, t_breaks: ends of the elements and of the segments.
    values: values at the nodes, shape (segments, time degree + 1, elements, degree + 1).
    """

    x_breaks: Floats
    t_breaks: Floats
    values: Floats

    def __call__(self, x: ArrayLike, t: ArrayLike) -> Floats:
        """Values at the points `x`, `t`, which broadcast to the shape of the result."""
        x, t = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (x, t)))
        u = np.empty(x.size)
        for start in range(0, x.size, _BLOCK):
            block = slice(start, start + _BLOCK)
            u[block] = self._interpolate(np.abs(x.ravel()[block]), t.ravel()[block])
        return u.reshape(x.shape)

    def _interpolate(self, x: Floats, t: Floats) -> Floats:
        """Values at the points `x` >= 0 and `t`, both of shape (m,): shape (m,)."""
        _, time_nodes, _, nodes = self.values.shape
        element, in_x = interpolation(x, self.x_breaks, nodes - 1)
        segment = np.searchsorted(self.t_breaks[1:-1], t, side="right")
        local = 2.0 * (t - self.t_breaks[segment]) / np.diff(self.t_breaks)[segment] - 1.0
        to_coefficients, _ = _time_rule(time_nodes - 1)
        in_t = legvander(local, time_nodes - 1) @ to_coefficients
        return np.einsum("mi,mik,mk->m", in_t, self.values[segment, :, element], in_x)


def solve(nu: float, rho: float, degree: int = 20, time_degree: int = 16) -> Solution:
    """Solution of u_t = nu u_xx + rho (u - u^3), u(x, 0) = x^2 cos(pi x), u(+-1, t) = -1.

    For x in [-1, 1] and t in [0, 1]: a Galerkin method with polynomials of `degree` in x, and collocation with
    polynomials of `time_degree` in t.
    """
    # u is even, and u + 1 vanishes at x = 1. So u + 1 is a sum of modes with zero slope at x = 0 and zero value at 1.
    modes = eigenmodes(_X_BREAKS, degree, left_is_zero=False)
    x = modes.nodes
    curvature = (2.0 - (np.pi * x) ** 2) * np.cos(np.pi * x) - 4.0 * np.pi * x * np.sin(np.pi * x)
    # The stiffness matrix is the identity.
    start = modes.project(-curvature)
    _, slopes = _time_rule(time_degree)
    values = []
    for half in np.diff(_T_BREAKS) / 2.0:
        # Collocation of a'/eigenvalue + nu a = source for the modes' coefficients a, at all nodes but the first.
        matrix = modes.inverse[:, None, None] * slopes[1:, 1:] + half * nu * np.eye(time_degree)
        inverse = np.linalg.inv(matrix)
        known = np.outer(modes.inverse * start, slopes[1:, 0])
        initial = modes.values @ start - 1.0
        u = np.tile(initial, (time_degree, 1))
        # Picard iteration: the reaction is Lipschitz and the segment is short, so the iterates converge faster than
        # geometrically. They stop changing at 1e-15.
        for _ in range(100):
            source = modes.project(half * rho * (u - u**3)).T - known
            coefficients = (inverse @ source[:, :, None])[:, :, 0]
            previous, u = u, (modes.values @ coefficients).T - 1.0
            if np.abs(u - previous).max() <= 1e-13:
                break
        else:
            raise ArithmeticError(f"No convergence at nu = {nu:g}, rho = {rho:g}. Stay inside the problem's box.")
        values.append(np.vstack([initial, u]))
        start = coefficients[:, -1]
    shape = (len(values), time_degree + 1, modes.breaks.size - 1, degree + 1)
    return Solution(modes.breaks, _T_BREAKS, np.stack(values).reshape(shape))


def _time_rule(degree: int) -> tuple[NDArray, NDArray]:
    """Matrices from values at the Chebyshev-Lobatto nodes of [-1, 1], shape (degree + 1,) * 2.

    The first matrix gives the Legendre coefficients, the second the slopes at the nodes.
    """
    nodes = -np.cos(np.pi * np.arange(degree + 1) / degree)
    to_coefficients = np.linalg.inv(legvander(nodes, degree))
    slopes = legvander(nodes, degree - 1) @ legder(np.eye(degree + 1)) @ to_coefficients
    return to_coefficients, slopes


# Solutions of the thetas used last. One solution takes about a megabyte.
_solve_once = lru_cache(maxsize=16)(solve)
