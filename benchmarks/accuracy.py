"""Errors of the default settings on the five benchmarks, beside the paper's best.

    python benchmarks/accuracy.py [PROBLEM ...] [--seeds 0 1 2] [--seconds 60] [--method free] [--kept]

Each cell is `clpinn train PROBLEM --seed SEED --seconds S` in a directory of its own under runs/accuracy, resumed if it
was interrupted and not run again once it is there, so that the table can be made in parts; --kept runs none and shows
those that are there. Seconds are of training, compilation included; evaluation on the full grid comes after. Cores are
those that the process may use (taskset -c 0 leaves one). Floors are a macro error ten times below the paper's best, and
a worst one ten times below the best worst case that it publishes. With --out the table is written to a page.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

# Of each output: the paper's best macro relative L2 (mean of three seeds) and the floor we set ourselves; the seconds a
# run takes; the best worst-case error that the paper publishes (over its outputs).
PAPER = {
    "schaffer": ({"u": (5.073e-2, 5.0e-3)}, 240, 0.22469),
    "burgers": ({"u": (1.771e-3, 1.7e-4)}, 60, 0.07735),
    "allen_cahn": ({"u": (1.467e-2, 1.4e-3)}, 60, 0.08343),
    "kovasznay": ({"u": (8.956e-3, 8.9e-4), "v": (0.138, 1.3e-2), "p": (8.864e-2, 8.8e-3)}, 200, 0.4697),
    "poisson_boltzmann": ({"u": (3.046e-2, 3.0e-3)}, 840, 0.2039),
}


def cell(name: str, seed: int, seconds: float, out: Path, kept: bool, *options: str) -> dict | None:
    """The metrics of one run, made now unless they are there; with `kept` None if they are not."""
    metrics = out / "metrics.json"
    ended = metrics.exists() and json.loads(metrics.read_text())["outcome"] != "stopped"
    if kept and not ended:
        return None
    if not ended:
        command = [sys.executable, "-m", "clpinn", "train", name, "--seed", str(seed), "--seconds", f"{seconds:g}"]
        subprocess.run([*command, *options, "--out", str(out), "--resume"], check=True, stdout=sys.stderr)
    cores = len(json.loads((out / "config.json").read_text())["devices"])
    return json.loads(metrics.read_text()) | {"cores": cores}


def rows(name: str, seed: int, seconds: float, metrics: dict) -> list[str]:
    outputs, _, worst = PAPER[name]
    lines = []
    for output, (paper, floor) in outputs.items():
        found = metrics["outputs"][output]
        macro, largest = found["rel_l2_macro"], found["rel_l2_worst"]
        verdict = "yes" if macro <= floor and largest <= worst / 10 else "no"
        ratios = f"{paper / macro:.1f} | {worst / largest:.1f}"
        figures = f"{seconds:g} | {metrics['cores']} | {metrics['steps']} | {macro:.2e} | {largest:.2e} | {paper:.2e}"
        lines.append(f"| {name} {output} | {seed} | {figures} | {ratios} | {verdict} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("problems", nargs="*", default=list(PAPER))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, help="training time of a run [default: by problem, 60 to 840]")
    parser.add_argument("--method", default="free")
    parser.add_argument("--tasks", type=int, help="size of the method's pool [default: the paper's]")
    parser.add_argument("--folder", type=Path, default=Path("runs/accuracy"))
    parser.add_argument("--kept", action="store_true", help="run nothing, show the runs that are there")
    parser.add_argument("--out", type=Path, help="write the table to this page, too")
    arguments = parser.parse_args()
    lines = [
        "| problem | seed | s | cores | steps | macro rel. L2 | worst | paper's | ratio | worst's ratio | floors met |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    method, tasks = arguments.method, arguments.tasks
    options = ["--method", method, *(["--set", f"tasks.active={tasks}"] if tasks else [])]
    for name in arguments.problems:
        seconds = arguments.seconds or PAPER[name][1]
        for seed in arguments.seeds:
            out = arguments.folder / f"{name}-{method}{tasks or ''}-{seconds:g}s-{seed}"
            metrics = cell(name, seed, seconds, out, arguments.kept, *options)
            if metrics is None:
                continue
            found = rows(name, seed, seconds, metrics)
            print("\n".join(found), flush=True)
            lines += found
    if arguments.out:
        about = "\n".join(__doc__.split("\n\n")[2:]).strip()
        arguments.out.write_text("\n".join(["# Accuracy", "", about, "", *lines, ""]))


if __name__ == "__main__":
    main()
