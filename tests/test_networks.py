import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clpinn as cl
from clpinn.networks.architecture import Architecture, Dimensions, count, matching_width, trainable
from clpinn.networks.fnn import FNN, ParamFNN, QuadraticFNN
from clpinn.networks.hyperpinn import HyperPINN
from clpinn.networks.layers import Linear
from clpinn.networks.make import KINDS, make
from clpinn.networks.metapinn import MetaPINN
from clpinn.networks.p2inn import P2INN
from clpinn.networks.standard import StandardPINN
from clpinn.presets import paper
from clpinn.problems import BENCHMARKS, load_problem
from clpinn.protocol import RIVALS

KEY = jax.random.key(0)


def test_exact_counts():
    assert count(FNN(Architecture("fnn", 50, 4), Dimensions(2, 0, 1), KEY)) == 7851
    schaffer = cl.problems.Schaffer()
    sizes = {(3, 30): 3871, (4, 27): 3916, (2, 35): 3956}
    for (depth, width), size in sizes.items():
        assert count(make(schaffer, Architecture("param-fnn", width, depth), KEY)) == size
    assert count(make(cl.problems.PoissonBoltzmann(), Architecture("fnn", 30, 5), KEY)) == 6 * 30 + 30 + 4 * 930 + 31


def test_amplitudes_multiply_outputs_and_are_not_trained():
    network = FNN(Architecture("fnn", 5, 2), Dimensions(2, 1, 2), KEY)
    c, p = jnp.array([0.3, -0.2]), jnp.array([0.5])
    large = eqx.tree_at(lambda n: n.output.amplitude, network, jnp.array([1.0, 1e4]))
    np.testing.assert_allclose(large(c, p), network(c, p) * np.array([1, 1e4]), rtol=1e-6)
    gradient = jax.grad(lambda n: jnp.sum(n(c, p) ** 2))(large)
    assert np.all(gradient.output.amplitude == 0) and np.all(gradient.output.weight != 0)
    assert trainable(large).output.amplitude is False and trainable(large).output.weight is True
    assert count(large) == 3 * 5 + 5 + 5 * 5 + 5 + 5 * 2 + 2


def test_matching_width():
    target = count(FNN(Architecture("fnn", 30, 4), Dimensions(2, 1, 1), KEY))
    width = matching_width(target, lambda w: ParamFNN(Architecture("param-fnn", w, 4), Dimensions(2, 1, 1), KEY))
    misses = [
        abs(count(ParamFNN(Architecture("param-fnn", w, 4), Dimensions(2, 1, 1), KEY)) - target)
        for w in (width - 1, width, width + 1)
    ]
    assert misses[1] == min(misses)
    with pytest.raises(cl.ProblemError):
        matching_width(0, lambda w: FNN(Architecture("fnn", w, 1), Dimensions(1, 0, 1), KEY))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BENCHMARKS)
def test_contract(kind, name):
    """Shapes, precision, shared features, and dependence on coordinates, parameters and key."""
    problem = BENCHMARKS[name]()
    network = make(problem, Architecture(kind, 6, 3), KEY)
    c = jnp.linspace(-0.5, 0.5, problem.coordinates.feature_count)
    p = jnp.linspace(-0.3, 0.7, problem.parameters.feature_count)
    outputs = network(c, p)
    assert outputs.shape == (len(problem.outputs),) and outputs.dtype == jnp.float32
    shared = network.shared(c, p)
    assert shared.shape == (6,)
    if hasattr(network, "output"):
        assert np.allclose(network.output(shared), outputs)
    assert not np.allclose(network(c + 0.1, p), outputs)
    # A standard PINN knows no theta, a fresh Meta-PINN has not seen any.
    assert np.allclose(network(c, p + 0.1), outputs) == (kind in ("standard", "metapinn"))
    assert (network.architecture.kind, network.architecture.width, network.architecture.depth) == (kind, 6, 3)
    assert eqx.tree_equal(make(problem, network.architecture, KEY), network)
    assert not np.allclose(make(problem, Architecture(kind, 6, 3), jax.random.key(1))(c, p), outputs)


def test_precision_follows_the_network_not_the_session():
    problem = cl.problems.Burgers()
    network = make(problem, Architecture("fnn", 6, 2), KEY)
    with jax.enable_x64(True):
        x, theta = jnp.array([0.1, 0.2], jnp.float32), jnp.array([0.1], jnp.float32)
        assert cl.residuals(problem, network, x, theta)["residual"].dtype == jnp.float32


def test_layers_of_the_quadratic_network_are_what_its_formula_says():
    network = QuadraticFNN(Architecture("quadratic", 5, 2), Dimensions(2, 1, 1), KEY)
    assert count(network) == 3 * 10 + 10 + 5 * 10 + 10 + 5 + 1
    network = eqx.tree_at(lambda n: n.hidden[1].bias, network, jnp.linspace(-1, 1, 10))
    h = jnp.array([0.3, -0.2, 0.5])
    for layer in network.hidden:
        z, gate = jnp.split(h @ layer.weight + layer.bias, 2)
        h = jnp.tanh(z * (1 + gate))
    np.testing.assert_allclose(network.shared(jnp.array([0.3, -0.2]), jnp.array([0.5])), h, rtol=1e-6)


def test_parameter_branch_is_a_subtree():
    network = ParamFNN(Architecture("param-fnn", 5, 2), Dimensions(2, 3, 1), KEY)
    assert count(network.parameter_branch) == 3 * 5 + 5


def test_glorot():
    layer = Linear(300, 200, KEY, jnp.float32)
    limit = np.sqrt(6 / 500)
    assert np.abs(layer.weight).max() <= limit
    assert np.isclose(np.std(layer.weight), limit / np.sqrt(3), rtol=0.01)
    assert np.all(layer.bias == 0)


# Rivals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "p2inn", "hyper", "generated", "standard"),
    [
        ("burgers", 7913, 40, 151, 7851),
        ("allen_cahn", 7982, 40, 151, 7851),
        ("kovasznay", 7961, 38, 165, 7953),
        ("poisson_boltzmann", 4081, 4, 781, 3841),
    ],
)
def test_rivals_have_the_sizes_of_the_paper(name: str, p2inn: int, hyper: int, generated: int, standard: int):
    problem = load_problem(name, paper=True)
    networks = {method: make(problem, paper(problem, method).network, KEY) for method in RIVALS}
    assert count(networks["p2inn"]) == p2inn and count(networks["standard"]) == standard
    hypernetwork = networks["hyperpinn"]
    assert hypernetwork.hidden[0].bias.shape == hypernetwork.hidden[1].bias.shape == (hyper,)
    p = jnp.zeros(problem.parameters.feature_count)
    assert count(hypernetwork.target(p)) == hypernetwork.weights.bias.size == generated
    fnn = count(make(problem, paper(problem, "uni").network, KEY))
    assert abs(count(hypernetwork) / fnn - 1) < 0.0041 and abs(p2inn / fnn - 1) < 0.0304
    assert networks["metapinn"].mean.size == standard


def test_what_a_hypernetwork_gives_is_the_target_network():
    network = HyperPINN(Architecture("hyperpinn", 5, 3, hyper=7), Dimensions(2, 3, 2), KEY)
    c, p = jnp.array([0.3, -0.2]), jnp.array([0.5, -0.1, 0.9])
    target = network.target(p)
    np.testing.assert_allclose(target(c, p), network(c, p), rtol=1e-6)
    np.testing.assert_allclose(target.shared(c, p), network.shared(c, p), rtol=1e-6)
    assert not np.allclose(network.target(-p)(c, p), network(c, p))
    # The weights are the hypernetwork's outputs, in the order of the layers.
    h = jnp.tanh(network.hidden[1](jnp.tanh(network.hidden[0](p))))
    flat = network.weights(h)
    np.testing.assert_array_equal(target.network.hidden[0].weight, flat[:10].reshape(2, 5))
    np.testing.assert_array_equal(target.network.output.bias, flat[-2:])


def test_layers_of_p2inn_are_what_its_formula_says():
    network = P2INN(Architecture("p2inn", 4, 5), Dimensions(2, 1, 1), KEY)
    c, p = jnp.array([0.3, -0.2]), jnp.array([0.5])
    first, second, last = network.parameter_encoder
    encoded = last(jnp.tanh(second(jnp.tanh(first(p)))))
    first, second = network.coordinate_encoder
    h = [jnp.tanh(network.joined(jnp.concatenate([jnp.tanh(second(jnp.tanh(first(c)))), encoded])))]
    a, b, c3, d, e = network.decoder
    h.append(jnp.tanh(a(h[0])))
    for layer in (b, c3, d):
        h.append(jnp.tanh(layer(h[-1])) + h[-2])
    h.append(jnp.tanh(e(h[-1]) + network.shift(jnp.array([0.5, 0.3, -0.2]))) + h[-2])
    np.testing.assert_allclose(network.shared(c, p), h[-1], rtol=1e-6)


def test_the_regression_of_meta_pinn_reproduces_its_support_weights():
    with jax.enable_x64(True):
        thetas = np.array([[-1.0], [-0.3], [0.2], [1.0]])
        first, other = (
            StandardPINN(Architecture("standard", 4, 2), Dimensions(2, 1, 1), jax.random.key(i), jnp.float64)
            for i in (0, 1)
        )
        # Weights that are smooth functions of theta.
        networks = [jax.tree.map(lambda a, b, t=t: a + np.sin(t) * b, first, other) for t in thetas[:, 0]]
        # An amplitude belongs to the weights.
        networks = [
            eqx.tree_at(lambda n: n.network.output.amplitude, network, jnp.array([s]))
            for s, network in enumerate(networks, 1)
        ]
        meta = MetaPINN.fitted(networks, thetas)
        assert meta.architecture == Architecture("metapinn", 4, 2, support=4)
        c = jnp.array([0.3, -0.2])
        for theta, network in zip(thetas, networks, strict=True):
            target = meta.target(jnp.asarray(theta))
            np.testing.assert_allclose(
                target.network.hidden[1].weight, network.network.hidden[1].weight, rtol=1e-6, atol=1e-7
            )
            for made in (target, meta):
                np.testing.assert_allclose(made(c, jnp.asarray(theta)), network(c, theta), rtol=1e-5)
        between = meta(c, jnp.array([0.0]))
        assert np.isfinite(between).all() and not np.allclose(between, networks[1](c, thetas[1]))


@pytest.mark.parametrize("kind", ["hyperpinn", "metapinn", "p2inn"])
def test_rivals_can_be_differentiated_by_their_parameters(kind: str):
    problem = cl.problems.Burgers()
    with jax.enable_x64(True):
        network = make(problem, Architecture(kind, 5, 2), KEY, jnp.float64)
        if kind == "metapinn":
            leaves, tree = jax.tree.flatten(network)
            keys = jax.random.split(KEY, len(leaves))
            network = jax.tree.unflatten(
                tree, [0.5 + jax.random.uniform(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves)]
            )
        surrogate = cl.Surrogate(problem, network)

        def u(nu: float) -> float:
            return float(surrogate(x=0.3, t=0.4, nu=nu)["u"])

        slope = (u(0.1 + 1e-5) - u(0.1 - 1e-5)) / 2e-5
        assert surrogate.derivative("u_nu", x=0.3, t=0.4, nu=0.1) == pytest.approx(slope, rel=1e-5)
