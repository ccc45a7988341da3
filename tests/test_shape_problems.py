"""Problems whose domain is a shape: trained, evaluated, adapted, kept. Integral conditions and factors that vanish."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from running import arrays, lines

import clpinn as cl
from clpinn.errors import DomainError, ProblemError
from clpinn.formulation.agreement import check_reference
from clpinn.formulation.domain import Grid
from clpinn.formulation.fingerprint import fingerprint
from clpinn.formulation.integrals import integral_residuals, integral_rows
from clpinn.formulation.membership import is_inside
from clpinn.formulation.pointwise import constant_network, values
from clpinn.formulation.validation import validate
from clpinn.keys import make_key
from clpinn.presets import natural, paper
from clpinn.problems import load_problem
from clpinn.runs.run import run
from clpinn.training.pool_loss import Collocation, PoolLoss, Tasks
from clpinn.training.residuals import Terms
from clpinn.training.settings import override

EXAMPLES = [
    "annulus:Annulus",
    "ball:BallHeat",
    "cylinder:Cylinder",
    "fin:Fin",
    "l_shape:LShape",
    "plate_with_hole:PlateWithHole",
    "two_materials:TwoMaterials",
]


class Ring(cl.Problem):
    """Poisson's equation between two circles."""

    coordinates = cl.Box(x=(-1, 1), y=(-1, 1))
    parameters = cl.Box(r=(0.2, 0.6))
    candidates = Grid(r=[0.2, 0.4, 0.6])
    evaluation = Grid(x=np.linspace(-1, 1, 21), y=np.linspace(-1, 1, 21))
    interior = cl.Interior(64)
    conditions = (
        cl.Condition("outer", lambda d: d.u_n - 0.5, on=cl.on("outer"), points=32),
        cl.Condition("inner", lambda d: d.u - 1, on=cl.on("inner"), points=32),
    )

    def domain(self, r):
        return cl.Disk((0, 0), 1, name="outer") - cl.Disk((0, 0), r, name="inner")

    def residual(self, d):
        return d.u_xx + d.u_yy + 4

    def reference(self, x, y, r):
        s = jnp.sqrt(x**2 + y**2)
        return {"u": 1 + r**2 - s**2 + 2.5 * jnp.log(s / r)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ring")
    settings = dataclasses.replace(natural(Ring(), "free"), steps=60)
    return run(Ring(), settings, folder, progress=False)


def test_it_learns_and_is_evaluated_inside_only(trained):
    errors = trained.metrics["outputs"]["u"]
    assert errors["rel_l2_macro"] < 5e-3 and np.isfinite(errors["max_abs"])
    estimate = trained.surrogate.error(r=0.4)
    assert estimate.resolved and estimate.relative_l2["u"] < 5e-3


def test_fields_are_empty_outside_and_a_call_there_warns(trained):
    field = trained.surrogate.field(x=np.linspace(-1, 1, 31), y=np.linspace(-1, 1, 31), r=[0.25, 0.5])
    for r in (0.25, 0.5):
        u = field["u"].sel(r=r)
        distance = np.hypot(*np.meshgrid(u.x, u.y, indexing="ij"))
        sure = np.minimum(np.abs(distance - r), np.abs(distance - 1)) > 1e-6
        outside = (distance < r) | (distance > 1)
        assert np.array_equal(np.isnan(u.values)[sure], outside[sure])
    assert np.isfinite(trained.surrogate(x=0.5, y=0.0, r=0.4)["u"])
    with pytest.warns(cl.OutsideBoxWarning, match=r"x = 0.3, y = 0 is outside the domain at r = 0.4"):
        trained.surrogate(x=0.3, y=0.0, r=0.4)


def test_a_file_heads_and_corrections(trained, tmp_path):
    trained.surrogate.save(tmp_path / "ring.clpinn")
    loaded = cl.load(tmp_path / "ring.clpinn", Ring())
    assert loaded(x=0.5, y=0.1, r=0.3) == trained.surrogate(x=0.5, y=0.1, r=0.3)
    adapted = loaded.adapt(r=0.33)
    assert adapted.heads is not None and np.isfinite(adapted(x=0.5, y=0.1, r=0.33)["u"])
    corrected = loaded.correct(r=0.33)
    assert corrected.used_heads == 1
    exact = Ring().reference(0.5, 0.1, 0.33)["u"]
    assert abs(corrected(x=0.5, y=0.1, r=0.33)["u"] - exact) < 1e-6
    assert np.isfinite(loaded.trust(r=0.33).norm)

    class Other(Ring):
        def domain(self, r):
            return cl.Disk((0, 0), 1, name="outer") - cl.Disk((0.1, 0), r, name="inner")

    Other.__name__ = "Ring"
    assert fingerprint(Other()) != fingerprint(Ring())
    with pytest.raises(ProblemError, match="What differs: domain"):
        cl.load(tmp_path / "ring.clpinn", Other())


SMALL = ["network.width=5", "network.depth=1", "tasks.active=3", "adam.steps=40", "tasks.interval=5", "lbfgs.steps=10"]


def test_it_resumes_bit_identically(tmp_path):
    settings = override(paper(Ring(), "acr"), SMALL)
    run(Ring(), settings, tmp_path / "whole", progress=False)
    for steps in (17, 10**6):
        bound = dataclasses.replace(settings, steps=steps)
        run(Ring(), bound, tmp_path / "parts", resume=steps > 17, progress=False)
    whole, parts = (arrays(tmp_path / name, Ring()) for name in ("whole", "parts"))
    assert len(whole) == len(parts) > 10 and all(np.array_equal(a, b, equal_nan=True) for a, b in zip(whole, parts))
    assert lines(tmp_path / "whole" / "history.jsonl") == lines(tmp_path / "parts" / "history.jsonl")


def test_the_papers_methods_draw_points_in_the_shape_of_each_task(tmp_path):
    result = run(Ring(), override(paper(Ring(), "acr"), SMALL), tmp_path, progress=False)
    assert result.metrics["active"] == 3 and result.metrics["queries"] > 0
    drawn = Collocation.sample(Ring(), make_key(3))
    for r in (0.2, 0.6):
        points = drawn.of(np.array([r]))
        assert is_inside(Ring(), points["interior"], np.array([r])).all()
        assert np.allclose(np.hypot(*points["inner"][:, :2].T), r)
        assert np.array_equal(drawn.of(np.array([r]))["interior"], points["interior"])


def test_the_loss_of_a_pool_is_the_mean_over_each_tasks_own_points():
    problem, thetas = Ring(), np.array([[0.25], [0.5]])
    with jax.enable_x64(True):
        drawn = Collocation.sample(problem, make_key(3))
        loss = PoolLoss(problem, drawn, drawn, jnp.float64, chunk=16)
        network, terms = constant_network(problem, 0.3), Terms(problem)
        expected = []
        for theta in thetas:
            total = 0.0
            for name, points in drawn.of(theta).items():
                at = jax.vmap(lambda x, name=name, theta=theta: terms.residuals[name](network, x, jnp.asarray(theta)))
                total += sum(float(np.mean(part**2)) for part in at(jnp.asarray(points)).values())
            expected.append(total)
        assert np.allclose(loss.task_losses(jax.tree_util.Partial(network), thetas), expected)
        active = Tasks.padded(thetas, np.array([2.0, 1.0]), 3, jnp.float64)
        replay = Tasks.padded(np.zeros((0, 1)), np.zeros(0), 2, jnp.float64)
        value = loss.objective(jax.tree_util.Partial(network), active, replay, make_key(0))[0]
        assert np.isclose(float(value), 2 * expected[0] + expected[1])


@pytest.mark.parametrize("name", EXAMPLES)
def test_references_of_examples_solve_them(name):
    file, kind = name.split(":")
    problem = load_problem(f"examples/shapes/{file}.py:{kind}")
    validate(problem)
    checks = check_reference(problem, make_key(0))
    assert checks and all(check.verdict != "does not agree" for check in checks), [str(check) for check in checks]


def test_the_series_of_the_fin_solves_it():
    fin = load_problem("examples/shapes/fin.py:Fin")
    x, y, h, step = np.array([0.7, 1.3]), np.array([0.3, 0.8]), 0.7, 1e-4

    def T(dx=0.0, dy=0.0):
        return fin.reference(x=x + dx, y=y + dy, length=2.0, h=h)["T"]

    laplacian = (T(step) + T(-step) + T(0, step) + T(0, -step) - 4 * T()) / step**2
    assert np.all(np.abs(laplacian) < 1e-5)
    top, along = np.ones(2), {"length": 2.0, "h": h}
    slope = (
        3 * fin.reference(x=x, y=top, **along)["T"]
        - 4 * fin.reference(x=x, y=top - step, **along)["T"]
        + fin.reference(x=x, y=top - 2 * step, **along)["T"]
    ) / (2 * step)
    assert np.allclose(slope, -h * fin.reference(x=x, y=top, **along)["T"], rtol=1e-5)


# Integrals -----------------------------------------------------------------------------------------------------------


def _integral(problem, theta):
    """The residuals of the last condition for the reference."""
    integral = problem.conditions[-1]
    with jax.enable_x64(True):
        row = integral_rows(problem, integral, np.array([theta]), make_key(1))[0]
        found = integral_residuals(problem, integral, None, jnp.asarray(row), jnp.asarray(theta))
    return {name: float(value) for name, value in found.items()}


@pytest.mark.parametrize(
    ("region", "integrand", "equals", "tolerance"),
    [
        (cl.on("inner"), lambda d: d.u, lambda r: 2 * jnp.pi * r, 1e-5),
        (cl.on(), lambda d: d.u_n, lambda r: -4 * jnp.pi * (1 - r**2), 1e-4),  # the divergence theorem
        (cl.on("outer", x=(0, 1)), lambda d: 1 + 0 * d.u, jnp.pi, 2e-2),
        (cl.at(), lambda d: 1 + 0 * d.u, lambda r: jnp.pi * (1 - r**2), 1e-4),
        (cl.at(), lambda d, x, y: x**2 + y**2 + 0 * d.u, lambda r: jnp.pi * (1 - r**4) / 2, 5e-3),
        (cl.at(x=0.1), lambda d: 1 + 0 * d.u, lambda r: 2 * (jnp.sqrt(0.99) - jnp.sqrt(r**2 - 0.01)), 1e-7),
        (cl.at(x=0, y=0.8), lambda d, y: d.u - y, lambda r: r**2 - 0.44 + 2.5 * jnp.log(0.8 / r), 1e-12),
    ],
)
def test_integrals_over_shapes(region, integrand, equals, tolerance):
    class WithIntegral(Ring):
        conditions = (*Ring.conditions, cl.Integral("sum", integrand, on=region, equals=equals))

    validate(WithIntegral())
    for r in (0.3, 0.55):
        assert abs(_integral(WithIntegral(), [r])["sum"]) < tolerance


class Channel(cl.Problem):
    """A box with time: u = q y (1 - y) exp(-t)."""

    coordinates = cl.Box(x=(0, 2), y=(0, 1), t=(0, 1))
    parameters = cl.Box(q=(1, 2))
    conditions = (
        cl.Condition("start", lambda d, y, q: d.u - q * y * (1 - y), on=cl.at(t=0)),
        cl.Integral(
            "flow",
            lambda d, y: {"rate": d.u, "moment": y * d.u},
            on=cl.at(x=1),
            equals=lambda q, t: {"rate": q * jnp.exp(-t) / 6, "moment": q * jnp.exp(-t) / 12},
        ),
    )

    def residual(self, d):
        return d.u_t + d.u + 0 * d.u_x

    def reference(self, x, y, t, q):
        return {"u": q * y * (1 - y) * jnp.exp(-t) + 0 * x}


def test_integrals_over_boxes_at_every_time():
    found = _integral(Channel(), [1.7])
    assert set(found) == {"rate", "moment"} and all(abs(value) < 1e-12 for value in found.values())
    rows = integral_rows(Channel(), Channel.conditions[-1], np.full((50, 1), 1.5), make_key(0)).reshape(50, -1, 4)
    times = rows[:, 0, 2]
    assert np.ptp(times) > 0.8 and np.all(rows[:, :, 2] == times[:, None]) and np.all(rows[:, :, 0] == 1)


@pytest.mark.slow
def test_an_integral_fixes_what_the_equation_leaves_open(tmp_path):
    class Open(Ring):
        conditions = (
            Ring.conditions[0],
            cl.Condition("inner", lambda d, r: d.u_n - 2 * r + 2.5 / r, on=cl.on("inner")),
            cl.Integral("rim", lambda d: d.u, on=cl.on("inner"), equals=lambda r: 2 * jnp.pi * r),
        )

    result = run(Open(), dataclasses.replace(natural(Open(), "free"), steps=60), tmp_path / "a", progress=False)
    assert result.metrics["outputs"]["u"]["rel_l2_macro"] < 2e-2
    assert result.surrogate.error(r=0.4).resolved
    settings = override(
        paper(Channel(), "uni"), ["network.width=5", "network.depth=1", "adam.steps=5", "lbfgs.steps=2"]
    )
    assert np.isfinite(run(Channel(), settings, tmp_path / "b", progress=False).metrics["outputs"]["u"]["mse"])


@pytest.mark.parametrize(
    ("integral", "message"),
    [
        (cl.Integral("i", lambda d: d.u, on=cl.boundary("x")), "Integral 'i' is over on=cl.at"),  # pyright: ignore
        (cl.Integral("i", lambda d: d.u, on=cl.on("left")), "needs a domain that is a shape"),
        (cl.Integral("i", lambda d: d.u, on=cl.at(z=1)), "Unknown axis 'z'"),
        (cl.Integral("i", lambda d: d.u_z, on=cl.at(x=1)), "d.u_z"),
    ],
)
def test_integrals_that_cannot_be(integral, message):
    class Wrong(Channel):
        conditions = (integral,)

    with pytest.raises((DomainError, ProblemError), match=message):
        validate(Wrong())


# Hard conditions -----------------------------------------------------------------------------------------------------


def test_a_reference_is_put_into_integrals():
    def checks(value):
        class Measured(Ring):
            conditions = (*Ring.conditions, cl.Integral("area", lambda d: d.u * 0 + 1, on=cl.at(), equals=value))

        return {check.term: check.verdict for check in check_reference(Measured(), make_key(0))}

    assert checks(lambda r: jnp.pi * (1 - r**2))["area"] == "agrees"
    assert checks(2.0)["area"] == "does not agree"


def test_a_reference_is_not_put_on_pieces_that_are_cut_away():
    class Quarter(Ring):
        conditions = ()

        def domain(self, r):
            return cl.Rectangle(x=(0, 1), y=(0, 1)) & cl.Disk((0, 0), r)

    assert {check.verdict for check in check_reference(Quarter(), make_key(0))} == {"agrees"}


def test_names_of_pieces_belong_to_the_fingerprint():
    def named(*sides):
        class Named(Ring):
            conditions = (cl.Condition("wall", lambda d: d.u, on=cl.on("wall")),)

            def domain(self, r):
                return cl.Polygon([(-1, -1), (1, -1), (1, 1), (-1, r)], sides=sides)

        return fingerprint(Named())

    assert named("wall", "b", "wall", "b") != named("wall", "b", "b", "wall")


def test_errors_where_the_evaluation_grid_misses_the_domain():
    class Tiny(Ring):
        conditions = ()
        parameters = cl.Box(r=cl.log(1e-3, 1))
        candidates = Grid(r=[1e-3, 1.0])

        def domain(self, r):
            return cl.Disk((0.05, 0.05), 0.9 * r)

        def reference(self, x, y, r):
            return {"u": 1 - x**2 - y**2}

    errors = cl.evaluate(Tiny(), constant_network(Tiny(), 0.5)).outputs["u"]
    center = 1 - 2 * 0.05**2
    assert errors.rel_l2[0] == pytest.approx((center - 0.5) / center, rel=1e-2) and np.isfinite(errors.rel_l2[1])


def test_outputs_vanish_on_pieces_whatever_the_network_gives():
    class Flow(cl.Problem):
        coordinates = cl.Box(x=(0, 2), y=(-1, 1))
        parameters = cl.Box(r=(0.1, 0.4))
        outputs = ("u", "p")
        constrain = cl.vanishing("cylinder", "top", outputs=("u",))

        def domain(self, r):
            return cl.Rectangle(x=(0, 2), y=(-1, 1)) - cl.Disk((1, 0), r, name="cylinder")

        def residual(self, d):
            return {"a": d.u_xx + d.p_x, "b": d.p_y}

    validate(Flow())

    def at(x, y, r):
        with jax.enable_x64(True):
            network = constant_network(Flow(), 0.7)
            return {k: float(v) for k, v in values(Flow(), network, jnp.array([x, y]), jnp.array([r])).items()}

    assert at(1.3, 0.0, 0.3)["u"] == pytest.approx(0, abs=1e-15) and at(0.5, 1.0, 0.3)["u"] == 0
    assert at(1.3, 0.0, 0.2)["u"] > 0 and at(0.5, -1.0, 0.3)["u"] > 0 and at(1.3, 0.0, 0.3)["p"] == pytest.approx(0.7)

    class NoDomain(cl.Problem):
        coordinates = cl.Box(x=(0, 2), y=(-1, 1))
        constrain = cl.vanishing("left")

        def residual(self, d):
            return d.u_x

    with pytest.raises(ProblemError, match="needs a domain that is a shape"):
        validate(NoDomain())
