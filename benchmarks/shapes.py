"""Errors on domains of any shape, what points and compilation cost there, and other libraries at equal wall time.

    python -m venv peers && peers/bin/pip install torch==2.13.0 deepxde scimba
    python benchmarks/shapes.py [EXAMPLE ...] --python peers/bin/python [--seconds 60 300] [--seeds 0] [--kept]

Errors: each problem of examples/shapes is trained by `clpinn train FILE --seed SEED --seconds S`: the defaults, so the
run ends with a correction over the box. "Network" is the network alone, "corrected" the surrogate that the run ends
with, "end" the time of the correction. Errors are relative L2 errors inside the domain, at the points of the evaluation
grid: macro is the mean over the grid of thetas, worst the largest. "Estimated" is what the run itself says, without the
reference. If an example computes a quantity, as in `drag(surrogate, radius, Re)` with `reference_drag(radius, Re)`
beside it, the table has the largest relative error of that quantity at 20 thetas that are drawn over the parameter box
and lie on no grid.

Costs: "points" is the time that the candidates of a step take, thetas and weights included, and its share of the step;
medians over steps after the first ones. "Start" is the time from the load of the problem, with its checks, to the end
of the first step, without imports and without kept programs. "Box" is the same for that equation on a box, of
benchmarks/shape_boxes.py. Each is measured in three fresh processes, of which the fastest counts.

Peers: DeepXDE (PyTorch) and Scimba get the same equation, conditions and hard conditions, with the settings that their
scripts in benchmarks/peers state; of clpinn it is the network alone. Scimba solves for all thetas. DeepXDE has no
shapes with parameters. On the annulus it is therefore trained at three thetas, each with the whole time: the lower
corner of the parameter box, its centre and the upper corner. "annulus, 3 thetas" shows the errors there, for clpinn
after its one training for all thetas. This favours DeepXDE. On the L-shape the parameter is a coordinate for DeepXDE.

Seconds are those of training, with compilation and without imports. Cores are those that the process may use. Each cell
is kept in benchmarks/results/shapes, and a kept cell is not run again. --kept runs nothing and shows all kept cells.
Without --python no peers are run. --out writes the tables to a page.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

import accuracy
import numpy as np
import peers
from pages import commit, kept_cell, show
from step import use_cores

RESULTS, RUNS = accuracy.RESULTS / "shapes", Path("runs/shapes")
EXAMPLES, BOXES = Path("examples/shapes"), Path("benchmarks/shape_boxes.py")
EXACT = {"concentration": lambda r, load: 3 - load}
"""Quantities that a formula gives: the concentration of stress at a hole (Kirsch, 1898)."""
THETAS, SEED = 20, 20
"""Thetas of the errors of quantities, and the seed of their draw."""
WARM, STEPS, PROCESSES = 3, 20, 3
"""Steps before the timed ones, timed steps, and processes of which the fastest counts."""
ONE_BY_ONE = "annulus, 3 thetas"
PEERS = {"annulus": ("scimba",), ONE_BY_ONE: ("deepxde",), "l_shape": ("deepxde", "scimba")}
"""The peers that are compared with clpinn on each problem."""


def examples() -> list[str]:
    """The names of the files that hold a problem."""
    return sorted(file.stem for file in EXAMPLES.glob("*.py") if "(cl.Problem)" in file.read_text())


def path(name: str) -> str:
    return str(EXAMPLES / f"{name}.py")


# Errors ------------------------------------------------------------------------------------------------------------


def trained(name: str, seconds: float, seed: int) -> tuple[dict, Path]:
    """What a run ended with, and its directory. It is trained now unless it was."""
    run = RUNS / f"{name}-{seconds:g}s-{seed}"
    return accuracy.cell(RUNS / f"{run.name}.json", run, path(name), seed, seconds, "free", [], True), run


def measured(name: str, seconds: float, seed: int) -> dict:
    import clpinn as cl
    from clpinn.problems import load_problem

    cell, run = trained(name, seconds, seed)
    return cell | {"problem": name, "quantities": quantities(cl.load(run, load_problem(path(name))))}


def quantities(surrogate) -> dict[str, float]:
    """The largest relative error of each quantity that the surrogate's example computes."""
    from clpinn.keys import make_key

    module, parameters = sys.modules[type(surrogate.problem).__module__], surrogate.problem.parameters
    thetas = [dict(zip(parameters, theta)) for theta in parameters.sample(THETAS, make_key(SEED)).tolist()]
    beside = {name.removeprefix("reference_"): f for name, f in vars(module).items() if name.startswith("reference_")}
    errors = {}
    for name, reference in (EXACT | beside).items():
        if hasattr(module, name):
            ratios = [getattr(module, name)(surrogate, **theta) / reference(**theta) for theta in thetas]
            errors[name] = float(np.max(np.abs(np.array(ratios) - 1)))
    return errors


def error_lines(cells: list[dict | None]) -> list[str]:
    """One line per run and output: the errors of the network, of the corrected surrogate, and those it estimates."""

    def text(errors: dict | None) -> str:
        return f"{errors['rel_l2_macro']:.1e} / {errors['rel_l2_worst']:.1e}" if errors else "–"

    lines = [
        "| problem | s | seed | cores | steps | output | network: macro / worst | corrected | estimated | resolved |"
    ]
    lines[0] += " end, s | quantities | commit |"
    lines.append("|" + "---|" * 13)
    for cell in filter(None, cells):
        run = f"{cell['problem']} | {cell['limit']:g} | {cell['seed']} | {cell['cores']} | {cell['steps']}"
        named = ", ".join(f"{name.replace('_', ' ')}: {error:.2%}" for name, error in cell["quantities"].items())
        estimates = (cell["estimated"] or {"outputs": {}})["outputs"]
        resolved = f"{cell['estimated']['resolved']:.0%}" if cell["estimated"] else "–"
        for output, errors in cell["outputs"].items():
            own = estimates.get(output)
            known = {f"rel_l2_{key}": own[key]["value"] for key in ("macro", "worst")} if own else None
            figures = f"{text(network_errors(cell)[output])} | {text(errors)} | {text(known)} | {resolved}"
            end = f"{cell['correction_seconds']:.0f} | {named or '–'} | {cell['commit']}"
            lines.append(f"| {run} | {output} | {figures} | {end} |")
    return lines


def network_errors(cell: dict) -> dict[str, dict[str, float]]:
    """The errors of the network alone, by output."""
    return (cell["correction"] or {}).get("network_outputs", cell["outputs"])


# Costs -------------------------------------------------------------------------------------------------------------


def cost(name: str) -> None:
    """Print the seconds to the first step of a problem, those of a step, and those of drawing its candidates."""
    use_cores()
    import jax

    from clpinn.keys import make_key
    from clpinn.presets import natural
    from clpinn.problems import load_problem
    from clpinn.training.batches import EDGE_SHARE, row_source
    from clpinn.training.trainer import Trainer

    def seconds(function, *arguments):
        start = time.perf_counter()
        result = function(*arguments)
        return time.perf_counter() - start, result

    with jax.enable_x64(True):
        start = time.perf_counter()
        problem = load_problem(name)
        settings = natural(problem)
        trainer = Trainer(problem, settings)
        state, stage = trainer.init(compile=True), trainer.stages["natural"]
        objective = stage.objective(state)
        state, *_ = stage.step(state, objective, 0.0)
        first = time.perf_counter() - start
        batches = row_source(problem, settings.natural.rows, trainer.dtype).batches
        candidates, steps, draws = batches.candidate_points(), [], []
        for i in range(WARM + STEPS):
            draws.append(seconds(batches.uniform, make_key(i), candidates, state.natural[1], objective, EDGE_SHARE)[0])
            spent, (state, *_) = seconds(stage.step, state, objective, 0.0)
            steps.append(spent)
    print(json.dumps({"first": first, "step": median(steps[WARM:]), "draw": median(draws[WARM:])}))


def costs(name: str) -> dict:
    """The costs of an example, and those of its equation on a box if there is one."""
    from clpinn.problems import load_problem

    kind = type(load_problem(path(name))).__name__
    cell = {"problem": name, "commit": commit(), "cores": len(os.sched_getaffinity(0))}
    cell["shape"] = fastest(path(name))
    if f"class {kind}(" in BOXES.read_text():
        cell["box"] = fastest(f"{BOXES}:{kind}")
    return cell


def fastest(name: str) -> dict[str, float]:
    """The smallest of each time over several processes."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import shapes; shapes.cost({name!r})"
    runs = []
    for _ in range(PROCESSES):
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
        runs.append(json.loads(done.stdout))
    return {key: min(run[key] for run in runs) for key in runs[0]}


def cost_lines(cells: list[dict | None]) -> list[str]:
    lines = ["| problem | cores | step, ms | points, ms | points | start, s | box, s | start / box | commit |"]
    lines.append("|" + "---|" * 9)
    for cell in filter(None, cells):
        shape, box = cell["shape"], cell.get("box")
        times = f"{1e3 * shape['step']:.0f} | {1e3 * shape['draw']:.1f} | {shape['draw'] / shape['step']:.1%}"
        ratio = f"{box['first']:.1f} | {shape['first'] / box['first']:.2f}" if box else "– | –"
        lines.append(
            f"| {cell['problem']} | {cell['cores']} | {times} | {shape['first']:.1f} | {ratio} | {cell['commit']} |"
        )
    return lines


# Peers -------------------------------------------------------------------------------------------------------------


def corners(box) -> np.ndarray:
    """Three thetas of a box: its lower corner, its centre and its upper corner."""
    return np.stack([[axis.low for axis in box.axes], box.centre, [axis.high for axis in box.axes]])


def ours(name: str, seconds: float, seed: int, one_by_one: bool) -> dict:
    """The cell of clpinn: its errors at the grid of thetas, or at three of them."""
    import clpinn as cl
    from clpinn.problems import load_problem
    from clpinn.runs.evaluate import evaluate
    from clpinn.surrogate.box_correction import without_box_correction

    cell, folder = trained(name, seconds, seed)
    errors = network_errors(cell)["u"]
    if one_by_one:
        problem = load_problem(path(name))
        network = without_box_correction(cl.load(folder, problem).network)
        errors = evaluate(problem, network, corners(problem.parameters)).summary()["outputs"]["u"]
    figures = {key: errors[f"rel_l2_{key}"] for key in ("macro", "worst")}
    run = {"seconds": cell["wall_seconds"]} | {key: cell[key] for key in ("steps", "cores", "commit")}
    return figures | run


def theirs(python: str, tool: str, name: str, seconds: float, seed: int, one_by_one: bool) -> dict:
    """The cell of a peer: one training for all thetas of the grid, or one for each of three."""
    from clpinn.formulation.references import reference_at
    from clpinn.problems import load_problem

    problem = load_problem(path(name))
    points = problem.evaluation.points
    thetas = corners(problem.parameters)[:, None] if one_by_one else [problem.candidates.points]
    cells = []
    for some in thetas:
        exact = np.stack([reference_at(problem, points, theta) for theta in some])
        cells.append(peers.predicted(python, tool, f"on_{tool}_shapes.py", [name, seed, seconds], points, some, exact))
    macro, worst = np.mean([cell["macro"] for cell in cells]), max(cell["worst"] for cell in cells)
    mean = {key: np.mean([cell[key] for cell in cells]) for key in ("steps", "seconds")}
    return cells[0] | {
        "macro": float(macro),
        "worst": worst,
        "steps": int(mean["steps"]),
        "seconds": float(mean["seconds"]),
    }


def peer_cells(names: list[str], seconds: list[float], seeds: list[int], python: str | None) -> dict[tuple, dict]:
    """The cells of `peers.tables`: those that are there, and with `python` the others, too."""
    cells = {}
    for seed, (label, tools), limit in product(seeds, PEERS.items(), seconds):
        name, one_by_one = label.split(",")[0], label == ONE_BY_ONE
        for tool in ("clpinn", *tools) if name in names else ():
            file = RESULTS / "peers" / f"{label.replace(', ', '-').replace(' ', '-')}-{tool}-{limit:g}s-{seed}.json"
            measure = ours if tool == "clpinn" else partial(theirs, python, tool)
            cell = kept_cell(file, partial(measure, name, limit, seed, one_by_one), only_kept=python is None)
            if cell is not None:
                cells[seed, label, limit, tool] = cell
                print(f"{file.stem}: macro {cell['macro']:.2e}, worst {cell['worst']:.2e}", file=sys.stderr, flush=True)
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("examples", nargs="*", default=examples())
    parser.add_argument("--seconds", nargs="*", type=float, default=[60, 300])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--python", help="a Python with the peers; without it no peer is run")
    parser.add_argument("--kept", action="store_true", help="run nothing, show the cells that are there")
    parser.add_argument("--out", type=Path, help="write the tables to this page, too")
    arguments = parser.parse_args()
    spent, errors = [], []
    for name in arguments.examples:
        spent.append(kept_cell(RESULTS / f"{name}-cost.json", partial(costs, name), arguments.kept))
    for name, seconds, seed in product(arguments.examples, arguments.seconds, arguments.seeds):
        file = RESULTS / f"{name}-{seconds:g}s-{seed}.json"
        errors.append(kept_cell(file, partial(measured, name, seconds, seed), arguments.kept))
        print("\n".join(error_lines(errors[-1:])[2:]), file=sys.stderr, flush=True)
    python = None if arguments.kept else arguments.python
    rivals = peer_cells(arguments.examples, arguments.seconds, arguments.seeds, python)
    lines = ["## Errors", "", *error_lines(errors), "", "## Costs", "", *cost_lines(spent)]
    lines += ["", "## Peers", "", *peers.tables(rivals)]
    show("Domains of any shape, measured", "\n\n".join(__doc__.split("\n\n")[2:]), lines, arguments.out)


if __name__ == "__main__":
    main()
