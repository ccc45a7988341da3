"""What task selection, weights and replay contribute under the natural gradient, beside thetas over the whole box.

    python benchmarks/ablation.py [PROBLEM ...] [--seeds 0 1 2] [--kept] [--out docs/ablation.md]

Each cell is `clpinn train PROBLEM --method METHOD --seed SEED --seconds S --set correct=false`, with 60 s for Burgers
and 120 s for Poisson-Boltzmann. It is kept in benchmarks/results/ablation with its commit, and a kept cell is not run
again. Seconds are those of training; in the cells of today they include compilation.

Figures are means over seeds, with (smallest–largest). Errors are relative L2 errors over the grid of thetas: macro is
the mean over thetas, worst the largest. Validation is the physics loss on independent points over the whole box. It is
the figure that a user without a reference has.
"""

import argparse
import json
from pathlib import Path

import accuracy
from pages import show
from peers import spread

SECONDS = {"burgers": 60, "poisson_boltzmann": 120}
VARIANTS = {
    "uni: tasks spread evenly": ("uni", []),
    "uni with 200 tasks": ("uni", ["tasks.active=200"]),
    "ac, equal weights: selection": ("ac", ["weights.kind=equal"]),
    "ac: selection, weights": ("ac", []),
    "acr: selection, weights, replay": ("acr", []),
    "free: thetas over the whole box (default)": ("free", []),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("problems", nargs="*", default=list(SECONDS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--kept", action="store_true", help="run nothing, show the cells that are there")
    parser.add_argument("--out", type=Path, help="write the table to this page, too")
    arguments = parser.parse_args()
    lines = ["| problem | tasks | seeds | cores | steps | validation | macro rel. L2 | worst |", "|" + "---|" * 8]
    for name in arguments.problems:
        for what, (method, overrides) in VARIANTS.items():
            cells = []
            for seed in arguments.seeds:
                label = "-".join([name, method, *overrides, f"{SECONDS[name]}s", str(seed)])
                file, folder = accuracy.RESULTS / "ablation" / f"{label}.json", Path("runs/ablation") / label
                if file.exists() or not arguments.kept:
                    cells.append(accuracy.cell(file, folder, name, seed, SECONDS[name], method, overrides))
            if not cells:
                continue
            cores = "/".join(sorted({str(cell["cores"]) for cell in cells}))
            steps = round(sum(cell["steps"] for cell in cells) / len(cells))
            errors = [cell["outputs"]["u"] for cell in cells]
            figures = [spread([cell["validation"] for cell in cells])]
            figures += [spread([error[key] for error in errors]) for key in ("rel_l2_macro", "rel_l2_worst")]
            lines.append(f"| {name} | {what} | {len(cells)} | {cores} | {steps} | {' | '.join(figures)} |")
            print(json.dumps({name: what, "macro": figures[1], "worst": figures[2]}), flush=True)
    show("Ablation", "\n\n".join(__doc__.split("\n\n")[2:]), lines, arguments.out)


if __name__ == "__main__":
    main()
