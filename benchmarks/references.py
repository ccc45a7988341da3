"""Accuracy of the reference solutions, claimed and measured, as a table: python benchmarks/references.py

Convergence and the difference to an independent method are those of the tests in tests/problems; the time is that of
all thetas on the evaluation grid, in one process. `--out docs/references.md` writes the page of the docs.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "problems"))

import test_allen_cahn as allen_cahn  # pyright: ignore
import test_burgers as burgers  # pyright: ignore
import test_poisson_boltzmann as poisson_boltzmann  # pyright: ignore

from clpinn.formulation.references import reference_table
from clpinn.problems import BENCHMARKS

PAGE = """# Reference solutions

How accurate the numerical references are. An error is the largest difference over the largest |u|. *Claimed* holds at
every theta of the box.

- *Coarse to default* is the difference to a refined solution as the resolution rises:
  {coarse}.
- *Independent* is the difference to a second method that shares nothing with the first.
- The references of schaffer and kovasznay are closed forms.

{table}

Seconds for all thetas of the problem on its evaluation grid, one process, no cache:

{times}

Made by `python benchmarks/references.py --out docs/references.md`.
"""


def rows():
    """One row a problem and theta: problem, theta, refinements, independent difference, method."""
    for nu in burgers.NU:
        refined = [burgers.refinement(nu, step=step) for step in (0.8, 0.4, 0.2, 0.1)]
        yield "burgers", f"nu={nu:g}", refined, burgers.independent(nu), "Fourier-Bessel series, 70 digits"
    for nu, rho in allen_cahn.CORNERS + allen_cahn.INTERIOR:
        refined = [allen_cahn.refinement(nu, rho, degree=d) for d in (8, 12, 16, 20)]
        other = allen_cahn.independent(nu, rho)
        yield "allen_cahn", f"nu={nu:g}, rho={rho:g}", refined, other, "Chebyshev collocation, LSODA"
    for theta in (*poisson_boltzmann.INTERIOR, poisson_boltzmann.CORNERS[0], poisson_boltzmann.CORNERS[-1]):
        refined = [poisson_boltzmann.refinement(theta, degree=d) for d in (8, 12, 16, 20)]
        other = poisson_boltzmann.independent(theta)
        yield "poisson_boltzmann", ", ".join(f"{v:g}" for v in theta), refined, other, "sine series, 400,000 terms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="write the page here as well")
    out = parser.parse_args().out

    table = ["| problem | theta | claimed | coarse to default | independent | by |", "|---|---|---|---|---|---|"]
    for problem, theta, refined, other, method in rows():
        steps = " → ".join(f"{r:.0e}" for r in refined)
        table.append(f"| {problem} | {theta} | 1e-8 | {steps} | {other:.0e} | {method} |")
        print(table[-1], flush=True)
    times = ["| problem | thetas × points | seconds |", "|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CLPINN_CACHE"] = folder
        for name, make in BENCHMARKS.items():
            problem, start = make(), time.perf_counter()
            shape = reference_table(problem).shape
            times.append(f"| {name} | {shape[0]} × {shape[2]} | {time.perf_counter() - start:.1f} |")
            print(times[-1], flush=True)
    coarse = "quadrature steps 0.8 to 0.1 for burgers, polynomial degrees 8 to 20 for the others"
    if out:
        out.write_text(PAGE.format(coarse=coarse, table="\n".join(table), times="\n".join(times)))


if __name__ == "__main__":
    main()
