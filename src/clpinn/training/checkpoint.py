"""Atomic save and load of a pytree of arrays with a JSON description.

One file, little-endian, no pickle:

    magic               8 bytes
    header length       8 bytes, unsigned
    header              JSON: format, description, leaves (path, dtype, shape)
    arrays              raw bytes, C order, in the order of the header
    SHA-256             32 bytes, of everything before

`write` and `read` are for a file of one's own. A folder of checkpoints (`save`, `load`) has one writer at a time and
belongs to one run (a run directory is locked while in use).
"""

import contextlib
import errno
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from clpinn.errors import CheckpointError
from clpinn.files import DIGEST_SIZE, is_temporary, write_checked

MAGIC = b"clpinn\r\n"  # the line end shows a transfer in text mode, as in PNG
FORMAT = 1

_NAME = re.compile(r"step-(\d{10,})\.checkpoint")


@dataclass(frozen=True)
class Loaded:
    """A checkpoint from disk. `damaged` has one message for each newer file that could not be used."""

    step: int
    tree: Any
    description: dict[str, Any]
    damaged: list[str]


def save(folder: Path | str, step: int, tree: Any, description: Mapping[str, Any], keep: int = 2) -> Path:
    """Write a checkpoint, complete or not at all, then remove all but the newest `keep` up to `step`.

    Leaves are NumPy or JAX arrays; the description must survive JSON. Files of later steps are removed too:
    they are damaged, or of a course the run has gone back on.
    """
    if step < 0 or keep < 1:
        raise CheckpointError(f"A checkpoint needs step >= 0 and keep >= 1, but got {step} and {keep}.")
    folder = Path(folder)
    target = folder / f"step-{step:010d}.checkpoint"
    write(target, tree, {"step": int(step), "description": dict(description)})
    earlier = [number for number in _files(folder) if number <= step]
    for number, path in _files(folder).items():
        if number not in earlier[:keep]:
            with contextlib.suppress(OSError):  # one file too many does no harm
                path.unlink(missing_ok=True)
    return target


def write(target: Path, tree: Any, description: Mapping[str, Any]) -> None:
    """Write a file, complete or not at all. Leaves are NumPy or JAX arrays; the description must survive JSON."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    arrays = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    for path, leaf in arrays.items():
        _require_array(path, leaf)
    arrays = {path: np.asarray(array) for path, array in jax.device_get(arrays).items()}
    header = _header(arrays, description)

    def parts() -> Iterator[bytes]:
        yield from (MAGIC, len(header).to_bytes(8, "little"), header)
        for array in arrays.values():
            yield _little_endian(array).tobytes()

    try:
        write_checked(target, parts())
    except OSError as error:
        raise CheckpointError(_cannot_write(target, error, arrays)) from error


def load(folder: Path | str, like: Any) -> Loaded | None:
    """The newest usable checkpoint, or None where there is none at all.

    The tree has the structure of `like`, whose leaves may be anything; values, shapes and dtypes are the
    file's, bit for bit, as writable NumPy arrays. A damaged file is passed over with a message in `damaged`.
    """
    damaged: list[str] = []
    files = _files(Path(folder))
    for path in files.values():
        try:
            header, arrays = read(path)
            step, description = int(header["step"]), dict(header["description"])
        except (CheckpointError, OSError, KeyError, TypeError, ValueError, OverflowError) as error:
            damaged.append(f"Checkpoint {path.name} cannot be used: {error}")
            continue
        return Loaded(step, restore(path, arrays, like), description, damaged)
    if files:
        raise CheckpointError(
            f"None of the {len(files)} checkpoints in {folder} can be used. Start afresh in another folder, "
            "or remove them.\n" + "\n".join(damaged)
        )
    return None


def files_in(folder: Path) -> list[Path]:
    """All files that `save` makes in a folder: checkpoints, and temporary files of writers that died."""
    temporary = [path for path in folder.iterdir() if is_temporary(path)] if folder.is_dir() else []
    return [*_files(folder).values(), *temporary]


def _files(folder: Path) -> dict[int, Path]:
    """Checkpoints of a folder by step, the newest first."""
    if not folder.is_dir():
        return {}
    files = {int(match[1]): path for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))}
    return dict(sorted(files.items(), reverse=True))


# Writing ----------------------------------------------------------------------------------------------------


def _require_array(path: str, leaf: Any) -> None:
    if not isinstance(leaf, np.ndarray | np.generic | jax.Array):
        raise CheckpointError(
            f"A checkpoint holds arrays only, but {path or 'the tree'} is {leaf!r}. Turn it into an array, "
            "or put it into the description."
        )
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise CheckpointError(f"{path} is a typed random key. Save jax.random.key_data(key) in its place.")
    if not _storable(leaf.dtype):
        raise CheckpointError(f"A checkpoint holds numbers and booleans, but {path} has dtype {leaf.dtype}.")


def _storable(dtype: np.dtype) -> bool:
    return dtype == np.bool_ or jnp.issubdtype(dtype, np.number)


def _header(arrays: dict[str, np.ndarray], description: Mapping[str, Any]) -> bytes:
    leaves = [{"path": path, "dtype": a.dtype.name, "shape": a.shape} for path, a in arrays.items()]
    try:
        return json.dumps({"format": FORMAT, "description": dict(description), "leaves": leaves}).encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"The description of a checkpoint must be plain JSON: {error}.") from error


def _little_endian(array: np.ndarray) -> np.ndarray:
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _cannot_write(target: Path, error: OSError, arrays: dict[str, np.ndarray]) -> str:
    size = sum(array.nbytes for array in arrays.values()) / 1e6
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
        advice = f"Free some space there (it takes about {size:.1f} MB)"
    else:
        advice = "See that the folder can be written to"
    return (
        f"{target.name} could not be written to {target.parent}: {error.strerror or error}. {advice}, and go on from "
        "there; what was written before is intact."
    )


# Reading ----------------------------------------------------------------------------------------------------


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The description and the arrays by leaf path of one file, once its checksum has been found right."""
    content = path.read_bytes()
    if not content.startswith(MAGIC):
        raise CheckpointError("it does not begin like a file of clpinn.")
    body = memoryview(content)[:-DIGEST_SIZE]
    if hashlib.sha256(body).digest() != content[-DIGEST_SIZE:]:
        raise CheckpointError("its checksum is wrong, so it is damaged or incomplete.")
    try:
        start = len(MAGIC) + 8
        end = start + int.from_bytes(body[len(MAGIC) : start], "little")
        header = json.loads(bytes(body[start:end]))
        if header["format"] != FORMAT:
            raise CheckpointError(
                f"it has format {header['format']}, but this version of clpinn reads {FORMAT}. Use the "
                "version that wrote it."
            )
        arrays = {}
        for leaf in header["leaves"]:
            dtype, shape = jnp.dtype(leaf["dtype"]), tuple(leaf["shape"])
            if not isinstance(leaf["path"], str) or not _storable(dtype) or min(shape, default=0) < 0:
                raise ValueError(f"an array of dtype {dtype} and shape {shape}")
            start, end = end, end + dtype.itemsize * math.prod(shape)
            flat = np.frombuffer(body[start:end], dtype.newbyteorder("<")).astype(dtype)
            arrays[leaf["path"]] = flat.reshape(shape)
        if end != len(body):
            raise ValueError(f"{len(body) - end} bytes too many")
        return dict(header["description"]), arrays
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        # The checksum is right: whoever wrote this was not `save`.
        raise CheckpointError(f"its header makes no sense ({error!r}).") from error


def restore(path: Path, arrays: dict[str, np.ndarray], like: Any) -> Any:
    """The arrays in the structure of `like`."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    wanted = [jax.tree_util.keystr(leaf_path) for leaf_path, _ in leaves]
    if set(wanted) != set(arrays):
        missing = [name for name in wanted if name not in arrays]
        unknown = [name for name in arrays if name not in set(wanted)]
        raise CheckpointError(
            f"{path} is of another structure: it lacks {_some(missing)} and has {_some(unknown)} besides. "
            "Resume with the settings it was written with, or start afresh in another folder."
        )
    return jax.tree_util.tree_unflatten(structure, [arrays[name] for name in wanted])


def _some(names: list[str]) -> str:
    shown = ", ".join(name or "a single array" for name in names[:5]) or "nothing"
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
