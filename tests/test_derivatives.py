"""Streams against nested automatic differentiation and against closed forms."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clpinn as cl
from clpinn.calculus import jets
from clpinn.calculus.jets import Jet, closure
from clpinn.calculus.names import Derivatives, parse_name, requested
from clpinn.formulation.calls import call_by_name
from clpinn.formulation.geometry import placed
from clpinn.networks.architecture import Architecture
from clpinn.networks.make import make
from clpinn.problems import BENCHMARKS, load_problem


class Everything(cl.Problem):
    """Linear, periodic and log axes, two outputs, a hard transform that mixes them."""

    coordinates = cl.Box(x=(-1, 2), phi=cl.periodic(0, 2), t=(0.5, 3))
    parameters = cl.Box(nu=cl.log(0.01, 1.0), c=(1, 2))
    outputs = ("u", "v")

    def residual(self, d):
        return d.u

    def constrain(self, raw, x, t, nu):
        return {
            "u": jnp.sin(x * t) + t * (1 - x**2) * raw["u"] / (1 + nu * raw["v"] ** 2),
            "v": jnp.exp(-nu * t) * raw["v"] + jnp.sqrt(t) * raw["u"] * x,
        }


class Plain(Everything):
    constrain = None


class Moved(cl.Problem):
    """Coordinates bent by a parameter."""

    coordinates = cl.Box(x=(0, 1), y=(0, 1))
    parameters = cl.Box(h=(0.5, 1.5))

    def residual(self, d):
        return d.u

    def place(self, x, y, h):
        return {"x": x + 0.1 * y**2, "y": y * (1 + h * x**2)}


POINT = {"x": 0.3, "phi": 0.7, "t": 1.1, "nu": 0.05, "c": 1.7}
NAMES = ["u", "v", "u_x", "v_phi", "u_t", "u_xx", "v_xphi", "v_tt", "u_phiphi", "u_xxx", "v_xphit", "v_ttphi"]
NAMES += ["u_xxxx", "v_phiphiphiphi", "u_xxtt", "v_xxphit", "u_nu", "v_nunu", "u_xnu", "u_c_nu"]


def differentiated(function, index):
    """A derivative of a function of one vector, by nested jax.jvp."""
    for axis, order in enumerate(index):
        for _ in range(order):
            function = _along(function, jnp.eye(len(index))[axis])
    return function


def _along(function, direction):
    return lambda point: jax.jvp(function, (point,), (direction,))[1]


def nested(problem, network, name):
    """A named derivative by nested jax.jvp of the value."""
    output, index = parse_name(name, problem.outputs, problem.axes)
    coordinates = len(problem.coordinates)

    def function(point):
        return cl.values(problem, network, point[:coordinates], point[coordinates:])[output]

    return differentiated(function, index)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(
    "problem, kind",
    [(Plain(), "quadratic"), (Everything(), "param-fnn")],
    ids=["plain quadratic", "constrained ParamFNN"],
)
def test_streams_equal_nested_jvp_to_fourth_order(problem, kind):
    network = make(problem, Architecture(kind, 6, 2), jax.random.key(0), jnp.float64)
    point = jnp.array(list(POINT.values()))
    streams = jax.jit(lambda p: cl.named_derivatives(problem, network, p[:3], p[3:], NAMES))(point)
    for name in NAMES:
        expected = jax.jit(nested(problem, network, name))(point)
        assert np.isclose(streams[name], expected, rtol=1e-9, atol=1e-11), name


@pytest.mark.parametrize("name", ["u", "u_y", "u_xy", "u_xxy", "u_yyyy", "u_xh"])
def test_mapped_coordinates(name):
    """Along physical coordinates, against derivatives through an explicit Newton inverse of the map."""
    problem = Moved()
    network = make(problem, Architecture("fnn", 5, 2), jax.random.key(1), jnp.float64)
    x, theta = jnp.array([0.4, 0.6]), jnp.array([0.9])

    def place(x, theta):
        moved = problem.place(*x, *theta)
        return jnp.stack([moved["x"], moved["y"]])

    def value(physical_and_theta):
        physical, theta = physical_and_theta[:2], physical_and_theta[2:]
        boxed = jnp.array([0.4, 0.6])
        for _ in range(6):
            boxed = boxed - jnp.linalg.solve(jax.jacfwd(place)(boxed, theta), place(boxed, theta) - physical)
        unmoved = Moved()
        unmoved.place = None
        return cl.values(unmoved, network, boxed, theta)["u"]

    _, index = parse_name(name, ("u",), problem.axes)
    expected = jax.jit(differentiated(value, index))(jnp.concatenate([place(x, theta), theta]))
    derivative = jax.jit(lambda a, b: cl.named_derivatives(problem, network, a, b, [name]))(x, theta)[name]
    assert np.isclose(derivative, expected, rtol=1e-8, atol=1e-10)


def test_closed_form():
    """sin(a x) exp(-b t) as the reference: every derivative is known."""

    class Wave(cl.Problem):
        coordinates = cl.Box(x=(-1, 1), t=(0, 1))
        parameters = cl.Box(a=(1, 3))

        def residual(self, d):
            return d.u

        def reference(self, x, t, a):
            return {"u": jnp.sin(a * x) * jnp.exp(-2 * t)}

    x, t, a = 0.3, 0.4, 1.5
    names = ["u", "u_x", "u_xx", "u_xxx", "u_xxxx", "u_t", "u_xxt", "u_a"]
    derivatives = cl.named_derivatives(Wave(), None, jnp.array([x, t]), jnp.array([a]), names)
    decay, s, c = math.exp(-2 * t), math.sin(a * x), math.cos(a * x)
    expected = [s, a * c, -(a**2) * s, -(a**3) * c, a**4 * s, -2 * s, 2 * a**2 * s, x * c]
    assert np.allclose([derivatives[name] for name in names], np.array(expected) * decay, rtol=1e-13)


@pytest.mark.parametrize("name", ["tanh", "sin", "cos", "log"])
def test_elementwise_rules(name):
    ours, theirs = getattr(jets, name), getattr(jnp, name)
    keep = closure([(6,)])
    jet = ours(jets.variable(jnp.array(0.7), 0, keep))
    for order in range(7):
        expected = differentiated(lambda z: theirs(z[0]), (order,))(jnp.array([0.7]))
        assert np.isclose(jet.streams[(order,)], expected, rtol=1e-10), order


def test_product_and_sum_rules():
    keep = closure([(2, 2)])
    x, y = (jets.variable(jnp.array(v), i, keep) for i, v in enumerate((0.3, 0.8)))
    jet = x * x * y + 2.0 * y * y * y + 1.0

    def polynomial(point):
        a, b = point
        return a * a * b + 2 * b**3 + 1

    for index in keep:
        expected = differentiated(polynomial, index)(jnp.array([0.3, 0.8]))
        assert np.isclose(jet.streams.get(index, 0.0), expected), index


def stream_count(problem):
    """The number of streams through the network: the matrix products of its only square layer."""
    network = make(problem, Architecture("fnn", 7, 2), jax.random.key(0), jnp.float64)
    x, theta = jnp.ones(len(problem.coordinates)), jnp.ones(len(problem.parameters))
    equations = jax.make_jaxpr(lambda: cl.residuals(problem, network, x, theta))().eqns
    return sum(e.primitive.name == "dot_general" and e.invars[1].aval.shape == (7, 7) for e in equations)


class Quasilinear(cl.Problem):
    """A highest derivative with a coefficient that the network decides."""

    coordinates = cl.Box(x=(-1, 1), t=(0, 1))
    parameters = cl.Box(k=(0.5, 1))

    def residual(self, d, k):
        return d.u_t - k * (d.u * d.u_xx + d.u_x**2)


class Switched(Quasilinear):
    def residual(self, d, k):
        return d.u_t - jnp.where(d.u > 0, 1.0, k) * d.u_xx


class Apart(Quasilinear):
    """More operators than highest derivatives."""

    def residual(self, d, k):
        return {str(n): d.u_t - n * k * d.u_xx for n in (1, 2, 3)}


class Layered(Quasilinear):
    """The coefficient jumps in space; a third highest derivative is not linear and keeps its stream."""

    def residual(self, d, x, k):
        return d.u_t - jnp.where(x > 0, 1.0, k) * d.u_xx + jnp.sin(d.u_k) / (2 + d.u)


class Pair(Plain):
    """Two equations, each with its own operators, over three highest derivatives."""

    def residual(self, d, nu, x):
        return {
            "first": d.u_t - nu * (d.u_xx + d.u_phiphi) + x * d.v_xx + d.u * d.v,
            "second": nu * d.v_xx + 3 * d.u_t - nu * (d.u_xx + d.u_phiphi) - d.v_x,
        }


class Mixed(Pair, Everything):
    """A hard transform that mixes the outputs; all equations share one operator."""

    def residual(self, d, nu, c):
        return {"u": d.u_xt - c * d.u_phiphi + d.u_x, "v": d.u * d.v + d.v_xt - c * d.v_phiphi}


class Bent(Moved):
    def residual(self, d, x, h):
        return h * d.u_xx + x * d.u_xy + d.u_yy


# Problems, and the number of streams that their residuals need.
COLLAPSE = {
    "schaffer": (BENCHMARKS["schaffer"], 1),
    "burgers": (BENCHMARKS["burgers"], 3),
    "soft burgers": (lambda: cl.problems.Burgers(hard=False), 3),
    "allen_cahn": (BENCHMARKS["allen_cahn"], 3),
    "kovasznay": (BENCHMARKS["kovasznay"], 4),
    "poisson_boltzmann": (BENCHMARKS["poisson_boltzmann"], 4),
    "heat": (lambda: load_problem("examples/heat.py"), 3),
    "kuramoto_sivashinsky": (lambda: load_problem("examples/kuramoto_sivashinsky.py"), 5),
    "channel": (lambda: load_problem("examples/channel.py"), 4),
    "quasilinear": (Quasilinear, 4),
    "switched": (Switched, 4),
    "apart": (Apart, 4),
    "layered": (Layered, 4),
    "pair": (Pair, 6),
    "mixed": (Mixed, 5),
    "bent": (Bent, 4),
}


@pytest.mark.parametrize("name", COLLAPSE)
def test_only_what_is_needed_is_computed(name):
    """Highest derivatives that an equation contains linearly share a stream: Burgers takes u, u_x and u_t - nu u_xx."""
    make, expected = COLLAPSE[name]
    assert stream_count(make()) == expected


@pytest.mark.parametrize("name", COLLAPSE)
def test_collapsed_streams_change_nothing(name):
    """Residuals and their gradient against the formula with a separate stream for each derivative."""
    problem = COLLAPSE[name][0]()
    network = make(problem, Architecture("param-fnn", 6, 2), jax.random.key(0), jnp.float64)
    x, theta = (
        jnp.asarray(box.sample(8, jax.random.key(i))) for i, box in enumerate((problem.coordinates, problem.parameters))
    )

    def ask(d, x, theta):
        given = dict(zip(problem.axes, (*x, *theta), strict=True))
        return call_by_name(problem.residual, "residual", given | placed(problem, given), d)

    names = requested(lambda d: ask(d, x[0], theta[0]), lambda name: name)

    def plainly(network, x, theta):
        d = cl.named_derivatives(problem, network, x, theta, names)
        residual = ask(Derivatives(d.__getitem__), x, theta)
        return residual if isinstance(residual, dict) else {"residual": residual}

    def evaluate(network, residuals_at):
        residuals = jax.vmap(lambda a, b: residuals_at(network, a, b))(x, theta)
        return sum(jnp.sum(value**2) for value in residuals.values()), residuals

    both = [lambda *given: cl.residuals(problem, *given), plainly]
    ours, theirs = (jax.jit(jax.grad(lambda n, f=f: evaluate(n, f), has_aux=True))(network) for f in both)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert np.allclose(a, b, rtol=1e-12, atol=1e-12 * np.max(np.abs(b), initial=0))


def test_rules_of_an_operator():
    """Its stream is the sum of the streams it stands for, through products, functions and a hard transform."""
    tops = {(3, 0): 0.7, (1, 1): -1.3, (0, 2): 0.0}
    operator = jets.Operator({index: jnp.array(c) for index, c in tops.items()})
    full = closure(tops)
    collapsed = (full - set(tops)) | {operator}

    def jet(keep):
        x, y = (jets.variable(jnp.array(v), i, keep) for i, v in enumerate((0.3, 0.8)))
        inner = jets.tanh(x * y + 2.0 * x + jets.constant(0.1, keep)) * jets.log(y) * x
        return jets.compose(lambda a, b: {"c": jnp.sin(a * b) + 2}, {"a": inner, "b": y}, keep)["c"]

    expected, streams = jet(full).streams, jet(collapsed).streams
    assert set(streams) == collapsed
    assert np.isclose(streams[operator], sum(c * expected[index] for index, c in tops.items()), rtol=1e-12)
    assert all(np.isclose(streams[index], expected[index], rtol=1e-12) for index in full - set(tops))


def test_a_collapsed_condition_and_reference():
    """Conditions and references use operators too: a slope across a wall, and the residual of the reference."""

    class Wave(cl.Problem):
        coordinates = cl.Box(x=(-1, 1), t=(0, 1))
        parameters = cl.Box(a=(1, 3))
        conditions = (cl.Condition("slope", lambda d, a: d.u_x + a * d.u_t, on=cl.boundary("x"), points=4),)

        def residual(self, d, a):
            return d.u_tt - a**2 * d.u_xx + 0.5

        def reference(self, x, t, a):
            return {"u": jnp.sin(x + a * t) - t**2 / 4}

    x, t, a = 0.3, 0.4, 1.5
    point = jnp.array([x, t]), jnp.array([a])
    assert np.isclose(cl.residuals(Wave(), None, *point)["residual"], 0, atol=1e-14)
    slope = cl.condition_residuals(Wave(), Wave.conditions[0], None, *point)["slope"]
    assert np.isclose(slope, (1 + a**2) * math.cos(x + a * t) - a * t / 2, rtol=1e-13)


def test_affine_inputs_have_no_second_stream():
    keep = closure([(2,)])
    feature = cl.Axis(-3, 5).features(jets.variable(jnp.array(1.0), 0, keep))[0]
    assert set(feature.streams) == {(0,), (1,)}
    assert np.isclose(feature.value, 0.0) and np.isclose(feature.streams[(1,)], 0.25)


def test_periodic_feature_is_exact():
    problem = Everything()
    network = make(problem, Architecture("fnn", 4, 1), jax.random.key(3), jnp.float64)
    theta = jnp.array([0.1, 1.5])
    names = ["u", "u_phi", "u_phiphi"]
    low, high, middle = (
        cl.named_derivatives(problem, network, jnp.array([0.1, phi, 1.0]), theta, names) for phi in (0.0, 2.0, 0.7)
    )
    for name in names:
        assert np.isclose(low[name], high[name], rtol=1e-10, atol=1e-12) and not np.isclose(low[name], middle[name])


def test_works_under_jit_vmap_and_grad():
    problem = cl.problems.Burgers()
    network = make(problem, Architecture("fnn", 5, 2), jax.random.key(0), jnp.float64)
    x = jnp.asarray(problem.coordinates.sample(8, jax.random.key(1)))
    theta = jnp.array([0.1])

    def loss(network):
        return jnp.sum(jax.vmap(lambda p: cl.residuals(problem, network, p, theta)["residual"])(x) ** 2)

    def loss_nested(network):
        def residual(p):
            q = jnp.concatenate([p, theta])
            u, u_x, u_xx, u_t = (nested(problem, network, n)(q) for n in ("u", "u_x", "u_xx", "u_t"))
            return u_t + u * u_x - theta[0] / jnp.pi * u_xx

        return jnp.sum(jax.vmap(residual)(x) ** 2)

    ours, theirs = jax.jit(jax.grad(loss))(network), jax.jit(jax.grad(loss_nested))(network)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert np.allclose(a, b, rtol=1e-9, atol=1e-12)


def test_names():
    outputs, axes = ("u", "u_1", "temperature"), ("x", "y", "x1", "t")
    assert parse_name("u", outputs, axes) == ("u", (0, 0, 0, 0))
    assert parse_name("u_xxy", outputs, axes) == ("u", (2, 1, 0, 0))
    assert parse_name("temperature_x1t", outputs, axes) == ("temperature", (0, 0, 1, 1))
    assert parse_name("u_x_t", outputs, axes) == ("u", (1, 0, 0, 1))
    assert parse_name("u_1_x", outputs, axes) == ("u_1", (1, 0, 0, 0))
    with pytest.raises(cl.ProblemError, match="not an output.*u, u_1, temperature"):
        parse_name("w_x", outputs, axes)
    with pytest.raises(cl.ProblemError, match="along 'z'.*axes are x, y, x1, t"):
        parse_name("u_z", outputs, axes)
    with pytest.raises(cl.ProblemError, match="2 ways"):
        parse_name("u_xx", ("u",), ("x", "xx"))


def test_a_jet_without_streams_is_a_constant():
    keep = closure([(1,)])
    jet = jets.tanh(jets.constant(0.5, keep))
    assert isinstance(jet, Jet) and set(jet.streams) == {(0,)}
