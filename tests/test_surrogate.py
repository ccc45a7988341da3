"""Surrogates: calls by name, heads at single thetas, and the file."""

import dataclasses
import json
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import Decay

import clpinn as cl
from clpinn.adapt import Heads
from clpinn.cli import _thetas
from clpinn.networks import FNN, KINDS, build, precision
from clpinn.settings import override
from clpinn.surrogate import SurrogateError

KEY = jax.random.key(0)


def made(problem: cl.Problem, dtype=jnp.float32, kind=FNN) -> cl.Surrogate:
    with jax.enable_x64(dtype == jnp.float64):
        return cl.Surrogate(problem, build(kind, problem, 6, 2, KEY, dtype), record={"tasks": [], "steps": 3})


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
    found = surrogate(x=x, t=t, nu=0.01, rho=4)
    assert set(found) == {"u"} and found["u"].shape == (7, 2)
    with jax.enable_x64(dtype == jnp.float64):
        point, theta = jnp.array([x[3, 0], 0.9], dtype), jnp.array([0.01, 4.0], dtype)
        alone = cl.values(problem, surrogate.network, point, theta)["u"]
        slope = cl.named_derivatives(problem, surrogate.network, point, theta, ["u_xnu"])["u_xnu"]
    rtol = 1e-4 if dtype == jnp.float32 else 1e-12
    assert np.isclose(found["u"][3, 1], alone, rtol=rtol)
    assert np.isclose(surrogate.derivative("u_xnu", x=x[3, 0], t=0.9, nu=0.01, rho=4), slope, rtol=rtol)
    assert np.ndim(surrogate(x=0.0, t=0.5, nu=0.01, rho=4)["u"]) == 0
    assert surrogate(x=np.zeros((0, 3)), t=0.5, nu=0.01, rho=4)["u"].shape == (0, 3)


def test_more_points_than_a_chunk(monkeypatch):
    surrogate = made(cl.problems.Burgers())
    x = np.linspace(-1, 1, 11)
    whole = surrogate(x=x, t=0.5, nu=0.1)["u"]
    monkeypatch.setattr("clpinn.surrogate.CHUNK", 4)
    assert np.allclose(surrogate(x=x, t=0.5, nu=0.1)["u"], whole, rtol=1e-5)


def test_coordinates_are_the_physical_ones():
    from clpinn.problems import load_problem

    problem = load_problem("examples/channel.py:Channel")
    surrogate = made(problem, jnp.float64)
    theta = problem.candidates.points[3]
    box = problem.coordinates.sample(5, KEY)
    with jax.enable_x64(True):
        expected = [cl.values(problem, surrogate.network, jnp.asarray(x), jnp.asarray(theta)) for x in box]
        named = [dict(zip(problem.axes, (*x, *theta), strict=True)) for x in box]
        physical = [cl.problem.placed(problem, point) for point in named]
    thetas = dict(zip(problem.parameters, theta, strict=True))
    for point, values in zip(physical, expected, strict=True):
        found = surrogate(**{name: float(point[name]) for name in problem.coordinates}, **thetas)
        for name, value in values.items():
            assert np.isclose(found[name], value, rtol=1e-9)


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
    with pytest.warns(cl.OutsideBoxWarning, match="nu is 2"):
        made(cl.problems.Burgers())(x=0.1, t=0.2, nu=2.0)


def test_heads_answer_at_their_thetas_and_nowhere_else():
    surrogate = made(Decay())
    thetas = np.array([[1.0], [1.5], [2.0]])
    headed = with_heads(surrogate, thetas, [True, False, True])
    k = np.array([0.7, 1.0, 1.5, 2.0, 1.0])
    base, found = surrogate(x=0.5, t=0.5, k=k)["u"], headed(x=0.5, t=0.5, k=k)["u"]
    assert np.allclose(found - base, [0, 1, 0, 3, 1], atol=1e-5)
    errors = [cl.evaluate(Decay(), one, thetas=thetas).outputs["u"].rel_l2 for one in (surrogate, headed)]
    assert errors[0][1] == errors[1][1] and (errors[0] != errors[1])[[0, 2]].all()


def test_a_new_head_takes_the_place_of_an_old_one():
    heads = with_heads(made(Decay()), np.array([[1.0], [2.0]]), [True, True]).heads
    other = dataclasses.replace(heads, thetas=np.array([[2.0], [1.5]]), loss_after=np.array([0.5, 0.5]))
    joined = heads.joined(other)
    assert joined.thetas.tolist() == [[1.0], [2.0], [1.5]] and joined.loss_after.tolist() == [0, 0.5, 0.5]
    assert joined.heads.output.bias.ravel().tolist() == [1, 1, 2]


@pytest.mark.parametrize("kind", KINDS.values())
def test_files_bring_back_the_same_surrogate(tmp_path, kind):
    path, dtype = tmp_path / "model.clpinn", jnp.float64 if kind is FNN else jnp.float32
    surrogate = with_heads(made(cl.problems.Burgers(), dtype, kind), np.array([[0.1], [0.2]]), [True, False])
    surrogate.save(path)
    loaded = cl.load(path)
    assert type(loaded.network) is kind and loaded.record == {"tasks": [], "steps": 3}
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


def test_a_problem_of_ones_own_is_asked_for(tmp_path):
    path = tmp_path / "model.clpinn"
    made(Decay()).save(path)
    with pytest.raises(SurrogateError, match=r"of your own, Decay.*problem=Decay\(\)"):
        cl.load(path)
    assert isinstance(cl.load(path, Decay()).problem, Decay)

    class Wider(Decay):
        parameters = cl.Box(k=(0.1, 5.0))

    with pytest.raises(SurrogateError, match="another problem"):
        cl.load(path, Wider())


def rewritten(path, **changes) -> None:
    """The file with another description, and a checksum that is right."""
    about, _ = cl.checkpoint.read(path)
    tree = {"network": cl.load(path).network, "heads": None}
    cl.checkpoint.write(path, tree, about | changes)


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
    cl.checkpoint.save(tmp_path, 3, {"a": np.zeros(2)}, {})
    with pytest.raises(SurrogateError, match="a checkpoint"):
        cl.load(tmp_path / "step-0000000003.checkpoint")


def test_training_gives_a_surrogate():
    """With nothing said about a directory, nothing is left behind."""
    surrogate = cl.train(Decay(), steps=2, seed=1)
    assert surrogate.record["steps"] == 2 and surrogate.record["settings"]["seed"] == 1
    assert np.isfinite(surrogate(x=0.5, t=0.5, k=1.0)["u"])


def test_adapting_a_run(tmp_path):
    """A soft condition counts, the base stays as it was, and heads go into one file; the command does the same."""
    size = ["network.width=20", "network.depth=2", "natural.rows=64", "steps=10"]
    settings = override(cl.natural(Decay()), size)
    surrogate = cl.run(Decay(), settings, tmp_path / "run", name="tests/small.py:Decay").surrogate
    before = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(surrogate.network)]
    sharper = surrogate.adapt(k=1.9)
    assert sharper.heads is not None and surrogate.heads is None
    assert [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(sharper.network)] == before
    t = np.linspace(0, 1, 20)
    errors = [np.abs(one(x=0.5, t=t, k=1.9)["u"] - np.exp(-1.9 * t)).max() for one in (surrogate, sharper)]
    assert sharper.heads.used[0] and errors[1] < 0.5 * errors[0]
    assert np.array_equal(sharper(x=0.5, t=t, k=1.2)["u"], surrogate(x=0.5, t=t, k=1.2)["u"])
    sharper.save(tmp_path / "sharper.clpinn")
    loaded = cl.load(tmp_path / "sharper.clpinn", Decay())
    assert np.array_equal(loaded(x=0.5, t=t, k=1.9)["u"], sharper(x=0.5, t=t, k=1.9)["u"])
    with pytest.raises(cl.DomainError, match="No value for 'k'"):
        surrogate.adapt()
    with pytest.raises(cl.DomainError, match="outside"):
        surrogate.adapt(k=100.0)

    command = [sys.executable, "-m", "clpinn", "adapt", str(tmp_path / "run")]
    done = subprocess.run([*command, "k=1.9,0.6", "--json"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert [row["k"] for row in found["thetas"]] == [1.9, 0.6]
    assert found["thetas"][0]["used"]
    for row in found["thetas"]:
        better = row["rel_l2_after"]["u"] < row["rel_l2_before"]["u"]
        assert better == row["used"] and ("is used" if better else "the base stays") in row["reason"]
    assert cl.load(found["file"], Decay()).heads.thetas.tolist() == [[1.9], [0.6]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "--unseen" in done.stderr


def test_thetas_from_words():
    problem = cl.problems.AllenCahn()
    assert _thetas(problem, ["rho=4", "nu=0.01,0.02"]).tolist() == [[0.01, 4], [0.02, 4]]
    for words, message in (
        (["nu"], "name=value"),
        (["nu=a", "rho=4"], "name=value"),
        (["nu=0.1"], "No value for 'rho'"),
        (["nu=0.1", "rho=3", "k=1"], "Unknown axis 'k'"),
        (["nu=0.1,0.2", "rho=3,4,5"], "2 of nu, 3 of rho"),
    ):
        with pytest.raises(cl.ClpinnError, match=message):
            _thetas(problem, words)
