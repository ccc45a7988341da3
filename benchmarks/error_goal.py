"""Runs that end by themselves at an estimated error, and their true errors.

    python benchmarks/error_goal.py [PROBLEM ...] [--error 1e-3] [--kept] [--out docs/error-goal.md]

Each cell is `clpinn train PROBLEM --seed 0 --error 1e-3 --seconds 3600` in a directory of its own under
runs/error_goal. The run ends when the worst estimated error over the parameters is below. References give the true
errors afterwards and decide nothing. Results are kept in benchmarks/results/error_goal with their commit. The aim is a
true worst error below 1.25 times the goal, over the problem's grid of thetas and all outputs. "Looking" is the time
that the estimates took.
"""

import argparse
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

from pages import kept_cell, show

RESULTS = Path(__file__).parent / "results" / "error_goal"
PROBLEMS = ("burgers", "allen_cahn", "kovasznay")
LONGEST = 3600


def cell(name: str, error: float) -> dict:
    folder = Path("runs/error_goal") / f"{name}-{error:g}"
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    command = [sys.executable, "-m", "clpinn", "train", name, "--seed", "0", "--error", f"{error:g}"]
    command += ["--seconds", str(LONGEST), "--out", str(folder), "--resume"]
    if not (folder / "metrics.json").exists():
        subprocess.run(command, check=True, stdout=sys.stderr)
    metrics = json.loads((folder / "metrics.json").read_text())
    kept = {key: metrics[key] for key in ("problem", "outcome", "steps", "wall_seconds", "outputs", "estimated")}
    kept["looking"] = metrics["seconds"].get("error goal", 0.0)
    kept["cores"] = len(json.loads((folder / "config.json").read_text())["devices"])
    kept["training"] = metrics["wall_seconds"] - sum(
        metrics["seconds"].get(key, 0) for key in ("evaluation", "correction")
    )
    return kept | {"error": error, "commit": commit.stdout.strip()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--error", type=float, default=1e-3)
    parser.add_argument("--kept", action="store_true", help="run nothing, show the cells that are there")
    parser.add_argument("--out", type=Path, help="write the table to this page, too")
    arguments = parser.parse_args()
    lines = [
        "| problem | goal | outcome | cores | steps | s | looking, s | true worst | below 1.25 times |",
        "|" + "---|" * 9,
    ]
    for name in arguments.problems:
        file = RESULTS / f"{name}-{arguments.error:g}.json"
        row = kept_cell(file, partial(cell, name, arguments.error), arguments.kept)
        if row is not None:
            worst = max(errors["rel_l2_worst"] for errors in row["outputs"].values())
            verdict = "yes" if worst < 1.25 * row["error"] else "no"
            run = f"{row['outcome']} | {row['cores']} | {row['steps']} | {row['training']:.0f} | {row['looking']:.1f}"
            lines.append(f"| {name} | {row['error']:g} | {run} | {worst:.2e} | {verdict} |")
            print(lines[-1], file=sys.stderr, flush=True)
    show("Runs to a given error, measured", "\n\n".join(__doc__.split("\n\n")[2:]), lines, arguments.out)


if __name__ == "__main__":
    main()
