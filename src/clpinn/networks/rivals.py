"""Networks of other methods, to compare with: the standard PINN, P2INN, HyperPINN and Meta-PINN.

Layouts are those that reproduce the sizes that the paper of CL-PINN states; activations are tanh throughout, as a
second derivative needs curvature. Where a network makes another one for each theta, that is an FNN of the coordinates
alone, the target, and `target` gives it.
"""

import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from clpinn.calculus.jets import concatenate, exp, linear, tanh
from clpinn.networks.fnn import FNN
from clpinn.networks.layers import Linear, Output, T

LENGTHS = 0.1, 10.0
"""Bounds on the length scales of Meta-PINN's regression, in features, which go from -1 to 1."""


class StandardPINN(eqx.Module):
    """An FNN of the coordinates alone: good for the one theta it was trained at."""

    network: FNN

    def __init__(
        self, coordinates: int, parameters: int, outputs: int, width: int, depth: int, key: Array, dtype=jnp.float32
    ):
        self.network = FNN(coordinates, 0, outputs, width, depth, key, dtype)

    @property
    def output(self) -> Output:
        return self.network.output

    def shared(self, coordinates: T, parameters: T) -> T:
        return self.network.shared(coordinates, parameters[:0])

    def __call__(self, coordinates: T, parameters: T) -> T:
        return self.network(coordinates, parameters[:0])


class P2INN(eqx.Module):
    """Coordinates and parameters are encoded apart, joined and decoded (Cho et al. 2024, arXiv:2408.09446).

    Encoders d-(2w)-(2w)-w and c-w-w, a decoder 2w-w and `depth` layers w-w, each from the second on with the output of
    the layer before the last added, the last with a linear shift of the raw inputs inside.
    """

    parameter_encoder: tuple[Linear, ...]
    coordinate_encoder: tuple[Linear, ...]
    joined: Linear
    decoder: tuple[Linear, ...]
    shift: Linear
    output: Output

    def __init__(
        self, coordinates: int, parameters: int, outputs: int, width: int, depth: int, key: Array, dtype=jnp.float32
    ):
        keys = iter(jax.random.split(key, depth + 8))

        def layers(*sizes: int) -> tuple[Linear, ...]:
            return tuple(Linear(a, b, next(keys), dtype) for a, b in pairwise(sizes))

        self.parameter_encoder = layers(parameters, 2 * width, 2 * width, width)
        self.coordinate_encoder = layers(coordinates, width, width)
        (self.joined,) = layers(2 * width, width)
        self.decoder = layers(*[width] * (depth + 1))
        (self.shift,) = layers(parameters + coordinates, width)
        self.output = Output(width, outputs, next(keys), dtype)

    def shared(self, coordinates: T, parameters: T) -> T:
        p, c = parameters, coordinates
        for layer in self.parameter_encoder[:-1]:
            p = tanh(layer(p))
        for layer in self.coordinate_encoder:
            c = tanh(layer(c))
        h = [tanh(self.joined(concatenate([c, self.parameter_encoder[-1](p)])))]
        for i, layer in enumerate(self.decoder):
            z = layer(h[-1])
            if i == len(self.decoder) - 1:
                z = z + self.shift(concatenate([parameters, coordinates]))
            h.append(tanh(z) + h[-2] if i > 0 else tanh(z))
        return h[-1]

    def __call__(self, coordinates: T, parameters: T) -> T:
        return self.output(self.shared(coordinates, parameters))


class HyperPINN(eqx.Module):
    """A network of the parameters gives the weights of one of the coordinates (de Avila Belbute-Peres et al. 2021,
    arXiv:2111.01008): parameters-hyper-hyper-(all weights of an FNN coordinates-(depth × width)-outputs).

    Its last layer starts with small weights and the biases of a fresh target, so that every theta starts from one.
    """

    hidden: tuple[Linear, ...]
    weights: Linear
    sizes: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self,
        coordinates: int,
        parameters: int,
        outputs: int,
        width: int,
        depth: int,
        key: Array,
        dtype=jnp.float32,
        hyper: int = 40,
    ):
        keys = jax.random.split(key, 4)
        self.sizes = (coordinates, *[width] * depth, outputs)
        first = _flat(FNN(coordinates, 0, outputs, width, depth, keys[3], dtype))
        self.hidden = (Linear(parameters, hyper, keys[0], dtype), Linear(hyper, hyper, keys[1], dtype))
        last = Linear(hyper, len(first), keys[2], dtype)
        self.weights = eqx.tree_at(lambda layer: (layer.weight, layer.bias), last, (0.1 * last.weight, first))

    def shared(self, coordinates: T, parameters: T) -> T:
        return _generated(coordinates, self._weights(parameters), self.sizes)[0]

    def __call__(self, coordinates: T, parameters: T) -> T:
        return _generated(coordinates, self._weights(parameters), self.sizes)[1]

    def target(self, parameters: Float[Array, " parameters"]) -> StandardPINN:
        """The network of one theta, given by its features."""
        return _target(self._weights(parameters), self.sizes)

    def _weights(self, parameters: T) -> T:
        for layer in self.hidden:
            parameters = tanh(layer(parameters))
        return self.weights(parameters)


class MetaPINN(eqx.Module):
    """The weights of an FNN of the coordinates, regressed on the parameters (Penwarden et al. 2023, arXiv:2110.13361).

    Networks trained at support thetas differ from their mean by some modes (of a singular value decomposition); the
    coefficient of each mode is a Gaussian process of theta. `fitted` makes one from such networks.
    """

    mean: Float[Array, " weights"]
    modes: Float[Array, "modes weights"]
    support: Float[Array, "tasks parameters"]
    coefficients: Float[Array, "tasks modes"]
    """What the kernel between a theta and each support theta is multiplied by."""
    lengths: Float[Array, " modes"]
    sizes: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self,
        coordinates: int,
        parameters: int,
        outputs: int,
        width: int,
        depth: int,
        key: Array,
        dtype=jnp.float32,
        support: int = 9,
    ):
        self.sizes = (coordinates, *[width] * depth, outputs)
        self.mean = _flat(FNN(coordinates, 0, outputs, width, depth, key, dtype))
        self.modes = jnp.zeros((support, len(self.mean)), dtype)
        self.support = jnp.zeros((support, parameters), dtype)
        self.coefficients = jnp.zeros((support, support), dtype)
        self.lengths = jnp.ones(support, dtype)

    @staticmethod
    def fitted(networks: Sequence[StandardPINN], features: Float[np.ndarray, "tasks parameters"]) -> "MetaPINN":
        """The regression of networks on the features of the thetas they were trained at."""
        from sklearn.exceptions import ConvergenceWarning  # here, as scikit-learn takes a second to import
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF

        weights = np.stack([np.asarray(_flat(one.network), float) for one in networks])
        mean = weights.mean(axis=0)
        left, singular, modes = np.linalg.svd(weights - mean, full_matrices=False)
        # The last mode is the mean's, with nothing in it.
        coefficients, lengths = np.zeros_like(left), np.ones(len(singular))
        for mode in np.flatnonzero(singular > 1e-12 * singular[0]):
            values = left[:, mode] * singular[mode]
            size = float(np.std(values))
            process = GaussianProcessRegressor(RBF(1.0, LENGTHS), alpha=1e-10)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # a length at its bound is one
                process.fit(features, values / size)
            lengths[mode] = process.kernel_.length_scale  # pyright: ignore[reportAttributeAccessIssue]
            coefficients[:, mode] = np.asarray(process.alpha_) * size
        first = networks[0].network
        dtype = first.output.weight.dtype
        sizes = [len(layer.weight) for layer in (*first.hidden, first.output)]
        blank = MetaPINN(
            sizes[0], features.shape[1], first.output.weight.shape[1], sizes[1], len(sizes) - 1, jax.random.key(0),
            dtype, len(networks),
        )  # fmt: skip
        parts = (mean, modes, np.asarray(features, float), coefficients, lengths)
        return eqx.tree_at(
            lambda n: (n.mean, n.modes, n.support, n.coefficients, n.lengths),
            blank,
            tuple(jnp.asarray(part, dtype) for part in parts),
        )

    def shared(self, coordinates: T, parameters: T) -> T:
        return _generated(coordinates, self._weights(parameters), self.sizes)[0]

    def __call__(self, coordinates: T, parameters: T) -> T:
        return _generated(coordinates, self._weights(parameters), self.sizes)[1]

    def target(self, parameters: Float[Array, " parameters"]) -> StandardPINN:
        """The network of one theta, given by its features."""
        return _target(self._weights(parameters), self.sizes)

    def _weights(self, parameters: Any) -> Any:
        none = jnp.zeros((), self.mean.dtype)
        amount: Any = 0.0
        for theta, factors in zip(self.support, self.coefficients, strict=True):
            offset = parameters + (-theta)
            distance = linear(offset * offset, jnp.ones((len(theta), 1), theta.dtype), none)
            amount = exp(distance * (-0.5 / self.lengths**2)) * factors + amount
        return linear(amount, self.modes, self.mean)


def _flat(network: FNN) -> Float[Array, " weights"]:
    """Weights and biases of all layers, one after the other; the outputs' amplitudes are in the last."""
    parts = [part for layer in network.hidden for part in (layer.weight, layer.bias)]
    parts += [part * network.output.amplitude for part in (network.output.weight, network.output.bias)]
    return jnp.concatenate([part.reshape(-1) for part in parts])


def _parts(flat: Any, sizes: Sequence[int]) -> list[tuple[Any, Any]]:
    """Weight and bias of each layer of a network with these layer sizes."""
    found, start = [], 0
    for inputs, outputs in pairwise(sizes):
        middle, end = start + inputs * outputs, start + (inputs + 1) * outputs
        found.append((flat[start:middle].reshape(inputs, outputs), flat[middle:end]))
        start = end
    return found


def _generated(h: Any, flat: Any, sizes: Sequence[int]) -> tuple[Any, Any]:
    """The last hidden layer and the outputs of a network whose weights are computed, and may depend on theta."""
    *hidden, (weight, bias) = _parts(flat, sizes)
    for w, b in hidden:
        h = tanh(h @ w + b)
    return h, h @ weight + bias


def _target(flat: Array, sizes: Sequence[int]) -> StandardPINN:
    shape = eqx.filter_eval_shape(
        StandardPINN, sizes[0], 0, sizes[-1], sizes[1], len(sizes) - 2, jax.random.key(0), flat.dtype
    )
    layers = _parts(flat, sizes)

    def parts(one: StandardPINN) -> list[Any]:
        every = (*one.network.hidden, one.network.output)
        return [*(part for layer in every for part in (layer.weight, layer.bias)), one.network.output.amplitude]

    values = [*(part for layer in layers for part in layer), jnp.ones((sizes[-1],), flat.dtype)]
    return eqx.tree_at(parts, shape, values)
