"""What a study is: variants × problems × seeds. Each combination is a cell, and a cell is an ordinary run directory."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from clpinn import presets
from clpinn.errors import SettingsError, StudyError
from clpinn.formulation.fingerprint import JAX, fingerprint
from clpinn.formulation.problem import Problem, describe
from clpinn.formulation.thetas import parse_thetas
from clpinn.problems import BENCHMARKS, load_problem
from clpinn.problems.loader import split_name
from clpinn.studies.adapting import Adapting
from clpinn.training.settings import Settings, override, to_dict

COLUMNS = ("mse", "macro", "worst", "res_pde")
"""The columns of a table that asks for nothing else."""


@dataclass(frozen=True)
class Variant:
    """One row of a study's table: a method with settings of its own.

    cl.Variant("wide", settings=("network.width=40", "steps=500"))
    """

    label: str
    method: str = "free"
    settings: tuple[str, ...] = ()
    """Settings that differ from those of the method, as with `clpinn train --set`."""
    optimizer: Literal["natural", "adam-lbfgs"] = "natural"
    at: tuple[str, ...] = ()
    """The theta of a standard PINN: ("nu=0.03",)."""
    adaptation: Adapting | None = None
    """What is done at target thetas after training; the row then shows errors there."""
    steps: int | None = None
    """The checkpoint of the adaptation that the row shows; its last one if None."""
    problems: tuple[str, ...] | None = None
    """The problems that have this row; all of the study if None."""
    seeds: tuple[int, ...] | None = None
    """Its seeds, where they differ from those of the study."""
    budget: float | None = None
    """Its budget, whatever that of the study."""


@dataclass(frozen=True)
class Cell:
    """One run of a study: a problem by its name, complete settings, and perhaps an adaptation of what they train."""

    problem: str
    settings: Settings
    adaptation: Adapting | None = None

    @cached_property
    def key(self) -> str:
        """A hash of everything that decides the result. Studies that have a cell in common share its run.

        Settings that have the default are left out, so that a new setting changes no key. A problem in a file counts
        with what it computes: an edited one has cells of its own.
        """
        content: dict[str, Any] = {
            "problem": self.problem.rpartition(":")[2],
            "description": _description(self.problem, self.settings.optimizer),
            "settings": _differences(to_dict(self.settings), to_dict(Settings())),
        }
        if self.problem not in BENCHMARKS:
            content["computes"] = _computes(self.problem, self.settings.optimizer)
        if self.adaptation is not None:
            content["adaptation"] = _differences(asdict(self.adaptation), asdict(Adapting()))
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """The name of its folder: for people, and unique by its key."""
        kind = "" if self.adaptation is None else f"-{self.adaptation.settings.way}"
        problem = self.problem.rpartition(":")[2].rpartition("/")[2]
        return f"{problem}-{self.settings.method}{kind}-{self.settings.seed}-{self.key}"

    @property
    def base(self) -> "Cell | None":
        """The cell whose surrogate is adapted."""
        return None if self.adaptation is None else replace(self, adaptation=None)

    @property
    def loaded(self) -> Problem:
        return _loaded(self.problem, self.settings.optimizer)


@dataclass(frozen=True)
class Study:
    """A question, and the cells that answer it.

    Sweep = cl.Study(
        problems=("heat.py:Heat",),
        variants=(cl.Variant("narrow", settings=("network.width=10",)), cl.Variant("wide")),
        seeds=(0, 1),
        settings=("steps=300",),
    )

    Problems are names as on the command line. `settings` are those of all cells. A `budget` multiplies all numbers of
    steps, the event interval and, where a variant has them, the bounds on steps and seconds.
    """

    problems: tuple[str, ...]
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    settings: tuple[str, ...] = ()
    columns: tuple[str, ...] = COLUMNS
    name: str = ""
    question: str = ""
    source: str = ""
    """The table or figure of the paper."""
    figures: tuple[str, ...] = ("dots", "errors", "losses")
    published: Mapping[str, Mapping[str, Mapping[str, Sequence[float | None]]]] = field(
        default_factory=dict, repr=False, compare=False
    )
    """Figures to compare with, by problem, label and column: mean and standard deviation."""

    def __post_init__(self) -> None:
        for name in ("problems", "variants", "seeds"):
            if not getattr(self, name):
                raise StudyError(f"A study needs at least one of its {name}, but {name} is empty.")
        pairs = [(problem, v.label) for v in self.variants for problem in v.problems or self.problems]
        twice = sorted({pair for pair in pairs if pairs.count(pair) > 1})
        if twice:
            raise StudyError(f"A study has one variant per label and problem, but {twice[0]} is there twice.")

    def rows(self, problem: str) -> list[Variant]:
        """The variants that a problem has."""
        return [variant for variant in self.variants if problem in (variant.problems or self.problems)]

    def cells(self, budget: float = 1.0) -> dict[tuple[str, str, int], Cell]:
        """All cells by problem, label and seed."""
        return {
            (problem, variant.label, seed): cell(problem, variant, seed, budget, self.settings)
            for problem in self.problems
            for variant in self.rows(problem)
            for seed in variant.seeds or self.seeds
        }

    def narrowed(
        self,
        problems: Sequence[str] = (),
        seeds: Sequence[int] = (),
        settings: Sequence[str] = (),
        labels: Sequence[str] = (),
    ) -> "Study":
        """The study with some of its problems and variants only, with other seeds, or with further settings."""
        for kind, asked, known in (
            ("problem", problems, self.problems),
            ("variant", labels, [variant.label for variant in self.variants]),
        ):
            unknown = [name for name in asked if name not in known]
            if unknown:
                raise StudyError(
                    f"The study {self.name} has no {kind} {unknown[0]!r}. It has {', '.join(dict.fromkeys(known))}."
                )
        variants = [
            replace(variant, settings=(*variant.settings, *settings), seeds=None if seeds else variant.seeds)
            for variant in self.variants
            if not labels or variant.label in labels
        ]
        chosen = tuple(problems) or self.problems
        return replace(self, problems=chosen, variants=tuple(variants), seeds=tuple(seeds) or self.seeds)


def cell(problem: str, variant: Variant, seed: int, budget: float = 1.0, settings: Sequence[str] = ()) -> Cell:
    """The cell of a variant: the method's settings, changed by those of the study and of the variant."""
    loaded = _loaded(problem, variant.optimizer)
    preset = presets.paper if variant.optimizer == "adam-lbfgs" else presets.natural
    complete = replace(preset(loaded, variant.method), seed=seed)
    if variant.at:
        if variant.method != "standard":
            raise StudyError(f"{variant.label}: `at` is the theta of a standard PINN, but the method is another.")
        thetas = parse_thetas(loaded.parameters, list(variant.at))
        complete = replace(complete, tasks=replace(complete.tasks, fixed=tuple(map(tuple, thetas.tolist()))))
    complete = override(complete, [*settings, *variant.settings])
    budget = variant.budget or budget
    if budget != 1.0:
        complete = _with_budget(complete, budget)
    return Cell(problem, complete, variant.adaptation)


def _with_budget(settings: Settings, budget: float) -> Settings:
    """The share of the steps that a budget leaves, of stages and of bounds."""
    if not (math.isfinite(budget) and budget > 0):
        raise SettingsError(f"A budget must be above zero, such as 0.1 for a tenth of the steps, but got {budget}.")
    if settings.optimizer == "adam-lbfgs" and settings.adam.steps:
        settings = presets.scaled(settings, budget)
    elif settings.optimizer == "natural" and settings.steps is None and settings.seconds is None:
        raise SettingsError(
            "A budget is a fraction of the steps or the time, but this run has no bound on them. Set one: steps=500."
        )
    steps = None if settings.steps is None else max(1, round(budget * settings.steps))
    seconds = None if settings.seconds is None else budget * settings.seconds
    return replace(settings, steps=steps, seconds=seconds)


def _differences(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The entries that differ from the defaults, groups by group."""
    changed = {}
    for name, value in values.items():
        if isinstance(value, dict):
            value, default = _differences(value, defaults[name]), {}
        else:
            default = defaults[name]
        if value != default:
            changed[name] = value
    return changed


@cache
def _loaded(problem: str, optimizer: str) -> Problem:
    return load_problem(problem, paper=optimizer == "adam-lbfgs")


@cache
def _description(problem: str, optimizer: str) -> dict[str, Any]:
    return json.loads(json.dumps(describe(_loaded(problem, optimizer))))


@cache
def _computes(problem: str, optimizer: str) -> dict[str, str] | str:
    """The fingerprint of a problem in a file, whatever the version of JAX; the file's text if it has none."""
    parts = fingerprint(_loaded(problem, optimizer))
    if parts is None:
        return Path(split_name(problem)[0]).read_text()
    return {name: part for name, part in parts.items() if name != JAX}
