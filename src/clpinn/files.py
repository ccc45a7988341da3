"""Files that a reader sees complete or not at all, and files that end with their own checksum."""

import hashlib
import json
import os
import platform
import re
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

DIGEST_SIZE = hashlib.sha256().digest_size
_BLOCK = 1 << 20
_TEMPORARY = re.compile(r"\.([A-Za-z0-9]*)-(\d+)-\d+\.temporary(\.[^.]+)?$")


def replacing(path: Path, write: Callable[[Path], Any]) -> None:
    """Call `write` with a temporary path in the same folder, then move that file to `path`.

    A reader of `path` sees the old file or the new one, never half of one, also after a power cut: the file and its
    folder are synced. The folder is made if it does not exist. Temporary files of dead processes in it are removed.
    The temporary path keeps the ending of `path`, because some writers choose the format by it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_strays(path.parent)
    temporary = path.with_name(f"{path.stem}.{_host()}-{os.getpid()}-{threading.get_ident()}.temporary{path.suffix}")
    try:
        write(temporary)
        sync(temporary)
        os.replace(temporary, path)
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    with suppress(OSError):  # not every file system offers this
        sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the list of files in a folder, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_temporary(path: Path) -> bool:
    """Whether a file is a temporary one of `replacing`."""
    return _TEMPORARY.search(path.name) is not None


def _remove_strays(folder: Path) -> None:
    """Remove temporary files of processes of this machine that no longer exist."""
    with suppress(OSError):  # a file too many does no harm
        for path in folder.iterdir():
            match = _TEMPORARY.search(path.name)
            if match and match[1] == _host() and not _is_alive(int(match[2])):
                path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9]", "", platform.node())


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, atomically."""
    replacing(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2))


def write_checked(path: Path, parts: Iterable[bytes]) -> None:
    """Write the parts one after the other, then the SHA-256 of them all, atomically."""

    def write(temporary: Path) -> None:
        digest = hashlib.sha256()
        with temporary.open("wb") as file:
            for part in parts:
                digest.update(part)
                file.write(part)
            file.write(digest.digest())

    replacing(path, write)


def is_intact(path: Path) -> bool:
    """Whether a file of `write_checked` still has the content that its checksum was computed from."""
    content_size = path.stat().st_size - DIGEST_SIZE
    if content_size <= 0:
        return False
    digest = hashlib.sha256()
    with path.open("rb") as file:
        remaining = content_size
        while remaining > 0 and (block := file.read(min(remaining, _BLOCK))):
            digest.update(block)
            remaining -= len(block)
        return digest.digest() == file.read()


def cache_folder() -> Path:
    """The folder for files that can be made again. The environment variable CLPINN_CACHE overrides the user's own."""
    override = os.environ.get("CLPINN_CACHE")
    if override:
        return Path(override)
    from platformdirs import user_cache_path

    return user_cache_path("clpinn")


def state_folder() -> Path:
    """The folder for what must be remembered between commands. The environment variable CLPINN_STATE overrides it."""
    override = os.environ.get("CLPINN_STATE")
    if override:
        return Path(override)
    from platformdirs import user_state_path

    return user_state_path("clpinn")
