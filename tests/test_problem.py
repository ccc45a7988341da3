import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clpinn as cl
from clpinn.formulation.geometry import box_points, data_points
from clpinn.formulation.problem import task_prior
from clpinn.formulation.validation import undetermined, validate
from clpinn.networks.architecture import Architecture
from clpinn.networks.make import make as make_network
from clpinn.presets import paper
from clpinn.problems import BENCHMARKS, load_problem
from clpinn.problems.loader import paper_form


def make(**members):
    """A small problem with the given members replaced."""
    base = {
        "coordinates": cl.Box(x=(0, 1), t=(0, 1)),
        "parameters": cl.Box(nu=(0.1, 1)),
        "residual": lambda self, d, nu: d.u_t - nu * d.u_xx,
    }
    return type("Small", (cl.Problem,), base | members)()


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmarks_are_valid(name):
    validate(BENCHMARKS[name]())


def test_protocol_counts():
    """Point counts and grids of the paper."""
    from clpinn.problems import AllenCahn, Burgers, Kovasznay, PoissonBoltzmann, Schaffer

    def points(problem):
        return problem.interior.count + sum(condition.points for condition in problem.conditions)

    soft = Burgers(hard=False)
    assert [points(p) for p in (Schaffer(), soft, AllenCahn(), Kovasznay(), PoissonBoltzmann())] == [
        2500, 5900, 10082, 3474, 5041,
    ]  # fmt: skip
    assert (soft.interior.points, len(soft.interior.anchors)) == (5000, 300)
    assert {c.name: (c.points, c.weight) for c in soft.conditions} == {"boundary": (200, 1), "initial": (400, 5)}
    grids = {name: (len(make().candidates), make().evaluation.shape) for name, make in BENCHMARKS.items()}
    assert grids == {
        "schaffer": (28, (100, 100)),
        "burgers": (100, (200, 100)),
        "allen_cahn": (95, (201, 101)),
        "kovasznay": (100, (100, 100)),
        "poisson_boltzmann": (1296, (100, 100)),
    }
    assert np.allclose(Schaffer().evaluation.values["x"][[0, -1]], [-5, 4.9])
    drawn = soft.interior.sample(soft.coordinates, jax.random.key(0))
    assert len(drawn) == 5300
    assert np.isclose(task_prior(Schaffer(), np.array([0.1])), np.exp(3))
    assert np.isclose(task_prior(AllenCahn(), np.array([0.01, 4])), 64 * np.exp(4))
    assert np.isclose(task_prior(Kovasznay(), np.array([100.0])), 2)
    exponents = paper(soft, "ac").weights.prior, paper(soft, "ac").tasks.search_prior
    assert task_prior(soft, np.array([0.1])) ** np.array(exponents) == pytest.approx(1)


@pytest.mark.parametrize("name", ["burgers", "allen_cahn", "poisson_boltzmann"])
def test_hard_conditions_hold_exactly(name):
    problem = BENCHMARKS[name]()
    with jax.enable_x64(True):
        network = make_network(problem, Architecture("fnn", 8, 2), jax.random.key(3), jnp.float64)
        theta = jnp.asarray(problem.parameters.sample(1, jax.random.key(0))[0])
        faces = cl.boundary("x") if name != "poisson_boltzmann" else cl.boundary("x", "y")
        edge = jnp.asarray(faces.sample(problem.coordinates, 50, jax.random.key(1)))
        on_edge = jax.vmap(lambda x: cl.values(problem, network, x, theta)["u"])(edge)
        value = {"burgers": 0.0, "allen_cahn": -1.0, "poisson_boltzmann": 0.2}[name]
        assert np.allclose(on_edge, value, atol=1e-14)
        if name != "poisson_boltzmann":
            start = jnp.asarray(cl.at(t=0).sample(problem.coordinates, 50, jax.random.key(1)))
            at_start = jax.vmap(lambda x: cl.values(problem, network, x, theta)["u"])(start)
            x = np.asarray(start[:, 0])
            exact = -np.sin(np.pi * x) if name == "burgers" else x**2 * np.cos(np.pi * x)
            assert np.allclose(at_start, exact, atol=1e-14)


def test_soft_and_hard_burgers_conditions_by_name():
    soft = cl.problems.Burgers(hard=False)
    network = make_network(soft, Architecture("fnn", 8, 2), jax.random.key(3))
    theta = jnp.array([0.1])
    by_name = {condition.name: condition for condition in soft.conditions}
    x = jnp.array([0.3, 0.0])
    u = cl.values(soft, network, x, theta)["u"]
    initial = cl.condition_residuals(soft, by_name["initial"], network, x, theta)
    assert np.isclose(initial["initial"], u + np.sin(np.pi * 0.3), rtol=1e-6)
    assert cl.problems.Burgers().conditions == ()


def test_neumann_robin_and_initial_velocity():
    conditions = (
        cl.Condition("flux", lambda d: d.u_x - 2, on=cl.at(x=1), points=4),
        cl.Condition("robin", lambda d, t, nu: nu * d.u_x + d.u - t, on=cl.at(x=0), points=4),
        cl.Condition("velocity", lambda d: {"still": d.u_t, "value": d.u}, on=cl.at(t=0), points=4),
    )
    problem = make(conditions=conditions, reference=lambda self, x, t, nu: {"u": x**2 * t + nu * x})
    validate(problem)
    x, theta = jnp.array([0.5, 0.25]), jnp.array([0.3])
    flux, robin, velocity = (cl.condition_residuals(problem, c, None, x, theta) for c in conditions)
    u, u_x, u_t = 0.25 * 0.25 + 0.15, 2 * 0.5 * 0.25 + 0.3, 0.25
    assert np.isclose(flux["flux"], u_x - 2)
    assert np.isclose(robin["robin"], 0.3 * u_x + u - 0.25)
    assert np.isclose(velocity["still"], u_t) and np.isclose(velocity["value"], u)


def test_points_of_a_condition_have_a_default():
    condition = cl.Condition("start", lambda d: d.u, on=cl.at(t=0))
    problem = make(conditions=(condition,))
    validate(problem)
    points = condition.sample(problem.coordinates, jax.random.key(0))
    assert points.shape == (200, 2) and (points[:, 1] == 0).all()


def test_data_condition():
    data = cl.Data("sensors", at={"x": [0.1, 0.2], "t": [0, 1], "nu": [0.5, 0.6]}, values={"u": [1, 2]})
    problem = make(conditions=(data,))
    validate(problem)
    x, theta, values = data_points(problem, data)
    assert x.tolist() == [[0.1, 0], [0.2, 1]] and theta.tolist() == [[0.5], [0.6]]
    assert values["u"].tolist() == [1, 2]


def test_several_equations_and_no_parameters():
    problem = make(
        parameters=cl.Box(), outputs=("u", "v"), residual=lambda self, d: {"a": d.u_t - d.v, "b": d.v_x + d.u}
    )
    validate(problem)
    network = make_network(problem, Architecture("fnn", 4, 1), jax.random.key(0))
    point = jnp.array([0.1, 0.2]), jnp.zeros(0)
    residuals = cl.residuals(problem, network, *point)
    d = cl.named_derivatives(problem, network, *point, ["u", "v", "u_t", "v_x"])
    assert set(residuals) == {"a", "b"}
    assert np.isclose(residuals["a"], d["u_t"] - d["v"]) and np.isclose(residuals["b"], d["v_x"] + d["u"])
    assert len(problem.candidates) == 1


def test_default_grids():
    boxes = [cl.Box(**{f"p{i}": (0, 1) for i in range(n)}) for n in range(1, 8)]
    sizes = [len(make(parameters=box, residual=lambda self, d: d.u).candidates) for box in boxes]
    assert sizes == [100, 400, 512, 1296, 1024, 729, 128]


def test_place_can_be_inverted():
    problem = load_problem("examples/channel.py:Channel")
    physical = np.array([[0.3, 1.1], [0.9, 0.2]])
    thetas = np.array([[2.0, 1.0], [0.5, 1.0]])
    assert np.allclose(box_points(problem, physical, thetas), [[0.3, 0.55], [0.9, 0.4]])
    squashed = make(place=lambda self, x, t, nu: {"x": 0 * x, "t": t})
    with pytest.raises(cl.ProblemError, match="could not be inverted"):
        box_points(squashed, np.array([[0.5, 0.5]]), np.array([[0.5]]))


SENSOR = {"at": {"x": [0.1], "t": [0.2], "nu": [0.5]}, "values": {"u": [1.0]}}


def _forgetful(self, raw):
    return t * raw  # noqa: F821  # pyright: ignore


@pytest.mark.parametrize(
    "members, message",
    [
        ({"residual": lambda self, d: d.w}, "d.w is not an output"),
        ({"residual": lambda self, d: d.u_y}, "along 'y'.*axes are x, t, nu"),
        ({"residual": lambda self, d, mu: d.u}, "residual asks for 'mu'.*x, t, nu"),
        ({"residual": lambda self, d: jnp.array([d.u, d.u_x])}, r"returned the shape \(2,\)"),
        ({"residual": lambda self, d: {"a": d.u, "b": jnp.ones(3)}}, r"\['b'\].*shape \(3,\)"),
        ({"constrain": lambda self, raw: {"v": raw}}, "constrain must return a dict with the keys u"),
        ({"constrain": lambda self, raw, z: raw}, "constrain asks for 'z'"),
        ({"place": lambda self, x: {"x": x}}, "place must return a dict with the keys x, t"),
        ({"outputs": "u"}, "tuple of names"),
        ({"outputs": ("u", "x")}, "the name x twice"),
        ({"coordinates": (0, 1)}, "must be a clpinn.Box"),
        ({"coordinates": cl.Box()}, "no axes"),
        ({"candidates": cl.Grid(mu=[1.0])}, "Unknown axis 'mu'"),
        ({"conditions": (cl.Condition("a", lambda d: d.u, cl.at(t=0), 4, weight=0),)}, "weight above zero"),
        (
            {"conditions": (cl.Condition("a", lambda d: d.u, cl.at(z=0), 4),)},
            "holds at values of 'z', but the coordinates are x, t",
        ),
        ({"conditions": (cl.Condition("a", lambda d: d.u, cl.at(t=0), 4),) * 2}, "two conditions called 'a'"),
        ({"conditions": (cl.Data("s", **(SENSOR | {"values": {"w": [1.0]}})),)}, "needs values of some of u"),
        ({"conditions": (cl.Data("s", **(SENSOR | {"values": {"u": [1.0, 2.0]}})),)}, "arrays of one length"),
        ({"conditions": (cl.Data("s", **(SENSOR | {"values": {"u": [np.nan]}})),)}, "not finite"),
        ({"prior": lambda self, nu: -nu}, "prior must be positive"),
        ({"residual": lambda self, d: None}, "returned nothing. Is a `return` missing"),
        ({"residual": lambda self, d: (d.u, d.u_x)}, "returned a tuple"),
        ({"residual": lambda self, d: {}}, "returned an empty dict"),
        ({"residual": lambda self, d: d.u + undefined_name}, r"NameError.*test_problem.py, line \d+\)$"),  # noqa: F821
        ({"residual": lambda self, d: d.u * nu}, r"NameError.*nu belongs.*argument: `lambda self, d, nu:`"),  # noqa: F821
        ({"conditions": (cl.Condition("a", lambda d: d.u - nu, cl.at(t=0)),)}, r"`lambda d, nu:`"),  # noqa: F821
        ({"constrain": _forgetful}, r"argument: `def _forgetful\(self, raw, t\):`"),
        ({"residual": lambda self, d, x: np.sin(x) * d.u}, "Use jax.numpy .jnp. in place of numpy"),
        ({"residual": lambda self, d, x: d.u if x > 0 else d.u_x}, "Use jnp.where in place of if"),
        ({"interior": 5000}, "must be a clpinn.Interior"),
        ({"interior": cl.Interior(1e3)}, "interior needs a whole number of points, such as 1000, but got 1000.0"),
        ({"conditions": (cl.Condition("interior", lambda d: d.u, cl.at(t=0), 4),)}, "the equation's own points"),
        ({"conditions": (cl.Data("interior", **SENSOR),)}, "the equation's own points"),
        ({"conditions": (cl.Condition("a", lambda d: d.u, "x", 4),)}, "holds on clpinn.at.*but got on='x'"),
        ({"conditions": (cl.Condition("a", lambda d: d.u, cl.at(t=0), 1e2),)}, "whole number of points"),
        ({"conditions": cl.Condition("a", lambda d: d.u, cl.at(t=0), 4)}, "tuple of one needs a comma"),
        ({"candidates": np.linspace(0.1, 1, 5)}, "candidates must be a clpinn.Grid, but is ndarray"),
        ({"evaluation": cl.Grid(t=[0, 1], x=[0, 1])}, "in the order of the box: x, t"),
        ({"interior": cl.Interior(9, anchors=np.array([[5.0, 5.0]]))}, "x is 5"),
        ({"outputs": ("u", "u_x")}, "'u_x', which reads as a derivative"),
        ({"outputs": ("_u",)}, "'_u', which reads as"),
    ],
)
def test_the_error_says_what_is_wrong(members, message):
    with pytest.raises(cl.ClpinnError, match=message):
        validate(make(**members))


def test_data_outside_the_box_gives_a_warning():
    data = cl.Data("s", at={"x": [7.0], "t": [0.2], "nu": [0.5]}, values={"u": [1.0]})
    with pytest.warns(cl.OutsideBoxWarning, match="x is 7"):
        validate(make(conditions=(data,)))


def test_constants_may_be_integers():
    problem = make(
        outputs=("u", "v"),
        residual=lambda self, d: {"a": d.u_x + d.v_xx, "b": 2},
        constrain=lambda self, raw, x: {"u": 3 * x, "v": 7},
    )
    validate(problem)
    network = make_network(problem, Architecture("fnn", 4, 1), jax.random.key(0))
    x, theta = jnp.array([0.5, 0.25]), jnp.array([0.3])
    outputs = cl.values(problem, network, x, theta)
    assert {name: (float(value), value.dtype) for name, value in outputs.items()} == {
        "u": (1.5, jnp.float32),
        "v": (7.0, jnp.float32),
    }
    residuals = cl.residuals(problem, network, x, theta)
    # v is constant, so only u_x = 3 is left of the first equation.
    assert {name: float(value) for name, value in residuals.items()} == {"a": 3.0, "b": 2.0}


def test_grids_can_be_set_on_an_instance():
    problem = make()
    problem.candidates = cl.Grid(nu=[0.1, 0.2])
    validate(problem)
    assert len(problem.candidates) == 2


def test_validate_needs_an_instance():
    with pytest.raises(cl.ProblemError, match="instance of clpinn.Problem, but got the class Burgers"):
        validate(cl.problems.Burgers)  # pyright: ignore


@pytest.mark.parametrize(
    "text, name, message",
    [
        ("import nowhere_to_be_found\n", "bad.py:Heat", "could not be imported: ModuleNotFoundError"),
        ("x = (\n", "bad.py:Heat", "could not be imported: SyntaxError"),
        ("import clpinn as cl\n", "bad.py:Heat", "no problem called 'Heat'. It has none"),
        ("import clpinn as cl\nclass A(cl.Problem): pass\nclass B(cl.Problem): pass\n", "bad.py", "2 problems"),
        ("import clpinn as cl\nclass A(cl.Problem): pass\n", "bad.py:A", "has no coordinates"),
        ("", "missing.py:A", "no file missing.py"),
        ("import sys; sys.exit(0)", "bad.py:A", "could not be imported: SystemExit"),
        ("", "heet", "no problem called 'heet'.*burgers"),
    ],
)
def test_the_error_says_why_a_file_does_not_load(tmp_path, monkeypatch, text, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(cl.ProblemError, match=re.compile(message, re.DOTALL)):
        load_problem(name)


def test_the_papers_form_of_burgers_is_soft():
    class Sharp(cl.problems.Burgers):
        """A subclass whose constructor has no options."""

        parameters = cl.Box(nu=cl.log(0.001, 1.0))

        def __init__(self):
            super().__init__(hard=True)

    for problem in (cl.problems.Burgers(), Sharp()):
        soft = paper_form(problem)
        assert type(soft) is type(problem) and soft.parameters == problem.parameters
        assert soft.constrain is None and [condition.name for condition in soft.conditions] == ["boundary", "initial"]
        assert problem.constrain is not None and problem.conditions == ()
    assert paper_form(cl.problems.Burgers()) == cl.problems.Burgers(hard=False)
    assert load_problem("burgers", paper=True) == cl.problems.Burgers(hard=False)
    assert load_problem("burgers") == cl.problems.Burgers(hard=True)


def test_other_problems_are_in_the_papers_form_already():
    for problem in (cl.problems.Burgers(hard=False), cl.problems.Kovasznay(), make()):
        assert paper_form(problem) is problem


def test_a_file_is_loaded_with_its_neighbours(tmp_path):
    (tmp_path / "neighbour.py").write_text("LOW = 0.25\n")
    (tmp_path / "mine.py").write_text(
        "import clpinn as cl\nfrom neighbour import LOW\n"
        "class Mine(cl.Problem):\n"
        "    coordinates = cl.Box(x=(LOW, 1))\n"
        "    def residual(self, d):\n        return d.u_x\n"
    )
    assert load_problem(f"{tmp_path}/mine.py").coordinates["x"].low == 0.25


@pytest.mark.parametrize("reduction", [jnp.mean, jnp.sum, jnp.max, jnp.prod])
def test_a_reduction_over_one_number_is_a_misunderstanding(reduction):
    class Integral(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        conditions = (cl.Condition("mean", lambda d: reduction(d.u) - 1, on=cl.at(x=0)),)

        def residual(self, d):
            return d.u_x - jnp.sum(jnp.array([d.u, 1.0]))  # over two numbers, as it should be

    with pytest.raises(cl.ProblemError, match="condition .mean. takes a .* over a single number. A residual is"):
        validate(Integral())


def test_nothing_that_determines_the_solution_is_noticed():
    class Open(cl.Problem):
        coordinates = cl.Box(x=(0, 1), y=cl.periodic(0, 1))

        def residual(self, d):
            return d.u_x - d.u_yy

    class Periodic(Open):
        def residual(self, d):
            return d.u_yy - d.u

    class Algebraic(Open):
        def residual(self, d, x):
            return d.u - x

    class Conditioned(Open):
        conditions = (cl.Condition("left", lambda d: d.u, on=cl.at(x=0)),)

    text = undetermined(Open())
    assert text is not None and "derivatives along x." in text and "no condition" in text
    assert [undetermined(kind()) for kind in (Periodic, Algebraic, Conditioned)] == [None] * 3
