"""Trained networks, and what correcting them over the whole box at the end of a run makes of them.

    python benchmarks/box.py [PROBLEM ...] [--seconds 60] [--seeds 0 1 2] [--kept] [--out docs/box.md]

"Trained" is `clpinn train PROBLEM --seed SEED --seconds S --set correct=false`: the network alone. "Corrected" is what
the same command gives by default: the same training, and then a correction over the box in place of a map of estimated
errors. Both have the same bound on the time of this end: half of S, at most 60 s.

No reference decides anything: the true errors come afterwards, at 40 thetas that are drawn over the parameter box and
lie on no grid. They are relative L2 errors of the output with the largest error: macro is the mean over thetas, worst
the largest. "Gain" is trained / corrected. "Estimated" is what the run itself says of the corrected surrogate. "End" is
the time of the correction with its checks, compilation included; the number before is the time after which it had
as many estimates as the map of the network alone has. A cell is kept in benchmarks/results/box with its commit, and is
not measured again.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from error import BREADTH, OTHERS, PDES, PROBLEMS, outputs, relative
from pages import kept_cell, show

import clpinn as cl
from clpinn.formulation.references import reference_at
from clpinn.keys import make_key
from clpinn.problems import load_problem
from clpinn.programs import kept_programs
from clpinn.runs.session import end_seconds
from clpinn.surrogate.error_map import usual_count

RESULTS = Path(__file__).parent / "results" / "box"
WITHOUT_REFERENCE = ("BlowUp",)
ALL = PROBLEMS | {"schaffer": "schaffer"}
NAMES = [
    "schaffer",
    *PDES,
    *BREADTH,
    "PredatorPrey",
    "KuramotoSivashinsky",
    *(n for n in OTHERS if n not in WITHOUT_REFERENCE),
]
THETAS, SEED = 40, 20
"""Thetas of the true errors, and the seed of their draw."""


def errors(surrogate: cl.Surrogate) -> dict[str, float]:
    """True macro and worst error of the worst output."""
    problem = surrogate.problem
    table = []
    for theta in problem.parameters.sample(THETAS, make_key(SEED)):
        exact = np.asarray(reference_at(problem, problem.evaluation.points, theta))
        table.append(relative(outputs(surrogate, theta) - exact, exact))
    by_output = np.array(table)
    return {"macro": float(by_output.mean(axis=0).max()), "worst": float(by_output.max())}


def estimated(surrogate: cl.Surrogate) -> dict[str, float | None]:
    """The estimated macro and worst error of the worst output, and the upper end of the spread of the latter."""
    assert surrogate.errors is not None
    figures = surrogate.errors.summary()["outputs"].values()
    return {
        "macro": max((each["macro"]["value"] for each in figures), default=None),
        "worst": max((each["worst"]["value"] for each in figures), default=None),
        "high": max((each["worst"]["high"] for each in figures), default=None),
    }


def measured(name: str, seconds: float, seed: int) -> dict:
    problem, run = load_problem(ALL[name]), Path("runs/box") / f"{name}-{seconds:g}-{seed}"
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    cell = {"problem": name, "seconds": seconds, "seed": seed, "commit": commit.stdout.strip()}
    cell |= {"cores": len(os.sched_getaffinity(0))}
    if not (run / "metrics.json").exists():
        command = [sys.executable, "-m", "clpinn", "train", ALL[name], "--seed", str(seed), "--seconds", f"{seconds:g}"]
        command += ["--set", "correct=false", "--out", str(run), "--resume", "--json"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    trained = cl.load(run, problem)
    cell["trained"] = errors(trained) | {"steps": json.loads((run / "metrics.json").read_text())["steps"]}
    start, times = time.perf_counter(), []
    with kept_programs():
        surrogate = trained.correct_box(
            seconds=end_seconds(seconds), progress=lambda done, of: times.append(time.perf_counter() - start)
        )
    record = {key: surrogate.record["box_correction"][key] for key in ("used", "reason", "thetas", "resolved")}
    like_map = times[min(usual_count(problem), len(times)) - 1]
    cell["corrected"] = errors(surrogate) | record | {"seconds": times[-1], "like_map": like_map}
    return cell | {"estimated": estimated(surrogate)}


def gains(cell: dict) -> list[float]:
    """How many times smaller the macro and the worst error become."""
    return [cell["trained"][key] / cell["corrected"][key] for key in ("macro", "worst")]


def line(cell: dict) -> str:
    """One row of the table."""

    def figures(kind: str) -> str:
        pair = [cell[kind][key] for key in ("macro", "worst")]
        return " / ".join("–" if figure is None else f"{figure:.1e}" for figure in pair)

    box = cell["corrected"]
    gain = " / ".join(f"{figure:.3g}" for figure in gains(cell))
    used = f"{'yes' if box['used'] else 'no'}, {box['thetas']}"
    run = f"{cell['problem']} | {cell['seconds']:g} | {cell['seed']} | {figures('trained')} | {figures('corrected')}"
    ends = f"{box['like_map']:.0f}, {box['seconds']:.0f}"
    return f"| {run} | {gain} | {used} | {100 * box['resolved']:.0f} % | {figures('estimated')} | {ends} |"


def summary(cells: list[dict]) -> list[str]:
    """Over all cells of each time: medians of the gains, and how often they are large or below one."""
    lines = []
    for seconds in sorted({cell["seconds"] for cell in cells}):
        some = [cell for cell in cells if cell["seconds"] == seconds]
        by_problem: dict[str, list[list[float]]] = {}
        for cell in some:
            by_problem.setdefault(cell["problem"], []).append(gains(cell))
        every = np.concatenate(list(by_problem.values()))
        mean = np.array([np.exp(np.log(each).mean(axis=0)) for each in by_problem.values()])
        middle, least = (" / ".join(f"{figure:.3g}" for figure in rows) for rows in (np.median(every, 0), every.min(0)))
        about = f"{seconds:g} s, {len(some)} cells of {len(by_problem)} problems"
        lines.append(
            f"{about}: median gain {middle}, smallest {least}. By the mean gain over seeds, the worst error is at "
            f"least halved on {np.sum(mean[:, 1] >= 2)} problems, and the macro error is more than 10 % larger on "
            f"{np.sum(mean[:, 0] < 1 / 1.1)}."
        )
        known = [cell for cell in some if cell["corrected"]["used"] and cell["estimated"]["worst"] is not None]
        ratios = np.array([[cell["estimated"][k] / cell["corrected"][k] for k in ("macro", "worst")] for cell in known])
        if len(ratios):
            ends = np.quantile(ratios, [0.05, 0.5, 0.95], axis=0)
            texts = [f"{middle:.2g} ({low:.2g} to {high:.2g})" for low, middle, high in ends.T]
            lines.append(f"Estimated / true where corrected (5 % to 95 %): macro {texts[0]}, worst {texts[1]}.")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("problems", nargs="*", default=NAMES)
    parser.add_argument("--seconds", nargs="*", type=float, default=[60, 300])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--kept", action="store_true", help="run nothing, show the cells that are there")
    parser.add_argument("--out", type=Path, help="write the table to this page, too")
    arguments = parser.parse_args()
    lines = [
        "| problem | S | seed | trained: macro / worst | corrected: macro / worst | gain | used, thetas | resolved "
        "| estimated: macro / worst | end, s |",
        "|" + "---|" * 10,
    ]
    cells = {}
    for seconds in arguments.seconds:
        for seed in arguments.seeds:
            for name in arguments.problems:
                file = RESULTS / f"{name}-{seconds:g}s-{seed}.json"
                cell = kept_cell(file, partial(measured, name, seconds, seed), arguments.kept)
                if cell is not None:
                    cells[name, seconds, seed] = cell
                    print(line(cell), file=sys.stderr, flush=True)
    order = [
        (name, seconds, seed)
        for name in arguments.problems
        for seconds in arguments.seconds
        for seed in arguments.seeds
    ]
    lines += [line(cells[key]) for key in order if key in cells]
    lines += ["", *(f"- {text}" for text in summary(list(cells.values())))]
    show("Correcting the whole box, measured", "\n\n".join(__doc__.split("\n\n")[2:]), lines, arguments.out)


if __name__ == "__main__":
    main()
