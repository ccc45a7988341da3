"""Meta-PINN (Penwarden et al. 2023, arXiv:2110.13361), a method to compare with."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from clpinn.calculus.jets import exp, linear
from clpinn.keys import Key
from clpinn.networks.architecture import Architecture, Dimensions
from clpinn.networks.fnn import FNN
from clpinn.networks.generated import Generated, flattened, layer_sizes
from clpinn.networks.standard import StandardPINN

SUPPORT = 9
"""Number of support tasks, unless the architecture states one."""
LENGTHS = 0.1, 10.0
"""Bounds on the length scales of the regression, in features, which range from -1 to 1."""


class MetaPINN(Generated):
    """The weights of the target, regressed on the parameters.

    Networks trained at support thetas differ from their mean by a number of modes (of a singular value decomposition).
    The coefficient of each mode is a Gaussian process of theta. `fitted` makes a Meta-PINN from such networks.
    """

    mean: Float[Array, " weights"]
    modes: Float[Array, "modes weights"]
    support: Float[Array, "tasks parameters"]
    coefficients: Float[Array, "tasks modes"]
    """Factors of the kernel between a theta and each support theta."""
    lengths: Float[Array, " modes"]
    architecture: Architecture = eqx.field(static=True)
    sizes: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, architecture: Architecture, dimensions: Dimensions, key: Key | None, dtype=jnp.float32):
        support = architecture.support or SUPPORT
        self.architecture = replace(architecture, kind="metapinn", support=support)
        self.sizes = layer_sizes(architecture, dimensions)
        self.mean = flattened(FNN(architecture, dimensions.without_parameters(), key, dtype))
        self.modes = jnp.zeros((support, len(self.mean)), dtype)
        self.support = jnp.zeros((support, dimensions.parameters), dtype)
        self.coefficients = jnp.zeros((support, support), dtype)
        self.lengths = jnp.ones(support, dtype)

    @staticmethod
    def fitted(networks: Sequence[StandardPINN], features: Float[np.ndarray, "tasks parameters"]) -> "MetaPINN":
        """The regression of networks on the features of the thetas they were trained at."""
        from sklearn.exceptions import ConvergenceWarning  # here, because scikit-learn takes a second to import
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF

        weights = np.stack([np.asarray(flattened(network.network), float) for network in networks])
        mean = weights.mean(axis=0)
        left, singular, modes = np.linalg.svd(weights - mean, full_matrices=False)
        # Deviations from the mean add up to zero, so the last singular value vanishes and its mode is left out.
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
        blank = MetaPINN(
            replace(first.architecture, support=len(networks)),
            Dimensions(first.hidden[0].weight.shape[0], features.shape[1], first.output.weight.shape[1]),
            None,
            dtype,
        )
        arrays = (mean, modes, np.asarray(features, float), coefficients, lengths)
        return eqx.tree_at(
            lambda n: (n.mean, n.modes, n.support, n.coefficients, n.lengths),
            blank,
            tuple(jnp.asarray(array, dtype) for array in arrays),
        )

    def target_weights(self, parameters: Any) -> Any:
        none = jnp.zeros((), self.mean.dtype)
        amount: Any = 0.0
        for theta, factors in zip(self.support, self.coefficients, strict=True):
            offset = parameters + (-theta)
            distance = linear(offset * offset, jnp.ones((len(theta), 1), theta.dtype), none)
            amount = exp(distance * (-0.5 / self.lengths**2)) * factors + amount
        return linear(amount, self.modes, self.mean)
