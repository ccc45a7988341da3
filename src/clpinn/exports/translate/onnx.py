"""A program printed as an ONNX model in single precision."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from clpinn.errors import ClpinnError
from clpinn.exports.translate.program import Constant, Linear, Lookup, Operation, Program
from clpinn.exports.translate.tracing import program_of
from clpinn.formulation.geometry import box_names

if TYPE_CHECKING:
    from clpinn.surrogate.surrogate import Surrogate

OPSET, IR = 17, 8
"""Versions that ONNX runtimes since 2022 can read."""


def onnx_model(surrogate: "Surrogate") -> Any:
    """The surrogate as an onnx.ModelProto. Needs the extra `export`.

    An input of shape (rows,) for each coordinate and parameter, by name, and such an output for each output, all in
    single precision. Heads of single thetas are left out. Where parameters move the geometry (`place`), the inputs are
    box coordinates and are called box_x, ...; the outputs physical_x, ... are the physical coordinates. The metadata
    hold the problem's name and boxes, and a summary of the map of estimated errors if the surrogate has one.
    """
    program = program_of(surrogate)
    program = replace(program, coordinates=tuple(box_names(surrogate.problem)[name] for name in program.coordinates))
    return printed(program, type(surrogate.problem).__name__, _metadata(surrogate))


def printed(program: Program, name: str, metadata: dict[str, str]) -> Any:
    """A program as a model with a name and metadata."""
    try:
        import onnx
    except ImportError:
        raise ClpinnError("ONNX needs the package onnx. Install clpinn[export].") from None
    graph = _Graph(onnx, program)
    for operation in program.operations:
        graph.add(operation)
    for output, component in program.outputs.items():
        graph.node("Squeeze", graph.tensor(np.array([component])), graph.constant([1], np.int64), output=_label(output))

    def vectors(names: Iterable[str]) -> list[Any]:
        return [onnx.helper.make_tensor_value_info(_label(n), onnx.TensorProto.FLOAT, ["rows"]) for n in names]

    made = onnx.helper.make_graph(
        graph.nodes, name, vectors(program.inputs), vectors(program.outputs), graph.initializers
    )
    opset = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(made, opset_imports=opset, ir_version=IR, producer_name="clpinn")
    model.producer_version = version("clpinn")
    onnx.helper.set_model_props(model, metadata)
    onnx.checker.check_model(model, full_check=True)
    return model


def _label(name: str) -> str:
    return name.replace(" ", "_")


def _metadata(surrogate: "Surrogate") -> dict[str, str]:
    """Metadata: strings; boxes by axis and estimated errors are JSON."""
    problem = surrogate.problem
    names = {"coordinates": box_names(problem).values(), "parameters": problem.parameters.names}
    boxes = {
        name: json.dumps({axis: [a.low, a.high, a.scale] for axis, a in zip(names[name], box.axes)})
        for name, box in (("coordinates", problem.coordinates), ("parameters", problem.parameters))
    }
    origin = {"clpinn": version("clpinn"), "problem": type(problem).__name__, "equation": problem.equation}
    heads = 0 if surrogate.heads is None else len(surrogate.heads.thetas)
    errors = {} if surrogate.errors is None else {"estimated_errors": json.dumps(surrogate.errors.summary())}
    return origin | boxes | {"outputs": json.dumps(problem.outputs), "heads_left_out": str(heads)} | errors


class _Graph:
    """Nodes of a model. Each operation is a tensor (rows, count); the inputs, joined, are the first."""

    def __init__(self, onnx: Any, program: Program):
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.known: dict[tuple[str, bytes], str] = {}
        self.tensors: dict[int, str] = {}
        """Names of the tensors by the first component they hold."""
        self.starts: list[int] = []
        """The first component of the tensor that each component is in."""
        columns = [self.node("Unsqueeze", name, self.constant([1], np.int64)) for name in program.inputs]
        self.shape = self.node("Shape", columns[0])
        """Name of the shape (rows, 1)."""
        self.keep(0, len(columns), self.node("Concat", *columns, axis=1))

    def keep(self, start: int, count: int, name: str) -> None:
        self.tensors[start] = name
        self.starts += [start] * (start + count - len(self.starts))

    def node(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"value {len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        """The name of a constant; equal constants are stored once."""
        with np.errstate(over="ignore"):
            array = np.asarray(values, dtype)
        key = (f"{array.dtype}{array.shape}", array.tobytes())
        if key not in self.known:
            self.known[key] = f"constant {len(self.known)}"
            self.initializers.append(self.onnx.numpy_helper.from_array(array, self.known[key]))
        return self.known[key]

    def tensor(self, ids: np.ndarray) -> str:
        """Components as one tensor (rows, count)."""
        starts = np.asarray(self.starts)[ids]
        order = list(dict.fromkeys(starts.tolist()))
        offsets, total = {}, 0
        for start in order:
            offsets[start] = total - start
            total += self.starts.count(start)
        joined = self.tensors[order[0]]
        if len(order) > 1:
            joined = self.node("Concat", *(self.tensors[start] for start in order), axis=1)
        columns = ids + np.array([offsets[start] for start in starts.tolist()])
        if np.array_equal(columns, np.arange(total)):
            return joined
        return self.node("Gather", joined, self.constant(columns, np.int64), axis=1)

    def add(self, operation: Operation) -> None:
        self.starts += [-1] * (operation.start - len(self.starts))  # components that no output needs are left out
        if isinstance(operation, Constant):
            name = self.node("Expand", self.constant(operation.values[None]), self.shape)
        elif isinstance(operation, Linear):
            parts = self.tensor(operation.operand), self.constant(operation.matrix), self.constant(operation.bias)
            name = self.node("Gemm", *parts)
        elif isinstance(operation, Lookup):
            places = self.node("Cast", self.tensor(operation.operand), to=self.onnx.TensorProto.INT64)
            together = self.constant([0, operation.count], np.int64)
            if operation.table.dtype.kind == "f":
                rows = self.node("Gather", self.constant(operation.table), places, axis=0)
                name = self.node("Reshape", rows, together)
            else:  # each point has a table of its own
                width = operation.table.shape[1]
                first = self.node("Mul", places, self.constant([width], np.int64))
                first = self.node("Unsqueeze", first, self.constant([2], np.int64))
                columns = self.node("Add", first, self.constant(np.arange(width), np.int64))
                columns = self.node("Reshape", columns, together)
                name = self.node("GatherElements", self.tensor(operation.table.ravel()), columns, axis=1)
        else:
            name = NODES[operation.name](self, *map(self.operand, operation.operands))
        self.keep(operation.start, operation.count, name)

    def operand(self, operand: np.ndarray) -> str:
        """The name of an operand; a constant becomes a row, or a single number if all its values are equal."""
        if operand.dtype.kind == "i":
            return self.tensor(operand)
        same = len(np.unique(operand)) == 1
        return self.constant(operand[:1] if same else operand[None])

    def truth(self, kind: str, *inputs: str) -> str:
        """A comparison as 0 or 1."""
        return self.node("Cast", self.node(kind, *inputs), to=self.onnx.TensorProto.FLOAT)

    def where(self, condition: str, yes: str, no: str) -> str:
        return self.node("Where", self.node("Cast", condition, to=self.onnx.TensorProto.BOOL), yes, no)


# How each primitive is written -------------------------------------------------------------------------------


def _plain(kind: str, **attributes: Any) -> Callable[..., str]:
    return lambda graph, *inputs: graph.node(kind, *inputs, **attributes)


def _comparison(kind: str) -> Callable[..., str]:
    return lambda graph, a, b: graph.truth(kind, a, b)


def _log1p(graph: _Graph, a: str) -> str:
    """log(u) a / (u - 1), u = 1 + a rounded: the rounding cancels (Higham 2002, section 1.14.1)."""
    unit = graph.constant([1.0])
    u = graph.node("Add", a, unit)
    ratio = graph.node("Mul", graph.node("Log", u), graph.node("Div", a, graph.node("Sub", u, unit)))
    return graph.node("Where", graph.node("Equal", u, unit), a, ratio)


def _expm1(graph: _Graph, a: str) -> str:
    """tanh(a / 2) (exp(a) + 1), without cancellation."""
    half = graph.node("Tanh", graph.node("Mul", a, graph.constant([0.5])))
    return graph.node("Mul", half, graph.node("Add", graph.node("Exp", a), graph.constant([1.0])))


def _cbrt(graph: _Graph, a: str) -> str:
    root = graph.node("Pow", graph.node("Abs", a), graph.constant([1 / 3]))
    return graph.node("Mul", graph.node("Sign", a), root)


def _atan2(graph: _Graph, y: str, x: str) -> str:
    """The angle from atan(y / x), turned by half a circle where x < 0."""
    zero, turn = graph.constant([0.0]), graph.constant([np.pi])
    origin = graph.node("And", graph.node("Equal", x, zero), graph.node("Equal", y, zero))
    angle = graph.node("Where", origin, zero, graph.node("Atan", graph.node("Div", y, x)))
    below = graph.node("Where", graph.node("Less", y, zero), graph.node("Neg", turn), turn)
    return graph.node("Add", angle, graph.node("Where", graph.node("Less", x, zero), below, zero))


def _not_equal(graph: _Graph, a: str, b: str) -> str:
    return graph.node("Sub", graph.constant([1.0]), graph.truth("Equal", a, b))


def _is_finite(graph: _Graph, a: str) -> str:
    infinite_or_nan = graph.node("Or", graph.node("IsInf", a), graph.node("IsNaN", a))
    return graph.truth("Not", infinite_or_nan)


NODES: dict[str, Callable[..., str]] = {
    "rem": _plain("Mod", fmod=1),
    "log1p": _log1p,
    "expm1": _expm1,
    "cbrt": _cbrt,
    "atan2": _atan2,
    "erfc": lambda graph, a: graph.node("Sub", graph.constant([1.0]), graph.node("Erf", a)),
    "logistic": _plain("Sigmoid"),
    "is_finite": _is_finite,
    "eq": _comparison("Equal"),
    "ne": _not_equal,
    "lt": _comparison("Less"),
    "le": _comparison("LessOrEqual"),
    "gt": _comparison("Greater"),
    "ge": _comparison("GreaterOrEqual"),
    "where": lambda graph, condition, yes, no: graph.where(condition, yes, no),
    **{
        name: _plain(name.capitalize())
        for name in "add sub mul div neg abs sign exp log tanh sin cos tan sinh cosh asin acos atan asinh acosh atanh "
        "sqrt pow max min floor ceil round erf".split()
    },
}
