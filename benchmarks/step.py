"""Loss and gradient of full-batch Burgers against DeepXDE, and how time and memory grow with the number of tasks.

    python benchmarks/step.py --peer /path/to/python-with-deepxde --out docs/step.md

Full-batch Burgers: 9 tasks × 5900 points, the 4×50 network, float32, the same points for both tools, two CPU cores. The
peer is DeepXDE with its PyTorch backend, in an environment of its own (pip install torch==2.13.0 deepxde). The two
tools take turns. Each has its own process, which waits while the other works. The ratio is that of the medians. Without
--peer only clpinn is measured.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

PEER = r"""
import json, os, sys, time
os.environ["DDE_BACKEND"] = "pytorch"
import numpy as np, torch
torch.set_num_threads(len(os.sched_getaffinity(0)))
import deepxde as dde
dde.config.set_default_float("float32")
data = np.load(sys.argv[1])
geometry = dde.geometry.Hypercube([-1, 0, 0.01], [1, 1, 1])

def pde(x, u):
    u_x, u_t = dde.grad.jacobian(u, x, i=0, j=0), dde.grad.jacobian(u, x, i=0, j=1)
    return u_t + u * u_x - x[:, 2:3] / np.pi * dde.grad.hessian(u, x, i=0, j=0)

boundary = dde.icbc.PointSetBC(data["boundary"], np.zeros((len(data["boundary"]), 1)))
initial = dde.icbc.PointSetBC(data["initial"], -np.sin(np.pi * data["initial"][:, :1]))
problem = dde.data.PDE(geometry, pde, [boundary, initial], num_domain=0, anchors=data["interior"])
network = dde.nn.FNN([3] + [50] * 4 + [1], "tanh", "Glorot uniform")
model = dde.Model(problem, network)
model.compile("adam", lr=1e-3, loss_weights=[1, 1, 5], verbose=0)
problem.train_next_batch()
inputs, targets = problem.train_x, problem.train_y

def step():
    network.zero_grad()
    losses = model.outputs_losses_train(inputs, targets, None)[1]
    losses.sum().backward()
    return losses.sum().item()

step()
print(json.dumps({"rows": int(len(inputs))}), flush=True)
for _ in sys.stdin:
    start = time.perf_counter(); step()
    print(time.perf_counter() - start, flush=True)
"""


def points() -> dict[str, np.ndarray]:
    """The rows of 9 tasks as DeepXDE wants them: coordinates and nu in one array, by term."""
    import jax

    from clpinn.problems import Burgers
    from clpinn.training.pool_loss import Collocation

    problem = Burgers(hard=False)
    drawn = Collocation.sample(problem, jax.random.key(0)).points
    thetas = np.linspace(0.01, 1, 9)
    rows = {}
    for name, x in drawn.items():
        x = np.asarray(x, dtype=np.float32)
        nu = np.repeat(thetas, len(x)).astype(np.float32)
        rows[name] = np.concatenate([np.tile(x, (9, 1)), nu[:, None]], axis=1)
    return rows


def ours(tasks: int):
    """A function that takes one loss and gradient of `tasks` tasks with clpinn."""
    import jax
    import jax.numpy as jnp

    from clpinn.networks.architecture import Architecture
    from clpinn.networks.make import make
    from clpinn.problems import Burgers
    from clpinn.training.pool_loss import Collocation, PoolLoss, Tasks

    problem = Burgers(hard=False)
    network = make(problem, Architecture("fnn", 50, 4), jax.random.key(0))
    dense = Collocation.sample(problem, jax.random.key(0))
    sparse = Collocation.sample(problem, jax.random.key(0), 0.1)
    loss = PoolLoss(problem, dense, sparse, jnp.float32)
    thetas = np.linspace(0.01, 1, tasks)[:, None]
    active = Tasks.padded(thetas, np.ones(tasks), tasks, jnp.float32)
    replay = Tasks.padded(thetas[:0], np.ones(0), 1, jnp.float32)

    def step() -> float:
        start = time.perf_counter()
        jax.block_until_ready(loss.objective(network, active, replay, jax.random.key(0)))
        return time.perf_counter() - start

    step()
    return step


def growth(tasks: int, turns: int) -> tuple[float, float]:
    """Median seconds and megabytes of growth for so many tasks, in a fresh process."""
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import resource, statistics, step\n"
        "step.use_cores()\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "step.ours(1); before = peak()\n"
        f"one = step.ours({tasks}); print(statistics.median(one() for _ in range({turns})), peak() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, megabytes = map(float, done.stdout.split())
    return seconds, megabytes


def use_cores() -> None:
    import jax

    jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer", help="a Python with deepxde and torch")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--out", type=Path, help="write a page with the tables and, beside it, a figure")
    arguments = parser.parse_args()
    use_cores()
    lines = ["# One step", "", __doc__.split("\n\n")[2].strip(), ""]
    step = ours(9)
    mine, theirs = [], []
    if arguments.peer:
        with tempfile.TemporaryDirectory() as folder:
            np.savez(f"{folder}/points.npz", **points())  # pyright: ignore
            peer = subprocess.Popen(
                [arguments.peer, "-c", PEER, f"{folder}/points.npz"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
            assert peer.stdin and peer.stdout
            while not (line := peer.stdout.readline()).startswith("{"):
                assert line, "the peer did not start"
            rows = json.loads(line)["rows"]
            for _ in range(arguments.turns):
                time.sleep(
                    0.3
                )  # the threads of the one spin for a while after its work; do not let them slow the other
                mine.append(step())
                peer.stdin.write("go\n")
                peer.stdin.flush()
                theirs.append(float(peer.stdout.readline()))
            peer.stdin.close()
            peer.wait()
        a, b = statistics.median(mine), statistics.median(theirs)
        lines += ["| | ms | ratio |", "|---|---|---|"]
        lines += [
            f"| clpinn | {a * 1e3:.0f} | 1 |",
            f"| DeepXDE, PyTorch ({rows} rows) | {b * 1e3:.0f} | {b / a:.1f} |",
            "",
        ]
    found = {tasks: growth(tasks, arguments.turns) for tasks in (1, 3, 9, 27, 80)}
    lines += ["| tasks | ms | ms per task | growth of memory, MB |", "|---|---|---|---|"]
    for tasks, (seconds, megabytes) in found.items():
        lines.append(f"| {tasks} | {seconds * 1e3:.0f} | {seconds * 1e3 / tasks:.1f} | {megabytes:.0f} |")
    print("\n".join(lines))
    if arguments.out:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 2.8), layout="constrained")
        for panel, column, label in zip(figure.subplots(1, 2), (0, 1), ("seconds", "growth of memory, MB")):
            panel.plot(list(found), [value[column] for value in found.values()], "o-", color="#0072b2")
            panel.set(xlabel="tasks", ylabel=label, ylim=(0, None))
        figure.savefig(arguments.out.with_suffix(".svg"))
        command = f"Made by `python benchmarks/step.py --peer PYTHON --out {arguments.out}`."
        arguments.out.write_text("\n".join([*lines, "", f"![growth]({arguments.out.stem}.svg)", "", command, ""]))


if __name__ == "__main__":
    main()
