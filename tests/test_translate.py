"""Programs in JavaScript and ONNX give what JAX does, primitive by primitive and for whole surrogates."""

import builtins
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jax import lax

import clpinn as cl
from clpinn.errors import TranslationError
from clpinn.exports.translate.javascript import EXPRESSIONS, javascript
from clpinn.exports.translate.onnx import NODES, onnx_model, printed
from clpinn.exports.translate.program import PRIMITIVES
from clpinn.exports.translate.tracing import program_of, trace
from clpinn.formulation.geometry import box_names, placed
from clpinn.networks.architecture import Architecture
from clpinn.networks.make import make
from clpinn.problems import load_problem


# x in [-2, 2], y in [-1, 1], p in [0.1, 3]: a scalar of each.
def rows(places):
    return jnp.take(jnp.arange(8.0).reshape(4, 2), places, axis=0, mode="clip")


FUNCTIONS = {
    "arithmetic": lambda x, y, p: -x + y * p - x / p + 2 * y - 1,
    "rem": lambda x, y, p: lax.rem(x, p) + x % p,
    "powers": lambda x, y, p: x**2 + x**3 + p**-1 + x**5 + p**-2 + p**x + jnp.square(y) + lax.rsqrt(p) + jnp.exp2(x),
    "abs sign": lambda x, y, p: jnp.abs(x) + 3 * jnp.sign(y),
    "exp": lambda x, y, p: jnp.exp(x) + jnp.expm1(1e-3 * x) * 1e3,
    "log": lambda x, y, p: jnp.log(p) + jnp.log1p(1e-3 * x) * 1e3,
    "tanh": lambda x, y, p: jnp.tanh(3 * x),
    "trigonometric": lambda x, y, p: jnp.sin(3 * x) + jnp.cos(5 * y) + jnp.tan(y),
    "hyperbolic": lambda x, y, p: jnp.sinh(x) + jnp.cosh(y),
    "inverses": lambda x, y, p: jnp.arcsin(y) + jnp.arccos(y) * 2 + jnp.arctan(x) + jnp.arcsinh(x) + jnp.arctanh(y / 2),
    "acosh": lambda x, y, p: jnp.arccosh(1 + p),
    "atan2": lambda x, y, p: jnp.arctan2(y, x),
    "roots": lambda x, y, p: jnp.sqrt(p) + jnp.cbrt(x),
    "extremes": lambda x, y, p: jnp.maximum(x, y) + 2 * jnp.minimum(x, p) + jnp.clip(x, -1, 0.5),
    "rounding": lambda x, y, p: jnp.floor(x) + 10 * jnp.ceil(y) + 100 * jnp.round(x) + 1000 * lax.round(2 * y),
    "erf": lambda x, y, p: jax.scipy.special.erf(x) + 2 * jax.scipy.special.erfc(2 * y),
    "logistic": lambda x, y, p: jax.nn.sigmoid(4 * x) + jax.nn.softplus(y) + jax.nn.gelu(x) + jax.nn.silu(y),
    "finite": lambda x, y, p: jnp.where(jnp.isfinite(x), x, 0),
    "comparisons": lambda x, y, p: (x < y) + 2 * (x <= p) + 4 * (y > 0) + 8 * (x >= 1) + 16 * (x == y) + 32 * (x != p),
    "logic": lambda x, y, p: jnp.where((x > 0) & (y > 0) | ~(p > 1) ^ (x > y), x, jnp.where(y > 0, 2.0, p)),
    "integers": lambda x, y, p: jnp.floor_divide(x, p) + (10 * x).astype(int) + (10 * x).astype(int) // 3,
    "select of three": lambda x, y, p: lax.select_n((2 * p).astype(int) % 3, x, y, p),
    "constant choice": lambda x, y, p: jnp.sum(jnp.where(jnp.array([True, False]), jnp.stack([x, y]), p)),
    "vectors": lambda x, y, p: jnp.dot(jnp.array([x, y]), jnp.array([y, p])) + jnp.linalg.norm(jnp.array([x, y, p])),
    "matrices": lambda x, y, p: (jnp.array([[x, y], [p, 1.0]]) @ jnp.array([[p, 2], [y, x]]).T)[0, 1],
    "constant matrix": lambda x, y, p: jnp.einsum("ij,jk->k", jnp.array([[1.0, 2, 3]]), jnp.array([[x], [y], [p]]))[0],
    "moves": lambda x, y, p: jnp.sum(jnp.flip(jnp.pad(jnp.tile(jnp.array([x, y]), 2), 1))[::2] * jnp.arange(3.0)),
    "index": lambda x, y, p: jnp.array([x, y, p])[jnp.array([2, 0])].sum() + jnp.roll(jnp.array([x, y]), 1)[0],
    "set": lambda x, y, p: jnp.zeros(4).at[1].set(x)[1] + lax.dynamic_slice(jnp.array([x, y, p]), (1,), (1,))[0],
    "reductions": lambda x, y, p: jnp.max(jnp.stack([x, y])) + jnp.prod(jnp.array([x, p])) + jnp.mean(jnp.array([p])),
    "truths": lambda x, y, p: jnp.all(jnp.array([x, y]) > 0) + 2.0 * jnp.any(jnp.array([x, y]) > 0.5),
    "softmax": lambda x, y, p: jax.nn.softmax(jnp.array([x, y, p]))[1],
    "polynomial": lambda x, y, p: jnp.polyval(jnp.array([1.0, -2.0, 0.5]), x),
    "loop": lambda x, y, p: lax.fori_loop(0, 4, lambda i, s: s * x + i * y, p),
    "scan": lambda x, y, p: lax.scan(lambda s, a: (s + a, s * a), x, jnp.array([1.0, 2.0]) * y)[1].sum(),
    "cond": lambda x, y, p: lax.cond(x > 0, lambda: jnp.sin(y), lambda: p),
    "switch": lambda x, y, p: lax.switch((p).astype(int), [lambda: x, lambda: y, lambda: -x]),
    "jit": lambda x, y, p: jax.jit(lambda a: jax.checkpoint(jnp.sin)(a) * 2)(x),
    "no gradient": lambda x, y, p: lax.stop_gradient(x) + x.astype(jnp.float32).astype(x.dtype) * 0,
    "parameters only": lambda x, y, p: jnp.sin(p) * 2,
    "a constant": lambda x, y, p: jnp.sin(1.0) + 0 * lax.stop_gradient(1.0),
    "an input": lambda x, y, p: y,
    "iota": lambda x, y, p: jnp.sum(jnp.arange(5) * x),
    "look up": lambda x, y, p: jnp.take(jnp.array([1.0, 3.0, 2.0]), (2 * x + 1).astype(int), mode="clip"),
    "rows": lambda x, y, p: rows((x + 1.5 + jnp.arange(2)).astype(int)) @ jnp.array([y, 1.0]) @ jnp.array([1.0, x]),
    "rows by parameter": lambda x, y, p: rows(p.astype(int))[1] * x,
    "rows of parameters": lambda x, y, p: jnp.take(jnp.outer(jnp.arange(4.0), jnp.array([p, p**2])),
                                                   (x + 1.5 + jnp.arange(3)).astype(int), axis=0, mode="clip").sum(),
}  # fmt: skip


def program(functions):
    def point(x, theta):
        return {name: jnp.asarray(f(x[0], x[1], theta[0]), x.dtype) for name, f in functions.items()}

    return point, trace(point, ("x", "y"), ("p",), jnp.float64)


@pytest.fixture(scope="module")
def page(chromium):
    page = chromium.new_page()
    yield page
    page.close()


def in_page(page, program, x, theta) -> dict[str, np.ndarray]:
    outputs = f"Object.entries({javascript(program)}(x, theta))"
    found = page.evaluate(
        f"([x, theta]) => {outputs}.map(([name, values]) => [name, [...values].map(String)])",
        [x.ravel().tolist(), theta.tolist()],
    )
    return {name: np.array([float(value) for value in row]) for name, row in found}


def in_onnx(model, named) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    rows = max(np.size(value) for value in named.values())
    feed = {name: np.broadcast_to(value, rows).astype(np.float32) for name, value in named.items()}
    return dict(zip(names, session.run(None, feed)))


def test_both_printers_know_every_primitive():
    assert set(EXPRESSIONS) == set(NODES) == PRIMITIVES


def test_every_primitive_is_that_of_jax(page):
    point, made = program(FUNCTIONS)
    rng = np.random.default_rng(0)
    x, theta = rng.uniform([-2, -1], [2, 1], (70, 2)), np.array([1.3])
    with jax.enable_x64(True):
        exact = jax.jit(jax.vmap(point, (0, None)))(jnp.asarray(x), jnp.asarray(theta))
    scripted = in_page(page, made, x, theta)
    graph = in_onnx(printed(made, "Test", {}), {"x": x[:, 0], "y": x[:, 1], "p": theta})
    assert list(scripted) == list(FUNCTIONS) and len(graph) == len(FUNCTIONS)
    for name, value in exact.items():
        assert np.allclose(scripted[name], value, rtol=1e-6, atol=1e-12), name
        assert np.allclose(graph[name.replace(" ", "_")], value, rtol=2e-5, atol=2e-5), name


@given(st.floats(-30, 30), st.floats(-5, 5))
@example(3.5 / 32, 0.0)  # halfway between entries of the table
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_our_own_functions_are_exact(page, x, y):
    _, made = program({"tanh": lambda x, y, p: jnp.tanh(x), "erf": lambda x, y, p: jax.scipy.special.erf(y)})
    found = in_page(page, made, np.array([[x, y]]), np.array([1.0]))
    with jax.enable_x64(True):
        assert np.isclose(found["tanh"][0], np.tanh(x), rtol=0, atol=1e-14)
        assert np.isclose(found["erf"][0], jax.scipy.special.erf(jnp.float64(y)), rtol=0, atol=1e-13)


def test_what_is_not_a_number_stays_one(page):
    _, made = program(
        {"log": lambda x, y, p: jnp.log(x), "tanh": lambda x, y, p: jnp.tanh(x / y), "inf": lambda x, y, p: x / y}
    )
    found = in_page(page, made, np.array([[-1.0, 0.0], [0.0, 0.0]]), np.array([1.0]))
    assert np.isnan(found["log"][0]) and found["tanh"][0] == -1 and np.isnan(found["tanh"][1])
    assert found["inf"][0] == -np.inf


@pytest.mark.parametrize(
    "function, named",
    [
        (lambda x, y, p: jnp.sort(jnp.array([x, y]))[0], "'sort'"),
        (lambda x, y, p: lax.while_loop(lambda s: s < 1, lambda s: s + p, x), "'while'"),
        (lambda x, y, p: lax.scan(lambda s, _: (s * x, None), y, None, 5000)[0], "'scan'"),
        (lambda x, y, p: lax.lgamma(p), "'lgamma'"),
        (lambda x, y, p: jnp.array([1.0, 2.0])[(x > 0).astype(int)], "depends on the inputs"),
        (lambda x, y, p: jnp.take(jnp.array([[1.0, 2.0]]), (x > 0).astype(int), axis=1, mode="clip")[0], "axis=0"),
        (lambda x, y, p: jnp.abs(jnp.exp(1j * x)), "complex"),
        (lambda x, y, p: jnp.linalg.inv(jnp.array([[x, y], [p, x]]))[0, 0], "'lu'"),
        (lambda x, y, p: (x.astype(int) & 3).astype(float), "integers"),
    ],
)
def test_what_is_not_supported_is_named(function, named):
    with pytest.raises(TranslationError, match=f"{re.escape(named)}.*cannot be translated.*docs/explorer.md"):
        program({"u": function})


def test_what_nobody_needs_may_be_anything():
    _, made = program({"u": lambda x, y, p: (jnp.sort(jnp.array([x, y])), x + y)[1]})
    assert len(made.operations) == 1


class Wall(cl.Problem):
    """Two outputs, three coordinates with a log and a periodic axis, and a transform with a choice in it."""

    coordinates = cl.Box(x=(-1, 2), y=cl.periodic(0, 3), z=cl.log(0.1, 10))
    parameters = cl.Box(a=cl.log(0.1, 10), b=(0, 1))
    outputs = ("v", "u")

    def residual(self, d):
        return d.u_x + d.v_y

    def constrain(self, raw, x, z, a):
        return {"u": jnp.where(x > 0, x * raw["u"], jnp.sin(a * x)), "v": jnp.log(z) + raw["v"] * jnp.exp(-a * x**2)}


class Still(cl.Problem):
    """One coordinate, no parameters, no transform."""

    coordinates = cl.Box(x=(0, 1))

    def residual(self, d):
        return d.u_x


CHANNEL = load_problem("examples/channel.py")
CASES = [(cl.problems.AllenCahn(), "fnn"), (Still(), "fnn"), (CHANNEL, "param-fnn"), (Wall(), "param-fnn")]


@pytest.mark.parametrize(
    "problem, kind, inputs",
    [
        *((*case, "scaled") for case in [*CASES, (Wall(), "quadratic")]),
        (Wall(), "quadratic", "raw"),
        (cl.problems.AllenCahn(), "fnn", "raw"),
    ],
    ids=lambda p: p if isinstance(p, str) else type(p).__name__,
)
def test_surrogates_are_translated(problem, kind, inputs, page):
    dtype = jnp.float64 if kind == "quadratic" else jnp.float32
    with jax.enable_x64(dtype == jnp.float64):
        network = make(problem, Architecture(kind, 10, 2, inputs=inputs), jax.random.key(1), dtype)
        surrogate = cl.Surrogate(problem, eqx.tree_at(lambda n: n.output.bias, network, replace_fn=lambda b: b + 0.3))
    x = problem.coordinates.sample(40, jax.random.key(2), "uniform")
    theta = problem.parameters.sample(1, jax.random.key(3), "uniform")[0]
    named = dict(zip(problem.axes, (*x.T, *theta)))
    exact = surrogate(**named | placed(problem, named))
    scripted = in_page(page, program_of(surrogate), x, theta)
    graph = in_onnx(onnx_model(surrogate), {box_names(problem).get(name, name): named[name] for name in named})
    for name in problem.outputs:
        assert np.allclose(scripted[name], exact[name], rtol=1e-5, atol=1e-6)
        assert np.allclose(graph[name], exact[name], rtol=1e-5, atol=1e-5)
    if problem.place:
        assert np.allclose(scripted["physical y"], x[:, 1] * theta[0])
        assert np.allclose(graph["physical_y"], x[:, 1] * theta[0])


def test_a_model_says_what_it_is():
    problem = cl.problems.Burgers()
    model = onnx_model(cl.Surrogate(problem, make(problem, Architecture("fnn", 5, 2), jax.random.key(0))))
    about = {entry.key: entry.value for entry in model.metadata_props}
    assert about["problem"] == "Burgers" and about["clpinn"] == cl.__version__ and about["heads_left_out"] == "0"
    assert about["parameters"] == '{"nu": [0.01, 1.0, "log"]}'
    assert [value.name for value in model.graph.input] == ["x", "t", "nu"]


def test_without_onnx_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def missing(name, *rest):
        if name == "onnx":
            raise ImportError
        return real(name, *rest)

    surrogate = cl.Surrogate(Still(), make(Still(), Architecture("fnn", 5, 2), jax.random.key(0)))
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(cl.ClpinnError, match=r"clpinn\[export\]"):
        onnx_model(surrogate)
