"""The flow of cylinder.py by finite elements (scikit-fem): Taylor-Hood elements on quadrilaterals, Newton's method.

The mesh is of rectangles in coordinates (s, t). An exact map carries it around the cylinder, so its boundary is exact,
too. s runs along the half square around the cylinder, from its bottom right corner to its bottom left one. t runs from
the cylinder (0) to the square (1) and, right of it, on to the outlet (2).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.sparse import block_array, csr_array
from scipy.sparse.linalg import splu

CENTRE, LENGTH = 1.0, 4.0
"""The centre of the cylinder and the length of the channel. Its half height is 1."""
FINE = 12
"""Elements along a unit of s."""
STEPS, TOLERANCE = 20, 1e-10
"""Newton steps at most, and the largest change at which they end."""


@dataclass(frozen=True)
class Flow:
    """A flow at one theta, with its drag coefficient from the reaction on the cylinder and from stresses on it."""

    radius: float
    basis: dict[str, Any]
    values: dict[str, np.ndarray]
    reaction: float
    stresses: float

    def __call__(self, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs at points (points,)."""
        at = np.stack(_inverse(x, y, self.radius))
        return {name: basis.probes(at) @ self.values[name] for name, basis in self.basis.items()}


def flow(x: Any, y: Any, radius: Any, Re: Any) -> dict[str, np.ndarray]:
    """The outputs at arrays that broadcast, with one solution per theta."""
    x, y, *theta = (np.asarray(array, float) for array in np.broadcast_arrays(x, y, radius, Re))
    thetas, outputs = np.stack(theta, axis=-1), {name: np.empty(x.shape) for name in ("u", "v", "p")}
    for row in np.unique(thetas.reshape(-1, 2), axis=0):
        here = np.all(thetas == row, axis=-1)
        for name, values in solve(*map(float, row))(x[here], y[here]).items():
            outputs[name][here] = values
    return outputs


@lru_cache(maxsize=64)
def solve(radius: float, Re: float, fine: int = FINE) -> Flow:
    """The flow at one theta, with `fine` elements along a unit of s."""
    try:
        import skfem
    except ImportError:
        raise ImportError("The reference of cylinder.py needs scikit-fem: pip install 'scikit-fem>=10'.") from None
    nu, mesh = 2 * radius / Re, _mesh(fine, skfem)
    fields = skfem.Basis(mesh, skfem.ElementQuad2(), intorder=6)
    pressures = fields.with_element(skfem.ElementQuad1())
    metric = _metric(fields.global_coordinates(), radius)

    def gradient(f: Any) -> np.ndarray:
        return _gradient(f.grad, metric)

    @skfem.BilinearForm
    def diffusion(u, w, _):
        return nu * np.sum(gradient(u) * gradient(w), axis=0) * metric.area

    @skfem.BilinearForm
    def slope_x(u, q, _):
        return q * gradient(u)[0] * metric.area

    @skfem.BilinearForm
    def slope_y(u, q, _):
        return q * gradient(u)[1] * metric.area

    @skfem.BilinearForm
    def convection(u, w, known):
        slopes = gradient(u)
        return w * (known["u"] * slopes[0] + known["v"] * slopes[1]) * metric.area

    @skfem.BilinearForm
    def reaction(u, w, known):
        return w * u * known["factor"] * metric.area

    stiff = csr_array(diffusion.assemble(fields))
    to_x, to_y = (csr_array(form.assemble(fields, pressures)) for form in (slope_x, slope_y))
    n, free, start = fields.N, *_conditions(fields, pressures, radius)

    def system(z: np.ndarray) -> tuple[csr_array, np.ndarray]:
        """The Jacobian of the discrete equations, and what is left of them."""
        u, v = (fields.interpolate(part) for part in (z[:n], z[n : 2 * n]))
        moved = stiff + csr_array(convection.assemble(fields, u=u, v=v))
        (ux, uy), (vx, vy) = (
            [csr_array(reaction.assemble(fields, factor=slope)) for slope in gradient(field)] for field in (u, v)
        )
        picard = block_array([[moved, None, -to_x.T], [None, moved, -to_y.T], [to_x, to_y, None]], format="csr")
        newton = block_array([[ux, uy, None], [vx, vy, None], [None, None, csr_array((pressures.N,) * 2)]])
        return (picard + newton).tocsr(), picard @ z

    z, change = start, np.inf
    for _ in range(STEPS):
        jacobian, left = system(z)
        step = splu(jacobian[free][:, free].tocsc()).solve(left[free])
        z = z.copy()
        z[free] -= step
        change = np.max(np.abs(step))
        if change < TOLERANCE:
            break
    else:
        raise RuntimeError(f"Newton's method did not converge at radius = {radius:g}, Re = {Re:g}: {change:.1e}.")
    values = {"u": z[:n], "v": z[n : 2 * n], "p": z[2 * n :]}
    basis = {"u": fields, "v": fields, "p": pressures}
    # The reaction: what is left of the momentum along x, tested with the functions that are 1 on the cylinder.
    on_cylinder = np.flatnonzero(np.isclose(fields.doflocs[1], 0))
    pulled = -2 * np.sum(system(z)[1][on_cylinder])
    return Flow(radius, basis, values, pulled / radius, _stresses(values, basis, radius, nu, skfem) / radius)


def _mesh(fine: int, skfem: Any) -> Any:
    """Rectangles in (s, t): four by one around the cylinder, and one by one behind the square."""
    mesh = skfem.MeshQuad.init_tensor(np.linspace(0, 4, 4 * fine + 1), np.linspace(0, 2, 4 * fine + 1))
    return mesh.restrict(mesh.elements_satisfying(lambda at: (at[0] < 1) | (at[1] < 1)))


def _conditions(fields: Any, pressures: Any, radius: float) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the unknowns that are free, and all values to start from."""
    s, t = fields.doflocs
    x, y = _place(s, t, radius)
    held = np.isclose(x, 0) | np.isclose(y, 1) | np.isclose(t, 0)
    free = np.concatenate([~held, ~held & ~np.isclose(y, 0), np.ones(pressures.N, bool)])
    start = np.zeros(len(free))
    start[: fields.N] = np.where(np.isclose(x, 0), 1 - y**2, 0.0)
    return np.flatnonzero(free), start


def _stresses(values: dict[str, np.ndarray], basis: dict[str, Any], radius: float, nu: float, skfem: Any) -> float:
    """The force along x on the whole cylinder, from pressure and shear on it."""
    mesh = basis["u"].mesh
    facets = mesh.facets_satisfying(lambda at: np.isclose(at[1], 0), boundaries_only=True)
    rim = skfem.FacetBasis(mesh, skfem.ElementQuad2(), facets=facets, intorder=6)
    at = rim.global_coordinates()
    metric = _metric(at, radius)
    normal = (np.stack(_place(at[0], at[1], radius)) - np.array([CENTRE, 0.0])[:, None, None]) / radius
    (ux, uy), (vx, _) = (_gradient(rim.interpolate(values[name]).grad, metric) for name in ("u", "v"))
    p = rim.with_element(skfem.ElementQuad1()).interpolate(values["p"])
    pull = (2 * nu * ux - p) * normal[0] + nu * (uy + vx) * normal[1]
    return 2 * float(np.sum(pull * metric.length * rim.dx))


# The map ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Metric:
    """The map at points: (s, t) by (x, y), its area, and the length along s."""

    inverse: np.ndarray
    area: np.ndarray
    length: np.ndarray


def _gradient(slopes: np.ndarray, metric: Metric) -> np.ndarray:
    """Derivatives by (x, y), from those by (s, t)."""
    return np.einsum("ki...,k...->i...", metric.inverse, slopes)


def _on_square(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The point of the half square, from the centre of the cylinder."""
    return np.clip(2 - s, -1, 1), np.clip(np.minimum(s, 4 - s), 0, 1)


def _place(s: np.ndarray, t: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray]:
    """The point (x, y) that belongs to (s, t)."""
    right, up = _on_square(s)
    share = _graded(t, radius)[0]
    scale = share + (1 - share) * radius / np.hypot(right, up)
    beyond = (LENGTH - CENTRE - 1) * np.maximum(t - 1, 0)
    return CENTRE + scale * right + beyond, scale * up


def _inverse(x: np.ndarray, y: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of `_place`. Points that rounding puts outside are moved to the boundary."""
    right, up, behind = x - CENTRE, y, np.maximum(x - CENTRE - 1, 0) / (LENGTH - CENTRE - 1)
    largest = np.maximum(np.abs(right), up)
    s = np.where(right >= up, up / largest, np.where(-right >= up, 4 - up / largest, 2 - right / largest))
    distance = np.hypot(right, up)
    share = np.clip((distance - radius) / (distance / largest - radius), 0, 1)
    t = np.log1p(share * (1 / radius - 1)) / np.log(1 / radius)
    return np.where(behind > 0, up, s), np.where(behind > 0, 1 + behind, t)


def _graded(t: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray]:
    """The share of the way from the cylinder to the square, and its derivative: elements grow with the distance."""
    growth, t = np.log(1 / radius), np.minimum(t, 1)
    return np.expm1(growth * t) / np.expm1(growth), growth * np.exp(growth * t) / np.expm1(growth)


def _metric(at: np.ndarray, radius: float) -> Metric:
    """The derivatives of the map at points inside elements, where it is smooth."""
    s, t = at
    right, up = _on_square(s)
    right_s = np.where((s > 1) & (s < 3), -1.0, 0.0)
    up_s = np.where(s < 1, 1.0, np.where(s > 3, -1.0, 0.0))
    distance, (share, share_t) = np.hypot(right, up), _graded(t, radius)
    scale = share + (1 - share) * radius / distance
    scale_s = -(1 - share) * radius / distance**3 * (right * right_s + up * up_s)
    scale_t = share_t * (1 - radius / distance)
    x_s, y_s = scale_s * right + scale * right_s, scale_s * up + scale * up_s
    x_t = np.where(t > 1, LENGTH - CENTRE - 1, scale_t * right)
    y_t = np.where(t > 1, 0.0, scale_t * up)
    area = x_s * y_t - x_t * y_s
    inverse = np.array([[y_t, -x_t], [-y_s, x_s]]) / area
    return Metric(inverse, np.abs(area), np.hypot(x_s, y_s))
