"""Compiled programs: compiled side by side before a run starts, and kept on disk for the next one."""

import gc
import hashlib
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from clpinn.files import cache_folder
from clpinn.machine import cores

MOST_BYTES = 500_000_000
"""The kept programs take at most this much of the disk; those used longest ago are removed first."""


Lowering = Callable[[], Callable[[], None]]
"""Traces a program, and returns what compiles it."""


class Program:
    """A JAX function that can be compiled for some shapes before it is called. A call waits for its compilation."""

    def __init__(self, function: Callable[..., Any], called_rarely: bool = False):
        """A function that is called rarely is compiled without optimisation, in half the time."""
        options = {"xla_backend_optimization_level": "0"} if called_rarely else {}
        self._jitted = jax.jit(function, compiler_options=options)
        self._compiled: dict[Any, Future[Callable[..., Any]]] = {}

    def lowered(self, *arguments: Any) -> Callable[[], None]:
        """Trace for arguments like these: arrays, or `jax.ShapeDtypeStruct` in their place. What is returned compiles.

        Tracing holds Python's lock, compilation does not.
        """
        signature = _signature(arguments)
        if signature in self._compiled:
            return lambda: None
        program = self._jitted.lower(*arguments)
        compiled = self._compiled[signature] = Future()

        def compile() -> None:
            try:
                compiled.set_result(program.compile())
            except BaseException as error:
                compiled.set_exception(error)
                raise

        return compile

    def __call__(self, *arguments: Any) -> Any:
        compiled = self._compiled.get(_signature(arguments))
        return (self._jitted if compiled is None else compiled.result())(*arguments)


def _signature(arguments: Any) -> Any:
    leaves, structure = jax.tree.flatten(arguments)
    return structure, tuple((np.shape(leaf), leaf.dtype) for leaf in leaves), _config("jax_enable_x64")


@contextmanager
def compiling(lowerings: Sequence[Lowering]) -> Iterator[None]:
    """Trace programs one after the other, compile them on threads, one per core, beside the body of the `with`."""
    x64 = _config("jax_enable_x64")

    def compiled(compilation: Callable[[], None]) -> None:
        with jax.enable_x64(x64):  # holds for one thread only
            compilation()

    with ThreadPoolExecutor(cores()) as threads:
        with _no_garbage_collection():
            started = [threads.submit(compiled, lowering()) for lowering in lowerings]
        yield
        for future in started:
            future.result()


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Tracing makes many objects that stay, so looking for garbage among them costs a tenth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def kept_programs() -> Iterator[None]:
    """Keep compiled programs in the user's cache directory, and take them from there.

    JAX's own persistent compilation cache does the work, with a lock for several processes at once. A cache that the
    user has set up for JAX is left as it is.
    """
    if _config("jax_compilation_cache_dir"):
        yield
        return
    folder = cache_folder() / "programs" / _machine()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise OSError
    except OSError:  # nowhere to keep them
        yield
        return
    settings = {
        "jax_compilation_cache_dir": str(folder),
        "jax_compilation_cache_max_size": MOST_BYTES,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: _config(name) for name in settings}
    _configure(settings)
    try:
        yield
    finally:
        _configure(before)


def _config(name: str) -> Any:
    return getattr(jax.config, name)


def _configure(settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # it reads its settings once


def _machine() -> str:
    """A folder name that tells processors apart: a program for one may not run on another."""
    description = [platform.machine(), platform.processor(), jax.__version__]
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
        description += [line for line in text.splitlines() if line.startswith(("flags", "Features"))][:1]
    return hashlib.sha256("\n".join(description).encode()).hexdigest()[:16]
