"""A cell with DeepXDE (PyTorch): python on_deepxde.py PROBLEM SEED SECONDS POINTS.npz OUT.npz.

Adam for half of the time, then L-BFGS with its defaults, as in its own examples. Adam: learning rate 1e-3, 1000 rows,
new ones every 10 steps; L-BFGS: 5000 rows that stay. A network of 4 x 30 tanh units, Glorot's weights, float64 as
L-BFGS wants. theta is a dimension of the geometry, the constraint an output transform.
"""

import torch
from common import Run
from deepxde_training import dde, trained

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


def data(rows: int) -> dde.data.PDE:
    return dde.data.PDE(geometry, equation, [], num_domain=rows, train_distribution="pseudo")


run.save(*trained(run, network, data, 1000, 5000))
