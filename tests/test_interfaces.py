"""Interfaces inside a domain: a part whose boundary has points, normals and integrals of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clpinn as cl
from clpinn.errors import DomainError
from clpinn.formulation.fingerprint import fingerprint
from clpinn.formulation.integrals import integral_residuals, integral_rows
from clpinn.formulation.pointwise import constant_network
from clpinn.formulation.shaped_points import inside_points, region_points
from clpinn.formulation.validation import validate
from clpinn.keys import make_key

KEY = make_key(5)
THETAS = np.repeat([[0.2], [0.6]], 2000, axis=0)
HALF = cl.HalfPlane((0.5, 0), (1, 0), name="seam")


class Plate(cl.Problem):
    """A plate with a round inclusion."""

    coordinates = cl.Box(x=(-1, 1), y=(-1, 1))
    parameters = cl.Box(r=(0.2, 0.6))
    conditions = (
        cl.Condition("jump", lambda d, x: d.u_n - x, on=cl.on("interface")),
        cl.Integral("heat", lambda d, x, nx: x * nx + 0 * d.u, on=cl.on("interface"), equals=lambda r: jnp.pi * r**2),
    )

    def domain(self, r):
        return cl.Rectangle(x=(-1, 1), y=(-1, 1)).split(cl.Disk((0, 0), r, name="interface"))

    def residual(self, d):
        return d.u_xx + d.u_yy


def problem(draw):
    class Drawn(Plate):
        conditions = ()

        def domain(self, r):
            return draw(r)

    return Drawn()


def drawn(draw, *names):
    """Points of pieces, and their normals."""
    rows = region_points(problem(draw), cl.on(*names), THETAS, KEY)
    return rows[:, :2], rows[:, 2:]


def test_points_of_an_interface_are_uniform_with_normals_out_of_the_part():
    validate(Plate())
    rows = region_points(Plate(), cl.on("interface"), THETAS, KEY)
    x, normals = rows[:, :2], rows[:, 2:]
    assert np.allclose(np.hypot(*x.T), THETAS[:, 0]) and np.allclose(normals, x / THETAS)
    for own in np.split(normals, 2):
        assert np.all(np.abs(own.mean(axis=0)) < 0.08) and np.all(np.abs((own**2).mean(axis=0) - 0.5) < 0.04)
        assert abs(np.mean(own[:, 0] ** 2 * own[:, 1] ** 2) - 1 / 8) < 0.02


def test_it_is_no_part_of_the_boundary_and_both_parts_belong_to_the_domain():
    edge, _ = drawn(Plate().domain)
    assert np.allclose(np.max(np.abs(edge), axis=1), 1)
    inside = inside_points(Plate(), THETAS, KEY)
    share = np.mean(np.hypot(*inside[2000:].T) < 0.6)
    assert abs(share - np.pi * 0.36 / 4) < 0.04


def test_only_what_is_inside_the_domain_counts():
    square = cl.Rectangle(x=(-1, 1), y=(-1, 1))
    x, _ = drawn(lambda r: square.split(cl.Disk((-1, 0), r, name="bay")), "bay")
    assert np.all(x[:, 0] > -1) and np.allclose(np.hypot(x[:, 0] + 1, x[:, 1]), THETAS[:, 0])
    # A part that shares three sides with the domain: only the fourth is an interface.
    x, normals = drawn(lambda r: square.split(cl.Rectangle(x=(-1, r), y=(-1, 1), name="layer")), "layer")
    assert np.allclose(x[:, :1], THETAS) and np.all(normals == [1, 0]) and np.ptp(x[:, 1]) > 1.9
    x, normals = drawn(lambda r: square.split(HALF), "seam")
    assert np.all(x[:, 0] == 0.5) and np.all(normals == [1, 0]) and abs(np.mean(x[:, 1])) < 0.06


def test_several_interfaces_and_shapes_that_are_combined_moved_and_named():
    def draw(r):
        part = cl.Disk((0, 0), 0.8, name="ring")
        plate = cl.Rectangle(x=(-1, 1), y=(-1, 1)).split(part).split(cl.Disk((0, 0), r / 2, name="core"))
        notched = (plate - cl.Rectangle(x=(0, 1), y=(0, 1), name="notch")).named("outline")
        return notched.scale(0.5).translate(0.25, 0)

    ring, normals = drawn(draw, "ring")
    from_centre = ring - [0.25, 0]
    assert np.allclose(np.hypot(*from_centre.T), 0.4) and np.allclose(normals, from_centre / 0.4)
    assert not np.any(np.all(from_centre > 0, axis=1)), "the notch cuts it"
    core, _ = drawn(draw, "core")
    assert np.allclose(np.hypot(*(core - [0.25, 0]).T), THETAS[:, 0] / 4)
    joined, _ = drawn(lambda r: draw(r) | cl.Disk((-0.9, -0.9), 0.1), "ring")
    assert np.allclose(np.hypot(*(joined - [0.25, 0]).T), 0.4)


def test_integrals_over_an_interface():
    plate, integral = Plate(), Plate.conditions[1]
    for r in (0.3, 0.5):
        with jax.enable_x64(True):
            row = jnp.asarray(integral_rows(plate, integral, np.array([[r]]), KEY)[0])
            found = integral_residuals(plate, integral, constant_network(plate, 1.0), row, jnp.asarray([r]))
        assert abs(float(found["heat"])) < 1e-7


def test_an_interface_belongs_to_the_identity_of_a_problem():
    class Other(Plate):
        def domain(self, r):
            return cl.Rectangle(x=(-1, 1), y=(-1, 1)).split(cl.Disk((0.1, 0), r, name="interface"))

    Other.__name__ = "Plate"
    assert fingerprint(Other()) != fingerprint(Plate())


def test_names_that_cannot_be():
    square = cl.Rectangle(x=(-1, 1), y=(-1, 1))
    with pytest.raises(DomainError, match="a name of its own, but the domain has left, too"):
        square.split(cl.Disk((0, 0), 0.5, name="left"))
    with pytest.raises(DomainError, match="a name of its own, but the domain has seam, too"):
        square.split(HALF).split(cl.Disk((0, 0), 0.5, name="seam"))
    with pytest.raises(DomainError, match="is combined with a shape"):
        square.split("seam")
    with pytest.raises(DomainError, match="called 'core'. The boundary has bottom, right, top, left, seam"):
        drawn(lambda r: square.split(HALF), "core")
    with pytest.raises(DomainError, match="names pieces of an interface and others. State a condition for each"):
        drawn(lambda r: square.split(HALF), "seam", "left")


def test_an_interface_that_leaves_the_domain_is_refused_before_training():
    class Leaving(Plate):
        def domain(self, r):
            return cl.Rectangle(x=(-1, 1), y=(-1, 1)).split(cl.Disk((1.3, 0), r, name="interface"))

    with pytest.raises(DomainError, match=r"on\('interface'\) has no points at r = 0.2"):
        validate(Leaving())


def test_a_mistake_in_a_part_is_named():
    shape = cl.Rectangle(x=(-1, 1), y=(-1, 1)).split(cl.Disk((0, 0), -1, name="core"))
    assert "radius of 'core' must be above zero" in str(shape.mistake())
