"""The steady flow around a cylinder in a channel. Parameters: the radius, and the Reynolds number of its diameter.

Half of the channel. The velocity in the middle of the inlet and half the height of the channel are 1.
"""

import numpy as np
from cylinder_reference import flow, solve

import clpinn as cl


class Cylinder(cl.Problem):
    coordinates = cl.Box(x=(0, 4), y=(0, 1))
    parameters = cl.Box(radius=(0.2, 0.4), Re=cl.log(1, 40))
    outputs = ("u", "v", "p")
    conditions = (
        cl.Condition("outlet", lambda d, radius, Re: outlet(d, 2 * radius / Re), on=cl.on("right")),
        cl.Condition("symmetry", lambda d: d.u_y, on=cl.on("bottom")),
    )
    candidates = parameters.grid(radius=4, Re=4)
    evaluation = coordinates.grid(x=81, y=21)
    reference_kind = "finite elements"
    reference_version = 1

    def domain(self, radius):
        return cl.Rectangle(x=(0, 4), y=(0, 1)) - cl.Disk((1, 0), radius, name="cylinder")

    def residual(self, d, radius, Re):
        nu = 2 * radius / Re
        return {
            "x": d.u * d.u_x + d.v * d.u_y + d.p_x - nu * (d.u_xx + d.u_yy),
            "y": d.u * d.v_x + d.v * d.v_y + d.p_y - nu * (d.v_xx + d.v_yy),
            "mass": d.u_x + d.v_y,
        }

    def constrain(self, raw, x, y, radius, Re):  # no slip, the velocity of the inlet, v = 0 where y = 0
        def around(x):
            return 1 - radius**2 / ((x - 1) ** 2 + y**2)

        factor = (1 - y**2) * around(x)
        u = factor * (1 / around(0) + x / (1 + x) * raw["u"])
        return {"u": u, "v": factor * x / (1 + x) * y * raw["v"], "p": (1 + 40 * radius / Re) * raw["p"]}

    def reference(self, x, y, radius, Re):
        return flow(x, y, radius, Re)


def outlet(d, nu):
    return {"x": nu * d.u_x - d.p, "y": d.v_x}


def drag(surrogate, radius, Re):
    """The drag coefficient of the whole cylinder: the force along x over the radius."""
    angle = (np.arange(200) + 0.5) * np.pi / 200
    nx, ny = np.cos(angle), np.sin(angle)
    at = {"x": 1 + radius * nx, "y": radius * ny, "radius": radius, "Re": Re}
    ux, uy, vx = (np.asarray(surrogate.derivative(name, **at)) for name in ("u_x", "u_y", "v_x"))
    pull = 2 * radius / Re * (2 * ux * nx + (uy + vx) * ny) - np.asarray(surrogate(**at)["p"]) * nx
    return float(2 * np.pi * np.mean(pull))


def reference_drag(radius, Re):
    return solve(radius, Re).reaction
