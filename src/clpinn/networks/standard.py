"""The standard PINN, which knows one theta."""

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp

from clpinn.keys import Key
from clpinn.networks.architecture import Architecture, Dimensions
from clpinn.networks.fnn import FNN
from clpinn.networks.layers import Output, T


class StandardPINN(eqx.Module):
    """An FNN of the coordinates alone, valid at the one theta it was trained at."""

    network: FNN
    architecture: Architecture = eqx.field(static=True)

    def __init__(self, architecture: Architecture, dimensions: Dimensions, key: Key | None, dtype=jnp.float32):
        self.architecture = replace(architecture, kind="standard")
        self.network = FNN(architecture, dimensions.without_parameters(), key, dtype)

    @property
    def output(self) -> Output:
        return self.network.output

    def shared(self, coordinates: T, parameters: T) -> T:
        return self.network.shared(coordinates, parameters[:0])

    def __call__(self, coordinates: T, parameters: T) -> T:
        return self.network(coordinates, parameters[:0])
