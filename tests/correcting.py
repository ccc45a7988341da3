"""A problem with an untrained network that needs correcting, and files with other content: shared by tests."""

import json

import jax
import jax.numpy as jnp
import numpy as np

import clpinn as cl
from clpinn.keys import make_key
from clpinn.networks.architecture import Architecture
from clpinn.networks.make import make
from clpinn.training import checkpoint


class Hard(cl.Problem):
    """A source and hard walls, periodic in y. The solution is a sine."""

    coordinates = cl.Box(x=(0, 1), y=cl.periodic(0, 2 * np.pi))
    parameters = cl.Box(a=(0.5, 2.0))
    candidates = parameters.grid(a=4)
    evaluation = coordinates.grid(x=20, y=20)

    def residual(self, d, x, y, a):
        return d.u_xx + d.u_yy + a * (2 + x * (1 - x)) * jnp.sin(y)

    def constrain(self, raw, x):
        return x * (1 - x) * raw

    def reference(self, x, y, a):
        return {"u": a * x * (1 - x) * jnp.sin(y)}


def untrained(problem=None, precision="double"):
    problem = Hard() if problem is None else problem
    with jax.enable_x64(precision == "double"):
        network = make(problem, Architecture(depth=1, width=5), make_key(0))
        dtype = jnp.float64 if precision == "double" else jnp.float32
        return cl.Surrogate(problem, jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), network))


X, Y = np.linspace(0.1, 0.93, 7), np.linspace(-1.0, 6.0, 7)


def exact(a, x=X, y=Y):
    return a * x * (1 - x) * np.sin(y)


def rewritten(path, change):
    """The file with other content and a right checksum."""
    header, arrays = checkpoint.read(path)
    change(header, arrays)
    tree = {}
    for name, array in arrays.items():  # the paths are those of a tree; one of plain dicts writes the same names
        tree[name] = array
    leaves = [{"path": name, "dtype": array.dtype.name, "shape": array.shape} for name, array in tree.items()]
    text = json.dumps({"format": checkpoint.FORMAT, "description": header, "leaves": leaves}).encode()
    parts = [checkpoint.MAGIC, len(text).to_bytes(8, "little"), text, *(array.tobytes() for array in tree.values())]
    checkpoint.write_checked(path, iter(parts))
