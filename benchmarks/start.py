"""Seconds from `clpinn train PROBLEM --steps 1` to the end of that step: at another revision and here, cold and warm.

    python benchmarks/start.py e227ff8 [--problems kovasznay burgers] [--repeats 3]

Cold is a process without any kept program, warm one after another process has compiled the same. Revisions take turns,
so that a noisy machine is noisy for both. The figures are medians, the ratios are the revision's cold time over ours.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Ends the process when the first natural step has been made, where the revision makes it.
CHILD = """
import os, sys
try:
    from clpinn.training.stages.natural import NaturalStage as Owner
    from clpinn.cli.app import main
    name = "step"
except ImportError:
    from clpinn.trainer import Trainer as Owner
    from clpinn.cli import main
    name = "_natural_step"
step = getattr(Owner, name)
def last(*arguments):
    step(*arguments)
    os._exit(0)
setattr(Owner, name, last)
sys.argv = ["clpinn", "train", *sys.argv[1:]]
main()
"""


def seconds(source: Path, problem: str, cache: Path) -> float:
    """From the start of the process to the end of its first step."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment |= {"PYTHONPATH": str(source / "src"), "CLPINN_CACHE": str(cache)}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", CHILD, problem, "--steps", "1", "--out", f"{folder}/run"]
        start = time.perf_counter()
        subprocess.run(command, env=environment, check=True, capture_output=True)
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision")
    parser.add_argument("--problems", nargs="+", default=["kovasznay"])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print("| problem | before, s | cold, s | warm, s | before / cold | before / warm |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "source"
        worktree = ["git", "worktree"]
        subprocess.run([*worktree, "add", "--detach", "-q", str(other), options.revision], cwd=ROOT, check=True)
        try:
            for problem in options.problems:
                rows = []
                for repeat in range(options.repeats):
                    caches = [Path(folder) / f"{problem}-{repeat}-{side}" for side in ("before", "after")]
                    before = seconds(other, problem, caches[0])
                    rows.append((before, seconds(ROOT, problem, caches[1]), seconds(ROOT, problem, caches[1])))
                before, cold, warm = map(statistics.median, zip(*rows))
                figures = f"{before:.1f} | {cold:.1f} | {warm:.1f} | {before / cold:.1f} | {before / warm:.1f}"
                print(f"| {problem} | {figures} |", flush=True)
        finally:
            subprocess.run([*worktree, "remove", "--force", str(other)], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
