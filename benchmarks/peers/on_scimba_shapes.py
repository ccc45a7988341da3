"""A cell on a shape with Scimba (its JAX half): python on_scimba_shapes.py PROBLEM SEED SECONDS POINTS.npz OUT.npz.

Training and network are those of on_scimba.py, with 2000 rows inside and 500 on the boundary per step. Its domains have
no parameters. The inner radius of the annulus is therefore a third coordinate of a domain that has a level set, a part
of which is the equation's. The L-shape is a square with a hole. The other parameters are parameters in Scimba, too.
"""

import jax
import jax.numpy as jnp
from scimba_jax.domains.domain_mapping import DomainMapping
from scimba_jax.domains.meshless_domains.base import SurfacicDomain, VolumetricDomain
from scimba_jax.domains.meshless_domains.domains_2d import Segment2D, Square2D
from scimba_jax.domains.sdf import SignedDistance
from scimba_jax.nonlinear_approximation.approximation_spaces.approximation_spaces import ApproximationSpace
from scimba_jax.nonlinear_approximation.integration.monte_carlo import DomainSampler, TensorizedSampler
from scimba_jax.nonlinear_approximation.integration.monte_carlo_parameters import UniformParametricSampler
from scimba_jax.nonlinear_approximation.model_class.funcparam import directional_derivative
from scimba_jax.nonlinear_approximation.model_class.funcparam_matrix import ParamScalarFunction
from scimba_jax.nonlinear_approximation.networks.mlp import MLP
from scimba_jax.physical_models.abstract_physical_model import AbstractPhysicalModel
from scimba_jax.physical_models.abstract_residuals import InteriorResidual
from scimba_jax.physical_models.boundary_residuals import DirichletResidual, NeumannResidual
from scimba_training import trained
from shapes import Annulus, shape_run

WIDTH, ROWS, BOUNDARY_ROWS = 20, 2000, 500

run = shape_run()
problem = run.problem
is_annulus = isinstance(problem, Annulus)
space_dimension = 3 if is_annulus else 2


def of_x(function):
    """A function of the coordinates (with z of the radius) and the z of the other parameter, without normals."""
    return lambda x, n, mu: jnp.atleast_1d(function(x, mu))


class Level(SignedDistance):
    def _sdf_pointwise(self, x):
        distance, radius = jnp.linalg.norm(x[:2]), problem.theta(jnp, 0, x[2])
        return jnp.maximum(distance - 1, radius - distance)[None]


def annulus() -> VolumetricDomain:
    box = [(-1.0, 1.0)] * 3
    domain = VolumetricDomain("annulus", 3, Level(3), box, is_main_domain=True)
    outer = DomainMapping(2, 3, lambda at: jnp.stack([jnp.cos(at[0]), jnp.sin(at[0]), at[1]]))
    domain.add_bc_domain(SurfacicDomain("outer", Square2D([(0.0, 2 * jnp.pi), (-1.0, 1.0)]), outer, "outer"))
    return domain


def l_shape() -> VolumetricDomain:
    domain = Square2D([(-1.0, 1.0), (-1.0, 1.0)], is_main_domain=True)
    notch = Square2D([(0.0, 1.0), (-1.0, 0.0)])
    corners = problem.corners
    for i, (start, end) in enumerate(zip(corners, (*corners[1:], corners[0]))):
        side = Segment2D([float(c) for c in start], [float(c) for c in end], f"side {i}")
        (notch if (0, 0) in (start, end) else domain).add_bc_domain(side)
    domain.add_hole(notch)
    return domain


class Equation(InteriorResidual):
    def construct_residual(self, *variables):
        u = variables[0]
        at = u.argnums["x"]

        def laplacian(*given):
            axes = jnp.eye(space_dimension)[:2]
            return sum(directional_derivative(value, given, at, axis, order=2) for axis in axes)[None] - problem.source

        def value(*given):
            return jnp.squeeze(u(*given))

        return ParamScalarFunction(u.dims, laplacian, f_type=u.f_type)


class Model(AbstractPhysicalModel):
    def __init__(self, domain):
        super().__init__(main_domain=domain)
        self.physical_residuals = {domain.get_label(): Equation(domain=domain, size=1, model_type="x_mu", f_rhs=None)}
        if is_annulus:
            kind, given = NeumannResidual, lambda x, mu: mu[0]
        else:
            kind, given = DirichletResidual, lambda x, mu: problem.exact(jnp, *x, problem.theta(jnp, 0, mu[0]))
        self.add_on_every_boundary(kind, model_type="x_mu", f_rhs=of_x(given))


domain = annulus() if is_annulus else l_shape()
key, initial = jax.random.split(jax.random.PRNGKey(run.seed))
space = ApproximationSpace(
    {"x": space_dimension, "mu": 1},
    [(MLP(space_dimension + 1, 1, [WIDTH] * 4, key=initial), "scalar", None)],
    model_type="x_mu",
    pre_processing=lambda x, mu: (jnp.concatenate([x, mu], axis=-1),),
    post_processing=lambda raw, x, mu: (
        problem.constrain(jnp, raw, x[0], x[1], problem.theta(jnp, 0, x[2])) if is_annulus else raw
    ),
)
sampler = TensorizedSampler([DomainSampler(domain), UniformParametricSampler([(-1.0, 1.0)])], model_type="x_mu")
u, *spent = trained(run, key, Model(domain), space, sampler, n_colloc=ROWS, n_bc_colloc=BOUNDARY_ROWS)
run.save(lambda rows: u(rows[:, :space_dimension], rows[:, space_dimension:]), *spent)
