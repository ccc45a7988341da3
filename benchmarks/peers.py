"""Errors at equal wall time of clpinn, DeepXDE, Scimba and jinns, on the same machine in the same run.

    python -m venv peers && peers/bin/pip install torch==2.13.0 deepxde scimba jinns
    python benchmarks/peers.py [PROBLEM ...] --python peers/bin/python [--seconds 60 300] [--seeds 0 1 2] [--kept]

Parametric Burgers and Allen-Cahn. All tools solve the same equation on the same box, with the same scale of theta and
the same hard constraint. A hard constraint is the strongest form for each of them. clpinn has its default settings but
for correct=false: its correction over the box comes after training and is left out. DeepXDE (PyTorch) runs Adam, then
L-BFGS. Scimba and jinns run their natural gradients. The script of each peer in benchmarks/peers states its settings.

Seconds are those of training, with compilation and without imports. Errors are relative L2 errors on clpinn's
evaluation grid, one per theta of its grid of thetas: macro is their mean, worst the largest. Cores are those that the
process may use.

The peers have an environment of their own. Each cell is kept in benchmarks/results/peers, and a kept cell is not run
again, so the table can be made in parts. --kept runs nothing and shows all kept cells. Tools take turns within a seed,
a problem and a time. --out writes the tables to a page.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

import accuracy
import numpy as np
from pages import commit, kept_cell, show

TOOLS = {"clpinn": "clpinn", "deepxde": "DeepXDE", "scimba": "Scimba", "jinns": "jinns"}


def own(file: Path, name: str, seconds: float, seed: int) -> dict:
    """A cell of clpinn, trained now unless it was."""
    found = accuracy.cell(file, Path("runs/peers") / file.stem, name, seed, seconds, "free", [])
    errors = found["outputs"]["u"]
    return {
        "macro": errors["rel_l2_macro"], "worst": errors["rel_l2_worst"],
        "steps": found["steps"], "seconds": found["wall_seconds"], "cores": found["cores"],
    }  # fmt: skip


def theirs(file: Path, tool: str, name: str, seconds: float, seed: int, python: str) -> dict:
    """A cell of a peer, run now by `python` unless it is there."""
    from clpinn.formulation.references import reference_table
    from clpinn.problems import load_problem

    def measured() -> dict:
        problem = load_problem(name)
        points, thetas = problem.evaluation.points, problem.candidates.points
        return predicted(python, tool, f"on_{tool}.py", [name, seed, seconds], points, thetas, reference_table(problem))

    cell = kept_cell(file, measured, only_kept=False)
    assert cell is not None
    return cell


def predicted(
    python: str, tool: str, script: str, run: list, points: np.ndarray, thetas: np.ndarray, exact: np.ndarray
) -> dict:
    """The cell of a script of a peer. `run` is problem, seed and seconds; `exact` (thetas, 1, points), NaN outside."""
    version = [python, "-c", f"from importlib.metadata import version; print(version({tool!r}), end='')"]
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/points.npz", coordinates=points, thetas=thetas)
        path, (name, seed, seconds) = Path(__file__).parent / "peers" / script, run
        command = [python, str(path), name, str(seed), f"{seconds:g}", f"{folder}/points.npz", f"{folder}/answer.npz"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found = dict(np.load(f"{folder}/answer.npz"))
    inside = np.isfinite(exact[:, 0])
    difference, size = (np.where(inside, a, 0.0) for a in (found["predictions"] - exact[:, 0], exact[:, 0]))
    errors = np.linalg.norm(difference, axis=1) / np.linalg.norm(size, axis=1)
    return {
        "macro": float(errors.mean()), "worst": float(errors.max()),
        "steps": int(found["steps"]), "seconds": float(found["seconds"]), "cores": len(os.sched_getaffinity(0)),
        "version": subprocess.run(version, check=True, stdout=subprocess.PIPE, text=True).stdout, "commit": commit(),
    }  # fmt: skip


def spread(values: list[float]) -> str:
    """Mean and range."""
    return f"{statistics.fmean(values):.2e} ({min(values):.1e}–{max(values):.1e})"


def tables(cells: dict[tuple, dict]) -> list[str]:
    """The means over seeds beside clpinn's, then each cell, of cells by (seed, problem, seconds, tool)."""
    versions = {tool: cell["version"] for (*_, tool), cell in cells.items() if "version" in cell}
    about = ", ".join(f"{TOOLS[tool]} {version}" for tool, version in versions.items())
    lines = [f"Means over seeds (smallest–largest); ratios are to clpinn's mean. Peers: {about or 'none'}.", ""]
    lines += ["| problem | s | tool | seeds | steps | macro rel. L2 | ratio | worst | ratio |", "|" + "---|" * 9]
    for name, seconds in dict.fromkeys(key[1:3] for key in cells):
        rows = {tool: [cell for key, cell in cells.items() if key[1:] == (name, seconds, tool)] for tool in TOOLS}
        for tool, found in rows.items():
            if not found:
                continue
            figures = []
            for error in ("macro", "worst"):
                mean = {of: statistics.fmean(cell[error] for cell in rows[of]) for of in (tool, "clpinn") if rows[of]}
                ratio = f"{mean[tool] / mean['clpinn']:.1f}" if "clpinn" in mean else "–"
                figures += [spread([cell[error] for cell in found]), ratio]
            steps = round(statistics.fmean(cell["steps"] for cell in found))
            lines.append(f"| {name} | {seconds:g} | {TOOLS[tool]} | {len(found)} | {steps} | {' | '.join(figures)} |")
    lines += ["", "By seed:", ""]
    lines += ["| problem | s | seed | tool | cores | s used | steps | macro rel. L2 | worst |", "|" + "---|" * 9]
    for (seed, name, seconds, tool), cell in cells.items():
        used = f"{cell['cores']} | {cell['seconds']:.1f} | {cell['steps']}"
        lines.append(
            f"| {name} | {seconds:g} | {seed} | {TOOLS[tool]} | {used} | {cell['macro']:.2e} | {cell['worst']:.2e} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("problems", nargs="*", default=["burgers", "allen_cahn"])
    parser.add_argument("--python", help="a Python with the peers")
    parser.add_argument("--tools", nargs="*", choices=list(TOOLS), default=list(TOOLS))
    parser.add_argument("--seconds", nargs="*", type=float, default=[60, 300])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--kept", action="store_true", help="run nothing, show the cells that are there")
    parser.add_argument("--out", type=Path, help="write the tables to this page, too")
    arguments = parser.parse_args()
    if not arguments.python and not arguments.kept and set(arguments.tools) != {"clpinn"}:
        parser.error("the peers need --python, a Python that has them; or --tools clpinn, or --kept")
    cells = {}
    for key in product(arguments.seeds, arguments.problems, arguments.seconds, arguments.tools):
        seed, name, seconds, tool = key
        file = accuracy.RESULTS / "peers" / f"{name}-{tool}-{seconds:g}s-{seed}.json"
        if arguments.kept and not file.exists():
            continue
        if tool == "clpinn":
            cell = own(file, name, seconds, seed)
        else:
            cell = theirs(file, tool, name, seconds, seed, arguments.python)
        cells[key] = cell
        if not arguments.kept:
            print(f"{file.stem}: macro {cell['macro']:.2e}, worst {cell['worst']:.2e}", file=sys.stderr, flush=True)
    lines = tables(cells)
    show("Peers", "\n\n".join(__doc__.split("\n\n")[2:]), lines, arguments.out)


if __name__ == "__main__":
    main()
