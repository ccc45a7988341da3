"""Tables of the paper beside the paper's figures, from runs that are kept.

    python benchmarks/studies.py [STUDY ...] [--problems ..] [--rows ..] [--seeds ..] [--budget 0.1] [--jobs 2]
    python benchmarks/studies.py --kept --out docs/reproduced.md

Each table says its budget, the fraction of the paper's steps. Below the full budget errors are not comparable with the
paper's: L-BFGS ends early. Figures are mean ± population standard deviation over seeds, "paper" is what the paper
reports, and the ratio is found / paper. A cell is `clpinn study run` with one seed. Its metrics, errors per theta and
history are kept in benchmarks/results/studies with the commit; the run directories are not. Times are of two cores,
beside other work.
"""

import argparse
import json
import subprocess
from pathlib import Path

from pages import show

import clpinn as cl
from clpinn.studies.cells import keep, kept_result, result_of
from clpinn.studies.paper import STUDIES
from clpinn.studies.running import CELLS
from clpinn.studies.tables import markdown, table

RESULTS = Path(__file__).parent / "results" / "studies"
PLANS = RESULTS / "plans.json"
FIELDS = ("budget", "problems", "seeds", "settings", "rows")


def kept_plans() -> list[tuple[str, cl.Plan]]:
    """What was asked for, in the order of the paper's studies and from large budgets to small ones."""
    rows = json.loads(PLANS.read_text()) if PLANS.exists() else []
    plans = [(row["study"], cl.Plan(row["budget"], *(tuple(row[name]) for name in FIELDS[1:]))) for row in rows]
    return sorted(plans, key=lambda pair: (list(STUDIES).index(pair[0]), -pair[1].budget))


def run(name: str, plan: cl.Plan, jobs: int) -> None:
    """Run the cells of a study, and keep those that have ended."""
    study = cl.load_study(name)
    cl.run_study(study, plan, jobs=jobs)
    described = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    for cell in plan.applied(study).cells(plan.budget).values():
        result = result_of(cell, CELLS)
        if result is not None and kept_result(cell, RESULTS) is None:
            keep(cell, result, RESULTS, described.stdout.strip())
    plans = kept_plans()
    if (name, plan) not in plans:
        rows = [{"study": each, **{field: getattr(p, field) for field in FIELDS}} for each, p in [*plans, (name, plan)]]
        PLANS.write_text(json.dumps(rows, indent=1))


def part(name: str, plan: cl.Plan) -> list[str]:
    """The tables of one plan."""
    study = plan.applied(cl.load_study(name))
    results = {cell.name: kept_result(cell, RESULTS) for cell in study.cells(plan.budget).values()}
    found = table(study, plan.budget, results)
    if not any(results.values()):
        return []
    command = f"clpinn study run {name} --budget {plan.budget:g}"
    for option, values in (("problems", plan.problems), ("rows", plan.rows), ("seeds", plan.seeds)):
        command += f" --{option} {' '.join(map(str, values))}" if values else ""
    command += "".join(f" --set {setting}" for setting in plan.settings)
    return [f"## {name}, {100 * plan.budget:g} %", "", found.header, "", f"`{command}`", "", markdown(found), ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("studies", nargs="*", choices=[[], *STUDIES])
    parser.add_argument("--problems", nargs="*", default=[])
    parser.add_argument("--rows", nargs="*", default=[])
    parser.add_argument("--seeds", nargs="*", type=int, default=[])
    parser.add_argument("--budget", type=float, default=1.0)
    parser.add_argument("--set", nargs="*", default=[], dest="settings")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--kept", action="store_true", help="run nothing, show the kept results")
    parser.add_argument("--out", type=Path, help="write the tables to this page, too")
    arguments = parser.parse_args()
    plan = cl.Plan(
        arguments.budget,
        tuple(arguments.problems),
        tuple(arguments.seeds),
        tuple(arguments.settings),
        tuple(arguments.rows),
    )
    for name in arguments.studies:
        if not arguments.kept:
            run(name, plan, arguments.jobs)
    lines = [line for name, each in kept_plans() for line in part(name, each)]
    show("The paper's tables, reproduced", "\n\n".join(__doc__.split("\n\n")[2:]), lines, arguments.out)


if __name__ == "__main__":
    main()
