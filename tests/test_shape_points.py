"""Points of problems whose domain is a shape: uniform in the shape of each theta; and problems that are refused."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import clpinn as cl
from clpinn.errors import ClpinnError
from clpinn.formulation.membership import are_inside, is_inside
from clpinn.formulation.shaped_points import inside_points, region_points, term_points
from clpinn.formulation.validation import validate
from clpinn.keys import make_key

KEY = make_key(11)


class Channel(cl.Problem):
    """A channel with a hole whose radius and place are parameters, in time."""

    coordinates = cl.Box(x=(0, 4), t=(0, 2), y=(-1, 1))
    parameters = cl.Box(r=cl.log(0.01, 0.8), s=(1, 3))
    conditions = (
        cl.Condition("start", lambda d: d.u, on=cl.at(t=0)),
        cl.Condition("hole", lambda d, s: d.u_n - s, on=cl.on("hole")),
        cl.Condition("walls", lambda d, nx, ny: nx * d.u_x + ny * d.u_y, on=cl.on("top", "bottom")),
        cl.Condition("all", lambda d: d.u, on=cl.on()),
    )

    def domain(self, r, s):
        return cl.Rectangle(x=(0, 4), y=(-1, 1)) - cl.Disk((s, 0), r, name="hole")

    def residual(self, d):
        return d.u_t - d.u_xx - d.u_yy


CHANNEL = Channel()
SMALL, LARGE = np.array([0.01, 1.5]), np.array([0.8, 2.5])
BOTH = np.concatenate([np.tile(SMALL, (6000, 1)), np.tile(LARGE, (3000, 1))])
"""Twice as many points of one theta as of another."""
PARTS = {"small": (slice(0, 6000), SMALL), "large": (slice(6000, None), LARGE)}


def distance(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """To the centre of the hole; points have columns x, t, y, and maybe more."""
    return np.hypot(x[:, 0] - theta[1], x[:, 2])


def agrees(samples: np.ndarray, exact: Any) -> None:
    """The mean agrees within five standard errors."""
    error = np.abs(samples.mean(axis=0) - exact)
    assert np.all(error <= 5 * samples.std(axis=0) / np.sqrt(len(samples)) + 1e-12), (error, exact)


def test_points_inside_are_uniform_for_each_theta():
    x = inside_points(CHANNEL, BOTH, KEY)
    assert x.shape == (9000, 3) and x.dtype == np.float64
    assert np.array_equal(x, inside_points(CHANNEL, BOTH, KEY)) and np.array_equal(
        x, term_points(CHANNEL, None, BOTH, KEY)
    )
    assert not np.array_equal(x, inside_points(CHANNEL, BOTH, make_key(12)))
    for rows, (radius, centre) in PARTS.values():
        own = x[rows]
        assert np.min(distance(own, np.array([radius, centre]))) > radius
        area, hole = 8 - np.pi * radius**2, np.pi * radius**2
        agrees(own[:, 0], (16 - hole * centre) / area)
        agrees(own[:, 2], 0)
        agrees(own[:, 0] ** 2, (8 * 16 / 3 - hole * (centre**2 + radius**2 / 4)) / area)
        agrees(own[:, 2] ** 2, (8 / 3 - hole * radius**2 / 4) / area)
        agrees(own[:, 1], 1)
        agrees(own[:, 1] ** 2, 4 / 3)
        assert abs(np.corrcoef(own.T)[0, 1]) < 0.07


def test_points_on_the_whole_boundary_are_uniform_along_it():
    x = region_points(CHANNEL, cl.on(), BOTH, KEY)
    assert x.shape == (9000, 5)
    for rows, theta in PARTS.values():
        own = x[rows]
        on_hole = np.abs(distance(own, theta) - theta[0]) < 1e-9
        length = 12 + 2 * np.pi * theta[0]
        agrees(on_hole.astype(float), 2 * np.pi * theta[0] / length)
        agrees((own[:, 0] == 0).astype(float), 2 / length)
        agrees((own[:, 2] == 1).astype(float), 4 / length)
        assert np.all(on_hole | (own[:, 0] == 0) | (own[:, 0] == 4) | (np.abs(own[:, 2]) == 1))
        into = (theta[[1]] - own[:, 0], -own[:, 2])
        assert np.allclose(own[on_hole, 3:], np.stack(into, axis=1)[on_hole] / theta[0], atol=1e-9)


def test_parts_of_the_boundary():
    x = region_points(CHANNEL, cl.on("left", y=(0, 0.5)), BOTH, KEY)
    assert np.all(x[:, 0] == 0) and np.all((x[:, 2] >= 0) & (x[:, 2] <= 0.5)) and np.all(x[:, 3:] == [-1, 0])
    agrees(x[:, 2], 0.25)
    agrees(x[:, 1], 1)
    first = region_points(CHANNEL, cl.on("left", t=0), BOTH, KEY)
    assert np.all(first[:, :2] == 0)
    agrees(first[:, 2] ** 2, 1 / 3)
    early = region_points(CHANNEL, cl.on("top", "hole", t=(0.5, 1)), BOTH, KEY)
    assert np.all((early[:, 1] >= 0.5) & (early[:, 1] <= 1))
    agrees(early[:, 1], 0.75)
    agrees((early[6000:, 2] == 1).astype(float), 4 / (4 + 1.6 * np.pi))


def test_sections_of_the_domain():
    start = region_points(CHANNEL, cl.at(t=0), BOTH, KEY)
    assert np.all(start[:, 1] == 0) and start.shape == (9000, 3)
    ends = region_points(CHANNEL, cl.boundary("t"), BOTH, KEY)
    assert np.mean(ends[:, 1] == 0) == np.mean(ends[:, 1] == 2) == 0.5
    for points in (start, ends):
        assert np.all(are_inside(CHANNEL, points, BOTH))
        agrees(points[6000:, 0], (16 - np.pi * 0.64 * 2.5) / (8 - np.pi * 0.64))
    across = region_points(CHANNEL, cl.at(x=2.5), BOTH, KEY)
    assert np.all(across[:, 0] == 2.5)
    agrees(across[:6000, 2] ** 2, 1 / 3)
    assert np.min(np.abs(across[6000:, 2])) >= 0.8 - 1e-8
    agrees(np.abs(across[6000:, 2]), 0.9)
    wall = region_points(CHANNEL, cl.at(x=0, y=(0, 1)), BOTH, KEY)
    assert np.all(wall[:, 0] == 0)
    agrees(wall[:, 2], 0.5)
    part = region_points(CHANNEL, cl.at(x=(1, 2), t=(1, 2)), BOTH, KEY)
    assert np.all((part[:, :2] >= 1) & (part[:, :2] <= 2))
    agrees(part[:, 1], 1.5)


def test_a_share_of_points_is_denser_at_the_edges():
    x = inside_points(CHANNEL, BOTH, KEY, edge_share=0.5)
    assert np.all(are_inside(CHANNEL, x, BOTH))
    near = np.minimum(np.minimum(x[:, 0], 4 - x[:, 0]), 1 - np.abs(x[:, 2])) < 0.05
    assert np.mean(near[:4500]) > 2 * np.mean(near[4500:6000])
    late = np.minimum(x[:, 1], 2 - x[:, 1]) < 0.1
    assert np.mean(late[:4500]) == pytest.approx(2 * np.arccos(0.9) / np.pi, abs=0.03)
    agrees(late[4500:].astype(float), 0.1)
    agrees(x[6000:, 0], (16 - np.pi * 0.64 * 2.5) / (8 - np.pi * 0.64))


def test_thetas_with_very_different_sizes_in_one_batch():
    class Scales(cl.Problem):
        coordinates = cl.Box(x=(-1, 1), y=(-1, 1))
        parameters = cl.Box(r=cl.log(1e-4, 1))
        conditions = (cl.Condition("edge", lambda d: d.u, on=cl.on()),)

        def domain(self, r):
            return (cl.Disk((0, 0), r) & cl.HalfPlane((0, 0), (1, 0))).rotate(0.3, (0, 0))

        def residual(self, d):
            return d.u_xx + d.u_yy

    problem = Scales()
    validate(problem)
    thetas = np.tile([[1e-4], [1.0]], (3000, 1))
    x, edge = inside_points(problem, thetas, KEY), region_points(problem, cl.on(), thetas, KEY)
    for i, radius in enumerate((1e-4, 1.0)):
        agrees(np.sum((x[i::2] / radius) ** 2, axis=1), 0.5)
        agrees((np.linalg.norm(edge[i::2, :2], axis=1) > radius * (1 - 1e-9)).astype(float), np.pi / (np.pi + 2))
    assert are_inside(problem, edge[:, :2], thetas).all()


def test_corners_as_parameters_and_a_domain_that_is_a_small_part_of_its_box():
    class Sliver(cl.Problem):
        coordinates = cl.Box(x=(0, 1), y=(0, 1))
        parameters = cl.Box(h=(0.004, 0.02))

        def domain(self, h):
            return cl.Polygon([(0, 0), (1, 1), (1 - h, 1)])

        def residual(self, d):
            return d.u

    problem, thetas = Sliver(), np.full((4000, 1), 0.004)
    x = inside_points(problem, thetas, KEY)  # about one candidate in 500 counts
    agrees(x, [(1 + 1 - 0.004) / 3, 2 / 3])
    agrees(x[:, 1] ** 2, 0.5)
    assert is_inside(problem, x, thetas[0]).all()
    assert not is_inside(problem, np.add(x, [0.005, 0]), thetas[0]).any()
    assert is_inside(problem, np.array([[0.0, 0.0], [1.0, 1.0], [0.5, 0.5]]), thetas[0]).all()


def test_domains_that_reach_the_box_exactly_are_accepted():
    class Fitting(cl.Problem):
        coordinates = cl.Box(x=(-1, 1), y=(0, 1))
        parameters = cl.Box(a=(0, 1))

        def domain(self, a):
            return self.shapes[int(self.which)](a)

        def residual(self, d):
            return d.u

        which = 0
        shapes = (
            lambda a: cl.Sector((0, 0), 1, 0, jnp.pi),
            lambda a: cl.Disk((0, 0), 1) & cl.HalfPlane((0, 0), (0, -1)),
            lambda a: cl.Disk((0, 0.5), 0.5).rotate(a, (0, 0.5)),
        )

    for which in range(3):
        problem = Fitting()
        problem.which = which
        validate(problem)


# Problems that are refused -----------------------------------------------------------------------------------------


class Square(cl.Problem):
    coordinates = cl.Box(x=(-1, 1), y=(-1, 1))
    parameters = cl.Box(r=(0.1, 0.9))

    def domain(self, r):
        return cl.Rectangle(x=(-1, 1), y=(-1, 1)) - cl.Disk((0, 0), r, name="hole")

    def residual(self, d):
        return d.u_xx + d.u_yy


def having(**changes: Any) -> cl.Problem:
    return type("Changed", (Square,), changes)()


def condition(on: Any, residual: Any = lambda d: d.u) -> tuple:
    return (cl.Condition("given", residual, on=on),)


RECTANGLE = cl.Rectangle(x=(-1, 1), y=(-1, 1))
IN_TIME = {"coordinates": cl.Box(x=(-1, 1), y=(-1, 1), t=(0, 1)), "parameters": cl.Box(r=(0.1, 0.9))}
REFUSED = {
    "outside": ({"domain": lambda self, r: cl.Disk((r, 0), 0.5)}, r"to 1.4 along x at r = 0.9, outside the box"),
    "infinite": ({"domain": lambda self, r: cl.HalfPlane((r, 0), (1, 0))}, "may be infinite at r = 0.1"),
    "unknown name": ({"conditions": condition(cl.on("lid"))}, "'lid'. The boundary has bottom, right, top, left, hole"),
    "sides that cross": (
        {"domain": lambda self, r: cl.Polygon([(-1, 0), (1, 0), (1, r - 0.5), (0, 0.6)])},
        "is wrong at r = 0.1: the sides . and . of 'polygon' cross",
    ),
    "corner repeated": (
        {
            "domain": lambda self, r: cl.Polygon(
                jnp.stack([0 * r, 0 * r, r, 0 * r, 0 * r, r, 0 * r, 0 * r]).reshape(4, 2)
            )
        },
        "two neighbouring corners of 'polygon' are the same",
    ),
    "normal in the equation": ({"residual": lambda self, d: d.u_n}, "d.u_n is the derivative along the outward normal"),
    "normal inside": (IN_TIME | {"conditions": condition(cl.at(t=0), lambda d: d.u_n)}, "Elsewhere write d.u_x"),
    "normal's component inside": (IN_TIME | {"conditions": condition(cl.at(t=0), lambda d, nx: d.u)}, "nx"),
    "empty": ({"domain": lambda self, r: cl.Disk((0, 0), r) - cl.Disk((0, 0), 0.5)}, r"is empty at r = 0\.[1-4]"),
    "vanished piece": (
        {
            "domain": lambda self, r: RECTANGLE - cl.Disk((2 * r, 0), 0.5, name="hole"),
            "conditions": condition(cl.on("hole")),
        },
        r"on\('hole'\) has no points at r = 0\.[789]",
    ),
    "vanished piece among others": (
        {
            "domain": lambda self, r: RECTANGLE - cl.Disk((2 * r, 0), 0.5, name="hole"),
            "conditions": condition(cl.on("left", "hole")),
        },
        r"on\('hole'\) has no points",
    ),
    "negative radius": (
        {"domain": lambda self, r: RECTANGLE - cl.Disk((0, 0), r - 0.5, name="hole")},
        "is wrong at r = 0.1: the radius of 'hole' must be above zero, but is -0.4",
    ),
    "3 coordinates": ({"domain": lambda self, r: cl.Ball((0, 0, 0), r)}, "in 3 coordinates, but Changed has 2"),
    "no shape": ({"domain": lambda self, r: (0, r)}, "must return a shape such as"),
    "unknown argument": ({"domain": lambda self, q: RECTANGLE}, "q"),
    "no self": ({"domain": lambda r: RECTANGLE}, r"domain has no self. Write def domain\(self, r\)"),
    "a shape itself": ({"domain": RECTANGLE}, "domain must be a method that returns a shape, but is a Rectangle"),
    "a coordinate": ({"domain": lambda self, x: RECTANGLE}, "asks for 'x', which it cannot have. It may ask for r."),
    "axes in another order": (
        {"domain": lambda self, r: cl.Rectangle(y=(0, 1), x=(0, r))},
        "names the axes y, x, but the coordinates of the domain are x, y",
    ),
    "another axis": ({"domain": lambda self, r: cl.Disk((0, 0), 0.5) - cl.Rectangle(x=(0, 1), z=(0, r))}, "axes x, z"),
    "two radii": ({"domain": lambda self, r: cl.Disk((0, 0), (r, r))}, "A disk has one radius. With two half axes"),
    "nested numbers": ({"domain": lambda self, r: cl.Ellipse((0, 0), (r, (1, 2)))}, "half axes needs numbers, but got"),
    "corners of JAX": (
        {"domain": lambda self, r: cl.polygon(r * jnp.array([[0, 0], [1, 0], [0, 1]]))},
        "For corners that depend on a parameter use cl.Polygon",
    ),
    "name in place of a region": ({"conditions": condition("hole")}, "holds on .* but got on='hole'"),
    "a time that is none": (
        {"conditions": condition(cl.on("left", t=0))},
        "holds at values of .t., but the .* x, y",
    ),
    "anchors": ({"interior": cl.Interior(10, anchors=np.zeros((2, 2)))}, "has anchors, but a domain that is a shape"),
    "name of a normal": (
        {"parameters": cl.Box(nx=(0.1, 0.9)), "domain": lambda self, nx: RECTANGLE},
        "has an axis or output called 'nx'",
    ),
    "data in a hole": (
        {
            "domain": lambda self, r: RECTANGLE - cl.Disk((0, 0), r),
            "conditions": (cl.Data("probe", at={"x": [0.9, 0], "y": [0.9, 0], "r": [0.5, 0.2]}, values={"u": [0, 0]}),),
        },
        "Data 'probe' has 1 points outside of the domain, the first in row 2, at x = 0, y = 0, r = 0.2",
    ),
    "integral that depends on a place": (
        {"conditions": (cl.Integral("mean", lambda d: d.u, on=cl.at(), equals=lambda x: x),)},
        "equals of integral 'mean' asks for 'x'. It may depend on r: an integral is over space",
    ),
    "hard condition on an output that is none": (
        {"constrain": cl.vanishing("left", outputs="v")},
        "names 'v', but the outputs of Changed are u",
    ),
    "with place": (
        {"place": lambda self, x, y: {"x": x, "y": y}},
        "has both a domain and place",
    ),
    "axes of a box": ({"conditions": condition(cl.boundary("x"))}, r"boundary\('x'\) is for domains that are boxes"),
    "section outside": ({"conditions": condition(cl.at(x=0.0, y=0.0))}, r"at\(\.\.\.\) has no points at r = "),
    "part outside": ({"conditions": condition(cl.on("left", y=(2, 3)))}, "has no points"),
    "no domain": ({"domain": None, "conditions": condition(cl.on("hole"))}, "needs a domain that is a shape"),
    "periodic": (
        {"coordinates": cl.Box(x=cl.periodic(-1, 1), y=(-1, 1))},
        "cannot lie in a periodic coordinate",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    changes, message = REFUSED[name]
    with pytest.raises(ClpinnError, match=message):
        validate(having(**changes))


def test_a_part_of_a_boundary_needs_a_pair():
    with pytest.raises(ClpinnError, match="needs a pair"):
        cl.on("left", y=0.5)
    with pytest.raises(ClpinnError, match="takes names one by one"):
        cl.on(["left", "top"])  # pyright: ignore[reportArgumentType]


def test_problems_that_are_right_pass():
    validate(CHANNEL)
    validate(Square())
    validate(having(domain=staticmethod(lambda r: RECTANGLE - cl.Disk((0, 0), r, name="hole"))))


def test_a_side_that_two_shapes_share_is_no_boundary():
    """The sides of a notch lie on those of the plate: what is left of them does not belong to the domain."""

    class Notched(cl.Problem):
        coordinates = cl.Box(x=(-1, 1), y=(-1, 1))
        parameters = cl.Box(a=(0, 1))

        def domain(self):
            return cl.Rectangle(x=(-1, 1), y=(-1, 1)) - cl.Rectangle(x=(0, 1), y=(-1, 0), name="notch")

        def residual(self, d):
            return d.u_xx + d.u_yy

    at = np.array([[1, -0.5], [0.5, -1], [1, -1], [0, 0], [0, -1], [1, 0], [0, -0.5], [-1, -1], [1, 1], [0.3, 0]])
    assert is_inside(Notched(), at, np.array([0.5])).tolist() == [False] * 3 + [True] * 7
