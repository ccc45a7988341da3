"""Threads for work on the host, beside what JAX does on its devices."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

T = TypeVar("T")


def on_all_cores(function: Callable[[T], None], items: Iterable[T]) -> None:
    """Call the function with every item, on as many threads as there are cores; NumPy lets them run side by side."""
    for _ in _threads().map(function, items):
        pass


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor()
