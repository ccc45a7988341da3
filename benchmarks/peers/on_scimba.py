"""A cell with Scimba's natural gradient (its JAX half): python on_scimba.py PROBLEM SEED SECONDS POINTS.npz OUT.npz.

Its energy natural gradient (ENG) with 2000 fresh rows a step, a network of 4 x 20 tanh units, float64, its own line
search (a grid of ten lengths) and a regularisation of 1e-5. Of 1000, 1500, 2000 and 2500 rows, widths of 20 and 30, its
default of 1e-6 or a regularisation that it adapts, and its Armijo line search, this ends best on Burgers after 60 s on
one core, on a seed that is not in the table.
"""

import jax
import jax.numpy as jnp
from common import Run
from scimba_jax.domains.meshless_domains.domains_1d import Segment1D
from scimba_jax.nonlinear_approximation.approximation_spaces.approximation_spaces import ApproximationSpace
from scimba_jax.nonlinear_approximation.integration.monte_carlo import DomainSampler, TensorizedSampler
from scimba_jax.nonlinear_approximation.integration.monte_carlo_parameters import UniformParametricSampler
from scimba_jax.nonlinear_approximation.integration.monte_carlo_time import UniformTimeSampler
from scimba_jax.nonlinear_approximation.networks.mlp import MLP
from scimba_jax.physical_models.abstract_physical_model import AbstractPhysicalModel
from scimba_jax.physical_models.abstract_residuals import InteriorResidual
from scimba_training import trained

ROWS, WIDTH = 2000, 20

run = Run()
problem = run.problem
parameters = len(problem.parameters)


class Equation(InteriorResidual):
    def construct_residual(self, *variables):
        u = variables[0]
        thetas = [lambda mu, i=i: problem.theta(jnp, i, mu[i]) for i in range(parameters)]
        return problem.residual(u, u.gradient("x"), u.d_t(), u.laplacian("x"), *map(u._to_paramfunc, thetas))


class Model(AbstractPhysicalModel):
    def __init__(self, domain, times):
        super().__init__(main_domain=domain, time_domain=times)
        equation = Equation(domain=domain, size=1, model_type="t_x_mu", f_rhs=None, time_domain=times)
        self.physical_residuals = {domain.get_label(): equation}


domain, times = Segment1D((-1.0, 1.0), is_main_domain=True), (0.0, 1.0)
samplers = DomainSampler(domain), UniformParametricSampler([(-1.0, 1.0)] * parameters)
key, initial = jax.random.split(jax.random.PRNGKey(run.seed))
space = ApproximationSpace(
    {"x": 1, "t": 1, "mu": parameters},
    [(MLP(run.inputs, 1, [WIDTH] * 4, key=initial), "scalar", None)],
    model_type="t_x_mu",
    pre_processing=lambda t, x, mu: (jnp.concatenate([2 * t - 1, x, mu], axis=-1),),
    post_processing=lambda raw, t, x, mu: problem.constrain(jnp, raw, x, t),
)
sampler = TensorizedSampler([UniformTimeSampler(times), *samplers], model_type="t_x_mu", bc=False, ic=False)
u, seconds, steps = trained(run, key, Model(domain, times), space, sampler, n_colloc=ROWS)
run.save(lambda rows: u(rows[:, 1:2], rows[:, :1], rows[:, 2:]), seconds, steps)
