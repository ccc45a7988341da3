"""Heat in a rod with a core of another material. Parameters: the radius of the core, and its conductivity.

Each material has an output of its own, which is zero in the other: the temperature is `core` + `shell`.
"""

import jax.numpy as jnp

import clpinn as cl


class TwoMaterials(cl.Problem):
    coordinates = cl.Box(x=(-1, 1), y=(-1, 1))
    parameters = cl.Box(r=(0.3, 0.7), k=cl.log(0.1, 10))
    outputs = ("core", "shell")
    conditions = (
        cl.Condition("temperature", lambda d: d.core - d.shell, on=cl.on("interface")),
        cl.Condition("flux", lambda d, k: k * d.core_n - d.shell_n, on=cl.on("interface")),
    )
    rim = cl.vanishing("rim")

    def domain(self, r):
        return cl.Disk((0, 0), 1, name="rim").split(cl.Disk((0, 0), r, name="interface"))

    def residual(self, d, k):
        return k * (d.core_xx + d.core_yy) + d.shell_xx + d.shell_yy

    def constrain(self, raw, x, y, r):  # x on the rim
        return by_material(raw["core"], x + self.rim(raw["shell"], x=x, y=y, r=r), x, y, r)

    def reference(self, x, y, r, k):
        slope = 2 / (1 + k + r**2 * (1 - k))
        shell = slope * x * ((1 + k) + (1 - k) * r**2 / jnp.maximum(x**2 + y**2, r**2 / 2)) / 2
        return by_material(slope * x, shell, x, y, r)


def by_material(core, shell, x, y, r):
    """Both count at the interface, whose points are exact up to rounding."""
    s = jnp.sqrt(x**2 + y**2 + 1e-30) / r
    return {"core": jnp.where(s < 1 + 1e-6, core, 0.0), "shell": jnp.where(s > 1 - 1e-6, shell, 0.0)}
