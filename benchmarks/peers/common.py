"""What the scripts of the peers share: the problems, the clock, and the files that come and go.

A network sees two coordinates and z, where z in [-1, 1] is theta on its scale, so that a uniform z is a theta as clpinn
draws it. Functions take the array module of the peer as `lib`: numpy, torch or jax.numpy.
"""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Parameters:
    """The parameters of a problem and their scales."""

    parameters: tuple[tuple[float, float, bool], ...]
    """Lower end, upper end, and whether the scale is logarithmic."""

    def theta(self, lib, i: int, z):
        """The parameter `i` at z."""
        low, high, logarithmic = self.parameters[i]
        if logarithmic:
            return low * lib.exp((z + 1) / 2 * np.log(high / low))
        return low + (z + 1) / 2 * (high - low)

    def scaled(self, thetas: np.ndarray) -> np.ndarray:
        """z of thetas of the shape (n, p)."""
        columns = []
        for (low, high, logarithmic), theta in zip(self.parameters, thetas.T):
            part = np.log(theta / low) / np.log(high / low) if logarithmic else (theta - low) / (high - low)
            columns.append(2 * part - 1)
        return np.stack(columns, axis=1)


@dataclass(frozen=True)
class Problem(Parameters):
    """An equation on x in [-1, 1], t in [0, 1], whose initial and boundary values are those of `initial`."""

    residual: Callable
    """Of u, u_x, u_t, u_xx and the thetas."""
    initial: Callable
    """Of the array module and x."""

    def constrain(self, lib, raw, x, t):
        """The output that meets the initial and boundary values exactly, the same as in clpinn."""
        return self.initial(lib, x) + t * (1 - x**2) * raw


PROBLEMS = {
    "burgers": Problem(
        ((0.01, 1.0, True),),
        lambda u, u_x, u_t, u_xx, nu: u_t + u * u_x - nu / np.pi * u_xx,
        lambda lib, x: -lib.sin(np.pi * x),
    ),
    "allen_cahn": Problem(
        ((0.001, 0.1, True), (3.0, 5.0, False)),
        lambda u, u_x, u_t, u_xx, nu, rho: u_t - nu * u_xx - rho * (u - u**3),
        lambda lib, x: x**2 * lib.cos(np.pi * x),
    ),
}


class Run:
    """The cell that the command line asks for: PROBLEM SEED SECONDS POINTS.npz OUT.npz. Its clock starts here."""

    def __init__(self, problems: Mapping[str, Parameters] = PROBLEMS):
        self.name, seed, seconds, points, self.out = sys.argv[1:]
        self.problem, self.seed, self.seconds = problems[self.name], int(seed), float(seconds)
        self.inputs = len(self.problem.parameters) + 2
        found = np.load(points)
        self.coordinates, self.thetas = found["coordinates"], found["thetas"]
        self.start = time.perf_counter()

    def passed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start

    def over(self) -> bool:
        return self.passed() >= self.seconds

    def save(self, predict: Callable, seconds: float, steps: int) -> None:
        """Write the predictions of `predict`, a function of rows (coordinates, z) that gives one value a row."""
        rows = len(self.coordinates)
        found = [
            predict(np.hstack([self.coordinates, np.tile(z, (rows, 1))])) for z in self.problem.scaled(self.thetas)
        ]
        predictions = np.stack([np.asarray(u, dtype=float).reshape(rows) for u in found])
        np.savez(self.out, predictions=predictions, seconds=seconds, steps=steps)
