"""A trained network, with its hard transform, as a program that runs without JAX: in a page, or anywhere ONNX does.

    program = program_of(surrogate)        one traced point as a short list of operations (program.py)
    javascript(program)                    printed for a browser (javascript.py, runtime.js)
    onnx_model(surrogate)                  printed as an ONNX model (onnx.py)

Heads of single thetas are left out: the program is the base network.
"""

from clpinn.errors import TranslationError
from clpinn.exports.translate.javascript import javascript
from clpinn.exports.translate.onnx import onnx_model
from clpinn.exports.translate.program import PRIMITIVES, Program, program_of, trace

__all__ = ["PRIMITIVES", "Program", "TranslationError", "javascript", "onnx_model", "program_of", "trace"]
