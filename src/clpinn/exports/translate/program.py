"""A program: one point of a computation as a short list of operations on numbered components.

A program describes one point only; the printers (javascript.py, onnx.py) run it over rows of points. Every scalar that
the computation holds is a component with a number, inputs first. Operations that only move values (slices, reshapes,
concatenations, ...) leave no trace, and what depends on no input is a constant. Three more kinds of operation are left:
`Linear`, `Elementwise` and `Lookup`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

PRIMITIVES = frozenset(
    "add sub mul div rem neg abs sign exp expm1 log log1p tanh sin cos tan sinh cosh asin acos atan asinh acosh atanh "
    "atan2 sqrt cbrt pow max min floor ceil round erf erfc logistic is_finite eq ne lt le gt ge where".split()
)
"""Elementwise operations of a program, all of which a printer must be able to print. True is 1, false is 0."""


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


@dataclass(frozen=True, eq=False)
class Lookup:
    """Rows of a table, side by side, at places that are components: whole numbers from 0 to the last row.

    The table is component numbers (integers) or values (floats).
    """

    start: int
    operand: Int[np.ndarray, " n"]
    table: np.ndarray

    @property
    def count(self) -> int:
        return len(self.operand) * self.table.shape[1]

    @property
    def reads(self) -> tuple[Int[np.ndarray, " n"], ...]:
        return (self.operand, self.table.ravel()) if self.table.dtype.kind == "i" else (self.operand,)


Operation = Constant | Elementwise | Linear | Lookup


@dataclass(frozen=True, eq=False)
class Program:
    """Operations in order. Components 0, 1, ... are the coordinates, then the parameters; an output is one."""

    coordinates: tuple[str, ...]
    parameters: tuple[str, ...]
    operations: tuple[Operation, ...]
    outputs: Mapping[str, int]
    size: int

    @property
    def inputs(self) -> tuple[str, ...]:
        return (*self.coordinates, *self.parameters)
