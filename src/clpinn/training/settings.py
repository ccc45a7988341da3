"""All settings of a run as frozen dataclasses, and how to read and write them as text.

Every setting is independent, so an ablation is one `dataclasses.replace`. Complete settings for a problem come from
`clpinn.presets`.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import methodcaller
from typing import Any, Literal, get_args, get_origin, get_type_hints

from clpinn.errors import SettingsError
from clpinn.networks.architecture import Architecture


@dataclass(frozen=True)
class TaskSettings:
    """Which tasks are trained, and how they are selected."""

    selector: Literal["free", "uniform", "fixed", "grid", "bayesian"] = "free"
    """How tasks are selected. `free` keeps no pool and draws thetas over the whole box."""
    active: int = 0
    """Capacity of the active set."""
    replay: int | None = 0
    """Capacity of the replay set: 0 for no replay, None for no limit."""
    density: Literal["sparse", "full"] = "sparse"
    """Interior points of a replay task: a `fraction` of them, or all."""
    fraction: float = 0.1
    """Fraction of the interior points that a sparse replay task keeps."""
    interval: int = 1000
    """Steps between two events (N_resample). Under natural it is the maximum: progress brings an event sooner."""
    evaluations: int = 10
    """Evaluations of the Bayesian search per event (N_bayesian)."""
    kappa: float = 5.0
    """Weight of the standard deviation in the upper confidence bound of the Bayesian search."""
    coverage: float = 0.0
    """Minimum normalised distance of a newcomer from the pool (our addition; 0 is the paper)."""
    search_prior: float = 0.0
    """Exponent of the problem's prior as a factor of the search scores; 0 for none."""
    linear: tuple[str, ...] = ()
    """Parameters whose tasks are spaced linearly although their axis is logarithmic."""
    fixed: tuple[tuple[float, ...], ...] = ()
    """The thetas of the selector `fixed`. If empty, they are the corners and the centre of the box."""
    exclude: tuple[tuple[float, ...], ...] = ()
    """Thetas that are held out: no task is ever one of them, though a search may ask for their losses."""
    readmit: bool = True
    """Whether a task that was dropped may be selected again. Only pools without replay drop tasks."""
    refit: Literal["doubling", "every"] = "doubling"
    """When the search fits its length scales anew: if the observations have doubled, or at every evaluation."""
    uncapped: bool = False
    """Whether every newcomer enters a full pool, whatever its loss. It needs `replay` without a limit."""


@dataclass(frozen=True)
class WeightSettings:
    """The weights of tasks relative to each other."""

    kind: Literal["equal", "dynamic"] = "equal"
    static: float = 1.0
    """Coefficient of a task's share of the total loss, in the exponent of its dynamic weight."""
    dynamic: float = -1.0
    """Coefficient of the relative decrease of its loss since the event before, in the same exponent."""
    prior: float = 1.0
    """Exponent of the problem's prior as a factor of the training weights; 0 for none, -1 reverses it."""


@dataclass(frozen=True)
class PointSettings:
    """The points of adam-lbfgs."""

    interior: int | None = None
    """Interior points per dense task, besides anchors; None for the problem's own number."""


@dataclass(frozen=True)
class AdamSettings:
    """The first stage of adam-lbfgs. Decay penalises the parameter branch, the whole network, or nothing."""

    steps: int = 20_000
    learning_rate: float = 1e-3
    decay: Literal["none", "branch", "global"] = "none"
    decay_rate: float = 1e-4


@dataclass(frozen=True)
class LBFGSSettings:
    """The second stage of adam-lbfgs, on a fixed pool. `freeze` keeps the parameter branch as Adam left it."""

    steps: int = 20_000
    history: int = 100
    gradient_tolerance: float = 1e-8
    line_search: bool = False
    evaluations: float = 1.25
    """Maximum function evaluations per step, as an average over the stage."""
    freeze: bool = False


@dataclass(frozen=True)
class NaturalSettings:
    """The only stage of natural: steps of the natural gradient."""

    rows: int = 1024
    """Rows of a batch at the start of a run. Batches grow along a run."""
    damping: float = 1e-8
    """Minimum damping of the kernel matrix, relative to the mean of its diagonal."""
    momentum: float = 0.8
    noise: float = 1e-6
    """Mean of a further damping per row, proportional to the squared residual of the row; relative as above."""
    causality: float = 1e5
    """How fast the weight of a row falls with the mean square of all rows at earlier times; 0 for not at all."""
    last_step: float = 0.02
    """The maximum step length falls from 1 to this value over a run with bounds."""


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run, besides the problem. The defaults are those of the natural preset."""

    method: str = "free"
    optimizer: Literal["natural", "adam-lbfgs"] = "natural"
    seed: int = 0
    precision: Literal["single", "double"] = "double"
    network: Architecture = field(default_factory=lambda: Architecture("quadratic", 21, 4))
    tasks: TaskSettings = field(default_factory=TaskSettings)
    weights: WeightSettings = field(default_factory=WeightSettings)
    points: PointSettings = field(default_factory=PointSettings)
    adam: AdamSettings = field(default_factory=AdamSettings)
    lbfgs: LBFGSSettings = field(default_factory=LBFGSSettings)
    natural: NaturalSettings = field(default_factory=NaturalSettings)
    chunk: int = 512
    """Points differentiated at once. It bounds the memory."""
    batch: float = 1.0
    """Fraction of the points drawn at each Adam step; 1 takes all."""
    batch_rows: int | None = None
    """Number of rows (points of tasks) drawn at each Adam step, in place of a fraction; None takes all."""
    steps: int | None = None
    """Bound on the optimiser steps of the whole run."""
    seconds: float | None = None
    """Bound on the wall time of the whole run. Adam may use half of it."""
    until: float | None = None
    """The validation loss to stop at (natural only)."""
    error: float | None = None
    """The worst estimated relative error over the box to stop at. Progress then ends later, see `natural`."""
    correct: bool = True
    """Whether the surrogate is corrected over the box at the end of the run."""
    remedies: int = 5
    """How often a run may recover from a loss that is not finite. With 0 it ends at once, as in the paper."""
    probe: int = 0
    """Number of thetas whose errors are recorded along the run: their mean and the worst. Training does not depend on
    them."""


_TINY, _LARGE, _MANY = 1e-300, 1e300, 10**15
ABOVE_ZERO = f"at least {_TINY:g}"
MOST_WEIGHTS = 2 * 10**8
RANGES: dict[str, tuple[float, float]] = {
    "seed": (-(2**63), 2**63 - 1),
    "network.width": (1, 10_000),
    "network.depth": (1, 1000),
    "network.hyper": (1, 10_000),
    "network.support": (1, 10_000),
    "tasks.active": (0, 100_000),
    "tasks.replay": (0, 100_000),
    "tasks.fraction": (_TINY, 1),
    "tasks.interval": (1, _MANY),
    "tasks.evaluations": (1, 1_000_000),
    "tasks.kappa": (0, _LARGE),
    "tasks.coverage": (0, _LARGE),
    "tasks.search_prior": (-10, 10),
    "weights.static": (-_LARGE, _LARGE),
    "weights.dynamic": (-_LARGE, _LARGE),
    "weights.prior": (-10, 10),
    "points.interior": (1, 1_000_000_000),
    "adam.steps": (0, _MANY),
    "adam.learning_rate": (0, _LARGE),
    "adam.decay_rate": (0, _LARGE),
    "lbfgs.steps": (0, _MANY),
    "lbfgs.history": (1, 10_000),
    "lbfgs.gradient_tolerance": (0, _LARGE),
    "lbfgs.evaluations": (_TINY, _LARGE),
    "natural.rows": (1, 10_000_000),
    "natural.damping": (0, _LARGE),
    "natural.momentum": (0, 1),
    "natural.noise": (0, _LARGE),
    "natural.causality": (0, _LARGE),
    "natural.last_step": (_TINY, 1),
    "chunk": (1, 10_000_000),
    "batch": (_TINY, 1),
    "batch_rows": (1, 1_000_000_000),
    "steps": (1, _MANY),
    "seconds": (_TINY, _LARGE),
    "until": (_TINY, _LARGE),
    "error": (_TINY, _LARGE),
    "remedies": (0, 1_000_000),
    "probe": (0, 1_000_000),
}
"""The smallest and the largest value of each number."""
SWITCHES = ("tasks.search_prior", "weights.prior")
"""Numbers that were true or false in settings of before."""


# Settings as text --------------------------------------------------------------------------------------------


def to_dict(settings: Settings) -> dict[str, Any]:
    """Settings as plain values, for config.json."""
    return json.loads(json.dumps(dataclasses.asdict(settings), default=methodcaller("item")))  # of NumPy's numbers


def from_dict(values: Mapping[str, Any]) -> Settings:
    """The settings that `to_dict` wrote; an unknown or ill-typed entry, or a number out of range, is an error."""
    settings = _build(Settings, {"correct": False, **values}, "")  # settings of before had no corrections
    _check_ranges(settings)
    return settings


def override(settings: Settings, assignments: list[str]) -> Settings:
    """Settings with some replaced: ["adam.steps=100", "tasks.selector=grid"]."""
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise SettingsError(f"A setting is given as name=value, such as adam.steps=100, but got {assignment!r}.")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = None if text == "None" else text
        nested: dict[str, Any] = {}
        inner = nested
        *parents, last = path.split(".")
        for parent in parents:
            inner[parent] = inner = {}
        inner[last] = value
        settings = from_dict(_merged(to_dict(settings), nested, path))
    return settings


def _merged(base: dict[str, Any], update: Mapping[str, Any], path: str) -> dict[str, Any]:
    for name, value in update.items():
        if name not in base:
            raise SettingsError(f"There is no setting {path!r}. At {name!r} there are {', '.join(base)}.")
        if isinstance(value, dict):
            if not isinstance(base[name], dict):
                raise SettingsError(f"{path!r} goes too deep: {name!r} is a single setting.")
            value = _merged(base[name], value, path)
        elif isinstance(base[name], dict):
            raise SettingsError(f"{path!r} is a group of settings. Choose one of {', '.join(base[name])}.")
        base = {**base, name: value}
    return base


def _check_ranges(settings: Settings) -> None:
    for path, (low, high) in RANGES.items():
        value: Any = settings
        for name in path.split("."):
            value = getattr(value, name)
        if value is None or low <= value <= high:
            continue
        limit = f"at least {low:g}" if value < low else f"at most {high:g}" if value > high else "a number"
        raise SettingsError(f"{path} must be {'above zero' if limit == ABOVE_ZERO else limit}, but got {value}.")
    weights = settings.network.width**2 * settings.network.depth
    if weights > MOST_WEIGHTS:
        raise SettingsError(
            f"network.width={settings.network.width} and network.depth={settings.network.depth} give about "
            f"{weights:.0e} weights, but at most {MOST_WEIGHTS:.0e} can be trained. Choose a smaller network."
        )


def _build(kind: Any, values: Mapping[str, Any], where: str) -> Any:
    if not isinstance(values, Mapping):
        group = where.removesuffix(".") or "settings"
        raise SettingsError(f"{group} must be a group of settings by name, but got {values!r}.")
    hints = get_type_hints(kind)
    unknown = [name for name in values if name not in hints]
    if unknown:
        raise SettingsError(f"There is no setting {where}{unknown[0]}. There are {', '.join(hints)}.")
    return kind(**{name: _value(hints[name], value, where + name) for name, value in values.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    """A plain value as the type a setting wants."""
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, where + ".")
    if get_origin(hint) is Literal:
        if value in get_args(hint):
            return value
        raise SettingsError(f"{where} must be one of {', '.join(map(str, get_args(hint)))}, but got {value!r}.")
    choices = get_args(hint)
    if get_origin(hint) is tuple:
        if isinstance(value, list | tuple):
            return tuple(_value(choices[0], item, where) for item in value)
    elif type(None) in choices:
        inner = next(choice for choice in choices if choice is not type(None))
        return None if value is None else _value(inner, value, where)
    elif hint is float and isinstance(value, int | float) and (where in SWITCHES or not isinstance(value, bool)):
        return float(value)
    elif isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    name = getattr(hint, "__name__", str(hint))
    raise SettingsError(f"{where} must be {'a list' if get_origin(hint) is tuple else name}, but got {value!r}.")
