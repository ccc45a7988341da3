"""Training for a time, beside training for half of it and correcting the whole box in the other half.

    python benchmarks/box.py [PROBLEM ...] [--seconds 60] [--seeds 0 1 2] [--kept] [--out docs/box.md]

"Trained" is `clpinn train PROBLEM --seed SEED --seconds S`. "Corrected" is the same with S/2, and then what `clpinn
adapt RUN --box --seconds S/2` does. Both run one after the other on the same core or cores. No reference decides
anything: the true errors come afterwards, at 40 thetas that are drawn over the parameter box and lie on no grid. They
are relative L2 errors of the output with the largest error: macro is the mean over thetas, worst the largest. Seconds
of "adapt" are those of the correction, compilation included; compilation of the training is in neither. A cell is kept
in benchmarks/results/box with its commit, and is not measured again. "Gain" is trained / corrected.
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


def command(*words: str) -> dict:
    """What a clpinn command prints as JSON."""
    done = subprocess.run([sys.executable, "-m", "clpinn", *words, "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def errors(surrogate: cl.Surrogate) -> dict[str, float]:
    """True macro and worst error of the worst output."""
    problem = surrogate.problem
    table = []
    for theta in problem.parameters.sample(THETAS, make_key(SEED)):
        exact = np.asarray(reference_at(problem, problem.evaluation.points, theta))
        table.append(relative(outputs(surrogate, theta) - exact, exact))
    by_output = np.array(table)
    return {"macro": float(by_output.mean(axis=0).max()), "worst": float(by_output.max())}


def measured(name: str, seconds: float, seed: int) -> dict:
    problem, folder = load_problem(ALL[name]), Path("runs/box") / f"{name}-{seconds:g}-{seed}"
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    cell = {"problem": name, "seconds": seconds, "seed": seed, "commit": commit.stdout.strip()}
    cell |= {"cores": len(os.sched_getaffinity(0))}
    for kind, time_left in (("trained", seconds), ("half", seconds / 2)):
        run = folder / kind
        options = ["--seed", str(seed), "--seconds", f"{time_left:g}", "--out", str(run), "--resume"]
        metrics = command("train", ALL[name], *options)
        cell[kind] = errors(cl.load(run, problem)) | {"steps": metrics["steps"]}
    start = time.perf_counter()
    surrogate = cl.load(folder / "half", problem).correct_box(seconds=seconds / 2)
    took = time.perf_counter() - start
    record = {key: surrogate.record["box_correction"][key] for key in ("used", "reason", "thetas", "resolved")}
    cell["corrected"] = errors(surrogate) | record | {"seconds": took}
    return cell


def line(cell: dict) -> str:
    """One row of the table."""

    def figures(kind: str) -> str:
        return f"{cell[kind]['macro']:.1e} / {cell[kind]['worst']:.1e}"

    box = cell["corrected"]
    gain = (f"{cell['trained'][key] / box[key]:.3g}" for key in ("macro", "worst"))
    used = "yes" if box["used"] else "no"
    run = f"{cell['problem']} | {cell['seed']} | {cell['cores']} | {figures('trained')} | {figures('half')}"
    adapt = f"{figures('corrected')} | {used} | {box['thetas']} | {100 * box['resolved']:.0f} % | {box['seconds']:.0f}"
    return f"| {run} | {adapt} | {' / '.join(gain)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("problems", nargs="*", default=NAMES)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--kept", action="store_true", help="run nothing, show the cells that are there")
    parser.add_argument("--out", type=Path, help="write the table to this page, too")
    arguments = parser.parse_args()
    lines = [
        "| problem | seed | cores | trained, S: macro / worst | trained, S/2 | corrected | used | thetas | resolved "
        "| s of adapt | gain |",
        "|" + "---|" * 11,
    ]
    cells = {}
    for seed in arguments.seeds:
        for name in arguments.problems:
            file = RESULTS / f"{name}-{arguments.seconds:g}s-{seed}.json"
            cell = kept_cell(file, partial(measured, name, arguments.seconds, seed), arguments.kept)
            if cell is not None:
                cells[name, seed] = cell
                print(line(cell), file=sys.stderr, flush=True)
    lines += [
        line(cells[name, seed]) for name in arguments.problems for seed in arguments.seeds if (name, seed) in cells
    ]
    show("Correcting the whole box, measured", "\n\n".join(__doc__.split("\n\n")[2:]), lines, arguments.out)


if __name__ == "__main__":
    main()
