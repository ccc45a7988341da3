"""The paper's tables and ablations as studies, and one of our own. Poisson-Boltzmann has seed 0 and mini-batches."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from clpinn.problems import load_problem
from clpinn.protocol import PAPER_NAMES, PROTOCOLS
from clpinn.studies.adapting import Adapting, by_adam
from clpinn.studies.published import FIVE, FOUR, PB, PDES, paper_study, row
from clpinn.studies.study import Study, Variant
from clpinn.surrogate.adaptations import AdaptationName

ADAPTED = ("before", "after", "reduction", "improved", "mse_after", "worst_after", "seconds_per_target", "online")
LONG = (500, 1000, 2000, 5000)


def _by_problem(make: Callable[[str], list[Variant]], problems: tuple[str, ...] = FIVE) -> list[Variant]:
    """Rows whose settings depend on the problem."""
    return [variant for problem in problems for variant in make(problem)]


def _protocol(problem: str) -> Any:
    return PROTOCOLS[type(load_problem(problem)).__name__]


# Training ----------------------------------------------------------------------------------------------------

METHODS = [row(paper, method) for method, paper in PAPER_NAMES.items()]


def _deeper(problem: str) -> list[Variant]:
    """ACR2 with an FNN one layer deeper than the paper's: exactly as many weights as ParamFNN has."""
    depth = f"network.depth={_protocol(problem).depth + 1}"
    return row("FNN of the same size", "acr2", "network.kind=fnn", depth, problems=(problem,))


def main() -> Study:
    return paper_study(
        "main",
        "Which of the six methods is most accurate?",
        "main tables",
        *METHODS,
        figures=("dots", "errors", "losses"),
    )


def queries() -> Study:
    return paper_study(
        "queries",
        "How many task losses do the grid and the Bayesian search need?",
        "active-query ablation",
        *(row(PAPER_NAMES[method], method) for method in ("ag", "ac")),
        columns=("queries", "hole", "macro"),
    )


def timing() -> Study:
    return paper_study(
        "timing",
        "How long do the stages of the six methods take?",
        "timing table",
        *(row(paper, method, seeds=(0,)) for method, paper in PAPER_NAMES.items()),
        columns=("adam_minutes", "lbfgs_minutes", "minutes"),
    )


def search() -> Study:
    """One Adam step between two events and one L-BFGS step: almost nothing but the search."""
    return paper_study(
        "search",
        "How long does the search for the next task take?",
        "search seconds",
        *(row(PAPER_NAMES[method], method, seeds=(0,), budget=1e-9) for method in ("ag", "ac")),
        columns=("queries", "query_seconds", "select_seconds", "search_seconds"),
    )


def selection_weights() -> Study:
    return paper_study(
        "selection-weights",
        "What do selection and dynamic weights contribute?",
        "active 2 × 2 ablation",
        row("fixed, equal", "fix"),
        row("selected, equal", "ac", "weights.kind=equal"),
        row("fixed, dynamic", "fix", "weights.kind=dynamic"),
        row("selected, dynamic", "ac"),
    )


def replay() -> Study:
    return paper_study(
        "replay",
        "What does replay contribute, and how much of it is enough?",
        "replay ablation",
        row("none", "ac", problems=FOUR[:3]),
        row("none", "acr", "tasks.replay=0", problems=("kovasznay", PB)),
        row("sparse", "acr"),
        row("all", "acr", "tasks.replay=None", "tasks.density=full", "tasks.uncapped=true"),
    )


def replay_process() -> Study:
    return paper_study(
        "replay-process",
        "How do errors develop with and without replay?",
        "process figure",
        *(
            row(PAPER_NAMES[method], method, "probe=19", problems=("allen_cahn",), seeds=(0,))
            for method in ("ac", "acr")
        ),
        figures=("probes",),
    )


def architecture() -> Study:
    return paper_study(
        "architecture",
        "Does the parameter branch help at the same number of weights?",
        "architecture ablation",
        _by_problem(_deeper),
        row("ParamFNN", "acr2"),
    )


def decay_freeze() -> Study:
    problems = ("schaffer", "allen_cahn", "kovasznay", PB)
    return paper_study(
        "decay-freeze",
        "What do decay and freezing of the parameter branch contribute?",
        "optimizer control",
        row("neither", "acr2", problems=problems),
        row("decay", "acr2", "adam.decay=branch", problems=problems),
        row("freeze", "acr2", "lbfgs.freeze=true", problems=problems),
        row("decay and freeze", "acr2-full", problems=problems),
    )


def priors() -> Study:
    def exponent(problem: str, method: str, value: str, *also: str) -> list[Variant]:
        return row(value, method, f"weights.prior={value}", *also, problems=(problem,))

    return paper_study(
        "priors",
        "How much does the prior of the task weights matter?",
        "prior sensitivity",
        *(exponent("burgers", "ac", value, f"tasks.search_prior={value}") for value in ("1", "0", "-1")),
        *(exponent("kovasznay", "acr2-full", value) for value in ("1", "-1", "0", "0.5")),
    )


def query_budget() -> Study:
    return paper_study(
        "query-budget",
        "How many evaluations does the Bayesian search need?",
        "query budget",
        *(row(count, "ac", f"tasks.evaluations={count}", problems=("burgers",)) for count in ("10", "5", "3")),
        columns=("queries", "mse", "macro", "worst"),
    )


def shape() -> Study:
    def sized(depth: int, width: int) -> list[Variant]:
        settings = (f"network.depth={depth}", f"network.width={width}")
        return row(f"{depth} × {width}", "acr2", *settings, problems=("schaffer",))

    return paper_study(
        "shape",
        "Should a network of the same size be deep or wide?",
        "depth and width",
        sized(3, 30),
        sized(4, 27),
        sized(2, 35),
        columns=("mse", "macro", "worst", "max_abs_mean"),
    )


def minibatch() -> Study:
    """A standard PINN at nu = 0.01, our choice: the paper does not name its own. All rows see 1e8 points.

    A chunk is as large as a batch, so that memory is that of the batch.
    """
    sizes = (50_000, 20_000, 10_000, 5_000, 2_500, 1_000)

    def sized(count: int) -> list[Variant]:
        steps = 10**8 // count
        settings = ["points.interior=50000", f"chunk={count}", f"adam.steps={steps}", f"tasks.interval={steps}"]
        settings += [] if count == sizes[0] else [f"batch_rows={count}"]
        return row(str(count), "standard", *settings, "lbfgs.steps=0", problems=("burgers",), at=("nu=0.01",))

    return paper_study(
        "minibatch",
        "What do mini-batches cost and save?",
        "mini-batch resources",
        *map(sized, sizes),
        columns=("macro", "memory", "seconds"),
        figures=("dots", "memory"),
    )


def atlas() -> Study:
    return replace(
        main(), name="atlas", question="Where are the errors of the six methods?", source="Part IV", figures=("errors",)
    )


def imbalance() -> Study:
    columns = [f"{quantity}@{end}" for end in ("0.001", "0.05", "1") for quantity in ("mse", "rel_l2", "res_pde")]
    return paper_study(
        "imbalance",
        "How different are the scales of the tasks?",
        "Part II",
        row("ACR2-arch", "acr2", problems=("schaffer", "burgers")),
        columns=tuple(columns),
        figures=("errors",),
    )


# Adaptation --------------------------------------------------------------------------------------------------


def _adapted(label: str, method: str, adapting: Adapting, *settings: str, **options: Any) -> list[Variant]:
    options = {"problems": PDES} | options
    return row(label, method, *settings, adaptation=adapting, **options)


def finetune() -> Study:
    return paper_study(
        "finetune",
        "What does a residual head gain at one theta?",
        "fine-tuning",
        _adapted("head", "acr", Adapting()),
        columns=ADAPTED,
        figures=("dots", "scatter"),
    )


def finetune_long() -> Study:
    long = Adapting(by_adam(steps=LONG[-1]), LONG)
    return paper_study(
        "finetune-long",
        "Do longer fine-tunings help?",
        "long horizon",
        *(_adapted(str(steps), "acr", long, steps=steps) for steps in LONG),
        columns=("before", "after", "reduction", "improved"),
        figures=("horizon",),
    )


def finetune_width() -> Study:
    def width(count: int, problems: tuple[str, ...]) -> list[Variant]:
        return _adapted(str(count), "acr", Adapting(by_adam(width=count), most=3), problems=problems, seeds=(0,))

    return paper_study(
        "finetune-width",
        "How wide should a head be?",
        "head width",
        *(width(count, PDES[:3]) for count in (12, 20, 25, 40)),
        *(width(count, (PB,)) for count in (8, 12, 15, 20)),
        columns=("before", "after", "reduction", "online"),
    )


def finetune_grid() -> Study:
    return paper_study(
        "finetune-grid",
        "What does a residual head gain at every theta that was not trained?",
        "full grid",
        _adapted("head", "acr", Adapting(targets="unseen"), seeds=(0,)),
        columns=(*ADAPTED[:4], "difficult_reduction", "difficult_improved", "seconds_per_target"),
        figures=("scatter",),
    )


def scratch() -> Study:
    def at(steps: int) -> list[Variant]:
        adapting = Adapting(by_adam("full", steps=5000), (500, 5000))
        return _adapted(str(steps), "standard", adapting, "adam.steps=0", "lbfgs.steps=0", steps=steps)

    return paper_study(
        "scratch",
        "How far does a PINN of a single theta come without a base?",
        "standard PINNs, 500 and 5000 steps",
        at(500),
        at(5000),
        columns=("after", "mse_after", "worst_after", "seconds_per_target", "online"),
        figures=("horizon",),
    )


def _rivals(long: bool) -> list[list[Variant]]:
    problems = ("burgers", PB) if long else PDES
    steps, checkpoints = (5000, (500, 5000)) if long else (None, ())  # 500 unless said otherwise
    options = {"steps": steps, "problems": problems}

    def by(way: AdaptationName, lbfgs: int = 0) -> Adapting:
        return Adapting(by_adam(way, steps=steps, lbfgs=lbfgs), checkpoints)

    rows = [
        _adapted("P2INN, all weights", "p2inn", by("full"), **options),
        _adapted("HyperPINN", "hyperpinn", by("target"), **options),
    ]
    if long:
        return rows
    return [
        _adapted("head", "acr", by("head"), **options),
        *rows,
        _adapted("P2INN, SVD", "p2inn", by("svd"), **options),
        _adapted("Meta-PINN", "metapinn", by("target", lbfgs=100), problems=("burgers",)),
    ]


def external() -> Study:
    columns = ("before", "after", "median_before", "median_after", "worst_before", "worst_after", "mse_after", "online")
    return paper_study(
        "external",
        "How do other methods adapt to the same thetas?",
        "external comparison",
        *_rivals(long=False),
        columns=columns,
    )


def external_long() -> Study:
    return paper_study(
        "external-long",
        "Do other methods adapt better with more steps?",
        "external comparison, 5000 steps",
        *_rivals(long=True),
        columns=("before", "after", "seconds_per_target", "online"),
        figures=("horizon",),
    )


# Ours --------------------------------------------------------------------------------------------------------


def readings() -> Study:
    """What the paper leaves open, one row for each other reading beside those that we chose."""
    problems = ("burgers", "kovasznay")
    return paper_study(
        "readings",
        "What do other readings of the paper change?",
        "not in the paper",
        row("ACR, as we read it", "acr", problems=problems),
        row("raw inputs", "acr", "network.inputs=raw", problems=problems),
        row("length scales at every evaluation", "acr", "tasks.refit=every", problems=problems),
        row("AC, as we read it", "ac", problems=problems),
        row("dropped tasks stay out", "ac", "tasks.readmit=false", problems=problems),
    )


def natural() -> Study:
    """Networks alone: a correction at the end would hide what the tasks contribute."""

    def timed(method: str, seconds: int) -> Variant:
        return Variant(f"{method}, {seconds} s", method, (f"seconds={seconds}", "correct=false"))

    return Study(
        FIVE,
        tuple(timed(method, seconds) for seconds in (60, 300) for method in ("free", "uni", "ac", "acr")),
        name="natural",
        question="What do pools of tasks contribute under the natural gradient?",
        source="not in the paper",
        columns=("macro", "worst", "res_pde", "queries"),
        figures=("dots", "errors"),
    )


STUDIES: dict[str, Callable[[], Study]] = {
    "main": main,
    "queries": queries,
    "timing": timing,
    "search": search,
    "selection-weights": selection_weights,
    "replay": replay,
    "replay-process": replay_process,
    "architecture": architecture,
    "decay-freeze": decay_freeze,
    "priors": priors,
    "query-budget": query_budget,
    "shape": shape,
    "minibatch": minibatch,
    "finetune": finetune,
    "finetune-long": finetune_long,
    "finetune-width": finetune_width,
    "finetune-grid": finetune_grid,
    "scratch": scratch,
    "external": external,
    "external-long": external_long,
    "atlas": atlas,
    "imbalance": imbalance,
    "readings": readings,
    "natural": natural,
}
