"""A program printed as JavaScript, to run with runtime.js.

Rows of points are evaluated in blocks of ROWS. A component that depends on the coordinates has one number per row, in
the array m. A constant, or a component that depends on the parameters alone, has a single number, in the array c; these
are computed once per theta.
"""

import base64
import json
from collections import Counter
from importlib.resources import files
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from clpinn.errors import TranslationError
from clpinn.exports.translate.program import Constant, Elementwise, Linear, Lookup, Operation, Program

ROWS = 32
"""Points in a block: the numbers of a layer then fit into the first-level cache."""

EXPRESSIONS = {
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "div": "({0} / {1})",
    "rem": "({0} % {1})",
    "neg": "(-{0})",
    "pow": "Math.pow({0}, {1})",
    "max": "Math.max({0}, {1})",
    "min": "Math.min({0}, {1})",
    "atan2": "Math.atan2({0}, {1})",
    "logistic": "(1 / (1 + Math.exp(-{0})))",
    "is_finite": "+Number.isFinite({0})",
    "eq": "+({0} === {1})",
    "ne": "+({0} !== {1})",
    "lt": "+({0} < {1})",
    "le": "+({0} <= {1})",
    "gt": "+({0} > {1})",
    "ge": "+({0} >= {1})",
    "where": "({0} ? {1} : {2})",
    **{name: name + "({0})" for name in ("tanh", "erf", "erfc", "round")},
    **{
        name: f"Math.{name}({{0}})"
        for name in "abs sign exp expm1 log log1p sin cos tan sinh cosh asin acos atan asinh acosh atanh sqrt cbrt "
        "floor ceil".split()
    },
}
"""How each primitive is written. Functions that JavaScript lacks are in runtime.js."""


def javascript(program: Program) -> str:
    """A JavaScript expression: a function `evaluate(points, theta)` that gives outputs by name."""
    runtime = (files("clpinn.exports.translate") / "runtime.js").read_text("utf-8")
    return f"(() => {{\nconst ROWS = {ROWS};\n{runtime}\nreturn evaluator({_Printer(program).text()});\n}})()"


def script_json(value: object) -> str:
    """JSON that can stand inside a script element."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")


class _Printer:
    """Prints a program. A component has a place in m if it depends on the coordinates, in c otherwise."""

    def __init__(self, program: Program):
        self.program = program
        inputs = len(program.coordinates), len(program.parameters)
        self.moves = np.zeros(program.size, bool)
        self.moves[: inputs[0]] = True
        self.places = np.zeros(program.size, int)
        self.places[: sum(inputs)] = np.concatenate([np.arange(count) for count in inputs])
        self.memory, self.constants = inputs[0], [0.0] * inputs[1]
        self.weights: list[np.ndarray] = []
        self.lines: dict[bool, list[str]] = {True: [], False: []}
        self.inlined: dict[int, Elementwise] = {}

    def text(self) -> str:
        operations = self.program.operations
        for operation in operations:
            components = slice(operation.start, operation.start + operation.count)
            self.moves[components] = any(self.moves[ids].any() for ids in operation.reads)
        users = _used_once(self.program)
        for operation in operations:
            start, moves = operation.start, bool(self.moves[operation.start])
            if isinstance(operation, Elementwise) and start in users and self.moves[users[start]] == moves:
                self.inlined[start] = operation
            else:
                self.places[start : start + operation.count] = self._print(operation, moves)
        outputs = [
            [name, bool(self.moves[component]), int(self.places[component])]
            for name, component in self.program.outputs.items()
        ]
        numbers = np.concatenate([np.asarray(self.constants), *self.weights]).astype("<f4")
        return "\n".join(
            [
                "{",
                f"coordinates: {script_json(self.program.coordinates)},",
                f"parameters: {script_json(self.program.parameters)},",
                f"outputs: {script_json(outputs)},",
                f"memory: {self.memory},",
                f"constants: {len(self.constants)},",
                f'numbers: "{base64.b64encode(numbers.tobytes()).decode()}",',
                "prepare(c, w) {",
                *self.lines[False],
                "},",
                "block(m, c, w) {",
                *self.lines[True],
                "},",
                "}",
            ]
        )

    def _print(self, operation: Operation, moves: bool) -> np.ndarray:
        """Print an operation; the places of its components."""
        if isinstance(operation, Constant):
            return self._store(operation.values)
        if isinstance(operation, Linear):
            return self._linear(operation, moves)
        if isinstance(operation, Lookup):
            return self._look_up(operation, moves)
        return self._loops(*self._expression(operation), moves)

    # Places ----------------------------------------------------------------------------------------------------

    def _store(self, values: np.ndarray) -> np.ndarray:
        self.constants.extend(values.tolist())
        return np.arange(len(self.constants) - len(values), len(self.constants))

    def _reserve(self, count: int, moves: bool) -> np.ndarray:
        if not moves:
            return self._store(np.zeros(count))
        self.memory += count
        return np.arange(self.memory - count, self.memory)

    def _together(self, ids: np.ndarray, moves: bool) -> int:
        """The first place of components that lie side by side; components that do not are copied first."""
        places = self.places[ids]
        if len(places) and not np.array_equal(places, places[0] + np.arange(len(places))):
            places = self._loops("{0}", [ids], moves)
        return int(places[0]) if len(places) else 0

    # Operations ------------------------------------------------------------------------------------------------

    def _linear(self, operation: Linear, moves: bool) -> np.ndarray:
        """Operands that depend on the parameters alone are added to the bias once per theta."""
        outputs = -(-operation.count // 4) * 4
        bias = np.zeros(outputs)
        bias[: operation.count] = operation.bias
        bias_start = int(self._store(bias)[0])
        moving = self.moves[operation.operand]
        for in_m in (False, True) if moves else (False,):
            ids, rows = operation.operand[moving == in_m], operation.matrix[moving == in_m]
            if moves and not in_m and len(ids) == 0:
                continue
            start, matrix = self._together(ids, in_m), self._pack(rows, outputs)
            places = self._reserve(outputs, in_m)
            if in_m:
                source, target = f"m, {start * ROWS}", f"c, {bias_start}, {places[0] * ROWS}"
                call = f"linear({source}, {len(ids)}, w, {matrix}, {target}, {outputs});"
            else:
                call = f"dense(c, {start}, {len(ids)}, w, {matrix}, {bias_start}, {places[0]}, {outputs});"
            self.lines[in_m].append(call)
            bias_start = int(places[0])
        return places[: operation.count]

    def _look_up(self, operation: Lookup, moves: bool) -> np.ndarray:
        start, width = self._together(operation.operand, moves), operation.table.shape[1]
        if operation.table.dtype.kind == "i":
            if self.moves[operation.table].any():
                raise TranslationError(
                    "A table that depends on the coordinates cannot be looked up in a page. Write the hard transform "
                    "(`constrain`) or `place` without it."
                )
            table = f"c, {self._together(operation.table.ravel(), False)}"
        else:
            table = f"w, {sum(len(packed) for packed in self.weights)}"
            self.weights.append(operation.table.ravel())
        places = self._reserve(operation.count, moves)
        array, rows = ("m", "ROWS") if moves else ("c", "1")
        counts = f"{len(operation.operand)}, {width}, {rows}"
        self.lines[moves].append(f"lookUp({array}, {start}, {table}, {places[0]}, {counts});")
        return places

    def _pack(self, matrix: np.ndarray, outputs: int) -> int:
        """Store a matrix in strips of four columns; gives where it starts."""
        start = sum(len(packed) for packed in self.weights)
        padded = np.zeros((len(matrix), outputs))
        padded[:, : matrix.shape[1]] = matrix
        self.weights.append(padded.reshape(len(matrix), -1, 4).transpose(1, 0, 2).ravel())
        return start

    def _expression(self, operation: Elementwise) -> tuple[str, list[np.ndarray]]:
        """An operation, with the operations that only it uses, as one expression of the operands {0}, {1}, ..."""
        operands: list[np.ndarray] = []
        texts = []
        for operand in operation.operands:
            inner = self.inlined.get(int(operand[0])) if operand.dtype.kind == "i" else None
            if inner is None:
                texts.append(f"{{{len(operands)}}}")
                operands.append(operand)
            else:
                text, more = self._expression(inner)
                texts.append(text.format(*(f"{{{len(operands) + i}}}" for i in range(len(more)))))
                operands += more
        return EXPRESSIONS[operation.name].format(*texts), operands

    def _loops(self, expression: str, operands: list[np.ndarray], moves: bool) -> np.ndarray:
        """Print an expression over all components: one loop per run of evenly spaced components."""
        sources = [self._source(operand) for operand in operands]
        to = self._reserve(len(operands[0]), moves)
        for start, end in pairwise(_runs(len(to), [source for source in sources if not isinstance(source, str)])):
            leaves = [
                source
                if isinstance(source, str)
                else Leaf(bool(source[0][start]), int(source[1][start]), _step(source[1][start:end]))
                for source in sources
            ]
            self.lines[moves].append(_loop(expression, leaves, int(to[start]), end - start, moves))
        return to

    def _source(self, operand: np.ndarray) -> "str | tuple[np.ndarray, np.ndarray]":
        """The text of a single number, or for each component whether it is in m, and its place there or in c."""
        if operand.dtype.kind == "i":
            return self.moves[operand], self.places[operand]
        if len(np.unique(operand)) == 1:
            return _number(float(operand[0]))
        return np.zeros(len(operand), bool), self._store(operand)


class Leaf(NamedTuple):
    """Components in m or in c: they start at a place and go on in equal steps."""

    moves: bool
    start: int
    step: int


def _runs(count: int, sources: list[tuple[np.ndarray, np.ndarray]]) -> list[int]:
    """The starts of runs, and the end. In a run each source stays in its array and goes on in equal steps."""
    edges = [0]
    for k in range(1, count):
        start = edges[-1]
        for moves, places in sources:
            if moves[k] != moves[start] or places[k] - places[k - 1] != places[start + 1] - places[start]:
                edges.append(k)
                break
    return [*edges, count]


def _step(places: np.ndarray) -> int:
    return int(places[1] - places[0]) if len(places) > 1 else 0


def _loop(expression: str, leaves: "list[str | Leaf]", to: int, length: int, moves: bool) -> str:
    """One run: a loop over components k and, in m, rows r; a single loop over both where they lie side by side."""
    varying = [leaf for leaf in leaves if isinstance(leaf, Leaf)]
    if not moves:
        texts = [leaf if isinstance(leaf, str) else f"c[{_place(leaf)}]" for leaf in leaves]
        return f"for (let k = 0; k < {length}; k++) c[{to} + k] = {expression.format(*texts)};"
    if length == 1 or all(leaf.step == (1 if leaf.moves else 0) for leaf in varying):
        texts = [
            leaf if isinstance(leaf, str) else f"m[{leaf.start * ROWS} + i]" if leaf.moves else f"c[{leaf.start}]"
            for leaf in leaves
        ]
        return f"for (let i = 0; i < {length * ROWS}; i++) m[{to * ROWS} + i] = {expression.format(*texts)};"
    texts = [
        leaf if isinstance(leaf, str) else f"m[({_place(leaf)}) * ROWS + r]" if leaf.moves else f"c[{_place(leaf)}]"
        for leaf in leaves
    ]
    return (
        f"for (let k = 0; k < {length}; k++) "
        f"for (let r = 0; r < ROWS; r++) m[({to} + k) * ROWS + r] = {expression.format(*texts)};"
    )


def _place(leaf: Leaf) -> str:
    return f"{leaf.start} + {leaf.step} * k"


def _number(value: float) -> str:
    """A literal; negative ones in brackets, so that no -- arises."""
    if np.isnan(value):
        return "NaN"
    text = "Infinity" if np.isinf(value) else repr(abs(value))
    return f"(-{text})" if np.signbit(value) else text


def _used_once(program: Program) -> dict[int, int]:
    """For each elementwise operation that a single other one uses, its start and the start of its user."""
    used: Counter[int] = Counter(program.outputs.values())
    users: dict[int, int] = {}
    made = {operation.start: operation for operation in program.operations if isinstance(operation, Elementwise)}
    for operation in program.operations:
        for ids in operation.reads:
            used.update(ids.tolist())
            operand = made.get(int(ids[0])) if isinstance(operation, Elementwise) else None
            if operand is not None and np.array_equal(ids, operand.start + np.arange(operand.count)):
                users[operand.start] = operation.start
    return {start: user for start, user in users.items() if all(used[start + i] == 1 for i in range(made[start].count))}
