"""One point of a traced computation as a short list of operations on numbered components.

Only one point is traced; rows of points are the printers' business. Every scalar that the computation holds is a
component with a number, inputs first. So whatever merely moves values (slices, reshapes, concatenations, ...) becomes
bookkeeping, what depends on no input a constant, and two kinds of operation are left: `Linear` and `Elementwise`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jaxtyping import Float, Int

from clpinn.errors import TranslationError
from clpinn.formulation.geometry import placed
from clpinn.formulation.pointwise import values
from clpinn.networks.architecture import precision

if TYPE_CHECKING:
    from clpinn.surrogate.surrogate import Surrogate

PRIMITIVES = frozenset(
    "add sub mul div rem neg abs sign exp expm1 log log1p tanh sin cos tan sinh cosh asin acos atan asinh acosh atanh "
    "atan2 sqrt cbrt pow max min floor ceil round erf erfc logistic is_finite eq ne lt le gt ge where".split()
)
"""Elementwise operations of a program: what a printer must be able to print. Truth is 1, falsehood 0."""

# Primitives that only move values: they are applied to the components' numbers.
MOVES = frozenset(
    "broadcast_in_dim concatenate copy dynamic_slice dynamic_update_slice expand_dims gather pad reshape rev scatter "
    "slice split squeeze stack tile transpose".split()
)
# The usual ones in NumPy, which compiles nothing: of the operands, the parameters and the shape of the result.
QUICK: dict[str, Callable[..., np.ndarray]] = {
    "reshape": lambda arrays, parameters, shape: arrays[0].reshape(shape),
    "squeeze": lambda arrays, parameters, shape: arrays[0].reshape(shape),
    "transpose": lambda arrays, parameters, shape: arrays[0].transpose(parameters["permutation"]),
    "concatenate": lambda arrays, parameters, shape: np.concatenate(arrays, parameters["dimension"]),
    "stack": lambda arrays, parameters, shape: np.stack(arrays, parameters["axis"]),
    "broadcast_in_dim": lambda arrays, parameters, shape: np.broadcast_to(
        np.expand_dims(arrays[0], [i for i in range(len(shape)) if i not in parameters["broadcast_dimensions"]]), shape
    ),
    "slice": lambda arrays, parameters, shape: arrays[0][
        tuple(
            map(
                slice,
                parameters["start_indices"],
                parameters["limit_indices"],
                parameters["strides"] or [1] * len(shape),
            )
        )
    ],
}
# Of those that take indices, too: which operands are values.
INDEXED = {"gather": (0,), "dynamic_slice": (0,), "scatter": (0, 2), "dynamic_update_slice": (0, 1)}
# Primitives that hold a computation, by the name of the parameter it is in.
CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
CALLERS = frozenset(
    "jit pjit closed_call core_call checkpoint remat remat2 custom_jvp_call custom_vjp_call "
    "custom_vjp_call_jaxpr".split()
)
SAME = frozenset("stop_gradient copy_p reduce_precision optimization_barrier pvary".split())
REDUCTIONS = {
    "reduce_sum": "add",
    "reduce_prod": "mul",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_and": "mul",
    "reduce_or": "max",
}
LONGEST_SCAN = 1000
"""A loop of known length is unrolled up to here."""


@dataclass(frozen=True, eq=False)
class Constant:
    """Components with fixed values."""

    start: int
    values: Float[np.ndarray, " count"]

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def reads(self) -> tuple[Int[np.ndarray, " n"], ...]:
        return ()


@dataclass(frozen=True, eq=False)
class Elementwise:
    """A primitive on each of `count` components. An operand is component numbers (integers) or values (floats)."""

    start: int
    count: int
    name: str
    operands: tuple[np.ndarray, ...]

    @property
    def reads(self) -> tuple[Int[np.ndarray, " n"], ...]:
        return tuple(operand for operand in self.operands if operand.dtype.kind == "i")


@dataclass(frozen=True, eq=False)
class Linear:
    """operand @ matrix + bias, the operand a row of components."""

    start: int
    operand: Int[np.ndarray, " n"]
    matrix: Float[np.ndarray, "n count"]
    bias: Float[np.ndarray, " count"]

    @property
    def count(self) -> int:
        return len(self.bias)

    @property
    def reads(self) -> tuple[Int[np.ndarray, " n"], ...]:
        return (self.operand,)


Operation = Constant | Elementwise | Linear


@dataclass(frozen=True, eq=False)
class Program:
    """Operations in order. Components 0, 1, ... are the coordinates, then the parameters; outputs are one each."""

    coordinates: tuple[str, ...]
    parameters: tuple[str, ...]
    operations: tuple[Operation, ...]
    outputs: Mapping[str, int]
    size: int

    @property
    def inputs(self) -> tuple[str, ...]:
        return (*self.coordinates, *self.parameters)


def program_of(surrogate: "Surrogate") -> Program:
    """The outputs of a surrogate at box coordinates and parameters, hard transform included, heads left out.

    Where parameters move the geometry, there are further outputs "physical x", ...: where the point then lies.
    """
    problem, network = surrogate.problem, surrogate.network

    def point(x: jax.Array, theta: jax.Array) -> dict[str, jax.Array]:
        found = values(problem, network, x, theta)
        if problem.place is not None:
            given = dict(zip(problem.axes, (*x, *theta), strict=True))
            found |= {f"physical {name}": jnp.asarray(value) for name, value in placed(problem, given).items()}
        return found

    return trace(point, problem.coordinates.names, problem.parameters.names, precision(network))


def trace(
    point: Callable[[jax.Array, jax.Array], Mapping[str, jax.Array]],
    coordinates: Sequence[str],
    parameters: Sequence[str],
    dtype: Any = jnp.float32,
) -> Program:
    """The program of `point(x, theta)`, a JAX function of two vectors that gives scalars by name."""
    names: list[str] = []

    def listed(x: jax.Array, theta: jax.Array) -> list[jax.Array]:
        found = point(x, theta)
        names[:] = found
        return list(found.values())

    with jax.enable_x64(dtype == jnp.float64):
        x, theta = (jnp.zeros(len(names), dtype) for names in (coordinates, parameters))
        closed = jax.make_jaxpr(listed)(x, theta)
        inputs = np.arange(len(coordinates) + len(parameters))
        builder = _Builder(len(inputs))
        given = [_Numbers(inputs[: len(coordinates)]), _Numbers(inputs[len(coordinates) :])]
        found = builder.run(closed.jaxpr, closed.consts, given)
        missing = sorted({value.what for value in found if isinstance(value, _Unsupported)})
        if missing:
            raise TranslationError(
                f"{', '.join(missing)} cannot be translated for a page or for ONNX. Write the hard transform "
                "(`constrain`), `place` or the network without it. There are matrix products, sums, selections, "
                f"whatever only moves values, {', '.join(sorted(PRIMITIVES))}. docs/explorer.md says how to add one."
            )
        outputs = {name: int(builder.numbers(value).ravel()[0]) for name, value in zip(names, found)}
    live = _live(builder.operations, set(outputs.values()))
    return Program(tuple(coordinates), tuple(parameters), live, outputs, builder.size)


def _live(operations: Sequence[Operation], needed: set[int]) -> tuple[Operation, ...]:
    """The operations that the needed components follow from."""
    kept: list[Operation] = []
    for operation in reversed(operations):
        if not needed.isdisjoint(range(operation.start, operation.start + operation.count)):
            kept.append(operation)
            needed.update(*(ids.tolist() for ids in operation.reads))
    return tuple(reversed(kept))


@dataclass(frozen=True, eq=False)
class _Numbers:
    """A value that depends on the inputs: the numbers of its components, in its shape."""

    ids: np.ndarray


@dataclass(frozen=True)
class _Unsupported:
    """A value that nobody may need in the end; if one is, this names why it is not there."""

    what: str


class _Builder:
    """Walks through a jaxpr. A value is an array (a constant), `_Numbers`, or `_Unsupported`."""

    def __init__(self, inputs: int):
        self.size = inputs
        self.operations: list[Operation] = []
        self.made: dict[int, Operation] = {}

    def run(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        """The outputs of a jaxpr."""
        known: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else known[atom]

        for equation in jaxpr.eqns:
            known.update(zip(equation.outvars, self.apply(equation, [read(atom) for atom in equation.invars])))
        return [read(atom) for atom in jaxpr.outvars]

    def apply(self, equation: Any, arguments: list[Any]) -> list[Any]:
        """The outputs of one equation."""
        name, parameters = equation.primitive.name, equation.params
        lost = [value for value in arguments if isinstance(value, _Unsupported)]
        if lost:
            return lost[:1] * len(equation.outvars)
        if name in CALLERS:
            inner = next(parameters[key] for key in CALLS if key in parameters)
            return self.run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), arguments)
        if not any(isinstance(value, _Numbers) for value in arguments):
            return _bound(equation, arguments)
        if any(jnp.issubdtype(atom.aval.dtype, jnp.complexfloating) for atom in equation.outvars):
            return [_Unsupported(f"{name!r} on complex numbers")] * len(equation.outvars)
        if name == "scan" and parameters["length"] <= LONGEST_SCAN:
            return self.scan(parameters, arguments)
        if name == "cond":
            return self.cond(parameters["branches"], *arguments)
        if name in MOVES:
            return self.move(equation, arguments)
        if name in SAME:
            return arguments
        if name in REDUCTIONS:
            return [self.reduce(REDUCTIONS[name], arguments[0], parameters["axes"])]
        if name == "dot_general":
            return [self.dot(equation, *arguments)]
        if len(equation.outvars) != 1:
            return [_Unsupported(f"the primitive {name!r}")] * len(equation.outvars)
        kinds = [np.dtype(atom.aval.dtype).kind for atom in (*equation.invars, *equation.outvars)]
        return [self.rewrite(name, parameters, kinds, arguments)]

    # Components ------------------------------------------------------------------------------------------------

    def add(self, operation: Operation) -> np.ndarray:
        self.operations.append(operation)
        self.made[operation.start] = operation
        self.size += operation.count
        return np.arange(operation.start, self.size)

    def numbers(self, value: Any) -> np.ndarray:
        """The component numbers of a value, in its shape; a constant gets components of its own."""
        if isinstance(value, _Numbers):
            return value.ids
        found = np.asarray(value, float)
        return self.add(Constant(self.size, found.ravel())).reshape(found.shape)

    def elementwise(self, name: str, *arguments: Any) -> Any:
        """A primitive of the program on values that broadcast."""
        if not any(isinstance(value, _Numbers) for value in arguments):
            raise TypeError(f"{name} on constants only")
        if name not in PRIMITIVES:
            return _Unsupported(f"the primitive {name!r}")
        arrays = [value.ids if isinstance(value, _Numbers) else np.asarray(value, float) for value in arguments]
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
        first, *rest = arrays
        if rest and first.dtype.kind == "i" and first.shape == shape:
            neutral = {"mul": 1.0, "add": 0.0, "div": 1.0, "sub": 0.0}.get(name)
            if rest[0].dtype.kind == "f" and np.all(rest[0] == neutral):
                return arguments[0]
            biased = self.biased(first, rest[0]) if name == "add" else None
            if biased is not None:
                return _Numbers(biased)
        elif name in ("mul", "add") and rest[0].dtype.kind == "i" and rest[0].shape == shape:
            return self.elementwise(name, *arguments[::-1])
        operands = tuple(np.broadcast_to(array, shape).ravel() for array in arrays)
        count = int(np.prod(shape, dtype=int))
        return _Numbers(self.add(Elementwise(self.size, count, name, operands)).reshape(shape))

    def biased(self, ids: np.ndarray, bias: np.ndarray) -> np.ndarray | None:
        """A product just made plus a constant, as one linear operation."""
        linear = self.made.get(int(ids.ravel()[0])) if ids.size else None
        whole = isinstance(linear, Linear) and np.array_equal(ids.ravel(), linear.start + np.arange(linear.count))
        if not whole or bias.dtype.kind == "i":
            return None
        assert isinstance(linear, Linear)
        total = linear.bias + np.broadcast_to(bias, ids.shape).ravel()
        return self.add(Linear(self.size, linear.operand, linear.matrix, total)).reshape(ids.shape)

    # Primitives ------------------------------------------------------------------------------------------------

    def move(self, equation: Any, arguments: list[Any]) -> list[Any]:
        """A primitive that moves values, done on the numbers of their components; indices must be constants."""
        name = equation.primitive.name
        moved = [i in INDEXED.get(name, (i,)) for i in range(len(arguments))]
        if any(isinstance(value, _Numbers) and not move for value, move in zip(arguments, moved)):
            return [_Unsupported(f"{name!r} at a place that depends on the inputs")] * len(equation.outvars)
        given = [self.numbers(value) if move else value for value, move in zip(arguments, moved)]
        if name in QUICK:
            return [_Numbers(QUICK[name](given, equation.params, equation.outvars[0].aval.shape))]
        found = _bound(equation, [jnp.asarray(value) for value in given])
        ids = [np.asarray(part).astype(int) for part in found]
        if any(part.size and (part.min() < 0 or part.max() >= self.size) for part in ids):
            return [_Unsupported(f"{name!r} out of bounds")] * len(ids)
        return [_Numbers(part) for part in ids]

    def dot(self, equation: Any, left: Any, right: Any) -> Any:
        """A product with a constant is linear, one of two values that depend on the inputs a sum of products."""
        if isinstance(left, _Numbers) and isinstance(right, _Numbers):
            (along_a, along_b), (batch_a, batch_b) = equation.params["dimension_numbers"]
            a, b = _last(left.ids, batch_a, along_a), _last(right.ids, batch_b, along_b)
            products = self.elementwise("mul", _Numbers(a[:, :, None]), _Numbers(b[:, None]))
            return _Numbers(self.reduce("add", products, (3,)).ids.reshape(equation.outvars[0].aval.shape))
        simple = equation.params["dimension_numbers"] == (((0,), (0,)), ((), ()))
        if simple and isinstance(left, _Numbers) and left.ids.ndim == 1 and right.ndim == 2:
            return _Numbers(self.add(Linear(self.size, left.ids, np.asarray(right, float), np.zeros(right.shape[1]))))
        ids, dtype = (left if isinstance(left, _Numbers) else right).ids, equation.outvars[0].aval.dtype
        units = jnp.eye(ids.size, dtype=dtype).reshape(ids.size, *ids.shape)

        def product(unit: jax.Array) -> jax.Array:
            return _bound(equation, [unit if isinstance(value, _Numbers) else value for value in (left, right)])[0]

        matrix = np.asarray(jax.vmap(product)(units), float).reshape(ids.size, -1)
        made = self.add(Linear(self.size, ids.ravel(), matrix, np.zeros(matrix.shape[1])))
        return _Numbers(made.reshape(equation.outvars[0].aval.shape))

    def reduce(self, name: str, value: _Numbers, axes: Sequence[int]) -> Any:
        """A value folded along some axes."""
        rest = [i for i in range(value.ids.ndim) if i not in axes]
        rows = value.ids.transpose(*axes, *rest).reshape(-1, *(value.ids.shape[i] for i in rest))
        total: Any = _Numbers(rows[0])
        for row in rows[1:]:
            total = self.elementwise(name, total, _Numbers(row))
        return total

    def scan(self, parameters: Mapping[str, Any], arguments: list[Any]) -> list[Any]:
        """A loop of known length, unrolled."""
        fixed, carried = parameters["num_consts"], parameters["num_carry"]
        consts, carry, rows = arguments[:fixed], arguments[fixed : fixed + carried], arguments[fixed + carried :]
        body, length = parameters["jaxpr"], parameters["length"]
        gathered: dict[int, list[Any]] = {}
        for i in range(length)[:: -1 if parameters["reverse"] else 1]:
            here = [_Numbers(row.ids[i]) if isinstance(row, _Numbers) else row[i] for row in rows]
            found = self.run(body.jaxpr, body.consts, [*consts, *carry, *here])
            carry, gathered[i] = found[:carried], found[carried:]
            lost = [value for value in found if isinstance(value, _Unsupported)]
            if lost:
                return lost[:1] * (carried + len(gathered[i]))
        stacked = [np.stack([self.numbers(v) for v in part]) for part in zip(*(gathered[i] for i in range(length)))]
        return [*carry, *map(_Numbers, stacked)]

    def cond(self, branches: Sequence[Any], index: Any, *arguments: Any) -> list[Any]:
        """All branches are computed, and one is chosen."""
        if not isinstance(index, _Numbers):
            chosen = branches[int(np.clip(index, 0, len(branches) - 1))]
            return self.run(chosen.jaxpr, chosen.consts, arguments)
        found = [self.run(branch.jaxpr, branch.consts, arguments) for branch in branches]
        return [self.select(index, *cases) for cases in zip(*found)]

    def select(self, index: _Numbers, first: Any, *others: Any) -> Any:
        """Case 0, 1, ... as the index says."""
        lost = [value for value in (first, *others) if isinstance(value, _Unsupported)]
        if lost:
            return lost[0]
        if len(others) == 1:
            return self.elementwise("where", index, others[0], first)
        for i, other in enumerate(others, 1):
            first = self.elementwise("where", self.elementwise("ge", index, float(i)), other, first)
        return first

    def rewrite(self, name: str, parameters: Mapping[str, Any], kinds: list[str], arguments: list[Any]) -> Any:
        """An elementwise primitive of JAX in those of the program. `kinds` are those of the operands and the result."""
        make, a = self.elementwise, arguments[0]
        if name in ("and", "or", "xor", "not") and kinds[0] != "b":
            return _Unsupported(f"{name!r} on integers")
        if name == "div" and kinds[-1] in "iu":
            return self.truncated(make("div", *arguments))
        if name == "convert_element_type":
            if kinds[-1] == "b":
                return make("ne", a, 0.0)
            return self.truncated(a) if kinds[-1] in "iu" and kinds[0] == "f" else a
        if name == "integer_pow":
            power = parameters["y"]
            if power in (2, 3):
                square = make("mul", a, a)
                return square if power == 2 else make("mul", square, a)
            return make("div", 1.0, a) if power == -1 else make("pow", a, float(power))
        if name == "round" and int(parameters["rounding_method"]) == 0:  # halves away from zero
            return make("mul", make("sign", a), make("floor", make("add", make("abs", a), 0.5)))
        if name == "clamp":
            return make("min", make("max", arguments[1], a), arguments[2])
        if name == "select_n":
            if not isinstance(a, _Numbers):
                cases = np.stack([self.numbers(value) for value in arguments[1:]])
                return _Numbers(np.take_along_axis(cases, np.broadcast_to(a, cases.shape[1:]).astype(int)[None], 0)[0])
            return self.select(a, *arguments[1:])
        rules: dict[str, Callable[[], Any]] = {
            "square": lambda: make("mul", a, a),
            "rsqrt": lambda: make("div", 1.0, make("sqrt", a)),
            "exp2": lambda: make("pow", 2.0, a),
            "add_any": lambda: make("add", *arguments),
            "and": lambda: make("mul", *arguments),
            "or": lambda: make("max", *arguments),
            "xor": lambda: make("ne", *arguments),
            "not": lambda: make("sub", 1.0, a),
        }
        return rules[name]() if name in rules else make(name, *arguments)

    def truncated(self, value: Any) -> Any:
        """Towards zero, as a conversion to integers does."""
        return self.elementwise(
            "mul", self.elementwise("sign", value), self.elementwise("floor", self.elementwise("abs", value))
        )


def _bound(equation: Any, arguments: Sequence[Any]) -> list[Any]:
    """An equation on arrays, computed by JAX."""
    found = equation.primitive.bind(*arguments, **equation.params)
    return list(found) if equation.primitive.multiple_results else [found]


def _last(ids: np.ndarray, batch: Sequence[int], along: Sequence[int]) -> np.ndarray:
    """Numbers in the shape (batch, free, contracted)."""
    free = [i for i in range(ids.ndim) if i not in (*batch, *along)]
    sizes = [int(np.prod([ids.shape[i] for i in axes], dtype=int)) for axes in (batch, free, along)]
    return ids.transpose(*batch, *free, *along).reshape(sizes)
