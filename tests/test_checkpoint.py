import contextlib
import errno
import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from clpinn.errors import CheckpointError
from clpinn.training import checkpoint
from clpinn.training.checkpoint import MAGIC, load, save

DTYPES = [
    "float16",
    "float32",
    "float64",
    "complex64",
    "bool",
    "int8",
    "int32",
    "int64",
    "uint8",
    "uint32",
    "uint64",
]


class State(NamedTuple):
    weights: Any
    count: Any


def example(step: int = 0) -> dict[str, Any]:
    return {
        "state": State(np.arange(12.0).reshape(3, 4) + step, np.int32(step)),
        "rest": [jnp.ones(3, jnp.float32), None, (np.array([True, False]),)],
    }


def same(a: Any, b: Any) -> bool:
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(map(np.asarray, jax.tree.leaves(a)), map(np.asarray, jax.tree.leaves(b)), strict=True)
    return all((x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes()) for x, y in pairs)


# Round trip -------------------------------------------------------------------------------------------------


@st.composite
def bit_patterns(draw: st.DrawFn) -> np.ndarray:
    """Arrays of any dtype and shape, NaN payloads, infinities and denormals among them."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    if dtype.kind == "b":
        return draw(arrays_of.arrays(dtype, shape))
    raw = draw(arrays_of.arrays(np.uint8, (*shape, dtype.itemsize)))
    return np.frombuffer(raw.tobytes(), dtype).reshape(shape)


@given(st.lists(bit_patterns(), max_size=4), st.dictionaries(st.text(max_size=5), st.integers() | st.text()))
@settings(max_examples=150, deadline=None)
def test_round_trip_is_bit_exact(arrays: list[np.ndarray], description: dict[str, Any]):
    with tempfile.TemporaryDirectory() as folder:
        save(folder, 7, arrays, description)
        found = load(folder, like=[0] * len(arrays))
    assert found is not None
    assert (found.step, found.description, found.damaged) == (7, description, [])
    assert same(found.tree, arrays)
    assert all(isinstance(leaf, np.ndarray) and leaf.flags.writeable for leaf in found.tree)


def test_round_trip_of_a_nested_tree(tmp_path: Path):
    save(tmp_path, 3, example(), {"seed": 0})
    found = load(tmp_path, like=jax.eval_shape(example))
    assert found is not None and same(found.tree, example())
    assert isinstance(found.tree["state"], State)


@pytest.mark.parametrize("array", [np.arange(6, dtype=">f8"), np.eye(3, 4).T, np.arange(9)[::-2]])
def test_byte_order_and_memory_layout_do_not_matter(tmp_path: Path, array: np.ndarray):
    save(tmp_path, 0, array, {})
    found = load(tmp_path, like=0)
    assert found is not None and found.tree.dtype.isnative
    np.testing.assert_array_equal(found.tree, array)


def test_brain_float(tmp_path: Path):
    save(tmp_path, 0, jnp.arange(5, dtype=jnp.bfloat16) / 3, {})
    found = load(tmp_path, like=0)
    assert found is not None and same(found.tree, jnp.arange(5, dtype=jnp.bfloat16) / 3)


def test_double_precision_survives_where_jax_has_single(tmp_path: Path):
    save(tmp_path, 0, {"a": np.float64(np.pi)}, {})
    found = load(tmp_path, like={"a": 0})
    assert found is not None and found.tree["a"] == np.pi


def test_shapes_come_from_the_file(tmp_path: Path):
    save(tmp_path, 0, {"a": np.ones(5)}, {})
    found = load(tmp_path, like={"a": np.zeros((2, 2))})
    assert found is not None and found.tree["a"].shape == (5,)


# What cannot be saved or restored ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": 1.0}, r"\['a'\] is 1.0"),
        ({"a": jax.random.key(0)}, "key_data"),
        ({"a": np.array(["text"])}, "numbers and booleans"),
        ({"a": np.array([None])}, "numbers and booleans"),
    ],
)
def test_only_arrays_of_numbers_can_be_saved(tmp_path: Path, tree: Any, message: str):
    with pytest.raises(CheckpointError, match=message):
        save(tmp_path, 0, tree, {})
    assert load(tmp_path, tree) is None


def test_description_must_be_json(tmp_path: Path):
    with pytest.raises(CheckpointError, match="plain JSON"):
        save(tmp_path, 0, {}, {"array": np.ones(3)})


@pytest.mark.parametrize(("step", "keep"), [(-1, 2), (0, 0)])
def test_step_and_keep_are_checked(tmp_path: Path, step: int, keep: int):
    with pytest.raises(CheckpointError, match="keep >= 1"):
        save(tmp_path, step, {}, {}, keep)


@pytest.mark.parametrize("like", [{"a": 0}, {"a": 0, "b": 0, "c": 0}, {"a": 0, "c": 0}, [0, 0]])
def test_another_structure_is_an_error_that_names_the_leaves(tmp_path: Path, like: Any):
    save(tmp_path, 0, {"a": np.ones(2), "b": np.ones(2)}, {})
    with pytest.raises(CheckpointError, match=r"another structure.*\['b'\]|another structure.*\['c'\]"):
        load(tmp_path, like)


def test_no_checkpoint_yet(tmp_path: Path):
    assert load(tmp_path, example()) is None
    assert load(tmp_path / "missing", example()) is None
    (tmp_path / "notes.txt").write_text("not a checkpoint")
    assert load(tmp_path, example()) is None


# Damage -----------------------------------------------------------------------------------------------------


def assert_falls_back(folder: Path, newest: Path, content: bytes) -> None:
    newest.write_bytes(content)
    found = load(folder, example())
    assert found is not None and found.step == 1 and same(found.tree, example(1))
    assert len(found.damaged) == 1 and newest.name in found.damaged[0]


@pytest.fixture
def newest(tmp_path: Path) -> Path:
    save(tmp_path, 1, example(1), {})
    return save(tmp_path, 2, example(2), {})


def test_truncation_anywhere_is_detected(tmp_path: Path, newest: Path):
    content = newest.read_bytes()
    for length in range(len(content)):
        assert_falls_back(tmp_path, newest, content[:length])


def test_flipped_bits_are_detected(tmp_path: Path, newest: Path):
    content, chance = newest.read_bytes(), random.Random(0)
    for _ in range(500):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        assert_falls_back(tmp_path, newest, bytes(damaged))


@pytest.mark.parametrize("content", [b"", b"something else", b"\0" * 4096, MAGIC, MAGIC * 20])
def test_foreign_files_are_detected(tmp_path: Path, newest: Path, content: bytes):
    assert_falls_back(tmp_path, newest, content)


def test_appended_bytes_are_detected(tmp_path: Path, newest: Path):
    assert_falls_back(tmp_path, newest, newest.read_bytes() + b"\0")


def sealed(header: Any, raw: bytes = b"") -> bytes:
    """A file with a right checksum around any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    body = MAGIC + len(text).to_bytes(8, "little") + text + raw
    return body + checkpoint.hashlib.sha256(body).digest()


@pytest.mark.parametrize(
    "leaf",
    [
        {"path": "", "dtype": "object", "shape": [1]},
        {"path": "", "dtype": "float32", "shape": [3]},
        {"path": "", "dtype": "float32", "shape": [1]},
        {"path": "", "dtype": "float32", "shape": [-2]},
        {"path": "", "dtype": "float32", "shape": [10**15]},
        {"path": "", "dtype": "no such thing", "shape": [2]},
        {"path": ""},
        None,
    ],
)
def test_a_forged_header_is_detected(tmp_path: Path, newest: Path, leaf: Any):
    header = {"format": 1, "description": {"step": 2, "description": {}}, "leaves": [leaf]}
    assert_falls_back(tmp_path, newest, sealed(header, b"\0" * 8))


@pytest.mark.parametrize(
    "header",
    [b"", b"{", b"\xff", b"[" * 100_000, [], {}, {"format": 2}, {"format": 1, "description": {}, "leaves": []}],
)
def test_a_header_of_another_kind_is_detected(tmp_path: Path, newest: Path, header: Any):
    assert_falls_back(tmp_path, newest, sealed(header))


def test_nothing_usable_is_an_error(tmp_path: Path, newest: Path):
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="None of the 2 checkpoints") as caught:
        load(tmp_path, example())
    assert newest.name in str(caught.value) and str(tmp_path) in str(caught.value)


def test_a_damaged_file_is_gone_once_the_run_goes_on(tmp_path: Path, newest: Path):
    newest.write_bytes(b"damaged")
    save(tmp_path, 1, example(1), {}, keep=1)
    found = load(tmp_path, example())
    assert found is not None and found.damaged == [] and found.step == 1


# Files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_only_the_newest_are_kept(tmp_path: Path, keep: int):
    for step in range(8, 13):
        save(tmp_path, step, example(step), {}, keep)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"step-{step:010d}.checkpoint" for step in range(13 - keep, 13)]


def test_strays_of_dead_writers_are_removed(tmp_path: Path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = re.sub(r"[^A-Za-z0-9]", "", platform.node())
    stray = tmp_path / f"step-0000000001.{host}-{dead.pid}-1.temporary.checkpoint"
    stray.write_bytes(b"half a checkp")
    assert load(tmp_path, example()) is None
    target = save(tmp_path, 2, example(), {})
    assert list(tmp_path.iterdir()) == [target]


def test_saving_the_same_step_again_replaces_it(tmp_path: Path):
    save(tmp_path, 1, example(1), {})
    save(tmp_path, 1, example(5), {})
    found = load(tmp_path, example())
    assert found is not None and same(found.tree, example(5))


@pytest.mark.parametrize("place", ["write", "fsync", "replace"])
def test_full_disk_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str):
    first = save(tmp_path, 1, example(1), {})

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def opened(path: Path, mode: str) -> Any:
        os.close(os.open(path, os.O_CREAT))
        return contextlib.nullcontext(type("File", (), {"write": full}))

    with monkeypatch.context() as patch:
        if place == "write":
            patch.setattr(Path, "open", opened)
        else:
            patch.setattr(os, place, full)
        with pytest.raises(CheckpointError, match="Free some space") as caught:
            save(tmp_path, 2, example(2), {})
    assert str(tmp_path) in str(caught.value)
    assert list(tmp_path.iterdir()) == [first]
    found = load(tmp_path, example())
    assert found is not None and found.step == 1 and same(found.tree, example(1))


def test_an_interrupt_while_writing_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 2, example(2), {})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="can be written to"):
        save(tmp_path / "file" / "folder", 0, example(), {})


WRITER = """
import sys
import numpy as np
from clpinn.training.checkpoint import load, save
found = load(sys.argv[1], {"a": 0, "b": 0})
step = 0 if found is None else found.step
print("ready", flush=True)
while True:
    step += 1
    save(sys.argv[1], step, {"a": np.full(300_000, step, float), "b": np.full(100, step)}, {"step": step})
"""


def test_a_writer_killed_in_the_middle_loses_nothing(tmp_path: Path):
    chance, reached = random.Random(0), 0
    for _ in range(4):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        with writer.stdout:
            assert writer.stdout.readline() == "ready\n"
            deadline = time.monotonic() + 60
            while not list(tmp_path.glob("step-??????????.checkpoint")) and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(chance.uniform(0.05, 0.2))
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        found = load(tmp_path, {"a": 0, "b": 0})
        assert found is not None and found.damaged == [] and found.step >= max(reached, 1)
        assert (found.tree["a"] == found.step).all() and found.tree["a"].size == 300_000
        assert (found.tree["b"] == found.step).all() and found.description == {"step": found.step}
        reached = found.step
