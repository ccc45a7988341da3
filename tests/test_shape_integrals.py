"""Rules of integrals over shapes: lengths, areas, normals and moments against exact values, and what is refused."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clpinn as cl
from clpinn.errors import DomainError
from clpinn.formulation.integrals import integral_nodes, integral_rows
from clpinn.formulation.validation import validate
from clpinn.keys import make_key
from clpinn.shapes.inside import inside_rule
from clpinn.shapes.quadrature import boundary_rule
from clpinn.shapes.shape import Shape

pytestmark = pytest.mark.slow

SQUARE = cl.Rectangle(x=(-1, 1), y=(-1, 1))
STRIP = np.array([[-0.7, -0.01], [0.7, -0.01], [0.7, 0.01], [-0.7, 0.01]])


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@cache
def compiled(inside: bool, names: tuple[str, ...]):
    def rule(shape: Shape):
        if inside:
            return inside_rule(shape)
        return boundary_rule(shape, tuple(p for p in shape.pieces() if not names or set(names) & set(p.names)))

    return jax.jit(rule)


def moments(rule) -> np.ndarray:
    """The measure, the first moments and the second ones."""
    x, weight = np.asarray(rule.x), np.asarray(rule.weight)
    return np.array([weight.sum(), *(weight @ x), *(weight @ x**2)])


def polygon_moments(corners) -> np.ndarray:
    """Exact moments of a polygon, anticlockwise."""
    a = np.asarray(corners, float)
    b = np.roll(a, -1, axis=0)
    cross = a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]
    first, second = cross @ (a + b) / 6, cross @ (a**2 + a * b + b**2) / 12
    return np.array([cross.sum() / 2, *first, *second])


def disk_moments(x: float, y: float, r: float) -> np.ndarray:
    area = np.pi * r**2
    return area * np.array([1, x, y, x**2 + r**2 / 4, y**2 + r**2 / 4])


def star(corners: int) -> np.ndarray:
    angle, radius = 2 * np.pi * np.arange(corners) / corners, np.resize([1.0, 0.5], corners)
    return radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def turned(corners, angle: float) -> np.ndarray:
    cosine, sine = np.cos(angle), np.sin(angle)
    return np.asarray(corners) @ np.array([[cosine, sine], [-sine, cosine]])


def perimeter(corners) -> float:
    return float(np.linalg.norm(np.roll(corners, -1, axis=0) - corners, axis=1).sum())


SQUARE_MOMENTS = np.array([4, 0, 0, 4 / 3, 4 / 3])
L_SHAPE = np.array([(0, 0), (2, 0), (2, 1), (1, 1), (1, 2), (0, 2)])
SECTOR = np.array([np.pi / 4, 1 / 3, 1 / 3, np.pi / 16, np.pi / 16])
PLANE = {
    "L": (cl.Polygon(L_SHAPE), 8, polygon_moments(L_SHAPE)),
    "star": (cl.Polygon(star(32)), perimeter(star(32)), polygon_moments(star(32))),
    "strip": (
        cl.Rectangle(x=(-0.7, 0.7), y=(-0.01, 0.01)).rotate(0.6),
        2.84,
        polygon_moments(turned(STRIP, 0.6)),
    ),
    "ring": (
        cl.Disk((0, 0), 1) - cl.Disk((0, 0), 0.9, name="inner"),
        2 * np.pi * 1.9,
        disk_moments(0, 0, 1) - disk_moments(0, 0, 0.9),
    ),
    "holes": (
        SQUARE - cl.Disk((0.3, 0.2), 0.08) - cl.Disk((-0.5, -0.2), 0.3, name="large"),
        8 + 2 * np.pi * 0.38,
        SQUARE_MOMENTS - disk_moments(0.3, 0.2, 0.08) - disk_moments(-0.5, -0.2, 0.3),
    ),
    "quarter": (cl.Rectangle(x=(0, 2), y=(0, 2)) & cl.Disk((0, 0), 1), 2 + np.pi / 2, SECTOR),
    "sector": (cl.Sector((0, 0), 1, 0, np.pi / 2), 2 + np.pi / 2, SECTOR),
}


@pytest.mark.parametrize("name", PLANE)
def test_plane_shapes(name):
    shape, length, exact = PLANE[name]
    edge, inside = compiled(False, ())(shape), compiled(True, ())(shape)
    assert abs(float(jnp.sum(edge.weight)) / length - 1) < 1e-6
    assert np.allclose(edge.weight @ edge.normal, 0, atol=2e-6)
    assert np.allclose(moments(inside), exact, atol=2e-6 * exact[0])
    assert np.all(jax.vmap(shape.distance)(inside.x) < 1e-9) and float(inside.mismatch) < 0.1
    assert len(inside.x) <= 1024 and len(edge.x) <= 64 * len(shape.pieces()) + 16


def _rows(shape, parameters, condition, theta, finer=False) -> np.ndarray:
    """The nodes of an integral at a theta: coordinates, normal, weight."""

    class Shaped(cl.Problem):
        coordinates = cl.Box(x=(-3, 3), y=(-3, 3))
        conditions = (condition,)

        def residual(self, d):
            return d.u_xx + d.u_yy

    Shaped.parameters, Shaped.domain = parameters, staticmethod(shape)  # pyright: ignore
    problem = Shaped()
    if finer:
        return integral_nodes(problem, condition, np.array([theta]), np.zeros(1))[0]
    columns = 5 if isinstance(condition.on, type(cl.on())) else 3
    return integral_rows(problem, condition, np.array([[theta]]), make_key(0))[0].reshape(-1, columns)


def test_a_corner_may_move():
    corners = lambda a: [(0.0, 0.0), (2.0, 0.0), (1 + a, 0.7), (1.0, 2.0), (0.3, 0.5 * a)]  # noqa: E731
    whole = cl.Integral("whole", lambda d: d.u, on=cl.at())
    rim = cl.Integral("rim", lambda d: d.u, on=cl.on())
    for a in (0.1, 0.43):
        nodes = _rows(lambda a: cl.Polygon(corners(a)), cl.Box(a=(0.1, 0.5)), whole, a)
        exact = polygon_moments(corners(a))
        assert np.allclose([nodes[:, -1].sum(), *(nodes[:, -1] @ nodes[:, :2])], exact[:3], atol=1e-9)
        edge = _rows(lambda a: cl.Polygon(corners(a)), cl.Box(a=(0.1, 0.5)), rim, a)
        assert np.isclose(edge[:, -1].sum(), perimeter(np.array(corners(a))), rtol=1e-9)


def test_a_hole_touches_the_wall_and_leaves_it():
    """Areas by the overlap of a disk and the half-plane beyond the wall."""
    whole = cl.Integral("whole", lambda d: d.u, on=cl.at())

    def domain(s):
        return cl.Ellipse((0, 0), (2, 1)) - cl.Disk((0, s), 0.2, name="hole")

    for s in (0.5, 0.8, 0.801, 0.9, 1.1, 1.2):
        nodes = _rows(domain, cl.Box(s=(0, 1.3)), whole, s)
        x = np.linspace(-0.2, 0.2, 400001)
        half = np.sqrt(np.maximum(0.04 - x**2, 0))
        top = np.minimum(s + half, np.sqrt(1 - x**2 / 4))
        covered = np.trapezoid(np.maximum(top - (s - half), 0), x)
        assert abs(nodes[:, -1].sum() - (2 * np.pi - covered)) < 3e-6


def test_parts_end_where_they_say():
    region = cl.on("left", y=(0, 0.33))
    part = cl.Integral("part", lambda d: d.u, on=region)
    nodes = _rows(lambda a: cl.Rectangle(x=(0, a), y=(0, 1)), cl.Box(a=(1, 2)), part, 1.5)
    assert abs(nodes[:, -1].sum() - 0.33) < 1e-9 and abs(nodes[:, -1] @ nodes[:, 1] - 0.33**2 / 2) < 1e-9
    inner = cl.Integral("part", lambda d: d.u, on=cl.at(x=(0.1, 0.7)))
    nodes = _rows(lambda a: cl.Disk((0, 0), a), cl.Box(a=(1, 2)), inner, 1.0)
    primitive = lambda x: x * np.sqrt(1 - x**2) + np.arcsin(x)  # noqa: E731
    assert abs(nodes[:, -1].sum() - primitive(0.7) + primitive(0.1)) < 3e-6


def test_estimates_use_finer_rules():
    whole = cl.Integral("whole", lambda d: d.u, on=cl.at())
    domain, box = lambda a: cl.Disk((0, 0), a), cl.Box(a=(1, 2))
    assert len(_rows(domain, box, whole, 1.0, finer=True)) == 4 * len(_rows(domain, box, whole, 1.0))


def test_a_top_with_a_hole():
    shape = cl.Cylinder((0, 0), 1, (0, 2)) - cl.Cylinder((0.2, 0), 0.3, (-1, 3), name="hole")
    top = compiled(False, ("top",))(shape)
    exact = disk_moments(0, 0, 1) - disk_moments(0.2, 0, 0.3)
    assert np.allclose(moments(top)[[0, 1, 2, 4, 5]], exact, atol=5e-4)
    assert np.allclose(top.normal, [0, 0, 1]) and np.allclose(top.x[:, 2], 2)


def test_a_box_of_triangles():
    trimesh = pytest.importorskip("trimesh")
    box = compiled(False, ())(cl.Surface(np.asarray(trimesh.creation.box((2, 2, 2)).triangles)))
    assert np.allclose(box.weight @ box.normal, 0, atol=1e-4)
    assert np.allclose(moments(box), [24, 0, 0, 0, 40 / 3, 40 / 3, 40 / 3], atol=1e-4)


def test_what_no_rule_resolves_is_refused():
    comb = [(0.0, -0.1), *((x, y) for i in range(40) for x, y in ((i / 40, 1.0), ((i + 0.5) / 40, 0.0))), (1.0, -0.1)]

    class Comb(cl.Problem):
        coordinates = cl.Box(x=(-1, 2), y=(-1, 2))
        parameters = cl.Box(a=(1, 2))
        conditions = (cl.Integral("mean", lambda d: d.u, on=cl.at()),)

        def domain(self, a):
            return cl.Polygon(jnp.asarray(comb) * jnp.stack([1.0, 0.9 * a]))

        def residual(self, d):
            return d.u_xx + d.u_yy

    with pytest.raises(DomainError, match="Integral 'mean' cannot be computed at a = 1"):
        validate(Comb())
