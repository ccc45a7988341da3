"""Networks by the name of their kind."""

import jax.numpy as jnp

from clpinn.errors import SettingsError
from clpinn.formulation.problem import Problem
from clpinn.keys import Key
from clpinn.networks.architecture import Architecture, Dimensions
from clpinn.networks.fnn import FNN, ParamFNN, QuadraticFNN
from clpinn.networks.generated import Generated
from clpinn.networks.hyperpinn import HyperPINN
from clpinn.networks.metapinn import MetaPINN
from clpinn.networks.p2inn import P2INN
from clpinn.networks.standard import StandardPINN

Network = FNN | QuadraticFNN | ParamFNN | StandardPINN | P2INN | HyperPINN | MetaPINN

KINDS: dict[str, type[Network]] = {
    "fnn": FNN,
    "quadratic": QuadraticFNN,
    "param-fnn": ParamFNN,
    "standard": StandardPINN,
    "p2inn": P2INN,
    "hyperpinn": HyperPINN,
    "metapinn": MetaPINN,
}
"""Networks by their name in the settings."""


def make(problem: Problem, architecture: Architecture, key: Key | None, dtype=jnp.float32) -> Network:
    """A fresh network with the inputs and outputs of a problem. Without a key its weights are zero."""
    kind = KINDS[architecture.kind]
    if architecture.inputs == "raw" and issubclass(kind, Generated):
        raise SettingsError(
            f"network.inputs=raw is for networks that see coordinates and parameters, but {architecture.kind} makes "
            "its weights from scaled parameters. Use network.inputs=scaled, or another network.kind."
        )
    return kind(architecture, Dimensions.of(problem, architecture), key, dtype)
