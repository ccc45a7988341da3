"""What a user states: a `Problem`, its soft conditions and its measured data. A problem holds no state of training."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from clpinn.formulation.calls import call_by_name
from clpinn.formulation.domain import Box, Grid, Points, Sampler
from clpinn.formulation.regions import At, Boundary, Interior, On
from clpinn.keys import Key
from clpinn.shown import html_table

# Values on each axis of a default candidate grid, by the number of parameters: at most about 1300 thetas.
CANDIDATES = {0: 1, 1: 100, 2: 20, 3: 8, 4: 6, 5: 4, 6: 3}
# Values on each axis of a default evaluation grid, by the number of coordinates: about 10,000 points.
EVALUATION = {1: 1000, 2: 100, 3: 25, 4: 10}


@dataclass(frozen=True, eq=False)
class Condition:
    """A soft condition: a residual that is to vanish on a part of the boundary, or at a given time.

        cl.Condition("walls", lambda d: d.u, on=cl.boundary("x"))
        cl.Condition("start", lambda d, x: d.u - jnp.sin(jnp.pi * x), on=cl.at(t=0))

    - `name`: a name of its own, for messages, logs and single residuals.
    - `residual(d, ...)`: written for one point, like `Problem.residual`: derivatives as `d.u_x`, coordinates and
      parameters by name. It returns a scalar, or a dict of scalars for several residuals.
    - `on`: where it holds: `cl.at(t=0)`, `cl.boundary("x")`, or `cl.at(x=1, y=(0, 0.5))` for a part of a side. If the
      domain is a shape, `cl.on("hole", "left")` names pieces of its boundary. There `d.u_n` is the derivative along the
      outward normal, and the residual may take the normal as `nx`, `ny`.
    - `weight`: factor of its mean square in the loss.
    - `points`, `sampler`: number of points and how they are drawn, for training as in the paper (adam-lbfgs). The
      natural gradient draws its own points at every step.
    """

    name: str
    residual: Callable[..., Any]
    on: At | Boundary | On
    points: int = 200
    weight: float = 1.0
    sampler: Sampler = "sobol"

    def sample(self, box: Box, key: Key) -> Points:
        """`points` points of the region in the box, shape (points, coordinates)."""
        return self.on.sample(box, self.points, key, self.sampler)


@dataclass(frozen=True, eq=False)
class Integral:
    """A soft condition on an integral: a flow rate, a mean value that fixes a pressure, a quantity that is conserved.

        cl.Integral("flow rate", lambda d: d.u, on=cl.at(x=0), equals=1.0)
        cl.Integral("mean pressure", lambda d: d.p, on=cl.at())                        # over the whole domain
        cl.Integral("heat", lambda d, k: -k * d.T_n, on=cl.on("hole"), equals=lambda q: q)

    - `name`: a name of its own, for messages, logs and residuals.
    - `integrand(d, ...)`: written for one point, like the residual of a `Condition`.
    - `on`: over what: `cl.at(...)` for the domain or a section of it, `cl.on(...)` for pieces of a boundary. The
      integral is over space, at every time if there is a coordinate t.
    - `equals`: a number, or a function of parameters (and t); a dict of them if the integrand is a dict.
    - `weight`: factor of its square in the loss.
    """

    name: str
    integrand: Callable[..., Any]
    on: At | On
    equals: Any = 0.0
    weight: float = 1.0

    @cached_property
    def condition(self) -> Condition:
        """The integrand as a condition at one point."""
        return Condition(self.name, self.integrand, self.on)


@dataclass(frozen=True, eq=False)
class Data:
    """Measured values of outputs at known thetas. The residual is output minus value.

    To find parameters from measurements, use `Surrogate.fit`.

        cl.Data("sensors", at={"x": [0.1, 0.5], "t": [0.2, 0.2], "nu": [0.03, 0.03]}, values={"u": [1.1, 0.7]})

    - `name`: a name of its own, for messages and logs.
    - `at`: where it was measured: an array per coordinate (physical ones, if the problem has `place`) and parameter.
    - `values`: what was measured: an array per output, for some of the outputs. All arrays have the same length.
    - `weight`: factor of its mean square in the loss.
    """

    name: str
    at: Mapping[str, ArrayLike] = field(repr=False)
    values: Mapping[str, ArrayLike] = field(repr=False)
    weight: float = 1.0


def _default_candidates(problem: "Problem") -> Grid:
    side = CANDIDATES.get(len(problem.parameters), 2)
    return problem.parameters.grid(**dict.fromkeys(problem.parameters, side))


def _default_evaluation(problem: "Problem") -> Grid:
    side = EVALUATION.get(len(problem.coordinates), 6)
    return problem.coordinates.grid(**dict.fromkeys(problem.coordinates, side))


class Problem:
    """A family of PDEs. Inherit, name the axes and outputs, and write the residual; all else is optional.

        class Heat(cl.Problem):
            coordinates = cl.Box(x=(0, 1), t=(0, 1))
            parameters = cl.Box(kappa=cl.log(0.01, 1.0))
            outputs = ("u",)
            conditions = (cl.Condition("ends", lambda d: d.u, on=cl.boundary("x")),)

            def residual(self, d, kappa):
                return d.u_t - kappa * d.u_xx

            def constrain(self, raw, x, t):
                return jnp.sin(jnp.pi * x) + t * raw

    Methods take coordinates and parameters by name, in any order; leave out those you do not need. Write `residual`,
    `constrain`, `place` and the residuals of conditions for one point, with `jax.numpy` instead of `numpy`.

    What to solve:

    - `coordinates`, `parameters`: boxes of named axes.
    - `outputs`: names of the unknown functions.
    - `residual(self, d, ...)`: the equation as left side minus right side. `d.u`, `d.u_t` and `d.u_xx` are the outputs
      and their derivatives. Returns a scalar, or a dict of scalars for several equations.
    - `conditions`: a tuple of soft `Condition`, `Integral` and `Data`.
    - `constrain(self, raw, ...)`: hard conditions. It turns the network's raw output into an output that satisfies
      them exactly. `raw` is a scalar, or a dict by name if there are several outputs; it returns the same.
    - `domain(self, ...)`: a domain that is no box. It takes parameters and returns a shape inside the box of
      coordinates, such as `cl.Rectangle(x=(0, 4), y=(0, 1)) - cl.Disk((1, 0.5), r, name="hole")`. It spans all
      coordinates but t.
    - `place(self, ...)`: a domain that depends on parameters. It maps the box coordinates to physical coordinates,
      returned as a dict with the same names. Points are drawn in the box. Residuals, conditions, references and
      derivatives use physical coordinates. The map must be one to one on the whole box, edges included (a polar map
      must start a little above r = 0).

    How to train and evaluate:

    - `prior(self, ...)`: how much a task counts, as a positive function of its parameters. It enters the weights of
      tasks in training and, if the settings say so, task selection.
    - `candidates`: the thetas that task selection chooses from and that evaluation reports on, a `Grid`.
    - `evaluation`: the coordinates at which errors are measured, a `Grid`.
    - `interior`: how many points carry the equation in training as in the paper, an `Interior`.
    - `reference(self, ...)`: the known solution, for evaluation only. It takes arrays of all coordinates and
      parameters that broadcast, and returns a dict by output.
    - `reference_version`: a reference with a version is kept on disk. Change the version whenever the reference
      changes.

    For people: `equation` and `reference_kind` are texts, and `units` names the units of axes and outputs.
    """

    coordinates: Box
    parameters: Box = Box()
    outputs: tuple[str, ...] = ("u",)
    conditions: tuple[Condition | Integral | Data, ...] = ()
    interior: Interior = Interior()
    # Regular grids, unless a class or an instance sets others.
    candidates: Grid = cached_property(_default_candidates)  # pyright: ignore[reportAssignmentType]
    evaluation: Grid = cached_property(_default_evaluation)  # pyright: ignore[reportAssignmentType]

    equation: str = ""
    reference_kind: str = ""
    # For example {"x": "m", "t": "s"}. They go with a surrogate's fields.
    units: Mapping[str, str] = {}
    # If the reference depends on an option of an instance, its version must depend on that option, too.
    reference_version: Any = None

    residual: Callable[..., Any]
    constrain: Callable[..., Any] | None = None
    domain: Callable[..., Any] | None = None
    place: Callable[..., Any] | None = None
    prior: Callable[..., Any] | None = None
    reference: Callable[..., Any] | None = None

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the coordinates, then of the parameters: derivatives can be taken along all of them."""
        return (*self.coordinates.names, *self.parameters.names)

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {', '.join(f'{name} {text}' for name, text in self._facts().items())}"

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, self._facts())

    def _facts(self) -> dict[str, str]:
        facts = {"equation": self.equation} if self.equation else {}
        facts |= {"outputs": ", ".join(self.outputs), "coordinates": repr(getattr(self, "coordinates", None))}
        facts |= {"parameters": repr(self.parameters)} if len(self.parameters) else {}
        names = [condition.name for condition in self.conditions]
        return facts | ({"conditions": ", ".join(names)} if names else {})


def task_prior(problem: Problem, theta: Float[np.ndarray, " parameters"]) -> float:
    """f_prior of a task: the problem's prior at its theta, or 1 if the problem has none."""
    if problem.prior is None:
        return 1.0
    return float(call_by_name(problem.prior, "prior", dict(zip(problem.parameters, theta, strict=True))))


def describe(problem: Problem) -> dict[str, Any]:
    """What tells a problem from another, in plain values. Files of runs and surrogates hold it."""
    options = {key: value for key, value in vars(problem).items() if isinstance(value, bool | int | float | str)}
    return {
        "class": type(problem).__name__,
        "options": options,
        "coordinates": repr(problem.coordinates),
        "parameters": repr(problem.parameters),
        "outputs": list(problem.outputs),
    }
