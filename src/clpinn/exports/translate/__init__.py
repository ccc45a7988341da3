"""A trained network, with its hard transform, as a program that runs without JAX: in a page, or anywhere ONNX does.

    program_of(surrogate)      one traced point as a short list of operations (tracing.py; program.py, builder.py)
    javascript(program)        printed for a browser (javascript.py, runtime.js)
    onnx_model(surrogate)      printed as an ONNX model (onnx.py)

primitives.py has a rule for each JAX primitive. Heads of single thetas are left out: the program is the base network.
"""
