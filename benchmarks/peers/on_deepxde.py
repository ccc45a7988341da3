"""A cell with DeepXDE (PyTorch): python on_deepxde.py PROBLEM SEED SECONDS POINTS.npz OUT.npz.

Adam for half of the time, then L-BFGS with its defaults, as in its own examples. Adam: learning rate 1e-3, 1000 rows,
new ones every 10 steps; L-BFGS: 5000 rows that stay. A network of 4 x 30 tanh units, Glorot's weights, float64 as
L-BFGS wants. theta is a dimension of the geometry, the constraint an output transform.
"""

import os

os.environ["DDE_BACKEND"] = "pytorch"

import deepxde as dde
import torch
from common import Run

MOST_STEPS = 1_000_000

dde.config.set_default_float("float64")
run = Run()
problem = run.problem
dde.config.set_random_seed(run.seed)
geometry = dde.geometry.Hypercube([-1, 0] + [-1] * len(problem.parameters), [1] * run.inputs)
network = dde.nn.FNN([run.inputs] + [30] * 4 + [1], "tanh", "Glorot uniform")
network.apply_feature_transform(lambda rows: torch.cat([rows[:, :1], 2 * rows[:, 1:2] - 1, rows[:, 2:]], dim=1))
network.apply_output_transform(lambda rows, raw: problem.constrain(torch, raw, rows[:, :1], rows[:, 1:2]))


def equation(rows, u):
    u_x, u_t = dde.grad.jacobian(u, rows, i=0, j=0), dde.grad.jacobian(u, rows, i=0, j=1)
    thetas = [problem.theta(torch, i, rows[:, 2 + i : 3 + i]) for i in range(len(problem.parameters))]
    return problem.residual(u, u_x, u_t, dde.grad.hessian(u, rows, i=0, j=0), *thetas)


class Until(dde.callbacks.Callback):
    """Stops Adam at a time."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds

    def on_epoch_end(self):
        self.model.stop_training = run.passed() >= self.seconds


class Pieces(Until):
    """Stops L-BFGS at a time: it looks up only after a piece of its iterations, so a piece is half of what fits."""

    def on_epoch_begin(self):
        self.begin = run.passed()

    def on_epoch_end(self):
        super().on_epoch_end()
        options = self.model.opt.param_groups[0]
        pace = (run.passed() - self.begin) / options["max_iter"]
        options["max_iter"] = int(min(max((self.seconds - run.passed()) / pace / 2, 2), 50))


def model(rows: int) -> dde.Model:
    return dde.Model(dde.data.PDE(geometry, equation, [], num_domain=rows, train_distribution="pseudo"), network)


adam = model(1000)
adam.compile("adam", lr=1e-3, verbose=0)
resampled = dde.callbacks.PDEPointResampler(period=10)
adam.train(MOST_STEPS, display_every=MOST_STEPS, callbacks=[resampled, Until(run.seconds / 2)], verbose=0)

dde.optimizers.set_LBFGS_options(maxiter=MOST_STEPS)
dde.optimizers.config.LBFGS_options["iter_per_step"] = 10
lbfgs = model(5000)
lbfgs.compile("L-BFGS", verbose=0)
lbfgs.train(callbacks=[Pieces(run.seconds)], verbose=0)
seconds = run.passed()
run.save(lbfgs.predict, seconds, adam.train_state.iteration + lbfgs.train_state.iteration)
