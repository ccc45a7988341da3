"""`clpinn init`: a problem to start from."""

from pathlib import Path
from typing import Annotated

import typer

from clpinn.cli.tables import print_line
from clpinn.errors import ClpinnError

TEMPLATE = '''"""Heat in a rod, cold at one end and insulated at the other. Replace it, piece by piece, by your own."""

import jax.numpy as jnp

import clpinn as cl


class MyProblem(cl.Problem):
    # Named axes with their bounds. A coordinate called t is time. An axis may be cl.periodic(low, high).
    coordinates = cl.Box(x=(0, 1), t=(0, 1))
    # The physical parameters, linear or cl.log. One network is trained for all their values in this box.
    parameters = cl.Box(kappa=cl.log(0.1, 1.0))
    # The names of the unknown functions.
    outputs = ("u",)

    # Soft conditions: training makes these residuals small. d.u and d.u_x are the output and its derivative. Name the
    # coordinates and parameters that you need as further arguments: lambda d, t, kappa: ...
    conditions = (
        cl.Condition("cold", lambda d: d.u, on=cl.at(x=0)),
        cl.Condition("insulated", lambda d: d.u_x, on=cl.at(x=1)),
    )

    # The equation at one point, left side minus right side. Use jnp, not numpy. Several equations: return a dict.
    def residual(self, d, kappa):
        return d.u_t - kappa * d.u_xx

    # Optional. A hard condition: this output is sin(pi x / 2) at t = 0, whatever the network's raw output is.
    def constrain(self, raw, x, t):
        return jnp.sin(jnp.pi * x / 2) + t * raw

    # Optional. The known solution, if there is one, for evaluation only. Leave it out if you know none.
    def reference(self, x, t, kappa):
        return {"u": jnp.exp(-kappa * (jnp.pi / 2) ** 2 * t) * jnp.sin(jnp.pi * x / 2)}
'''


def init(
    file: Annotated[Path, typer.Argument(help="The file to write, such as my_pde.py. It must not exist.")],
) -> None:
    """Write a small, complete, commented problem to start from."""
    if file.suffix != ".py":
        raise ClpinnError(f"A problem is a Python file, such as my_pde.py, but got {file}. Add .py to the name.")
    try:
        with file.open("x") as stream:
            stream.write(TEMPLATE)
    except FileExistsError:
        raise ClpinnError(f"{file} exists and was not changed. Choose another name.") from None
    print_line(f"{file} is written. Check it:  clpinn problems {file}", soft_wrap=True)
    print_line(f"Train it:  clpinn train {file} --seconds 30", soft_wrap=True)
