"""All settings of a run as frozen dataclasses, and the paper's protocol as data.

Every setting is independent, so an ablation is one `dataclasses.replace`. `paper(problem, method)` gives the settings
of the paper for a benchmark, and a general default for any other problem.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import methodcaller
from typing import Any, Literal, get_args, get_origin, get_type_hints

import equinox as eqx
import jax

from clpinn.errors import SettingsError
from clpinn.formulation.problem import Problem
from clpinn.networks.architecture import Architecture, count, matching_width
from clpinn.networks.make import make

METHODS = ("uni", "fix", "ag", "ac", "acr", "acr2", "acr2-full")
"""The paper's methods; `free` (no pool) is ours."""
RIVALS = ("standard", "p2inn", "hyperpinn", "metapinn")
"""Methods to compare with, each with a network of its own (see `clpinn.networks`) and no selection of tasks."""


@dataclass(frozen=True)
class TaskSettings:
    """Which tasks are trained, and how they are found."""

    selector: Literal["free", "uniform", "fixed", "grid", "bayesian"] = "bayesian"
    """How tasks are found; `free` keeps no pool and draws thetas over the whole box."""
    active: int = 9
    replay: int | None = 9
    """Capacity of the replay set: 0 for no replay, None for no limit."""
    density: Literal["sparse", "full"] = "sparse"
    """Points of a replay task: `fraction` of the interior, or all."""
    fraction: float = 0.1
    interval: int = 1000
    """Steps from one event to the next (N_resample); under natural the most, events come sooner with progress."""
    evaluations: int = 10
    """Bayesian evaluations an event (N_bayesian)."""
    kappa: float = 5.0
    coverage: float = 0.0
    """Least normalised distance of a newcomer from the pool (ours)."""
    search_prior: bool = False
    """Whether the problem's prior shapes the search scores."""
    linear: tuple[str, ...] = ()
    """Parameters whose grid and distances are linear though their axis is logarithmic."""
    fixed: tuple[tuple[float, ...], ...] = ()
    """The thetas of `fixed`; empty takes the corners and the centre of the box."""


@dataclass(frozen=True)
class WeightSettings:
    """How tasks are weighed against each other."""

    kind: Literal["equal", "dynamic"] = "dynamic"
    static: float = 1.0
    dynamic: float = -1.0
    prior: bool = True
    """Whether the problem's prior enters the training weights."""


@dataclass(frozen=True)
class AdamSettings:
    """The first stage. Decay is a penalty on the parameter branch, on the whole network, or none."""

    steps: int = 20_000
    learning_rate: float = 1e-3
    decay: Literal["none", "branch", "global"] = "none"
    decay_rate: float = 1e-4


@dataclass(frozen=True)
class LBFGSSettings:
    """The second stage, on a fixed pool. `freeze` keeps the parameter branch as Adam left it."""

    steps: int = 20_000
    history: int = 100
    gradient_tolerance: float = 1e-8
    line_search: bool = False
    evaluations: float = 1.25
    """Function evaluations allowed for each requested step."""
    freeze: bool = False


@dataclass(frozen=True)
class NaturalSettings:
    """The natural-gradient optimiser, in one stage."""

    rows: int = 1024
    """Residual rows of a batch at the start; it grows along a run."""
    damping: float = 1e-8
    momentum: float = 0.8
    noise: float = 1e-6
    """Damping of a row in proportion to its squared residual: the mean of it, relative as damping is."""
    causality: float = 1e5
    """How fast a row loses weight with the mean square of the scaled residuals before its time; 0 for not at all."""
    last_step: float = 0.02
    """The longest step allowed falls from 1 to this over a run with bounds."""


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run, besides the problem."""

    method: str = "acr"
    optimizer: Literal["natural", "adam-lbfgs"] = "adam-lbfgs"
    seed: int = 0
    precision: Literal["single", "double"] = "single"
    network: Architecture = field(default_factory=Architecture)
    tasks: TaskSettings = field(default_factory=TaskSettings)
    weights: WeightSettings = field(default_factory=WeightSettings)
    adam: AdamSettings = field(default_factory=AdamSettings)
    lbfgs: LBFGSSettings = field(default_factory=LBFGSSettings)
    natural: NaturalSettings = field(default_factory=NaturalSettings)
    chunk: int = 512
    """Rows differentiated at once; bounds memory."""
    batch: float = 1.0
    """Share of the rows drawn at each Adam step; 1 takes all."""
    steps: int | None = None
    """Bound on the optimiser steps of the whole run."""
    seconds: float | None = None
    """Bound on the wall time of the whole run; Adam may use half of it."""
    until: float | None = None
    """Under natural, the validation loss to stop at."""
    probe: int = 0
    """Errors at that many thetas are recorded along the run. Evaluation only: nothing depends on them."""


# The paper's protocol ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Protocol:
    """What the paper fixes for one benchmark. `interval` is N_resample of AC (and AG), ACR, ACR2."""

    width: int = 50
    depth: int = 4
    active: int = 9
    replay: int = 9
    adam: int = 20_000
    adam_static: int | None = None
    """Adam steps of the methods without selection, where they differ."""
    lbfgs: int = 20_000
    interval: tuple[int, int, int] = (1000, 1000, 1000)
    evaluations: int = 10
    static: float = 1.0
    dynamic: float = -1.0
    search_prior: bool = False
    full_density: bool = False
    """Whether ACR2 replays at full density."""
    trunk: int | None = None
    """Depth of ACR2's trunk; one less than the FNN's where the paper is silent."""
    target: int = 6
    """Width of the network that HyperPINN makes for each theta."""
    linear: tuple[str, ...] = ()
    fixed: tuple[tuple[float, ...], ...] = ()


def _product(*axes: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
    rows: tuple[tuple[float, ...], ...] = ((),)
    for axis in axes:
        rows = tuple((*row, value) for row in rows for value in axis)
    return rows


# The lists of FIX are ours: the paper does not print its own.
PROTOCOLS: Mapping[str, Protocol] = {
    "Schaffer": Protocol(
        width=30, active=15, replay=15, interval=(1000, 1000, 500), static=2, dynamic=-2, search_prior=True,
        full_density=True, trunk=3, fixed=_product((0.001, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)),
    ),
    "Burgers": Protocol(
        interval=(2000, 2000, 1000), full_density=True, linear=("nu",),
        fixed=_product((0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)),
    ),
    "AllenCahn": Protocol(
        lbfgs=10_000, interval=(2000, 1000, 1000), evaluations=20, static=2, dynamic=-2,
        fixed=_product((0.001, 0.01, 0.1), (3.0, 4.0, 5.0)),
    ),
    "Kovasznay": Protocol(
        active=10, replay=10, adam=10_000, lbfgs=10_000, interval=(1000, 500, 500), evaluations=15,
        fixed=_product((5.0, 10.0, 20.0, 40.0, 80.0, 120.0, 200.0, 300.0, 400.0, 500.0)),
    ),
    "PoissonBoltzmann": Protocol(
        width=30, depth=5, active=80, replay=80, adam=40_000, adam_static=20_000, interval=(500, 250, 250),
        evaluations=50, target=15, fixed=_product((1.0, 1.5, 2.0), (3.0, 3.5, 4.0), (5.0, 10.0), (5.0, 15.0)),
    ),
}  # fmt: skip


def paper(problem: Problem, method: str) -> Settings:
    """The paper's settings of a method: Adam then L-BFGS in single precision."""
    if method not in (*METHODS, *RIVALS):
        also = ", or free with the natural optimiser" if method == "free" else ""
        raise SettingsError(f"Unknown method {method!r}. Use one of {', '.join((*METHODS, *RIVALS))}{also}.")
    # A user's own class may have a benchmark's name, too.
    ours = [kind.__name__ for kind in type(problem).__mro__ if kind.__module__.startswith("clpinn.problems.")]
    protocol = PROTOCOLS.get(ours[0]) if ours else None
    if protocol is None:
        room = 2 ** len(problem.parameters) + 8
        protocol = Protocol(active=room, replay=room)
    if method in RIVALS:
        return _rival(problem, protocol, method)
    acr2, searching = method.startswith("acr2"), method not in ("uni", "fix")
    replay = protocol.replay if method.startswith("acr") else 0
    return Settings(
        method=method,
        network=Architecture(
            "param-fnn" if acr2 else "fnn",
            protocol.width,
            (protocol.trunk or protocol.depth - 1) if acr2 else protocol.depth,
        ),
        tasks=TaskSettings(
            selector={"uni": "uniform", "fix": "fixed", "ag": "grid"}.get(method, "bayesian"),  # pyright: ignore
            active=protocol.active,
            replay=replay,
            density="full" if acr2 and protocol.full_density else "sparse",
            interval=protocol.interval[2 if acr2 else 1 if method == "acr" else 0],
            evaluations=protocol.evaluations,
            search_prior=protocol.search_prior and method != "ag",
            linear=protocol.linear,
            fixed=protocol.fixed if method == "fix" else (),
        ),
        weights=WeightSettings("dynamic" if method.startswith("ac") else "equal", protocol.static, protocol.dynamic),
        adam=AdamSettings(
            protocol.adam if searching else protocol.adam_static or protocol.adam,
            decay="branch" if method == "acr2-full" else "none",
        ),
        lbfgs=LBFGSSettings(protocol.lbfgs, freeze=method == "acr2-full"),
    )


def _rival(problem: Problem, protocol: Protocol, method: str) -> Settings:
    """The settings of a rival: a network as large as the paper's FNN, tasks spread evenly.

    P2INN and HyperPINN are trained by Adam alone. A standard PINN has one task, the centre of the box unless
    tasks.fixed says another; Meta-PINN trains such networks at its centre and then at its support thetas.
    """
    key = jax.random.key(0)
    size = count(eqx.filter_eval_shape(make, problem, Architecture("fnn", protocol.width, protocol.depth), key))
    if method == "p2inn":
        width = matching_width(size, lambda w: make(problem, Architecture("p2inn", w, 5), key))
        network = Architecture("p2inn", width, 5)
    elif method == "hyperpinn":
        target = protocol.target
        hyper = matching_width(size, lambda h: make(problem, Architecture("hyperpinn", target, 4, hyper=h), key))
        network = Architecture("hyperpinn", target, 4, hyper=hyper)
    elif method == "metapinn":
        network = Architecture("metapinn", protocol.width, protocol.depth, support=protocol.active)
    else:
        network = Architecture("standard", protocol.width, protocol.depth)
    tasks = TaskSettings("uniform", active=protocol.active, replay=0)
    if method == "standard":
        tasks = TaskSettings("fixed", active=1, replay=0, fixed=(tuple(problem.parameters.centre.tolist()),))
    return Settings(
        method=method,
        network=network,
        tasks=tasks,
        weights=WeightSettings("equal"),
        adam=AdamSettings(protocol.adam_static or protocol.adam),
        lbfgs=LBFGSSettings(0 if method in ("p2inn", "hyperpinn") else protocol.lbfgs),
    )


def network_size(problem: Problem, branched: bool = False) -> Architecture:
    """The network of the natural preset: quadratic, 4 layers of 21 for up to four inputs, for more inputs 5 layers of
    7 times their number less two, to 42; with a parameter branch about as many parameters.
    """
    inputs = problem.coordinates.feature_count + problem.parameters.feature_count
    if branched:
        return Architecture("param-fnn", 10 * min(6, max(3, inputs - 1)), 3)
    return Architecture("quadratic", 7 * min(6, max(3, inputs - 2)), 4 if inputs <= 4 else 5)


def natural(problem: Problem, method: str = "free") -> Settings:
    """The natural preset: natural gradient in double precision, the same settings for every problem.

    Only the network's size follows from the number of inputs. With one of the paper's methods the tasks, weights and
    replay are that method's, and ACR2 has its parameter branch. A rival keeps its own network.
    """
    settings = paper(problem, "uni" if method == "free" else method)
    tasks = TaskSettings("free", active=0, replay=0) if method == "free" else replace(settings.tasks, interval=100)
    network = network_size(problem, branched=settings.network.kind == "param-fnn")
    return replace(
        settings,
        method=method,
        optimizer="natural",
        precision="double",
        network=settings.network if method in RIVALS else network,
        tasks=tasks,
    )


def scaled(settings: Settings, budget: float) -> Settings:
    """Iteration counts and the event interval times `budget`; the number of events, and so of queries, stays."""
    if not (math.isfinite(budget) and budget > 0):
        raise SettingsError(f"A budget must be above zero, such as 0.1 for a tenth of the steps, but got {budget}.")
    events = settings.adam.steps // settings.tasks.interval
    interval = max(1, round(budget * settings.tasks.interval))
    lbfgs = settings.lbfgs.steps and max(1, round(budget * settings.lbfgs.steps))  # some methods have none
    return replace(
        settings,
        tasks=replace(settings.tasks, interval=interval),
        adam=replace(settings.adam, steps=events * interval),
        lbfgs=replace(settings.lbfgs, steps=lbfgs),
    )


# Settings as text --------------------------------------------------------------------------------------------


def to_dict(settings: Settings) -> dict[str, Any]:
    """Settings as plain values, for config.json."""
    return json.loads(json.dumps(dataclasses.asdict(settings), default=methodcaller("item")))  # of NumPy's numbers


def from_dict(values: Mapping[str, Any]) -> Settings:
    """The settings that `to_dict` wrote; an unknown or ill-typed entry is an error."""
    return _build(Settings, values, "")


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


def _build(kind: Any, values: Mapping[str, Any], where: str) -> Any:
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
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    name = getattr(hint, "__name__", str(hint))
    raise SettingsError(f"{where} must be {'a list' if get_origin(hint) is tuple else name}, but got {value!r}.")
