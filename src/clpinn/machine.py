"""Cores and memory of the machine, and threads for work on the host beside what JAX does on its devices."""

import os
import signal
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

T = TypeVar("T")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""What asks a run to stop: Ctrl-C, and what a cluster sends before the time of a job is over."""


def cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_cores() -> list[int]:
    """The numbers of these cores; where the system does not tell, as many numbers from 0 on."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(cores()))


def on_all_cores(function: Callable[[T], None], items: Iterable[T]) -> None:
    """Call the function with every item, on one thread per core. NumPy's threads run in parallel."""
    for _ in _threads().map(function, items):
        pass


def memory() -> int:
    """Bytes of memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_memory() -> int:
    """Bytes of memory that are free, or 4 GiB if the system does not tell."""
    try:
        with open("/proc/meminfo") as file:
            return next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 4 * 1024**3


def peak_memory() -> float:
    """MiB of the largest resident set that this process has had."""
    import resource  # here, because Windows has none

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest / (2**20 if sys.platform == "darwin" else 2**10)  # bytes on macOS, KiB elsewhere


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores())
