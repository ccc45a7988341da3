"""Complete settings for a problem and a method: the natural preset and those of the paper.

`paper(problem, method)` gives the paper's settings of a benchmark, and a general default for any other problem.
"""

import math
from dataclasses import replace

import equinox as eqx

from clpinn.errors import SettingsError
from clpinn.formulation.problem import Problem
from clpinn.networks.architecture import Architecture, count, matching_width
from clpinn.networks.make import make
from clpinn.problems.burgers import Burgers
from clpinn.protocol import METHODS, PROTOCOLS, RIVALS, Protocol
from clpinn.training.settings import AdamSettings, LBFGSSettings, Settings, TaskSettings, WeightSettings


def paper(problem: Problem, method: str) -> Settings:
    """The paper's settings of a method: Adam then L-BFGS in single precision.

    A benchmark must have the form that the paper states it in.
    """
    if isinstance(problem, Burgers) and problem.hard:
        raise SettingsError(
            "The paper states Burgers' equation with soft conditions, but got hard=True. Use "
            "cl.problems.Burgers(hard=False), or the settings cl.natural(problem)."
        )
    return _paper(problem, method)


def _paper(problem: Problem, method: str) -> Settings:
    """The paper's settings of a method, whatever the form of the problem."""
    if method not in (*METHODS, *RIVALS):
        raise SettingsError(
            f"Unknown method {method!r}. Use one of {', '.join((*METHODS, *RIVALS))}, or free with the natural "
            "optimiser, where it is the default."
        )
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
        optimizer="adam-lbfgs",
        precision="single",
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
            search_prior=0.0 if method == "ag" else protocol.search_prior,
            linear=protocol.linear,
            fixed=protocol.fixed if method == "fix" else (),
        ),
        weights=WeightSettings(
            "dynamic" if method.startswith("ac") else "equal", protocol.static, protocol.dynamic, protocol.prior
        ),
        correct=False,
        adam=AdamSettings(
            protocol.adam if searching else protocol.adam_static or protocol.adam,
            decay="branch" if method == "acr2-full" else "none",
        ),
        lbfgs=LBFGSSettings(protocol.lbfgs, freeze=method == "acr2-full"),
    )


def _rival(problem: Problem, protocol: Protocol, method: str) -> Settings:
    """The settings of a rival: a network as large as the paper's FNN, tasks spread evenly.

    Adam alone trains P2INN and HyperPINN. A standard PINN has one task: the centre of the box, or `tasks.fixed`.
    Meta-PINN trains standard PINNs at the centre and then at its support thetas.
    """
    size = count(eqx.filter_eval_shape(make, problem, Architecture("fnn", protocol.width, protocol.depth), None))
    if method == "p2inn":
        network = Architecture(
            "p2inn", matching_width(size, lambda w: make(problem, Architecture("p2inn", w, 5), None)), 5
        )
    elif method == "hyperpinn":
        target = protocol.target
        hyper = matching_width(size, lambda h: make(problem, Architecture("hyperpinn", target, 4, hyper=h), None))
        network = Architecture("hyperpinn", target, 4, hyper=hyper)
    elif method == "metapinn":
        network = Architecture("metapinn", protocol.width, protocol.depth, support=protocol.active)
    else:
        network = Architecture("standard", protocol.width, protocol.depth)
    tasks = TaskSettings("uniform", active=protocol.active, replay=0, linear=protocol.linear)
    if method == "standard":
        centre = tuple(problem.parameters.centre.tolist())
        tasks = TaskSettings("fixed", active=1, replay=0, fixed=(centre,))
    return Settings(
        method=method,
        optimizer="adam-lbfgs",
        precision="single",
        network=network,
        tasks=tasks,
        weights=WeightSettings("equal"),
        correct=False,
        adam=AdamSettings(protocol.adam_static or protocol.adam),
        lbfgs=LBFGSSettings(0 if method in ("p2inn", "hyperpinn") else protocol.lbfgs),
    )


def network_size(problem: Problem, branched: bool = False) -> Architecture:
    """The network of the natural preset, by the number of inputs (features of coordinates and parameters).

    Up to 4 inputs: 4 quadratic layers of width 21. More inputs: 5 layers of width 7 (inputs - 2), at most 42.
    `branched` gives a network with a parameter branch and about as many weights.
    """
    inputs = problem.coordinates.feature_count + problem.parameters.feature_count
    if branched:
        return Architecture("param-fnn", 10 * min(6, max(3, inputs - 1)), 3)
    return Architecture("quadratic", 7 * min(6, max(3, inputs - 2)), 4 if inputs <= 4 else 5)


def natural(problem: Problem, method: str = "free") -> Settings:
    """The natural preset: natural gradient in double precision, the same settings for every problem.

    Only the size of the network depends on the problem. With one of the paper's methods, tasks, weights and replay are
    those of that method, and ACR2 has its parameter branch. A rival keeps its own network and is not corrected.
    """
    settings = _paper(problem, "uni" if method == "free" else method)
    tasks = TaskSettings() if method == "free" else replace(settings.tasks, interval=100)
    network = network_size(problem, branched=settings.network.kind == "param-fnn")
    return replace(
        settings,
        method=method,
        optimizer="natural",
        precision="double",
        network=settings.network if method in RIVALS else network,
        tasks=tasks,
        correct=len(problem.parameters) > 0 and method not in RIVALS,
    )


def scaled(settings: Settings, budget: float) -> Settings:
    """Settings with the numbers of steps and the event interval times `budget`. The number of events stays the same."""
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
