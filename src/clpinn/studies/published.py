"""What all studies of the paper have in common: problems, the settings of a row, and published figures."""

import json
from functools import cache
from importlib.resources import files
from typing import Any

from clpinn.protocol import TARGETS
from clpinn.studies.study import Study, Variant

FOUR = ("schaffer", "burgers", "allen_cahn", "kovasznay")
PB = "poisson_boltzmann"
FIVE = (*FOUR, PB)
PDES = FIVE[1:]
MINI_BATCH = "batch=0.05"
"""What a step of Poisson-Boltzmann takes of its pool, where the user does not say otherwise: --set batch=1."""
ERRORS = ("mse", "mse_u", "mse_v", "mse_p", "macro", "macro_u", "macro_v", "macro_p", "worst", "res_pde")


def row(label: str, method: str, *settings: str, problems: tuple[str, ...] = FIVE, **options: Any) -> list[Variant]:
    """The variants of a row, one per problem."""
    return [_variant(label, method, problem, settings, **options) for problem in problems]


def _variant(label: str, method: str, problem: str, settings: tuple[str, ...], **options: Any) -> Variant:
    """A variant as in the paper: a loss that is not finite ends the run, and the targets of adaptation are held out."""
    common = ["remedies=0"]
    if problem in TARGETS and method != "standard":
        common.append(f"tasks.exclude={json.dumps(TARGETS[problem])}")
    if problem == PB:
        common.append(MINI_BATCH)
        options = {"seeds": (0,)} | options
    return Variant(label, method, (*common, *settings), optimizer="adam-lbfgs", problems=(problem,), **options)


def paper_study(name: str, question: str, source: str, *rows: list[Variant], **options: Any) -> Study:
    variants = tuple(variant for row in rows for variant in row)
    problems = [problem for problem in FIVE for variant in variants if problem in (variant.problems or ())]
    options = {"columns": ERRORS, "figures": ("dots",)} | options
    return Study(
        tuple(dict.fromkeys(problems)),
        variants,
        name=name,
        question=question,
        source=source,
        published=_published().get(name, {}),
        **options,
    )


@cache
def _published() -> dict[str, Any]:
    """The paper's figures by study, problem, row and column."""
    return json.loads((files("clpinn.studies") / "published.json").read_text("utf-8"))["studies"]
