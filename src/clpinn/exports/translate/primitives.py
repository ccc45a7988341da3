"""How each JAX primitive on components becomes operations of a program.

A rule takes the builder and the operands of an equation, at least one of which depends on the inputs, and gives the
results. Loops, branches and calls hold computations of their own: they are in tracing.py.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from clpinn.exports.translate.builder import Builder, Components, Unsupported
from clpinn.exports.translate.program import Linear, Lookup

MOVES = frozenset(
    "broadcast_in_dim concatenate copy dynamic_slice dynamic_update_slice expand_dims gather pad reshape rev scatter "
    "slice split squeeze stack tile transpose".split()
)
"""Primitives that only move values; they are applied to the components' numbers."""
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
"""The most frequent moves in NumPy, which compiles nothing: of the operands, the parameters and the result's shape."""
INDEXED = {"gather": (0,), "dynamic_slice": (0,), "scatter": (0, 2), "dynamic_update_slice": (0, 1)}
"""Moves that take indices besides values: which operands are values."""
SAME = frozenset("stop_gradient copy_p reduce_precision optimization_barrier pvary".split())
"""Primitives whose results are their operands."""
REDUCTIONS = {
    "reduce_sum": "add",
    "reduce_prod": "mul",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_and": "mul",
    "reduce_or": "max",
}
"""Primitives that fold a value along axes, and the elementwise operation they fold with."""


def results(builder: Builder, equation: Any, operands: list[Any]) -> list[Any]:
    """The results of one equation."""
    name, parameters = equation.primitive.name, equation.params
    if name in MOVES:
        return move(builder, equation, operands)
    if name in SAME:
        return operands
    if name in REDUCTIONS:
        return [reduce(builder, REDUCTIONS[name], operands[0], parameters["axes"])]
    if name == "dot_general":
        return [dot(builder, equation, *operands)]
    if len(equation.outvars) != 1:
        return [Unsupported(f"the primitive {name!r}")] * len(equation.outvars)
    kinds = [np.dtype(atom.aval.dtype).kind for atom in (*equation.invars, *equation.outvars)]
    return [rewrite(builder, name, parameters, kinds, operands)]


def move(builder: Builder, equation: Any, operands: list[Any]) -> list[Any]:
    """A primitive that only moves values, applied to the numbers of their components; indices must be constants."""
    name = equation.primitive.name
    if name == "gather" and isinstance(operands[1], Components):
        return [look_up(builder, equation, *operands)]
    is_value = [i in INDEXED.get(name, (i,)) for i in range(len(operands))]
    if any(isinstance(operand, Components) and not movable for operand, movable in zip(operands, is_value)):
        return [Unsupported(f"{name!r} at a place that depends on the inputs")] * len(equation.outvars)
    arrays = [builder.numbers(operand) if movable else operand for operand, movable in zip(operands, is_value)]
    if name in QUICK:
        return [Components(QUICK[name](arrays, equation.params, equation.outvars[0].aval.shape))]
    moved = [np.asarray(ids).astype(int) for ids in evaluated(equation, [jnp.asarray(array) for array in arrays])]
    if any(ids.size and (ids.min() < 0 or ids.max() >= builder.size) for ids in moved):
        return [Unsupported(f"{name!r} out of bounds")] * len(moved)
    return [Components(ids) for ids in moved]


def look_up(builder: Builder, equation: Any, table: Any, places: Components) -> Any:
    """Rows of a table at places that depend on the inputs; those outside are the nearest row's."""
    table = table.ids if isinstance(table, Components) else np.asarray(table, float)
    numbers = equation.params["dimension_numbers"]
    rows = numbers.start_index_map == numbers.collapsed_slice_dims == (0,) and not numbers.operand_batching_dims
    whole = equation.params["slice_sizes"] == (1, *table.shape[1:])
    last = places.ids.ndim - 1
    behind = numbers.offset_dims == tuple(range(last, last + table.ndim - 1))
    if not (rows and whole and behind) or "CLIP" not in str(equation.params["mode"]):
        return Unsupported("'gather' at a place that depends on the inputs (but jnp.take(..., axis=0, mode='clip'))")
    inside = builder.elementwise("min", builder.elementwise("max", places, 0.0), float(len(table) - 1))
    ids = builder.add(Lookup(builder.size, inside.ids.ravel(), table.reshape(len(table), -1)))
    return Components(ids.reshape((*places.ids.shape[:-1], *table.shape[1:])))


def dot(builder: Builder, equation: Any, left: Any, right: Any) -> Any:
    """A matrix product: linear where one factor is constant, otherwise a sum of elementwise products."""
    if isinstance(left, Components) and isinstance(right, Components):
        (along_a, along_b), (batch_a, batch_b) = equation.params["dimension_numbers"]
        a, b = _batch_free_contracted(left.ids, batch_a, along_a), _batch_free_contracted(right.ids, batch_b, along_b)
        products = builder.elementwise("mul", Components(a[:, :, None]), Components(b[:, None]))
        return Components(reduce(builder, "add", products, (3,)).ids.reshape(equation.outvars[0].aval.shape))
    simple = equation.params["dimension_numbers"] == (((0,), (0,)), ((), ()))
    if simple and isinstance(left, Components) and left.ids.ndim == 1 and right.ndim == 2:
        return Components(
            builder.add(Linear(builder.size, left.ids, np.asarray(right, float), np.zeros(right.shape[1])))
        )
    ids, dtype = (left if isinstance(left, Components) else right).ids, equation.outvars[0].aval.dtype
    units = jnp.eye(ids.size, dtype=dtype).reshape(ids.size, *ids.shape)

    def product(unit: jax.Array) -> jax.Array:
        return evaluated(equation, [unit if isinstance(value, Components) else value for value in (left, right)])[0]

    matrix = np.asarray(jax.vmap(product)(units), float).reshape(ids.size, -1)
    product_ids = builder.add(Linear(builder.size, ids.ravel(), matrix, np.zeros(matrix.shape[1])))
    return Components(product_ids.reshape(equation.outvars[0].aval.shape))


def reduce(builder: Builder, name: str, value: Components, axes: Sequence[int]) -> Any:
    """A value folded along axes by an elementwise operation."""
    rest = [i for i in range(value.ids.ndim) if i not in axes]
    rows = value.ids.transpose(*axes, *rest).reshape(-1, *(value.ids.shape[i] for i in rest))
    total: Any = Components(rows[0])
    for row in rows[1:]:
        total = builder.elementwise(name, total, Components(row))
    return total


def select(builder: Builder, index: Components, first: Any, *others: Any) -> Any:
    """The case (first, then others) whose number is the index."""
    untranslated = [value for value in (first, *others) if isinstance(value, Unsupported)]
    if untranslated:
        return untranslated[0]
    if len(others) == 1:
        return builder.elementwise("where", index, others[0], first)
    for i, other in enumerate(others, 1):
        first = builder.elementwise("where", builder.elementwise("ge", index, float(i)), other, first)
    return first


def rewrite(builder: Builder, name: str, parameters: Mapping[str, Any], kinds: list[str], operands: list[Any]) -> Any:
    """An elementwise primitive of JAX as elementwise operations; `kinds` are dtype kinds of operands and result."""
    make, a = builder.elementwise, operands[0]
    if name in ("and", "or", "xor", "not") and kinds[0] != "b":
        return Unsupported(f"{name!r} on integers")
    if name == "div" and kinds[-1] in "iu":
        return builder.truncated(make("div", *operands))
    if name == "convert_element_type":
        if kinds[-1] == "b":
            return make("ne", a, 0.0)
        return builder.truncated(a) if kinds[-1] in "iu" and kinds[0] == "f" else a
    if name == "integer_pow":
        power = parameters["y"]
        if power in (2, 3):
            square = make("mul", a, a)
            return square if power == 2 else make("mul", square, a)
        return make("div", 1.0, a) if power == -1 else make("pow", a, float(power))
    if name == "round" and int(parameters["rounding_method"]) == 0:  # halves away from zero
        return make("mul", make("sign", a), make("floor", make("add", make("abs", a), 0.5)))
    if name == "clamp":
        return make("min", make("max", operands[1], a), operands[2])
    if name == "select_n":
        if not isinstance(a, Components):
            cases = np.stack([builder.numbers(value) for value in operands[1:]])
            return Components(np.take_along_axis(cases, np.broadcast_to(a, cases.shape[1:]).astype(int)[None], 0)[0])
        return select(builder, a, *operands[1:])
    rules: dict[str, Callable[[], Any]] = {
        "square": lambda: make("mul", a, a),
        "rsqrt": lambda: make("div", 1.0, make("sqrt", a)),
        "exp2": lambda: make("pow", 2.0, a),
        "add_any": lambda: make("add", *operands),
        "and": lambda: make("mul", *operands),
        "or": lambda: make("max", *operands),
        "xor": lambda: make("ne", *operands),
        "not": lambda: make("sub", 1.0, a),
    }
    return rules[name]() if name in rules else make(name, *operands)


def evaluated(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of an equation on arrays, computed by JAX."""
    values = equation.primitive.bind(*operands, **equation.params)
    return list(values) if equation.primitive.multiple_results else [values]


def _batch_free_contracted(ids: np.ndarray, batch: Sequence[int], along: Sequence[int]) -> np.ndarray:
    """Component numbers in the shape (batch, free, contracted)."""
    free = [i for i in range(ids.ndim) if i not in (*batch, *along)]
    sizes = [int(np.prod([ids.shape[i] for i in axes], dtype=int)) for axes in (batch, free, along)]
    return ids.transpose(*batch, *free, *along).reshape(sizes)
