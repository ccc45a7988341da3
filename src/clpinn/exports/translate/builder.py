"""Programs under construction: values as numbered components, and the operations that make them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from clpinn.exports.translate.program import PRIMITIVES, Constant, Elementwise, Linear, Operation


@dataclass(frozen=True, eq=False)
class Components:
    """A value that depends on the inputs: the numbers of its components, in its shape."""

    ids: np.ndarray


@dataclass(frozen=True)
class Unsupported:
    """A value that cannot be translated, with the reason. It matters only if an output depends on it."""

    reason: str


class Builder:
    """Collects operations. A value is an array (a constant), `Components`, or `Unsupported`."""

    def __init__(self, inputs: int):
        self.size = inputs
        self.operations: list[Operation] = []
        self.by_start: dict[int, Operation] = {}

    def add(self, operation: Operation) -> np.ndarray:
        """Append an operation; the numbers of its components."""
        self.operations.append(operation)
        self.by_start[operation.start] = operation
        self.size += operation.count
        return np.arange(operation.start, self.size)

    def numbers(self, value: Any) -> np.ndarray:
        """The component numbers of a value, in its shape; a constant gets components of its own."""
        if isinstance(value, Components):
            return value.ids
        constant = np.asarray(value, float)
        return self.add(Constant(self.size, constant.ravel())).reshape(constant.shape)

    def elementwise(self, name: str, *operands: Any) -> Any:
        """A primitive of the program on values that broadcast."""
        if not any(isinstance(value, Components) for value in operands):
            raise TypeError(f"{name} on constants only")
        if name not in PRIMITIVES:
            return Unsupported(f"the primitive {name!r}")
        arrays = [value.ids if isinstance(value, Components) else np.asarray(value, float) for value in operands]
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
        first, *rest = arrays
        if rest and first.dtype.kind == "i" and first.shape == shape:
            neutral = {"mul": 1.0, "add": 0.0, "div": 1.0, "sub": 0.0}.get(name)
            if rest[0].dtype.kind == "f" and np.all(rest[0] == neutral):
                return operands[0]
            biased = self.biased(first, rest[0]) if name == "add" else None
            if biased is not None:
                return Components(biased)
        elif name in ("mul", "add") and rest[0].dtype.kind == "i" and rest[0].shape == shape:
            return self.elementwise(name, *operands[::-1])
        flat = tuple(np.broadcast_to(array, shape).ravel() for array in arrays)
        count = int(np.prod(shape, dtype=int))
        return Components(self.add(Elementwise(self.size, count, name, flat)).reshape(shape))

    def biased(self, ids: np.ndarray, bias: np.ndarray) -> np.ndarray | None:
        """A linear operation's components plus a constant, as one linear operation; otherwise None."""
        linear = self.by_start.get(int(ids.ravel()[0])) if ids.size else None
        whole = isinstance(linear, Linear) and np.array_equal(ids.ravel(), linear.start + np.arange(linear.count))
        if not whole or bias.dtype.kind == "i":
            return None
        assert isinstance(linear, Linear)
        total = linear.bias + np.broadcast_to(bias, ids.shape).ravel()
        return self.add(Linear(self.size, linear.operand, linear.matrix, total)).reshape(ids.shape)

    def truncated(self, value: Any) -> Any:
        """A value rounded towards zero, as a conversion to integers does."""
        sign = self.elementwise("sign", value)
        return self.elementwise("mul", sign, self.elementwise("floor", self.elementwise("abs", value)))
