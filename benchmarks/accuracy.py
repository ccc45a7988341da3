"""Errors of the default settings on the five benchmarks, beside the paper's best.

    python benchmarks/accuracy.py [PROBLEM ...] [--seeds 0 1 2] [--seconds 60] [--method free] [--kept]

Each cell is `clpinn train PROBLEM --seed SEED --seconds S --set correct=false` in a directory of its own under
runs/accuracy: the network alone, before its correction over the box. An interrupted cell is resumed. Its result and its
commit are kept in benchmarks/results/accuracy. A kept cell is not run again, so the table can be made in parts. --kept
runs nothing and shows all kept cells. --out writes the table to a page.

Seconds are those of training. In the cells of today they include compilation; evaluation on the full grid comes after
them. Cores are those that the process may use (taskset -c 0 leaves one). The floors are our aims: a macro error ten
times below the paper's best, and a worst error ten times below the best worst case that the paper publishes.
"""

import argparse
import json
import subprocess
import sys
from itertools import product
from pathlib import Path

from pages import show

RESULTS = Path(__file__).parent / "results"

# Of each output: the paper's best macro relative L2 (mean of three seeds) and the floor we set ourselves; the seconds a
# run takes; the best worst-case error that the paper publishes (over its outputs).
PAPER = {
    "schaffer": ({"u": (5.073e-2, 5.0e-3)}, 240, 0.22469),
    "burgers": ({"u": (1.771e-3, 1.7e-4)}, 60, 0.07735),
    "allen_cahn": ({"u": (1.467e-2, 1.4e-3)}, 60, 0.08343),
    "kovasznay": ({"u": (8.956e-3, 8.9e-4), "v": (0.138, 1.3e-2), "p": (8.864e-2, 8.8e-3)}, 200, 0.4697),
    "poisson_boltzmann": ({"u": (3.046e-2, 3.0e-3)}, 840, 0.2039),
}


def cell(
    file: Path,
    folder: Path,
    name: str,
    seed: int,
    seconds: float,
    method: str,
    overrides: list[str],
    correct: bool = False,
) -> dict:
    """What one run ended with, kept in `file`; run now in `folder` if that is not there.

    With `correct` the run ends with a correction over the box, and the cell tells of the network alone, too.
    """
    if not file.exists():
        changed = [*([] if correct else ["correct=false"]), *overrides]
        options = ["--method", method, *(word for each in changed for word in ("--set", each))]
        commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
        command = [sys.executable, "-m", "clpinn", "train", name, "--seed", str(seed), "--seconds", f"{seconds:g}"]
        subprocess.run([*command, *options, "--out", str(folder), "--resume"], check=True, stdout=sys.stderr)
        metrics = json.loads((folder / "metrics.json").read_text())
        if metrics["outcome"] == "stopped":
            sys.exit(f"The run in {folder} was stopped. Start again to go on with it.")
        found = {
            key: metrics[key] for key in ("problem", "method", "seed", "outcome", "steps", "validation", "outputs")
        }
        spent = metrics["seconds"]
        found["limit"], found["wall_seconds"] = seconds, metrics["wall_seconds"] - spent["evaluation"]
        if correct:
            found |= {"correction": metrics.get("correction"), "estimated": metrics.get("estimated")}
            found |= {"correction_seconds": spent.get("correction", 0.0)}
            found["wall_seconds"] -= found["correction_seconds"]
        found["cores"] = len(json.loads((folder / "config.json").read_text())["devices"])
        found["set"], found["commit"] = overrides, commit.stdout.strip()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=1))
    return json.loads(file.read_text())


def rows(found: dict) -> list[str]:
    """The lines of a cell in the table, one an output."""
    outputs, _, worst = PAPER[found["problem"]]
    lines = []
    for output, (paper, floor) in outputs.items():
        macro, largest = (found["outputs"][output][key] for key in ("rel_l2_macro", "rel_l2_worst"))
        verdict = "yes" if macro <= floor and largest <= worst / 10 else "no"
        ratios = f"{paper / macro:.1f} | {worst / largest:.1f}"
        run = f"{found['limit']:g} | {found['cores']} | {found['steps']}"
        what = f"{found['problem']} {output} | {' '.join([found['method'], *found['set']])} | {found['seed']}"
        lines.append(f"| {what} | {run} | {macro:.2e} | {largest:.2e} | {paper:.2e} | {ratios} | {verdict} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("problems", nargs="*", default=list(PAPER))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, help="training time of a run [default: by problem, 60 to 840]")
    parser.add_argument("--method", default="free")
    parser.add_argument("--set", nargs="*", default=[], help="settings to override, such as tasks.active=200")
    parser.add_argument("--kept", action="store_true", help="run nothing, show the cells that are there")
    parser.add_argument("--out", type=Path, help="write the table to this page, too")
    arguments = parser.parse_args()
    results = RESULTS / "accuracy"
    if arguments.kept:
        cells = [json.loads(file.read_text()) for file in results.glob("*.json")]
        cells = [found for found in cells if found["problem"] in arguments.problems]
        order = list(PAPER)
        cells.sort(key=lambda found: (order.index(found["problem"]), found["limit"], found["method"], found["seed"]))
    else:
        cells = []
        for name, seed in product(arguments.problems, arguments.seeds):
            seconds = arguments.seconds or PAPER[name][1]
            label = "-".join([name, arguments.method, *arguments.set, f"{seconds:g}s", str(seed)])
            file, folder = results / f"{label}.json", Path("runs/accuracy") / label
            found = cell(file, folder, name, seed, seconds, arguments.method, arguments.set)
            print("\n".join(rows(found)), file=sys.stderr, flush=True)
            cells.append(found)
    lines = [
        "| problem | method | seed | s | cores | steps | macro rel. L2 | worst | paper's | ratio | of worst | floors |",
        "|" + "---|" * 12,
        *(line for found in cells for line in rows(found)),
    ]
    show("Accuracy", "\n\n".join(__doc__.split("\n\n")[2:]), lines, arguments.out)


if __name__ == "__main__":
    main()
