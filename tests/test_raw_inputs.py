"""Networks whose first layer sees coordinates and parameters as they are (network.inputs=raw)."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from running import natural_for, same, settings_for
from small import Decay

import clpinn as cl
from clpinn.errors import SettingsError
from clpinn.networks.architecture import Architecture
from clpinn.networks.make import make
from clpinn.problems import load_problem
from clpinn.runs.run import run

KEY = jax.random.key(3)
RAW = "network.inputs=raw"


class Every(cl.Problem):
    """Axes of every scale among the coordinates and the parameters."""

    coordinates = cl.Box(x=(1, 4), y=cl.periodic(0, 3), z=cl.log(0.1, 10))
    parameters = cl.Box(a=cl.log(0.01, 10), b=(-3, 2), angle=cl.periodic(0, 360))
    outputs = ("u", "v")

    def residual(self, d):
        return d.u_xx + d.v_y


def networks(kind):
    """A network with raw inputs, and one of the same weights that is given its inputs."""
    raw, scaled = (
        make(Every(), Architecture(kind, 6, 3, inputs=inputs), KEY, jnp.float64) for inputs in ("raw", "scaled")
    )
    assert eqx.tree_equal(jax.tree.leaves(raw), jax.tree.leaves(scaled))
    return raw, scaled


def plain(network, x, y, z, a, b, angle):
    """The raw-input network as its description says, without anything of clpinn before the first layer."""
    y, angle = jnp.pi * (2 * y / 3 - 1), jnp.pi * (2 * angle / 360 - 1)
    coordinates = jnp.stack([x, jnp.sin(y), jnp.cos(y), z])
    return network(coordinates, jnp.stack([a, b, jnp.sin(angle), jnp.cos(angle)]))


POINT = {"x": 2.3, "y": 0.7, "z": 1.9, "a": 0.05, "b": -1.4, "angle": 100.0}


@pytest.mark.parametrize("kind", ["fnn", "quadratic", "param-fnn", "p2inn", "standard"])
def test_the_first_layer_sees_values_as_they_are(kind):
    with jax.enable_x64(True):
        raw, scaled = networks(kind)
        values = np.array(list(POINT.values()))
        found = cl.values(Every(), raw, jnp.asarray(values[:3]), jnp.asarray(values[3:]))
        expected = plain(scaled, *values)
        assert np.allclose([found["u"], found["v"]], expected, rtol=1e-12)
        other = cl.values(Every(), scaled, jnp.asarray(values[:3]), jnp.asarray(values[3:]))
        assert not np.allclose([other["u"], other["v"]], expected, rtol=1e-3)


@pytest.mark.parametrize("kind", ["fnn", "quadratic", "param-fnn", "p2inn"])
def test_derivatives_by_name_are_those_of_jax(kind):
    with jax.enable_x64(True):
        raw, scaled = networks(kind)
        values = [jnp.asarray(value) for value in POINT.values()]
        names = {"u_x": "x", "u_xx": "xx", "v_yz": "yz", "u_zz": "zz", "v_a": "a", "u_xb": "xb", "u_aa": "aa"}
        found = cl.named_derivatives(Every(), raw, jnp.stack(values[:3]), jnp.stack(values[3:]), [*names, "v_angle"])
        for name, along in (*names.items(), ("v_angle", ["angle"])):

            def derivative(*values, name=name):
                return plain(scaled, *values)["uv".index(name[0])]

            for axis in along:
                derivative = jax.grad(derivative, argnums=list(POINT).index(axis))
            assert found[name] == pytest.approx(float(derivative(*values)), rel=1e-10)


def test_surrogates_with_raw_inputs_are_saved_and_loaded(tmp_path):
    problem = cl.problems.AllenCahn()
    point = {"x": 0.3, "t": 0.5, "nu": 0.02, "rho": 4.0}
    for inputs in ("raw", "scaled"):
        network = make(problem, Architecture("fnn", 6, 2, inputs=inputs), KEY)
        surrogate = cl.Surrogate(problem, network)
        surrogate.save(tmp_path / f"{inputs}.clpinn")
        loaded = cl.load(tmp_path / f"{inputs}.clpinn")
        assert loaded.network.architecture.inputs == inputs and eqx.tree_equal(loaded.network, network)
        assert loaded(**point)["u"] == surrogate(**point)["u"]


@pytest.mark.slow
def test_runs_with_raw_inputs_are_resumed_bit_for_bit(tmp_path):
    run(Decay(), settings_for("acr2", RAW), tmp_path / "whole")
    run(Decay(), dataclasses.replace(settings_for("acr2", RAW), steps=17), tmp_path / "parts")
    result = run(Decay(), dataclasses.replace(settings_for("acr2", RAW), steps=10**6), tmp_path / "parts", resume=True)
    assert result.network.architecture.inputs == "raw" and result.network.axes is not None
    same(tmp_path / "whole", tmp_path / "parts")
    run(Decay(), settings_for("acr2"), tmp_path / "scaled")
    scaled = cl.load(tmp_path / "scaled", Decay()).network
    assert not np.array_equal(scaled.output.weight, result.network.output.weight)


def test_natural_runs_adaptations_and_corrections_take_raw_inputs(tmp_path):
    result = run(Decay(), natural_for("free", "steps=40", RAW), tmp_path)
    assert result.metrics["outputs"]["u"]["rel_l2_macro"] < 0.2
    adapted = result.surrogate.adapt(k=1.1)
    assert adapted.heads is not None and cl.load(tmp_path, Decay()).network.architecture.inputs == "raw"
    corrected = result.surrogate.correct(k=1.1)
    before, after = (cl.evaluate(Decay(), s, [[1.1]]).outputs["u"].rel_l2[0] for s in (result.surrogate, corrected))
    assert after < 0.1 * before


@pytest.mark.parametrize("kind", ["hyperpinn", "metapinn"])
def test_networks_that_are_generated_have_scaled_inputs(kind):
    with pytest.raises(SettingsError, match=f"but {kind} makes its weights from scaled parameters"):
        make(load_problem("burgers"), Architecture(kind, 6, 2, inputs="raw"), KEY)
