"""Threads for work on the host, beside what JAX does on its devices, and the memory there is."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

T = TypeVar("T")


def on_all_cores(function: Callable[[T], None], items: Iterable[T]) -> None:
    """Call the function with every item, on as many threads as there are cores; NumPy lets them run side by side."""
    for _ in _threads().map(function, items):
        pass


def memory() -> int:
    """Bytes of memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor()
