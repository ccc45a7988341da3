"""What the scripts of the peers share for the two shapes: Poisson's equation, as in examples/shapes."""

from dataclasses import dataclass

from common import Parameters, Run


@dataclass(frozen=True)
class Annulus(Parameters):
    """Between the circles of radius r and 1: u = 1 on the inner one, the flux q through the outer one."""

    parameters: tuple[tuple[float, float, bool], ...] = ((0.2, 0.6, False), (-1.0, 1.0, False))
    source: float = -4.0
    """u_xx + u_yy."""

    def constrain(self, lib, raw, x, y, r):
        """The output that is 1 on the inner circle, the same as in clpinn."""
        return 1 + (lib.sqrt(x**2 + y**2) - r) * raw


@dataclass(frozen=True)
class LShape(Parameters):
    """On an L-shape, with the values of the exact solution on its boundary."""

    parameters: tuple[tuple[float, float, bool], ...] = ((0.0, 1.0, False),)
    source: float = 0.0
    corners: tuple[tuple[float, float], ...] = ((0, 0), (1, 0), (1, 1), (-1, 1), (-1, -1), (0, -1))

    def exact(self, lib, x, y, a):
        angle = 3 / 4 * lib.pi + lib.arctan2(-x - y, y - x)  # jumps in the notch only
        return a * (x**2 + y**2) ** (1 / 3) * lib.sin(2 / 3 * angle) + (1 - a) * (x**2 - y**2) / 2


PROBLEMS = {"annulus": Annulus(), "l_shape": LShape()}


def shape_run() -> Run:
    """The cell that the command line asks for: PROBLEM SEED SECONDS POINTS.npz OUT.npz."""
    return Run(PROBLEMS)
