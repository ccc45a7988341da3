"""Compiled programs: compiled before they are called, compiled once, kept on disk."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clpinn.programs import Program, compiling

COMPILED = """
import sys
import jax
sys.path.insert(0, "tests")
counts = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **_: counts.append(name) if name.endswith("backend_compile_duration") else None
)
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name) if name.endswith("cache_hits") else None)
from small import Decay
import clpinn as cl
before = {name: getattr(jax.config, name) for name in ("jax_compilation_cache_dir", "jax_enable_x64")}
for _ in range(2):
    counts.clear()
    cl.train(Decay(), steps=3)
    print(len(counts), len(hits))
assert before == {name: getattr(jax.config, name) for name in before}
"""


def train_twice(cache) -> list[tuple[int, int]]:
    """Compilations and hits of the kept programs, in a process that trains one problem twice."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment |= {"CLPINN_CACHE": str(cache), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", COMPILED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [tuple(map(int, line.split())) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_second_training_compiles_nothing_and_a_second_process_finds_all_programs(tmp_path):
    (first, hits), (second, _) = train_twice(tmp_path)
    assert first > 10 and hits == 0 and second == 0
    assert list(tmp_path.glob("programs/*/*"))
    (again, hits), (second, _) = train_twice(tmp_path)
    assert 0.9 * again < hits <= again == first and second == 0


def test_a_program_is_compiled_before_it_is_called_and_works_for_other_shapes():
    traces = []

    def double(tree):
        traces.append(jnp.shape(tree["x"]))
        return 2 * tree["x"]

    program = Program(double)
    shape = {"x": jax.ShapeDtypeStruct((3,), np.float32)}
    with compiling([lambda: program.lowered(shape)]):
        pass
    assert traces == [(3,)]
    ones = np.ones(3, np.float32)
    assert np.array_equal(program({"x": ones}), 2 * ones) and np.array_equal(program({"x": jnp.ones(3)}), 2 * ones)
    assert traces == [(3,)]
    assert np.array_equal(program({"x": np.ones(4, np.float32)}), 2 * np.ones(4)) and traces == [(3,), (4,)]
    program.lowered(shape)()
    assert traces == [(3,), (4,)]


def test_an_error_of_a_compilation_is_raised():
    def broken():
        def compile():
            raise RuntimeError("no compiler")

        return compile

    try:
        with compiling([broken]):
            pass
    except RuntimeError as error:
        assert str(error) == "no compiler"
    else:
        raise AssertionError("nothing was raised")
