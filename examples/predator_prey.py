"""Predators and prey (Lotka and Volterra) over two rates: clpinn train examples/predator_prey.py:PredatorPrey

A wrong path can have small residuals too. It leaves the solution early and follows the equations from there, for
example as prey without predators. The coordinate is called t, so training solves early times first and finds the right
path.
"""

import numpy as np
from scipy.integrate import solve_ivp

import clpinn as cl


class PredatorPrey(cl.Problem):
    """Predators and prey (Lotka and Volterra)."""

    coordinates = cl.Box(t=(0, 8))
    parameters = cl.Box(growth=(0.8, 1.5), hunting=(0.5, 1.2))
    outputs = ("prey", "predators")
    candidates = parameters.grid(growth=5, hunting=5)
    conditions = (
        cl.Condition(
            "start", lambda d: {"prey 0": d.prey - 1, "predators 0": d.predators - 0.5}, on=cl.at(t=0), points=1
        ),
    )

    def residual(self, d, growth, hunting):
        encounters = d.prey * d.predators
        return {
            "prey": d.prey_t - growth * d.prey + hunting * encounters,
            "predators": d.predators_t - 0.8 * encounters + d.predators,
        }

    def reference(self, t, growth, hunting):  # by Runge-Kutta, for evaluation only
        t, growth, hunting = np.broadcast_arrays(t, growth, hunting)
        values = np.empty((2, *t.shape))
        for a, b in np.unique(np.stack([growth.ravel(), hunting.ravel()], axis=1), axis=0):
            same = (growth == a) & (hunting == b)

            def slope(_, y, a=a, b=b):
                return [a * y[0] - b * y[0] * y[1], 0.8 * y[0] * y[1] - y[1]]

            path = solve_ivp(slope, (0, 8), [1.0, 0.5], "DOP853", dense_output=True, rtol=1e-10, atol=1e-12)
            values[:, same] = path.sol(t[same])
        return {"prey": values[0], "predators": values[1]}
