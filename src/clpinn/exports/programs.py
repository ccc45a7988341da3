"""The surrogate itself, as a function of points and theta, in files that other programs run.

.stablehlo   what jax.export writes; jax.export.deserialize reads it, without clpinn
.mlir        the same program as StableHLO text, for other compilers
.onnx        for ONNX runtimes, in single precision, without heads (needs clpinn[export])
"""

from collections.abc import Callable

import jax
import numpy as np
from jax import export as jax_export

from clpinn.exports.translate.onnx import onnx_model
from clpinn.networks.architecture import precision
from clpinn.surrogate.surrogate import Surrogate

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def program(surrogate: Surrogate) -> jax_export.Exported:
    """The surrogate as a function of arrays by name, all of the same length; the length is left open."""
    dtype = precision(surrogate.network)
    with jax.enable_x64(dtype == np.float64):
        (points,) = jax_export.symbolic_shape("points")
        column = jax.ShapeDtypeStruct((points,), dtype)
        columns = dict.fromkeys(surrogate.problem.axes, column)
        return jax_export.export(jax.jit(surrogate.function()), platforms=PLATFORMS)(**columns)


PROGRAMS: dict[str, Callable[[Surrogate], bytes]] = {
    ".stablehlo": lambda surrogate: bytes(program(surrogate).serialize()),
    ".mlir": lambda surrogate: program(surrogate).mlir_module().encode(),
    ".onnx": lambda surrogate: onnx_model(surrogate).SerializeToString(),
}
"""How the surrogate is written, by the file's ending."""
