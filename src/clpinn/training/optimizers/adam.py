"""Adam (Kingma and Ba, 2015)."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from clpinn.errors import ClpinnError
from clpinn.training.optimizers import Objective, Step


@dataclass(frozen=True)
class Adam:
    """Adam with a constant learning rate. One evaluation a step; the host never waits for the device."""

    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise ClpinnError(f"Adam needs a learning rate above zero, but got {self.learning_rate}.")

    def init(self, parameters: Any) -> optax.OptState:
        return optax.adam(self.learning_rate).init(parameters)

    def step(
        self,
        objective: Objective,
        parameters: Any,
        state: optax.OptState,
    ) -> tuple[Any, optax.OptState, Step]:
        value, gradient = objective(parameters)
        parameters, state, gradient_norm = _update(self, parameters, state, value, gradient)
        return parameters, state, Step(value, gradient_norm, evaluations=1)


@partial(jax.jit, static_argnums=0)
def _update(
    adam: Adam, parameters: Any, state: optax.OptState, value: Float[Array, ""], gradient: Any
) -> tuple[Any, optax.OptState, Float[Array, ""]]:
    norm = jnp.linalg.norm(ravel_pytree(gradient)[0])
    finite = jnp.isfinite(value) & jnp.isfinite(norm)
    updates, moved = optax.adam(adam.learning_rate).update(gradient, state, parameters)
    new = optax.apply_updates(parameters, updates), moved
    parameters, state = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, (parameters, state))
    return parameters, state, norm
