import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clpinn as cl
from clpinn.networks import FNN, KINDS, Linear, ParamFNN, QuadraticFNN, build, count, matching_width, trainable
from clpinn.problems import BENCHMARKS

KEY = jax.random.key(0)


def test_exact_counts():
    assert count(FNN(2, 0, 1, 50, 4, KEY)) == 7851
    schaffer = cl.problems.Schaffer()
    sizes = {(3, 30): 3871, (4, 27): 3916, (2, 35): 3956}
    for (depth, width), size in sizes.items():
        assert count(build(ParamFNN, schaffer, width, depth, KEY)) == size
    assert count(build(FNN, cl.problems.PoissonBoltzmann(), 30, 5, KEY)) == 6 * 30 + 30 + 4 * 930 + 31


def test_amplitudes_multiply_outputs_and_are_not_trained():
    network = FNN(2, 1, 2, 5, 2, KEY)
    c, p = jnp.array([0.3, -0.2]), jnp.array([0.5])
    large = eqx.tree_at(lambda n: n.output.amplitude, network, jnp.array([1.0, 1e4]))
    np.testing.assert_allclose(large(c, p), network(c, p) * np.array([1, 1e4]), rtol=1e-6)
    gradient = jax.grad(lambda n: jnp.sum(n(c, p) ** 2))(large)
    assert np.all(gradient.output.amplitude == 0) and np.all(gradient.output.weight != 0)
    assert trainable(large).output.amplitude is False and trainable(large).output.weight is True
    assert count(large) == 3 * 5 + 5 + 5 * 5 + 5 + 5 * 2 + 2


def test_matching_width():
    target = count(FNN(2, 1, 1, 30, 4, KEY))
    width = matching_width(target, lambda w: ParamFNN(2, 1, 1, w, 4, KEY))
    misses = [abs(count(ParamFNN(2, 1, 1, w, 4, KEY)) - target) for w in (width - 1, width, width + 1)]
    assert misses[1] == min(misses)
    with pytest.raises(cl.ProblemError):
        matching_width(0, lambda w: FNN(1, 0, 1, w, 1, KEY))


@pytest.mark.parametrize("kind", KINDS.values())
@pytest.mark.parametrize("name", BENCHMARKS)
def test_contract(kind, name):
    """Shapes, precision, shared features, and dependence on coordinates, parameters and key."""
    problem = BENCHMARKS[name]()
    network = build(kind, problem, 6, 3, KEY)
    c = jnp.linspace(-0.5, 0.5, problem.coordinates.feature_count)
    p = jnp.linspace(-0.3, 0.7, problem.parameters.feature_count)
    found = network(c, p)
    assert found.shape == (len(problem.outputs),) and found.dtype == jnp.float32
    shared = network.shared(c, p)
    assert shared.shape == (6,)
    assert np.allclose(network.output(shared), found)
    assert not np.allclose(network(c + 0.1, p), found) and not np.allclose(network(c, p + 0.1), found)
    assert not np.allclose(build(kind, problem, 6, 3, jax.random.key(1))(c, p), found)
    same = build(kind, problem, 6, 3, KEY)
    assert np.array_equal(same(c, p), found)


def test_precision_follows_the_network_not_the_session():
    problem = cl.problems.Burgers()
    network = build(FNN, problem, 6, 2, KEY)
    with jax.enable_x64(True):
        x, theta = jnp.array([0.1, 0.2], jnp.float32), jnp.array([0.1], jnp.float32)
        assert cl.residuals(problem, network, x, theta)["residual"].dtype == jnp.float32


def test_layers_of_the_quadratic_network_are_what_its_formula_says():
    network = QuadraticFNN(2, 1, 1, 5, 2, KEY)
    assert count(network) == 3 * 10 + 10 + 5 * 10 + 10 + 5 + 1
    network = eqx.tree_at(lambda n: n.hidden[1].bias, network, jnp.linspace(-1, 1, 10))
    h = jnp.array([0.3, -0.2, 0.5])
    for layer in network.hidden:
        z, gate = jnp.split(h @ layer.weight + layer.bias, 2)
        h = jnp.tanh(z * (1 + gate))
    np.testing.assert_allclose(network.shared(jnp.array([0.3, -0.2]), jnp.array([0.5])), h, rtol=1e-6)


def test_parameter_branch_is_a_subtree():
    network = ParamFNN(2, 3, 1, 5, 2, KEY)
    assert count(network.parameter_branch) == 3 * 5 + 5


def test_glorot():
    layer = Linear(300, 200, KEY, jnp.float32)
    limit = np.sqrt(6 / 500)
    assert np.abs(layer.weight).max() <= limit
    assert np.isclose(np.std(layer.weight), limit / np.sqrt(3), rtol=0.01)
    assert np.all(layer.bias == 0)
