"""Estimated errors of default surrogates beside their true ones, and the true errors after correcting.

    python benchmarks/error.py [PROBLEM ...] [--seconds 60] [--kept] [--out docs/error-measured.md]

Each surrogate is `clpinn train PROBLEM --seed 0 --seconds S --set correct=false`: the network alone. Its error is
estimated at 40 thetas that are drawn over the parameter box and lie on no grid. References give the true errors and
decide nothing. A cell is kept in benchmarks/results/error with its commit and all figures per theta, and is not
measured again. Runs are kept in runs/error.

Errors are relative L2 errors over the evaluation grid. Macro is the mean over thetas, worst the largest; of several
outputs the one with the largest true error is shown. The effectivity is the estimated error divided by the true one;
every output at every theta counts. "Missed" are effectivities outside [0.5, 2] that are not flagged as not resolved.
Spearman is the rank correlation of estimated and true errors over the resolved thetas. "Alone" is the median time of
single calls, "batch" the mean time per theta of one call with all thetas; both come after compilation. "Corrected" is
the mean and the largest true error where the correction is used, beside those of the base at the same thetas.
"""

import argparse
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from pages import kept_cell, show
from scipy.stats import spearmanr

import clpinn as cl
from clpinn.formulation.references import reference_at
from clpinn.keys import make_key
from clpinn.problems import load_problem
from clpinn.runs.directory import RunDirectory

RESULTS = Path(__file__).parent / "results" / "error"
OWN, NEW, EXAMPLES = "benchmarks/user_problems.py", "benchmarks/error_problems.py", "examples"
PDES = ("burgers", "allen_cahn", "kovasznay", "poisson_boltzmann")
BREADTH = (
    "Wave Advection Helmholtz Layer Beam Plate Schrodinger Oscillator VanDerPol Pendulum Epidemic LogEpidemic"
).split()
OTHERS = "Front Soliton Option Composite Logistic BlowUp ManyPeriods BackwardHeat".split()
PROBLEMS = (
    {name: name for name in PDES}
    | {name: f"{OWN}:{name}" for name in BREADTH}
    | {"PredatorPrey": f"{EXAMPLES}/predator_prey.py:PredatorPrey"}
    | {"KuramotoSivashinsky": f"{EXAMPLES}/kuramoto_sivashinsky.py:KuramotoSivashinsky"}
    | {name: f"{NEW}:{name}" for name in OTHERS}
)
THETAS, ALONE, SEED = 40, 5, 20
"""Thetas of each problem, those that are timed one by one, and the seed of their draw."""


def trained(name: str, seconds: float) -> cl.Surrogate:
    """The default surrogate of a problem, trained now if it has not been."""
    folder = Path("runs/error") / name
    command = [sys.executable, "-m", "clpinn", "train", PROBLEMS[name], "--seed", "0", "--seconds", f"{seconds:g}"]
    if not (folder / "model.clpinn").exists():
        options = ["--set", "correct=false", "--out", str(folder), "--resume"]
        subprocess.run([*command, *options], check=True, stdout=sys.stderr)
    return RunDirectory(folder, load_problem(PROBLEMS[name])).surrogate


def relative(error: np.ndarray, exact: np.ndarray) -> list[float]:
    """Relative L2 norms by output; arrays are (outputs, points)."""
    return (np.linalg.norm(error, axis=1) / np.linalg.norm(exact, axis=1)).tolist()


def outputs(surrogate: cl.Surrogate, theta: np.ndarray) -> np.ndarray:
    """The answers on the evaluation grid, (outputs, points)."""
    field = surrogate.field(**dict(zip(surrogate.problem.parameters, theta.tolist())))
    return np.stack([field[name].values.ravel() for name in surrogate.problem.outputs])


def measured(name: str, seconds: float) -> dict:
    surrogate = trained(name, seconds)
    problem = surrogate.problem
    thetas = problem.parameters.sample(THETAS, make_key(SEED))
    start = time.perf_counter()
    surrogate.error_many(thetas[:1])
    compilation = time.perf_counter() - start
    start = time.perf_counter()
    estimates = surrogate.error_many(thetas)
    batch = (time.perf_counter() - start) / len(thetas)
    alone = []
    for theta in thetas[:ALONE]:
        start = time.perf_counter()
        surrogate.error_many(theta[None])
        alone.append(time.perf_counter() - start)
    corrected = surrogate.correct_many(thetas)
    rows = []
    for theta, estimate in zip(thetas, estimates):
        row = {"theta": theta.tolist(), "estimate": list(estimate.relative_l2.values()), "resolved": estimate.resolved}
        row |= {"reason": estimate.reason, "newton_steps": estimate.newton_steps}
        if problem.reference is not None:
            exact = reference_at(problem, problem.evaluation.points, theta)
            row["true"] = relative(outputs(surrogate, theta) - exact, exact)
            row["corrected"] = relative(outputs(corrected, theta) - exact, exact)
        rows.append(row)
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return {
        "problem": name,
        "outputs": list(problem.outputs),
        "coordinates": len(problem.coordinates),
        "seconds": seconds,
        "steps": surrogate.record["steps"],
        "validation": surrogate.record["validation"],
        "seconds_alone": float(np.median(alone)),
        "seconds_batch": batch,
        "seconds_first": compilation,
        "commit": commit.stdout.strip(),
        "rows": rows,
    }


def figures(cell: dict) -> dict:
    """What the table says of a cell."""
    rows = cell["rows"]
    resolved = np.array([row["resolved"] for row in rows])
    estimate = np.array([row["estimate"] for row in rows], float)
    shown = {"resolved": float(resolved.mean())}
    if "true" not in rows[0]:
        return shown
    true, corrected = (np.array([row[key] for row in rows], float) for key in ("true", "corrected"))
    worst = int(np.argmax(np.mean(true, axis=0)))
    effectivity = estimate / true
    wrong = ~((effectivity >= 0.5) & (effectivity <= 2))
    good = effectivity[resolved].ravel()
    shown |= {
        "true": (true[:, worst].mean(), true[:, worst].max()),
        "wrong": int(wrong.any(axis=1).sum()),
        "missed": int((wrong.any(axis=1) & resolved).sum()),
    }
    if resolved.any():
        rank = (
            spearmanr(estimate[resolved][:, worst], true[resolved][:, worst]).statistic if resolved.sum() > 2 else None
        )
        shown |= {
            "estimated": (estimate[resolved][:, worst].mean(), estimate[resolved][:, worst].max()),
            "effectivity": np.quantile(good, [0.5, 0.05, 0.95]).tolist(),
            "inside": float(np.mean((good >= 0.8) & (good <= 1.25))),
            "spearman": rank,
            "base": (true[resolved][:, worst].mean(), true[resolved][:, worst].max()),
            "corrected": (corrected[resolved][:, worst].mean(), corrected[resolved][:, worst].max()),
            "worse": int(np.sum(corrected[resolved] > 1.01 * true[resolved])),
        }
    return shown


def line(cell: dict) -> str:
    shown = figures(cell)

    def pair(key: str) -> str:
        return "{:.1e} / {:.1e}".format(*shown[key]) if key in shown else "–"

    effectivity = "{:.2f} ({:.2f}, {:.2f})".format(*shown["effectivity"]) if "effectivity" in shown else "–"
    cells = [
        cell["problem"],
        f"{cell['validation']:.0e}",
        pair("true"),
        pair("estimated"),
        effectivity,
        f"{shown['inside']:.0%}" if "inside" in shown else "–",
        f"{shown['resolved']:.0%}",
        f"{shown['missed']} of {shown['wrong']}" if "missed" in shown else "–",
        f"{shown['spearman']:.3f}" if shown.get("spearman") is not None else "–",
        f"{cell['seconds_alone']:.2f} / {cell['seconds_batch']:.2f}",
        f"{pair('base')} → {pair('corrected')}" if "corrected" in shown else "–",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--kept", action="store_true", help="run nothing, show the cells that are there")
    parser.add_argument("--out", type=Path, help="write the table to this page, too")
    arguments = parser.parse_args()
    lines = [
        "| problem | validation loss | true macro / worst | estimated, where resolved | effectivity (5 %, 95 %) "
        "| in [0.8, 1.25] | resolved | missed | Spearman | s per theta: alone / batch | base → corrected |",
        "|" + "---|" * 11,
    ]
    for name in arguments.problems:
        file = RESULTS / f"{name}-{arguments.seconds:g}s.json"
        cell = kept_cell(file, partial(measured, name, arguments.seconds), arguments.kept)
        if cell is not None:
            lines.append(line(cell))
            print(lines[-1], file=sys.stderr, flush=True)
    show("Estimated errors, measured", "\n\n".join(__doc__.split("\n\n")[2:]), lines, arguments.out)


if __name__ == "__main__":
    main()
