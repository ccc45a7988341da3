"""Errors of the default settings on problems as users write them, and without causality.

    python benchmarks/breadth.py [PROBLEM ...] [--seconds 60] [--kept] [--out docs/breadth.md]

The problems are those of benchmarks/user_problems.py and two examples: textbook equations with soft conditions. None is
scaled or prepared in another way. Each cell is `clpinn train PROBLEM --seed 0 --seconds S --set correct=false`: the
network alone, before its correction over the box. It is kept in benchmarks/results/breadth with its commit, and a kept
cell is not run again.

Seconds are those of training; in the cells of today they include compilation. Cores are those that the process may use.
Errors are relative L2 errors over the problem's grid of thetas, for the output with the largest error. Macro is the
mean over thetas, worst the largest. The last column is `--set natural.causality=0`, for problems with a time.
"""

import argparse
import json
from pathlib import Path

import accuracy
from pages import show

from clpinn.problems import load_problem
from clpinn.training.causality import time_direction

OWN, EXAMPLES = "benchmarks/user_problems.py", "examples"
PROBLEMS = {
    name: f"{OWN}:{name}"
    for name in (
        "Wave Advection Helmholtz Layer Beam Plate Schrodinger Oscillator VanDerPol Pendulum Epidemic LogEpidemic"
    ).split()
} | {
    "PredatorPrey": f"{EXAMPLES}/predator_prey.py:PredatorPrey",
    "KuramotoSivashinsky": f"{EXAMPLES}/kuramoto_sivashinsky.py:KuramotoSivashinsky",
}


def errors(cell: dict | None = None) -> str:
    if cell is None:
        return "–"
    macro, worst = (max(one[key] for one in cell["outputs"].values()) for key in ("rel_l2_macro", "rel_l2_worst"))
    return f"{macro:.1e} / {worst:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--kept", action="store_true", help="run nothing, show the cells that are there")
    parser.add_argument("--out", type=Path, help="write the table to this page, too")
    arguments = parser.parse_args()
    lines = [
        "| problem | what it is | cores | steps | validation loss | macro / worst | without causality |",
        "|" + "---|" * 7,
    ]
    for name in arguments.problems:
        problem = load_problem(PROBLEMS[name])
        variants = [[], ["natural.causality=0"]] if time_direction(problem) else [[]]
        cells = []
        for overrides in variants:
            label = "-".join([name, *overrides, f"{arguments.seconds:g}s", "0"])
            file, folder = accuracy.RESULTS / "breadth" / f"{label}.json", Path("runs/breadth") / label
            if file.exists() or not arguments.kept:
                cells.append(accuracy.cell(file, folder, PROBLEMS[name], 0, arguments.seconds, "free", overrides))
        if not cells:
            continue
        first, *without = cells
        about = (type(problem).__doc__ or "").split("\n")[0].rstrip(".")
        run = f"{first['cores']} | {first['steps']} | {first['validation']:.1e}"
        lines.append(f"| {name} | {about} | {run} | {errors(first)} | {errors(*without)} |")
        print(json.dumps({name: [errors(cell) for cell in cells]}), flush=True)
    show("Breadth", "\n\n".join(__doc__.split("\n\n")[2:]), lines, arguments.out)


if __name__ == "__main__":
    main()
