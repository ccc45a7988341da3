"""Adaptation at single thetas, ours and the paper's. The rivals at common targets are `clpinn study run external`.

    python benchmarks/adapt.py [PROBLEM ...] [--part PART ..] [--budget 0.02] [--set ..] [--kept] [--out PAGE]

corrected  The base is `clpinn train PROBLEM --seed 0 --seconds 60 --set correct=false`. Every unseen candidate is
         corrected by its estimated error (Poisson-Boltzmann: 200 of them, drawn at random). "Kept" are targets whose
         error does not grow by more than 1 %. Beside it the mean reductions of *ours* and of the paper.
ours     The base is `clpinn train PROBLEM --seed 0 --set correct=false`. Every unseen candidate gets a head, fitted by
         Levenberg-Marquardt (Poisson-Boltzmann: 200 of them, drawn at random). "s per target" is the time in a batch,
         "alone" the median of some targets that are adapted one by one. Compilation is reported apart.
paper    The base is trained as in the paper (ACR, Adam then L-BFGS) with a fraction of its steps (--budget). A head is
         fitted by 500 Adam steps at 40 unseen thetas, drawn at random. It is used whatever its estimate says.

References give the reported errors and nothing else. Runs are kept in runs/adapt and resumed. What was measured is kept
in benchmarks/results/adapt with its commit, and is not measured again.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from pages import show

import clpinn as cl
from clpinn.runs.adaptation import difficult_quartile, summary
from clpinn.runs.directory import RunDirectory

RESULTS = Path(__file__).parent / "results" / "adapt"
PROBLEMS = ("burgers", "allen_cahn", "kovasznay", "poisson_boltzmann")
MOST, BY_ADAM, ALONE = 200, 40, 5
"""Most targets of ours; targets by Adam; targets that are timed one by one."""

AS_IN_THE_PAPER = cl.AdaptSettings(optimizer="adam", steps=500, precision="single", always=True)

# From the paper: improved targets, mean and difficult-quartile reduction over all unseen candidates.
PAPER = {
    "burgers": ("77/83", 0.631, 0.782),
    "allen_cahn": ("60/77", 0.053, -0.413),
    "kovasznay": ("79/80", 0.285, 0.367),
    "poisson_boltzmann": ("1166/1166", 0.817, 0.836),
}


def trained(name: str, *options: str) -> cl.Surrogate:
    """The surrogate of a run with these options, trained now if it has not been."""
    folder = Path("runs") / "adapt" / "-".join([name, *(word.strip("-") for word in options)])
    command = [sys.executable, "-m", "clpinn", "train", name, "--out", str(folder), "--resume", *options]
    command += ["--set", "correct=false"]  # what is adapted is the network as it was trained
    subprocess.run(command, check=True, stdout=sys.stderr)
    return RunDirectory(folder).surrogate


def trained_as_in_the_paper(name: str, method: str, reduced: dict) -> cl.Surrogate:
    """By Adam and L-BFGS with a fraction of the paper's steps, and with settings that shorten it further."""
    settings = [word for setting in reduced["set"] for word in ("--set", setting)]
    budget = f"{reduced['budget']:g}"
    return trained(name, "--optimizer", "adam-lbfgs", "--method", method, "--budget", budget, *settings)


def errors(surrogate: cl.Surrogate, thetas: np.ndarray) -> np.ndarray:
    """Relative L2 per theta, the mean over outputs."""
    outputs = cl.evaluate(surrogate.problem, surrogate, thetas=thetas).outputs
    return np.mean([error.rel_l2 for error in outputs.values()], axis=0)


def figures_of(before: np.ndarray, after: np.ndarray) -> dict:
    """The errors of the targets and their summary."""
    return summary(before, after) | {"rel_l2_before": before.tolist(), "rel_l2_after": after.tolist()}


def timed(surrogate: cl.Surrogate, thetas: np.ndarray, settings: cl.AdaptSettings) -> tuple[cl.Surrogate, float, float]:
    """The adapted surrogate, its seconds, and those of compilation: a first call's less those of the next."""
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        surrogate.adapt_many(thetas[: settings.together], settings=settings)
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    adapted = surrogate.adapt_many(thetas, settings=settings)
    return adapted, time.perf_counter() - start, max(0.0, seconds[0] - seconds[1])


def ours(name: str, reduced: dict) -> dict:
    surrogate = trained(name)
    thetas = surrogate.unseen(MOST)
    adapted, seconds, compilation = timed(surrogate, thetas, cl.AdaptSettings())
    figures = figures_of(errors(surrogate, thetas), errors(adapted, thetas))
    alone = []
    for theta in [thetas[0], *thetas[:: max(1, len(thetas) // ALONE)]]:
        start = time.perf_counter()
        surrogate.adapt_many(theta[None])
        alone.append(time.perf_counter() - start)
    used = int(np.sum(adapted.heads.used))
    return figures | {
        "used": used,
        "seconds_batch": seconds / len(thetas),
        "seconds_alone": float(np.median(alone[1:])),
        "seconds_compilation": compilation,
        "trainable": adapted.heads.trainable,
        "steps": float(np.median(adapted.heads.steps)),
    }


def as_in_the_paper(name: str, reduced: dict) -> dict:
    surrogate = trained_as_in_the_paper(name, "acr", reduced)
    thetas = surrogate.unseen(BY_ADAM)
    adapted, seconds, compilation = timed(surrogate, thetas, AS_IN_THE_PAPER)
    before = errors(surrogate, thetas)
    heads = replace(adapted.heads, always=False)
    judged = replace(adapted, heads=heads)
    return figures_of(before, errors(adapted, thetas)) | {
        "judged": figures_of(before, errors(judged, thetas)),
        "used": int(np.sum(heads.used)),
        **reduced,
        "seconds_batch": seconds / len(thetas),
        "seconds_compilation": compilation,
        "trainable": heads.trainable,
    }


def corrected(name: str, reduced: dict) -> dict:
    surrogate = trained(name, "--seed", "0", "--seconds", "60")
    thetas = surrogate.unseen(MOST)
    surrogate.correct_many(thetas[:1])  # compiles
    start = time.perf_counter()
    better = surrogate.correct_many(thetas)
    seconds = time.perf_counter() - start
    before, after = errors(surrogate, thetas), errors(better, thetas)
    return figures_of(before, after) | {"used": int(np.sum(better.heads.used)), "seconds_batch": seconds / len(thetas)}


def corrected_table(cells: dict[str, dict]) -> list[str]:
    titles = ["problem", "targets", "used", "kept", "median", "mean", "worst quarter", "s per target"]
    titles += ["mean reduction", "by heads", "paper"]
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    for name, cell in cells.items():
        before, after = np.array(cell["rel_l2_before"]), np.array(cell["rel_l2_after"])
        hard = difficult_quartile(before)
        pairs = [(f(before), f(after)) for f in (np.median, np.mean, lambda row: row[hard].mean())]  # noqa: B023
        parts = [name, str(len(before)), str(cell["used"]), str(int(np.sum(after <= 1.01 * before)))]
        parts += [f"{old:.1e} → {new:.1e} ({old / new:.0f} times)" for old, new in pairs]
        heads = _with_figures(json.loads((RESULTS / f"{name}-ours.json").read_text()))["reduction"]
        parts += [f"{cell['seconds_batch']:.2f}", f"{cell['reduction']:.1%}", f"{heads:.0%}", f"{PAPER[name][1]:.0%}"]
        lines.append(f"| {' | '.join(parts)} |")
    return lines


PARTS = {"corrected": corrected, "ours": ours, "paper": as_in_the_paper}


def table(part: str, cells: dict[str, dict]) -> list[str]:
    """The rows of one part. A base with a fraction of the paper's steps has it beside its problem."""
    label = {
        name: ", ".join([name, f"{cell['budget']:.0%}", *cell["set"]]) if "budget" in cell else name
        for name, cell in cells.items()
    }
    if part == "corrected":
        return corrected_table(cells)
    titles = ["problem", "targets", "heads used", "improved", "not worse", "before", "after", "reduction"]
    titles += ["of the worst quarter", "s per target", "alone", "compilation"]
    titles += ["paper: improved", "reduction", "of the worst quarter"]
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    for name, cell in cells.items():
        improved, reduction, hard = PAPER[name]
        alone = f"{cell['seconds_alone']:.2f}" if "seconds_alone" in cell else "–"
        parts = [label[name], *(str(cell[key]) for key in ("targets", "used", "improved", "not_worse"))]
        parts += [f"{cell['before']:.2e}", f"{cell['after']:.2e}", f"{cell['reduction']:.0%}"]
        parts += [f"{cell['difficult_reduction']:.0%}", f"{cell['seconds_batch']:.2f}", alone]
        parts += [f"{cell['seconds_compilation']:.0f} s", improved, f"{reduction:.0%}", f"{hard:.0%}"]
        lines.append(f"| {' | '.join(parts)} |")
    return lines


def _with_figures(cell: dict) -> dict:
    """A cell with its figures computed again from its errors: an older cell may have another quartile."""
    return cell | summary(np.array(cell["rel_l2_before"]), np.array(cell["rel_l2_after"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--part", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--budget", type=float, default=0.02, help="fraction of the paper's steps for paper")
    parser.add_argument("--set", nargs="*", default=[], help="settings of that base, such as batch=0.02")
    parser.add_argument("--kept", action="store_true", help="run nothing, show the kept measurements")
    parser.add_argument("--out", type=Path, help="write the tables to this page, too")
    arguments = parser.parse_args()
    text = []
    for part in arguments.part:
        cells = {}
        for name in arguments.problems:
            file = RESULTS / f"{name}-{part}.json"
            if not file.exists() and not arguments.kept:
                commit = subprocess.run(
                    ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
                )
                reduced = {"budget": arguments.budget, "set": arguments.set}
                measured = PARTS[part](name, reduced) | {"commit": commit.stdout.strip()}
                RESULTS.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(measured, indent=1))
            if file.exists():
                cells[name] = _with_figures(json.loads(file.read_text()))
        text += [f"## {part}", "", *table(part, cells), ""]
    parts, notes = __doc__.split("\n\n")[2:4]
    show("Adaptation, measured", f"```\n{parts}\n```\n\n{notes.strip()}", text[:-1], arguments.out)


if __name__ == "__main__":
    main()
