"""When two problems are the same computation, so that one compiled program serves both."""

import inspect
import types
from collections.abc import Hashable
from typing import Any

import numpy as np

from clpinn.formulation.problem import Problem


class Identity:
    """A problem as a static argument of a compiled function.

    Two problems are the same if they are of one class and nothing that their functions use has changed in between:
    attributes of the class and the instance, closures, and global variables of the user's own functions. So a second
    `cl.train(Heat())` compiles nothing, and one after `heat.kappa = 2` or a changed constant compiles anew.
    """

    def __init__(self, problem: Problem):
        self.problem = problem
        self._kept: list[Any] = []
        seen: set[int] = set()
        instance = {name: value for name, value in vars(problem).items() if name not in ("candidates", "evaluation")}
        kinds = [kind for kind in type(problem).__mro__ if kind not in (Problem, object)]
        attributes = [(kind, self._key(dict(vars(kind)), seen)) for kind in kinds]
        self._fingerprint = (tuple(attributes), self._key(instance, seen))
        self._hash = hash(self._fingerprint)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other._fingerprint == self._fingerprint

    def __hash__(self) -> int:
        return self._hash

    def _key(self, value: Any, seen: set[int]) -> Hashable:
        """A hashable stand-in for a value: equal for equal plain values, otherwise for the same object."""
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return type(value), value
        if isinstance(value, np.ndarray):
            return "array", value.shape, str(value.dtype), value.tobytes()
        if id(value) in seen:
            return "seen", id(value)
        if isinstance(value, list | tuple | dict | types.FunctionType | property | staticmethod | classmethod):
            seen.add(id(value))
            self._kept.append(value)  # or a later object gets the same id, and counts as seen
        if isinstance(value, list | tuple):
            return type(value), tuple(self._key(item, seen) for item in value)
        if isinstance(value, dict):
            return "dict", tuple((self._key(name, seen), self._key(item, seen)) for name, item in value.items())
        if isinstance(value, staticmethod | classmethod):
            return self._key(value.__func__, seen)
        if isinstance(value, property):
            return self._key(value.fget, seen)
        if isinstance(value, types.FunctionType):
            return self._function_key(value, seen)
        self._kept.append(value)  # so that no other object gets the same id
        return "object", id(value)

    def _function_key(self, function: types.FunctionType, seen: set[int]) -> Hashable:
        """A function by its code, its defaults, and the variables that it uses from outside."""
        self._kept.append(function.__code__)
        if (function.__module__ or "").split(".")[0] in ("jax", "numpy", "clpinn"):
            return "library", id(function)
        try:
            variables = inspect.getclosurevars(function)
        except (TypeError, ValueError):
            return "object", id(function)
        outside = {**variables.nonlocals, **variables.globals}
        return "function", id(function.__code__), self._key(function.__defaults__, seen), self._key(outside, seen)
