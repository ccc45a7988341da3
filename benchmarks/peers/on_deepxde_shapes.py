"""A cell on a shape with DeepXDE (PyTorch): python on_deepxde_shapes.py PROBLEM SEED SECONDS POINTS.npz OUT.npz.

Training and network are those of on_deepxde.py, with 1000 rows inside and 300 on the boundary under Adam, 4000 and 1000
under L-BFGS, all of weight one. The learning rate is 5e-3: with 1e-3 Adam stays on a plateau of the annulus for more
than 1600 steps. The annulus is a disk without a disk. DeepXDE has no shapes with parameters, so it is trained at one
theta, the first of the file. The L-shape is its polygon, times the interval of the parameter.
"""

import numpy as np
import torch
from deepxde_training import dde, trained
from shapes import Annulus, shape_run

run = shape_run()
problem = run.problem
dde.config.set_random_seed(run.seed)
if isinstance(problem, Annulus):
    radius, flux = run.thetas[0].tolist()
    inputs, geometry = 2, dde.geometry.Disk([0, 0], 1) - dde.geometry.Disk([0, 0], radius)
else:
    polygon = dde.geometry.Polygon(problem.corners)
    inputs, geometry = 3, dde.geometry.GeometryXTime(polygon, dde.geometry.TimeDomain(-1, 1))
network = dde.nn.FNN([inputs] + [30] * 4 + [1], "tanh", "Glorot uniform")


def equation(rows, u):
    second = [dde.grad.hessian(u, rows, i=i, j=i) for i in range(2)]
    return second[0] + second[1] - problem.source


if isinstance(problem, Annulus):
    network.apply_output_transform(lambda rows, raw: problem.constrain(torch, raw, rows[:, :1], rows[:, 1:2], radius))
    on_outer = lambda x, on_boundary: on_boundary and np.hypot(*x) > (1 + radius) / 2  # noqa: E731
    condition = dde.icbc.NeumannBC(geometry, lambda rows: flux, on_outer)
else:
    exact = lambda rows: problem.exact(np, rows[:, :1], rows[:, 1:2], problem.theta(np, 0, rows[:, 2:]))  # noqa: E731
    condition = dde.icbc.DirichletBC(geometry, exact, lambda rows, on_boundary: on_boundary)


def data(rows: int):
    kind = dde.data.PDE if inputs == 2 else dde.data.TimePDE
    boundary = 300 if rows == 1000 else 1000
    return kind(geometry, equation, condition, num_domain=rows, num_boundary=boundary, train_distribution="pseudo")


predict, *spent = trained(run, network, data, 1000, 4000, rate=5e-3)
run.save(lambda rows: predict(rows[:, :inputs]), *spent)
