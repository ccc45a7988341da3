"""A trained network with its problem: what training ends with, and what people use.

surrogate(x=0.1, t=0.5, nu=0.03)                  outputs by name; scalars and arrays broadcast
surrogate.derivative("u_xx", x=0.1, t=0.5, nu=0.03)
surrogate.field(nu=0.03)                          an xarray.Dataset on a grid
surrogate.plot(nu=0.03)                           a picture of that field
surrogate.function()                              a JAX function, for gradients through the surrogate
surrogate.error(nu=0.03)                          the estimated error there, and whether to trust it
surrogate.error_map()                             estimated errors over the whole parameter box
surrogate.correct(nu=0.0113)                      another surrogate, with the estimated error added at that theta
surrogate.correct_box()                           another surrogate, with estimated errors added at every theta
surrogate.trust(nu=0.03)                          residual norms there, beside those over the box
surrogate.fit("data.csv", unknown=("nu",))        parameters from measurements, with intervals
surrogate.adapt(nu=0.0113)                        another surrogate, with a head at that theta
surrogate.save("burgers.clpinn")                  one file; clpinn.load reads it
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from clpinn.errors import ProblemError
from clpinn.estimation.estimate import FUNCTIONS, TOLERANCE, Estimator
from clpinn.formulation.domain import Points
from clpinn.formulation.geometry import box_names
from clpinn.formulation.problem import Problem
from clpinn.formulation.references import Progress
from clpinn.formulation.thetas import checked_thetas, one_theta, unseen_thetas
from clpinn.keys import make_key
from clpinn.networks.architecture import precision
from clpinn.shown import html_table
from clpinn.surrogate import file
from clpinn.surrogate.adapt import adapt
from clpinn.surrogate.adapt_settings import HEADS_BY_LM, AdaptSettings
from clpinn.surrogate.adaptations import Heads
from clpinn.surrogate.answers import Answers
from clpinn.surrogate.box_correction import at_theta, without_box_correction
from clpinn.surrogate.correct_box import BoxResult, correct_box
from clpinn.surrogate.corrections import Corrections, corrections_at
from clpinn.surrogate.error import ErrorEstimate, error_estimates
from clpinn.surrogate.error_map import ErrorMap, error_map
from clpinn.surrogate.field import field
from clpinn.surrogate.fit import STARTS, Fit, fit
from clpinn.surrogate.measurements import read as read_measurements
from clpinn.surrogate.points import surrogate_points
from clpinn.surrogate.provenance import digest, estimated_at, facts, provenance
from clpinn.surrogate.trust import ResidualNorms, Trust

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Surrogate:
    """A network that solves a problem for every theta of its parameter box.

    Coordinates and parameters are given by name. At a theta with a head that is used, the head answers; everywhere else
    the network alone. A value outside the box or the domain gives an OutsideBoxWarning and an answer; a value that is
    not finite is a DomainError.

    A surrogate never changes: `adapt` returns another one.

    Attributes:
        problem: The problem that the network solves.
        network: The base network, without heads; with its correction over the box, if it has one.
        heads: Heads or corrections at single thetas, or None.
        record: How the network was trained, in plain values: settings, versions, tasks, outcome, steps, validation.
        errors: Estimated errors of the base network over the parameter box, or None. See `error_map`.
    """

    problem: Problem
    network: Any
    heads: Heads | Corrections | None = None
    record: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    errors: ErrorMap | None = None

    # Answers -----------------------------------------------------------------------------------------------------

    def __call__(self, **given: ArrayLike) -> dict[str, np.ndarray]:
        """The outputs by name, at coordinates and parameters that broadcast against each other.

        Example:
            `surrogate(x=np.linspace(-1, 1, 50), t=0.5, nu=0.03)["u"]` has the shape (50,).
        """
        return self._answers.named((), given)

    def derivative(self, name: str, **given: ArrayLike) -> np.ndarray:
        """A derivative of an output along coordinates or parameters: "u_x", "u_xx", "u_nu", "u_xnu"."""
        return self._answers.named((name,), given)[name]

    def function(self, *derivatives: str) -> Callable[..., dict[str, Array]]:
        """A pure JAX function of coordinates and parameters by name, for jax.jit, jax.grad, jax.vmap and the like.

        It returns the outputs by name, or the derivatives that are named. It computes in double precision if the
        network is double and JAX's x64 is on at the call (`with jax.enable_x64(True):`), otherwise in single. Each head
        costs one more evaluation. Values outside the box give no warning.
        """
        return self._answers.function(derivatives)

    def field(self, count: int | Mapping[str, int] | None = None, /, **given: ArrayLike) -> "xarray.Dataset":
        """The outputs on a grid, with coordinates, parameters, units, provenance and, at one theta, estimated errors.

        If the problem moves its geometry (`place`), x, y, ... are physical coordinates. If you give one of them, the
        grid is physical: the others run over the extent of the domain, and outputs are NaN outside it. If you give
        none, the grid is the box, mapped to the domain: its dimensions are box_x, box_y, ..., and the dataset also has
        the physical x, y, ... of each point. Values in the box are given as box_x=..., box_y=....

        Args:
            count: Number of values of each coordinate that is not given, or a dict of numbers by name. By default
                coordinates run over the problem's evaluation grid.
            **given: A value or a row of values for every parameter, and for any coordinate. A row makes a dimension.

        Example:
            `surrogate.field(x=np.linspace(-1, 1, 50), t=0.5, nu=[0.03, 0.1])["u"]` has the dimensions nu and x.
        """
        answers = field(self.problem, self._answers.at, count, given, self.provenance())
        return answers.assign_attrs(estimated_at(answers, self.errors, self.heads))

    def points(self, count: int, seed: int = 0, /, **theta: float) -> "xarray.Dataset":
        """The outputs at random points of the domain at one theta, evenly spread: a dataset over `point`."""
        return surrogate_points(self.problem, self._answers.at, count, seed, theta)

    def at(self, theta: Float[np.ndarray, " parameters"]) -> Any:
        """The network that answers at a theta: with its head if one is used there, otherwise the base."""
        return self._answers.network_at(theta)

    @cached_property
    def _answers(self) -> Answers:
        return Answers(self.problem, self.network, self.heads, self.tasks)

    def plot(self, count: int | Mapping[str, int] | None = None, /, **given: ArrayLike) -> "Figure":
        """A matplotlib figure of the outputs: lines over one coordinate, colours over two.

        Values are given as for `field`. Of more than two coordinates, those after the first two are at the middle of
        their axis unless you give some. Several values of a parameter give panels side by side.
        """
        from clpinn.drawing.fields import plot_field  # here, because matplotlib takes long to import

        problem, names = self.problem, box_names(self.problem)
        if not any(name in given for name in (*names, *names.values())):
            middle = zip(list(names.values())[2:], problem.coordinates.centre[2:].tolist(), strict=True)
            given = given | dict(middle)
        return plot_field(problem, self.field(count, **given))

    # Thetas ------------------------------------------------------------------------------------------------------

    @property
    def tasks(self) -> Points:
        """The thetas in the pool at the end of training (tasks, parameters); none if training drew all over the box."""
        return self._recorded("tasks")

    def unseen(self, most: int | None = None, seed: int = 0) -> Points:
        """The candidate thetas that were never trained, not even for a while; or `most` of them, drawn at random."""
        trained = np.concatenate([self.tasks, self._recorded("displaced")])  # files of before have no displaced ones
        return unseen_thetas(self.problem.candidates.points, trained, most, seed)

    def _row(self, theta: Mapping[str, float]) -> list[list[float]]:
        """A theta by name as (1, parameters)."""
        return one_theta(self.problem.parameters, theta)

    def _recorded(self, name: str) -> Points:
        """Thetas of the training record (thetas, parameters)."""
        thetas = self.record.get(name, [])
        return np.asarray(thetas, float).reshape(len(thetas), len(self.problem.parameters))

    # Adaptation --------------------------------------------------------------------------------------------------

    def adapt(self, seed: int = 0, settings: AdaptSettings = HEADS_BY_LM, /, **theta: float) -> "Surrogate":
        """A surrogate with a small residual head at one theta, fitted to the equations there, as in the paper.

        The head is used only if the evidence says that it is better; `heads.reason(-1)` of the result tells why.
        """
        return self.adapt_many(self._row(theta), seed, settings=settings)

    def adapt_many(
        self,
        thetas: ArrayLike,
        seed: int = 0,
        progress: Callable[[int, int], None] = lambda done, of: None,
        settings: AdaptSettings = HEADS_BY_LM,
    ) -> "Surrogate":
        """A surrogate with a head at each of these thetas. A head that was there before is replaced.

        Args:
            thetas: Thetas in rows, (thetas, parameters).
            seed: Seed of the points and of the heads' first weights.
            progress: Called with the number of thetas done, and of all.
            settings: What is trained and how, see `AdaptSettings`. By default residual heads by Levenberg-Marquardt.
        """
        heads = adapt(self.problem, self.network, np.asarray(thetas), make_key(seed), settings, progress)
        return replace(self, heads=heads if self.heads is None else self.heads.joined(heads))

    def correct(self, **theta: float) -> "Surrogate":
        """A surrogate that answers at one theta with its estimated error added: û + e.

        It is used only where the estimate is resolved; `heads.reason(-1)` tells. Other thetas are answered as before.
        """
        return self.correct_many(self._row(theta))

    def correct_many(
        self,
        thetas: ArrayLike,
        progress: Callable[[int, int], None] = lambda done, of: None,
        tolerance: float = TOLERANCE,
        functions: int = FUNCTIONS,
        seconds: float | None = None,
    ) -> "Surrogate":
        """A surrogate that is corrected at each of these thetas (thetas, parameters), as by `correct`.

        The other arguments are those of `error_many`. A correction that was there before is replaced.
        """
        estimator = Estimator(self.problem, tolerance, functions, seconds)
        corrections = corrections_at(estimator, self.network, thetas, progress)
        return replace(self, heads=corrections if self.heads is None else self.heads.joined(corrections))

    def correct_box(
        self,
        thetas: int | None = None,
        seconds: float | None = None,
        progress: Callable[[int, int], None] = lambda done, of: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> "Surrogate":
        """A surrogate whose estimated error is added at every theta: known at some thetas, interpolated between them.

        It is used only if it is better at further thetas, which it does not know: `record["box_correction"]` of the
        result tells, and `errors` has what is left there. By default it is made of 48 thetas, twice as many for each
        further parameter, at most of 400; or, if you give `seconds`, of as many as fit. It replaces an earlier one.
        When `stop` says so, no further theta is begun.
        """
        if self.heads is not None:
            raise ProblemError("Correct the box before single thetas: this surrogate is adapted at some already.")
        base = without_box_correction(self.network)
        return self.corrected_by(correct_box(Estimator(self.problem), base, thetas, seconds, progress, stop))

    def corrected_by(self, result: BoxResult) -> "Surrogate":
        """The same surrogate with the network and the evidence of a correction over the box."""
        record = {**self.record, "box_correction": result.summary(self.problem.outputs)}
        return replace(self, network=result.network, record=record, errors=result.errors)

    # Measurements ------------------------------------------------------------------------------------------------

    def fit(
        self,
        data: Any,
        unknown: Sequence[str] | None = None,
        noise: float | Mapping[str, float] | None = None,
        starts: int = STARTS,
        **known: ArrayLike,
    ) -> Fit:
        """The parameters that fit measurements best, with standard errors, 95 % intervals and residuals.

        Nonlinear least squares through the network, in its own precision and from several starts. Heads are left out.

        Args:
            data: A dict of arrays by name, a pandas.DataFrame, an xarray.Dataset, or the path of a CSV file, with a
                column for each (physical) coordinate, for one or more outputs, and maybe for known parameters. NaN is a
                value that was not measured.
            unknown: The parameters to find. By default all that have neither a column nor a known value.
            noise: Standard deviation of a measurement, or a dict by output. By default it comes of the residuals.
            starts: Number of searches.
            **known: Values of parameters or coordinates that hold for all measurements.

        Example:
            `surrogate.fit({"x": x, "t": 0.5, "u": u}, unknown=("nu",)).values["nu"]`
        """
        measurements = read_measurements(self.problem, data, unknown, known)
        result = fit(self.problem, self._base_function, precision(self.network), measurements, noise, starts)
        if self.problem.place is not None:
            self(**measurements.columns, **result.values)  # warns of measurements outside the domain at that theta
        return result

    @cached_property
    def _base_function(self) -> Callable[..., dict[str, Array]]:
        return Answers(self.problem, self.network, None, self.tasks).function(())

    # Error -------------------------------------------------------------------------------------------------------

    def error(
        self,
        tolerance: float = TOLERANCE,
        functions: int = FUNCTIONS,
        seconds: float | None = None,
        /,
        **theta: float,
    ) -> ErrorEstimate:
        """How wrong the surrogate is at one theta, estimated without a reference, by the linearised equations.

        The estimate is `resolved` if two resolutions agree; only then trust it. Measured data has no part in it.

        Args:
            tolerance: Two resolutions agree if they differ by less than this fraction of the error.
            functions: Unknowns at most.
            seconds: No finer resolution is begun that would end later; by default there is no bound.
            **theta: A value for each parameter.
        """
        return self.error_many(self._row(theta), tolerance, functions, seconds)[0]

    def error_many(
        self,
        thetas: ArrayLike,
        tolerance: float = TOLERANCE,
        functions: int = FUNCTIONS,
        seconds: float | None = None,
        progress: Callable[[int, int], None] = lambda done, of: None,
    ) -> list[ErrorEstimate]:
        """The estimates of `error` at many thetas (thetas, parameters); `seconds` bounds each of them.

        `progress` is called with the number of thetas done, and of all.
        """
        estimator = Estimator(self.problem, tolerance, functions, seconds)
        return error_estimates(estimator, checked_thetas(self.problem, thetas), self.at, self.field, progress)

    def error_map(
        self,
        thetas: int | None = None,
        seconds: float | None = None,
        progress: Callable[[int, int], None] = lambda done, of: None,
    ) -> ErrorMap:
        """Estimated errors over the whole parameter box: macro and worst error with their spread, and a map between.

        Errors without heads are estimated at `thetas` thetas (24, and 12 more for each further parameter), placed where
        they tell most. A Gaussian process interpolates. No theta is started after `seconds`. `with_errors` keeps a map.
        """
        network_at = partial(at_theta, self.problem, self.network)
        return error_map(Estimator(self.problem), network_at, thetas, seconds, progress)

    def with_errors(self, errors: ErrorMap | None) -> "Surrogate":
        """The same surrogate with this map of its estimated errors."""
        return replace(self, errors=errors)

    # Trust -------------------------------------------------------------------------------------------------------

    def trust(self, **theta: float) -> Trust:
        """How well the equations hold at one theta, beside the whole box and the trained thetas.

        The figures are norms of residuals, relative to the size of the equations' own terms. They bound no error.
        """
        return self._norms.trust(theta, self.at, self.tasks)

    def trust_map(self, progress: Progress | None = None, **values: ArrayLike) -> "xarray.Dataset":
        """The norms of `trust` over many thetas: `norm` is the total, `norm_NAME` that of each residual.

        `values` has a value or a row of values for every parameter; without any, the map is over the candidates.
        """
        return self._norms.over(values, self.at, progress, self.provenance())

    @cached_property
    def _norms(self) -> ResidualNorms:
        return ResidualNorms(self.problem)

    # For people --------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {text}" for name, text in self._facts().items())
        return f"Surrogate of {type(self.problem).__name__}: {facts}"

    def _repr_html_(self) -> str:
        return html_table(f"Surrogate of {type(self.problem).__name__}", self._facts())

    def _facts(self) -> dict[str, str]:
        heads = None if self.heads is None else f"{len(self.heads.thetas)}, {self.used_heads} used"
        return facts(self.problem, self.network, self.record, heads)

    @property
    def used_heads(self) -> int:
        """The number of heads that are used."""
        return 0 if self.heads is None else int(np.sum(self.heads.used))

    # Files and provenance ----------------------------------------------------------------------------------------

    def save(self, path: Path | str) -> None:
        """Write one file without code, which `clpinn.load` reads: weights, heads, what the problem is, the record."""
        file.write(Path(path), file.Contents(self.problem, self.network, self.heads, self.record, self.errors))

    def provenance(self) -> dict[str, Any]:
        """Where the numbers come from, in plain values: problem, box, version, checksum of the weights, training."""
        return provenance(self.problem, self.digest, self.used_heads, self.record)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all weights, heads included."""
        return digest((self.network, self.heads))


def load(path: Path | str, problem: Problem | None = None, changed_problem: bool = False) -> Surrogate:
    """A surrogate from its file, or from the directory of a run that has ended.

    For a problem of your own, give that problem too: a file holds no code. If the problem computes something else than
    the one that was trained, that is an error. `changed_problem=True` accepts the change.
    """
    return Surrogate(*file.read(Path(path), problem, changed_problem))
