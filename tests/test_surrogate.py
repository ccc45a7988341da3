"""Surrogates: calls by name, heads at single thetas, and the file."""

import dataclasses
import hashlib
import json
import random
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import Decay, Inflow
from typer.testing import CliRunner

import clpinn as cl
from clpinn.cli.app import app, main
from clpinn.errors import SurrogateError
from clpinn.formulation.geometry import placed
from clpinn.formulation.thetas import parse_thetas
from clpinn.formulation.validation import validate
from clpinn.networks.architecture import Architecture, precision
from clpinn.networks.make import KINDS, make
from clpinn.problems import load_problem
from clpinn.surrogate.adaptations import Heads
from clpinn.surrogate.trust import NOTE, Trust
from clpinn.training import checkpoint
from clpinn.training.settings import override

KEY = jax.random.key(0)


def made(problem: cl.Problem, dtype=jnp.float32, kind="fnn") -> cl.Surrogate:
    with jax.enable_x64(dtype == jnp.float64):
        return cl.Surrogate(
            problem, make(problem, Architecture(kind, 6, 2), KEY, dtype), record={"tasks": [], "steps": 3}
        )


def with_heads(surrogate: cl.Surrogate, thetas: np.ndarray, used: list[bool]) -> cl.Surrogate:
    """Heads whose output is 1, 2, 3, ... for all inputs."""
    dtype = precision(surrogate.network)
    with jax.enable_x64(dtype == jnp.float64):
        blank = jax.tree.map(np.asarray, Heads.blank(surrogate.problem, surrogate.network, "head", len(thetas)))
    biases = np.arange(1, len(thetas) + 1)[:, None] * np.ones(len(surrogate.problem.outputs), dtype)
    heads = eqx.tree_at(
        lambda h: (h.thetas, h.heads.output.bias, h.heads.output.amplitude, h.loss_before, h.error_before),
        blank,
        (thetas, biases.astype(dtype), np.ones(biases.shape, dtype), np.ones(len(thetas)), np.array(used, float)),
    )
    return dataclasses.replace(surrogate, heads=heads)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_calls_broadcast_and_are_those_of_the_network(dtype):
    problem = cl.problems.AllenCahn()
    surrogate = made(problem, dtype)
    x, t = np.linspace(-1, 1, 7)[:, None], np.array([0.1, 0.9])
    outputs = surrogate(x=x, t=t, nu=0.01, rho=4)
    assert set(outputs) == {"u"} and outputs["u"].shape == (7, 2)
    with jax.enable_x64(dtype == jnp.float64):
        point, theta = jnp.array([x[3, 0], 0.9], dtype), jnp.array([0.01, 4.0], dtype)
        alone = cl.values(problem, surrogate.network, point, theta)["u"]
        slope = cl.named_derivatives(problem, surrogate.network, point, theta, ["u_xnu"])["u_xnu"]
    rtol = 1e-4 if dtype == jnp.float32 else 1e-12
    assert np.isclose(outputs["u"][3, 1], alone, rtol=rtol)
    assert np.isclose(surrogate.derivative("u_xnu", x=x[3, 0], t=0.9, nu=0.01, rho=4), slope, rtol=rtol)
    assert np.ndim(surrogate(x=0.0, t=0.5, nu=0.01, rho=4)["u"]) == 0
    assert surrogate(x=np.zeros((0, 3)), t=0.5, nu=0.01, rho=4)["u"].shape == (0, 3)


def test_more_points_than_a_chunk(monkeypatch):
    surrogate = made(cl.problems.Burgers())
    x = np.linspace(-1, 1, 11)
    whole = surrogate(x=x, t=0.5, nu=0.1)["u"]
    monkeypatch.setattr("clpinn.surrogate.answers.CHUNK", 4)
    assert np.allclose(surrogate(x=x, t=0.5, nu=0.1)["u"], whole, rtol=1e-5)


def test_millions_of_points_take_little_more_memory_than_their_answer(monkeypatch):
    """Columns that broadcast are never spread out as a whole."""
    surrogate, seen = made(cl.problems.Burgers()), []
    monkeypatch.setattr("clpinn.surrogate.answers.BLOCK", 1000)

    def answer(problem, network, derivatives, points, thetas):
        seen.append(len(points))
        return {"u": points[:, 0] + 10 * points[:, 1] + 100 * thetas[:, 0]}

    monkeypatch.setattr("clpinn.surrogate.answers._evaluated", answer)
    x, t, nu = np.linspace(-1, 1, 40)[:, None, None], np.linspace(0, 1, 60)[:, None], np.array([0.1, 0.2])
    assert np.allclose(surrogate(x=x, t=t, nu=nu)["u"], x + 10 * t + 100 * nu)
    assert seen == [1000] * 4 + [800]


def test_coordinates_are_the_physical_ones():
    problem = load_problem("examples/channel.py:Channel")
    surrogate = made(problem, jnp.float64)
    theta = problem.candidates.points[3]
    box = problem.coordinates.sample(5, KEY)
    with jax.enable_x64(True):
        expected = [cl.values(problem, surrogate.network, jnp.asarray(x), jnp.asarray(theta)) for x in box]
        named = [dict(zip(problem.axes, (*x, *theta), strict=True)) for x in box]
        physical = [placed(problem, point) for point in named]
    thetas = dict(zip(problem.parameters, theta, strict=True))
    for point, values in zip(physical, expected, strict=True):
        answers = surrogate(**{name: float(point[name]) for name in problem.coordinates}, **thetas)
        for name, value in values.items():
            assert np.isclose(answers[name], value, rtol=1e-9)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"x": 0.1, "t": 0.2}, "each of x, t, nu, but nu is missing"),
        ({"x": 0.1, "t": 0.2, "mu": 1}, "nu is missing and there is no mu"),
        ({"x": [0.1, 0.2], "t": [1, 2, 3], "nu": 0.1}, r"broadcast, but came as x \(2,\), t \(3,\)"),
        ({"x": "left", "t": 0.2, "nu": 0.1}, "must be numbers"),
        ({"x": np.nan, "t": 0.2, "nu": 0.1}, "x is nan, outside"),
    ],
)
def test_bad_calls_are_told(named, message):
    with pytest.raises(cl.DomainError, match=message):
        made(cl.problems.Burgers())(**named)


def test_outside_the_box_is_warned_of():
    surrogate = made(cl.problems.Burgers())
    for ask in (lambda: surrogate(x=0.1, t=0.2, nu=2.0), lambda: surrogate.field(3, nu=2.0)):
        with pytest.warns(cl.OutsideBoxWarning, match="nu is 2") as warned:
            ask()
        assert warned[0].filename == __file__  # the line that asked


def test_outside_the_domain_is_warned_of_once_however_many_points(monkeypatch):
    monkeypatch.setattr("clpinn.surrogate.answers.BLOCK", 10)
    with pytest.warns(cl.OutsideBoxWarning, match=r"t is 0 to 3, outside its box \[0, 1\]") as warned:
        made(cl.problems.Burgers())(x=0.1, t=np.linspace(0, 3, 40), nu=0.5)
    assert len(warned) == 1
    channel = made(load_problem("examples/channel.py:Channel"))
    with pytest.warns(cl.OutsideBoxWarning, match="y = 2.07692 is outside the domain at height = 2") as warned:
        channel(x=0.5, y=np.linspace(0, 3, 40), height=2.0, viscosity=1.0)
    assert len(warned) == 1


# A JAX function ----------------------------------------------------------------------------------------------


def test_the_function_is_the_surrogate_and_can_be_differentiated():
    surrogate = made(cl.problems.AllenCahn(), jnp.float64)
    function, at = surrogate.function(), {"x": np.linspace(-1, 1, 5)[:, None], "t": [0.1, 0.9], "rho": 4.0}
    with jax.enable_x64(True):
        u = jax.jit(function)(**at, nu=0.01)["u"]
        slopes = jax.vmap(jax.grad(lambda nu, x: function(x=x, t=0.9, nu=nu, rho=4.0)["u"]), (None, 0))
        by_nu = slopes(0.01, jnp.linspace(-1, 1, 5))
        named = surrogate.function("u_nu", "u_xx")(**at, nu=0.01)
    assert u.dtype == jnp.float64 and np.allclose(u, surrogate(**at, nu=0.01)["u"], rtol=1e-12)
    expected = surrogate.derivative("u_nu", **at, nu=0.01)
    assert np.allclose(by_nu, expected[:, 1], rtol=1e-10) and np.allclose(named["u_nu"], expected, rtol=1e-12)
    assert np.allclose(named["u_xx"], surrogate.derivative("u_xx", **at, nu=0.01), rtol=1e-12)


def test_the_function_is_single_where_x64_is_off():
    surrogate = made(cl.problems.Burgers(), jnp.float64)
    function = surrogate.function()
    u, slope = jax.value_and_grad(lambda nu: function(x=0.3, t=0.5, nu=nu)["u"])(0.1)
    assert u.dtype == slope.dtype == jnp.float32
    assert np.isclose(u, surrogate(x=0.3, t=0.5, nu=0.1)["u"], rtol=1e-5)
    with pytest.raises(cl.DomainError, match="nu is missing"):
        function(x=0.3, t=0.5)


def test_the_function_has_the_heads_and_takes_physical_coordinates():
    headed = with_heads(made(Decay()), np.array([[1.1], [1.5]]), [True, False])
    at = {"x": 0.5, "t": 0.5, "k": np.array([1.1, 1.5, 1.7])}
    assert np.allclose(headed.function()(**at)["u"], headed(**at)["u"], atol=1e-6)
    channel = made(load_problem("examples/channel.py:Channel"), jnp.float64)
    at = {"x": 0.3, "y": 0.9, "height": 1.4, "viscosity": 0.7}
    with jax.enable_x64(True):
        assert np.isclose(channel.function()(**at)["u"], channel(**at)["u"], rtol=1e-10)
        slope = jax.grad(lambda height: channel.function()(**at | {"height": height})["u"])(1.4)
    assert np.isclose(slope, channel.derivative("u_height", **at), rtol=1e-8)


# Fields ------------------------------------------------------------------------------------------------------


class Rod(cl.Problem):
    """Heat in a rod."""

    coordinates = cl.Box(x=(0, 2), t=(0, 1))
    parameters = cl.Box(k=(0.5, 2.0))
    units = {"x": "m", "t": "s", "u": "K", "k": "m2 s-1"}

    def residual(self, d, k):
        return d.u_t - k * d.u_xx


def test_fields_are_labelled():
    surrogate = made(Rod())
    field = surrogate.field({"x": 7}, k=[0.5, 1.0])
    assert dict(field.sizes) == {"k": 2, "x": 7, "t": 100} and field["u"].dims == ("k", "x", "t")
    at = {"x": field["x"].values[3], "t": field["t"].values[50], "k": 1.0}
    assert float(field["u"].sel(k=1.0).isel(x=3, t=50)) == pytest.approx(float(surrogate(**at)["u"]), rel=1e-5)
    assert {name: field[name].attrs["units"] for name in ("x", "t", "u", "k")} == Rod.units
    assert field.attrs["problem"] == "Rod" and field.attrs["steps"] == 3 and len(field.attrs["weights_sha256"]) == 64
    line = surrogate.field(5, k=1.0, t=0.5)
    assert line["u"].dims == ("x",) and line.sizes["x"] == 5 and float(line["t"]) == 0.5


def test_fields_of_a_moved_geometry_have_physical_coordinates():
    channel = made(load_problem("examples/channel.py:Channel"), jnp.float64)
    field = channel.field(6, height=[1.0, 2.0], viscosity=1.0)
    assert field["u"].dims == ("height", "box_x", "box_y") and field["y"].dims == field["u"].dims
    assert np.allclose(field["y"].sel(height=2.0).isel(box_x=0), np.linspace(0, 2, 6))
    again = channel(x=field["x"].values, y=field["y"].values, height=field["height"].values[:, None, None], viscosity=1)
    assert np.allclose(field["u"], again["u"], rtol=1e-9)


@pytest.mark.parametrize(
    ("arguments", "given", "message"),
    [
        ((), {}, "each of nu, but nu is missing"),
        ((), {"nu": 0.1, "y": 3}, "there is no y"),
        ((), {"nu": [[0.1]]}, r"row of values of nu, but got the shape \(1, 1\)"),
        ((), {"nu": "thick"}, "must be a number"),
        (({"z": 3},), {"nu": 0.1}, "Unknown axis 'z'"),
        ((0,), {"nu": 0.1}, "at least one value"),
    ],
)
def test_bad_fields_are_told(arguments, given, message):
    with pytest.raises(cl.DomainError, match=message):
        made(cl.problems.Burgers()).field(*arguments, **given)


def test_a_unit_of_nothing_is_told():
    class Wrong(Rod):
        units = {"y": "m"}

    with pytest.raises(cl.ProblemError, match="units names y"):
        validate(Wrong())


# Trust -------------------------------------------------------------------------------------------------------


def test_trust_is_the_relative_residual():
    """A network that is zero, put into u_t + k u + u_x = 0, u(0) = 1: nothing is left but the start."""
    surrogate = made(Decay(), jnp.float64)
    network = jax.tree.map(jnp.zeros_like, surrogate.network)
    trust = dataclasses.replace(surrogate, network=network).trust(k=1.2)
    assert isinstance(trust, Trust) and trust.norms["residual"] == 0 and trust.norms["start"] == pytest.approx(1)
    assert trust.norm == pytest.approx(1) and trust.rank == 0 and len(trust.trained) == 0
    assert "Residual norm 1.0e+00 at k = 1.2; over the box the median is 1.0e+00" in str(trust)
    assert str(trust).endswith(NOTE) and json.dumps(trust.summary())


def test_trust_is_relative_to_the_terms_at_that_theta():
    """However small they are beside those elsewhere in the box."""

    class Faint(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        parameters = cl.Box(A=cl.log(1e-8, 1.0))

        def constrain(self, raw, x, A):
            return A * x * (2 + 0 * raw)

        def residual(self, d, A):
            return d.u_x - A

    surrogate = made(Faint(), jnp.float64)
    assert [surrogate.trust(A=A).norm for A in (1.0, 1e-3, 1e-8)] == pytest.approx([1 / 3] * 3)  # 2 A - A beside 3 A


def test_trust_knows_heads_and_trained_thetas():
    surrogate = dataclasses.replace(made(Decay()), record={"tasks": [[0.5], [1.0]]})
    headed = with_heads(surrogate, np.array([[1.0]]), [True])
    assert headed.trust(k=1.0).norm != surrogate.trust(k=1.0).norm
    assert headed.trust(k=1.5).norm == surrogate.trust(k=1.5).norm
    trust = surrogate.trust(k=1.0)
    assert len(trust.trained) == 2 and trust.trained[1] == trust.norm and "at the trained thetas" in str(trust)


def test_trust_over_the_box_is_a_map():
    surrogate, seen = made(Decay()), []
    norms = surrogate.trust_map(lambda *reported: seen.append(reported))
    assert norms["norm"].dims == ("k",) and np.array_equal(norms["k"], Decay.candidates.values["k"])
    assert float(norms["norm"].sel(k=1.5)) == pytest.approx(surrogate.trust(k=1.5).norm)
    assert set(norms) == {"norm", "norm_residual", "norm_start"} and norms.attrs["comment"] == NOTE
    assert seen[-1] == ("residuals", 7, 7)
    assert surrogate.trust_map(k=[0.7, 1.1])["norm"].shape == (2,)
    with pytest.warns(cl.OutsideBoxWarning, match="k is 9"):
        surrogate.trust(k=9.0)


def test_trust_is_of_one_theta():
    surrogate = made(Decay())
    for theta, message in (({}, "each of k, but got none"), ({"k": [0.7, 1.1]}, r"but got k = \[0.7, 1.1\]")):
        with pytest.raises(cl.DomainError, match=f"{message}. For a map over many thetas use trust_map"):
            surrogate.trust(**theta)
    with pytest.raises(cl.DomainError, match="Unknown axis 'mu'"):
        surrogate.trust(mu=1.0)
    with pytest.raises(cl.DomainError, match="Unknown axis 'mu'"):
        surrogate.trust_map(mu=[1.0])


def test_a_problem_without_parameters_has_one_theta():
    class Single(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        parameters = cl.Box()

        def residual(self, d):
            return d.u_x - d.u

    surrogate = made(Single())
    trust = surrogate.trust()
    assert isinstance(trust, Trust) and trust.theta == {} and " at " not in str(trust).split(";")[0]
    assert float(surrogate.trust_map()["norm"]) == pytest.approx(trust.norm)


def test_unseen_are_the_candidates_that_were_never_trained():
    surrogate = dataclasses.replace(made(Decay()), record={"tasks": [[0.5], [1.1], [2.0]]})
    assert surrogate.unseen().ravel().tolist() == [0.75, 1.0, 1.25, 1.5, 1.75]  # as in files of before
    dropped = dataclasses.replace(surrogate, record=surrogate.record | {"displaced": [[1.0], [1.75]]})
    assert dropped.unseen().ravel().tolist() == [0.75, 1.25, 1.5]
    chosen = dropped.unseen(2).ravel().tolist()
    assert chosen == sorted(chosen) and len(chosen) == 2 and set(chosen) < {0.75, 1.25, 1.5}
    every = dataclasses.replace(surrogate, record={"tasks": [], "displaced": Decay.candidates.points.tolist()})
    with pytest.raises(cl.DomainError, match="Every candidate was trained"):
        every.unseen()


# Heads and files ---------------------------------------------------------------------------------------------


def test_heads_answer_at_their_thetas_and_nowhere_else():
    surrogate = made(Decay())
    thetas = np.array([[1.0], [1.5], [2.0]])
    headed = with_heads(surrogate, thetas, [True, False, True])
    k = np.array([0.7, 1.0, 1.5, 2.0, 1.0])
    base, headed_u = surrogate(x=0.5, t=0.5, k=k)["u"], headed(x=0.5, t=0.5, k=k)["u"]
    assert np.allclose(headed_u - base, [0, 1, 0, 3, 1], atol=1e-5)
    errors = [cl.evaluate(Decay(), asked, thetas=thetas).outputs["u"].rel_l2 for asked in (surrogate, headed)]
    assert errors[0][1] == errors[1][1] and (errors[0] != errors[1])[[0, 2]].all()


def test_a_new_head_takes_the_place_of_an_old_one():
    heads = with_heads(made(Decay()), np.array([[1.0], [2.0]]), [True, True]).heads
    other = dataclasses.replace(heads, thetas=np.array([[2.0], [1.5]]), loss_after=np.array([0.5, 0.5]))
    joined = heads.joined(other)
    assert joined.thetas.tolist() == [[1.0], [2.0], [1.5]] and joined.loss_after.tolist() == [0, 0.5, 0.5]
    assert joined.heads.output.bias.ravel().tolist() == [1, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_files_bring_back_the_same_surrogate(tmp_path, kind):
    path, dtype = tmp_path / "model.clpinn", jnp.float64 if kind == "fnn" else jnp.float32
    surrogate = with_heads(made(cl.problems.Burgers(), dtype, kind), np.array([[0.1], [0.2]]), [True, False])
    surrogate.save(path)
    loaded = cl.load(path)
    assert (
        type(loaded.network) is KINDS[kind]
        and loaded.network.architecture == surrogate.network.architecture
        and loaded.record == {"tasks": [], "steps": 3}
    )
    nu = np.array([0.1, 0.2, 0.3])
    assert np.array_equal(loaded(x=0.3, t=0.5, nu=nu)["u"], surrogate(x=0.3, t=0.5, nu=nu)["u"])
    for a, b in zip(jax.tree.leaves(loaded.heads), jax.tree.leaves(surrogate.heads), strict=True):
        assert np.array_equal(a, b) and np.asarray(a).dtype == np.asarray(b).dtype


def test_a_fresh_process_needs_no_more_than_the_file(tmp_path):
    surrogate = made(cl.problems.Burgers(hard=False))
    surrogate.save(tmp_path / "model.clpinn")
    code = "import clpinn as cl; s = cl.load('model.clpinn'); print(s.problem.hard, s(x=0.3, t=0.5, nu=0.1)['u'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    hard, value = done.stdout.split()
    assert hard == "False" and float(value) == pytest.approx(float(surrogate(x=0.3, t=0.5, nu=0.1)["u"]), rel=1e-6)


def test_a_run_directory_is_loaded_as_its_model(tmp_path):
    surrogate = made(cl.problems.Burgers())
    with pytest.raises(SurrogateError, match="There is no model.clpinn in .* the directory of a run that has ended"):
        cl.load(tmp_path)
    surrogate.save(tmp_path / "model.clpinn")
    assert cl.load(str(tmp_path)).digest == surrogate.digest
    made(Decay()).save(tmp_path / "model.clpinn")
    assert isinstance(cl.load(tmp_path, problem=Decay()).problem, Decay)


def test_a_problem_of_ones_own_is_asked_for(tmp_path):
    path = tmp_path / "model.clpinn"
    made(Decay()).save(path)
    with pytest.raises(SurrogateError, match=r"of your own, Decay.*problem=Decay\(\)"):
        cl.load(path)
    assert isinstance(cl.load(path, Decay()).problem, Decay)
    with pytest.raises(cl.ProblemError, match="Expected an instance of clpinn.Problem, but got the class Decay"):
        cl.load(path, Decay)

    class Wider(Decay):
        parameters = cl.Box(k=(0.1, 5.0))

    with pytest.raises(SurrogateError, match="another problem"):
        cl.load(path, Wider())


def rewritten(path, **changes) -> None:
    """The file with another description, and a checksum that is right."""
    header, _ = checkpoint.read(path)
    tree = {"network": cl.load(path).network, "heads": None}
    checkpoint.write(path, tree, header | changes)


def test_files_that_hold_no_surrogate_are_refused(tmp_path):
    path = tmp_path / "model.clpinn"
    made(cl.problems.Burgers()).save(path)
    good = path.read_bytes()
    with pytest.raises(SurrogateError, match="no file"):
        cl.load(tmp_path / "other")
    for content, message in ((b"", "begin"), (b"PK\3\4" + good, "begin"), (good[:-1], "checksum")):
        path.write_bytes(content)
        with pytest.raises(SurrogateError, match=message):
            cl.load(path)
    for changes, message in (
        ({"surrogate": 2, "clpinn": "9.0"}, "surrogate of clpinn 9.0, which this version"),
        ({"network": {"kind": "fnn", "width": 7, "depth": 2}}, "other shapes"),
        ({"network": {"kind": "rnn", "width": 7, "depth": 2}}, "rnn"),
        ({"network": {"kind": "fnn", "width": 6, "depth": 3}}, "another structure"),
        ({"network": []}, "no sense"),
        ({"description": {"options": {"soft": 1}}}, "no sense"),
        ({"heads": 2, "way": "head"}, "another structure"),
        ({"record": 3}, "no sense"),
    ):
        path.write_bytes(good)
        rewritten(path, **changes)
        with pytest.raises(cl.ClpinnError, match=message):
            cl.load(path)
    checkpoint.save(tmp_path, 3, {"a": np.zeros(2)}, {})
    with pytest.raises(SurrogateError, match="a checkpoint"):
        cl.load(tmp_path / "step-0000000003.checkpoint")


def damaged(good: bytes, numbers: random.Random) -> bytes:
    """A file with some bytes changed, left out, put in, cut off or said twice."""
    content = bytearray(good)
    for _ in range(numbers.choice([1, 1, 3, 20])):
        start = numbers.randrange(len(content) + 1)
        end = start + numbers.choice([1, 4, 100])
        noise = numbers.randbytes(numbers.choice([1, 8, 200]))
        match numbers.randrange(5):
            case 0:
                content[start : start + len(noise)] = noise
            case 1:
                del content[start:end]
            case 2:
                content[start:start] = noise
            case 3:
                del content[start + 1 :]
            case 4:
                content += content[start:end]
    return bytes(content)


def test_a_thousand_damaged_files_are_refused(tmp_path):
    """Without a crash, without running anything, and without memory that only a header asks for."""
    path, numbers, ran = tmp_path / "model.clpinn", random.Random(0), []
    made(cl.problems.Burgers()).save(path)
    good, loaded = path.read_bytes(), 0
    dangerous = ("pickle.find_class", "marshal.loads", "os.system", "subprocess.Popen", "socket.connect")
    sys.addaudithook(lambda event, _: ran.append(event) if event in dangerous and loaded >= 0 else None)
    for i in range(1000):
        content = damaged(good, numbers)
        if i % 10 == 0:  # a forger makes the checksum right again
            header = 16 + int.from_bytes(good[8:16], "little")
            text = damaged(good[16:header], numbers)
            body = good[:8] + len(text).to_bytes(8, "little") + text + good[header:-32]
            content = body + hashlib.sha256(body).digest()
        if content == good:
            continue
        path.write_bytes(content)
        try:
            cl.load(path)
        except cl.ClpinnError:
            continue
        loaded += 1
        assert i % 10 == 0, f"damaged file {i} was read"
    assert loaded <= 10 and not ran, (loaded, ran)
    loaded = -1


def test_training_gives_a_surrogate():
    """With nothing said about a directory, nothing is left behind."""
    surrogate = cl.train(Decay(), steps=2, seed=1)
    assert surrogate.record["steps"] == 2 and surrogate.record["settings"]["seed"] == 1
    assert np.isfinite(surrogate(x=0.5, t=0.5, k=1.0)["u"])


@pytest.mark.slow
def test_adapting_a_run(tmp_path, monkeypatch, capsys):
    """A soft condition counts, the base stays as it was, and heads go into one file; the command does the same."""
    size = ["network.width=20", "network.depth=2", "natural.rows=64", "steps=10"]
    settings = override(cl.natural(Inflow()), size)
    surrogate = cl.run(Inflow(), settings, tmp_path / "run", name="tests/small.py:Inflow").surrogate
    before = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(surrogate.network)]
    sharper = surrogate.adapt(k=0.6)
    assert sharper.heads is not None and surrogate.heads is None
    assert [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(sharper.network)] == before
    t = np.linspace(0, 1, 20)
    errors = [np.abs(asked(x=0.5, t=t, k=0.6)["u"] - np.exp(-0.6 * t)).max() for asked in (surrogate, sharper)]
    assert sharper.heads.used[0] and errors[1] < 0.5 * errors[0]
    assert np.array_equal(sharper(x=0.5, t=t, k=1.2)["u"], surrogate(x=0.5, t=t, k=1.2)["u"])
    sharper.save(tmp_path / "sharper.clpinn")
    loaded = cl.load(tmp_path / "sharper.clpinn", Inflow())
    assert np.array_equal(loaded(x=0.5, t=t, k=0.6)["u"], sharper(x=0.5, t=t, k=0.6)["u"])
    with pytest.raises(cl.DomainError, match="No value for 'k'"):
        surrogate.adapt()
    with pytest.raises(cl.DomainError, match="outside"):
        surrogate.adapt(k=100.0)

    command = ["adapt", str(tmp_path / "run")]
    done = CliRunner().invoke(app, [*command, "k=0.6,1.9", "--json"], catch_exceptions=False)
    report = json.loads(done.stdout)
    assert [row["k"] for row in report["thetas"]] == [0.6, 1.9]
    assert report["thetas"][0]["used"]
    for row in report["thetas"]:
        better = row["rel_l2_after"]["u"] < row["rel_l2_before"]["u"]
        assert better == row["used"] and ("is used" if better else "the base stays") in row["reason"]
    assert cl.load(report["file"], Inflow()).heads.thetas.tolist() == [[0.6], [1.9]]
    monkeypatch.setattr(sys, "argv", ["clpinn", *command])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1 and "--unseen" in capsys.readouterr().err

    # Adam as in the paper, then L-BFGS: the command does what Python does.
    words = "--way head --optimizer adam --steps 8 --width 6 --rate 0.01 --precision single --lbfgs 4 --always"
    done = CliRunner().invoke(app, [*command, "k=0.6", *words.split(), "--seed", "3", "--json"], catch_exceptions=False)
    (row,) = json.loads(done.stdout)["thetas"]
    assert row["used"] and 8 < row["steps"] <= 12
    options = {"steps": 8, "width": 6, "rate": 0.01, "precision": "single", "lbfgs": 4, "always": True}
    same = surrogate.adapt(3, cl.AdaptSettings(optimizer="adam", **options), k=0.6)
    loaded = cl.load(json.loads(done.stdout)["file"], Inflow())
    assert loaded.digest == same.digest and (loaded.heads.width, loaded.heads.always) == (6, True)


@pytest.fixture(scope="module")
def untrained_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("untrained") / "run"
    settings = override(cl.natural(Decay()), ["network.width=4", "natural.rows=16", "steps=1", "correct=false"])
    cl.run(Decay(), settings, folder, name="tests/small.py:Decay")
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--width 25", "A correction trains nothing, but got --width. Add --way head"),
        ("--optimizer adam --always", "got --optimizer, --always"),
        ("--way head --lbfgs 100", "lbfgs is an option of adam, but optimizer is lm"),
        ("--way full --width 25 --optimizer adam", "width is that of a head, but way is full"),
        ("--way half", "one of head, full, svd, target, but got 'half'"),
        ("--box --steps 5", "A correction trains nothing, but got --steps"),
    ],
)
def test_options_of_an_adaptation_that_make_no_sense_together(words, message, untrained_run):
    with pytest.raises(cl.ClpinnError, match=message):
        CliRunner().invoke(app, ["adapt", str(untrained_run), "k=0.6", *words.split()], catch_exceptions=False)


def test_thetas_from_words():
    problem = cl.problems.AllenCahn()
    assert parse_thetas(problem.parameters, ["rho=4", "nu=0.01,0.02"]).tolist() == [[0.01, 4], [0.02, 4]]
    for words, message in (
        (["nu"], "name=number"),
        (["nu=a", "rho=4"], "name=number"),
        (["nu=0.1"], "No value for 'rho'"),
        (["nu=0.1", "rho=3", "k=1"], "Unknown axis 'k'"),
        (["nu=0.1,0.2", "rho=3,4,5"], "2 of nu, 3 of rho"),
    ):
        with pytest.raises(cl.ClpinnError, match=message):
            parse_thetas(problem.parameters, words)
