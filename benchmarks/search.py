"""Seconds of search at the paper's budgets, beside the paper's own.

    python benchmarks/search.py [PROBLEM ...] [--methods ag ac acr] [--out docs/search.md]

Drives the real events (selection, exchanges, weights, loss queries) of a whole run without the training between them:
all events of a method, on a network at its start. Queries and selection are told apart as in metrics.json. The paper's
seconds are those of one V100 and its own CPU, so the ratio says little about the machine and much about the algorithm.
"""

import argparse
import os
from pathlib import Path

import jax

jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))

from clpinn.presets import paper  # noqa: E402
from clpinn.problems import BENCHMARKS, load_problem  # noqa: E402
from clpinn.training.trainer import Trainer  # noqa: E402

# AG loss and selection, AC loss and selection: seconds on a V100, published.
PAPER = {
    "schaffer": (0.83, 0.01, 0.67, 13.35),
    "burgers": (5.31, 0.03, 1.01, 6.48),
    "allen_cahn": (9.57, 0.04, 2.8, 12.56),
    "kovasznay": (20.16, 0.05, 4.6, 6.56),
    "poisson_boltzmann": (1738.2, 4.8, 142.8, 492.6),
}


def measure(name: str, method: str) -> tuple[int, int, float, float]:
    """Events, queries, seconds of queries and of selection."""
    problem = load_problem(name, paper=True)
    settings = paper(problem, method)
    trainer = Trainer(problem, settings)
    state = trainer.init()
    trainer.task_losses(state, state.pool.thetas)  # compile first
    events = settings.adam.steps // settings.tasks.interval
    for _ in range(events):
        state, _ = trainer.events.hold(state, lambda thetas, state=state: trainer.task_losses(state, thetas))
    seconds = trainer.timing.seconds
    return events, state.queries, seconds["queries"], seconds["selection"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("problems", nargs="*", default=list(BENCHMARKS))
    parser.add_argument("--methods", nargs="*", default=["ag", "ac", "acr"])
    parser.add_argument("--out", type=Path, help="write the table to this page, too")
    arguments = parser.parse_args()
    lines = [
        "| problem | method | events | queries | loss, s | selection, s | paper: loss, s | paper: selection, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    for name in arguments.problems:
        for method in arguments.methods:
            events, queries, loss, selection = measure(name, method)
            published = {"ag": PAPER[name][:2], "ac": PAPER[name][2:]}.get(method, ("–", "–"))
            cells = [name, method, events, queries, f"{loss:.1f}", f"{selection:.1f}", *published]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
            print(lines[-1], flush=True)
    if arguments.out:
        about = __doc__.split("\n\n")[2].strip()
        command = f"Made by `python benchmarks/search.py --out {arguments.out}`."
        arguments.out.write_text("\n".join(["# Search", "", about, "", *lines, "", command, ""]))


if __name__ == "__main__":
    main()
