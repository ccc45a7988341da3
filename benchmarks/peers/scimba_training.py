"""Training with Scimba's energy natural gradient for a time."""

from collections.abc import Callable

import jax
from common import Run
from scimba_jax.nonlinear_approximation.approximation_spaces.approximation_spaces import ApproximationSpace
from scimba_jax.nonlinear_approximation.integration.monte_carlo import TensorizedSampler
from scimba_jax.nonlinear_approximation.numerical_solvers.projectors import Projector
from scimba_jax.physical_models.abstract_physical_model import AbstractPhysicalModel


def trained(
    run: Run,
    key: jax.Array,
    model: AbstractPhysicalModel,
    space: ApproximationSpace,
    sampler: TensorizedSampler,
    **rows: int,
) -> tuple[Callable, float, int]:
    """The solution as a function of rows of each variable, the seconds and the steps. `rows` are those of a step."""
    projector = Projector(model, space, sampler, optimizer="ENG", matrix_regularization=1e-5)
    steps = 0
    while not run.over():
        key, projector = projector.project(key, projector.space, 1, **rows)
        jax.block_until_ready(jax.tree.leaves(projector.space))
        steps += 1
    seconds = run.passed()
    u = projector.space.create_variables()[0].vmap_on_physical_variables()
    return lambda *variables: u(projector.space, *variables), seconds, steps
