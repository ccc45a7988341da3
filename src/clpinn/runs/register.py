"""Where the problem files of this user's runs are. It is recorded outside the run directories.

A run directory may come from somebody else. So nothing in it decides which Python file is run. Training records the
file that the user named, in one small JSON file per run directory, in the user's state directory. Its token is also in
config.json: a directory that replaces the user's own has another token, and then the record does not count.
"""

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from clpinn.files import state_folder, write_json
from clpinn.problems.loader import split_name


def record_problem(folder: Path, name: str | None, token: str) -> None:
    """Record the problem of a run by its name at the command line. A benchmark, or no name, needs no record."""
    file, class_name = split_name(name or "")
    path = Path(file).resolve()
    if not file or not path.is_file() or path.is_relative_to(folder.resolve()):
        return
    entry = {"directory": str(folder.resolve()), "problem": str(path), "class": class_name, "token": token}
    with suppress(OSError):  # without a record, the user names the file again
        write_json(_entry_path(folder), entry)


def recorded_problem(folder: Path, token: object) -> str | None:
    """The name of the problem that this user's training recorded for a run with this token, or None."""
    try:
        entry = json.loads(_entry_path(folder).read_text(encoding="utf-8"))
        directory, path, class_name, recorded_token = (entry[key] for key in ("directory", "problem", "class", "token"))
        path = Path(path)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    same_run = directory == str(folder.resolve()) and isinstance(token, str) and recorded_token == token
    if not same_run or path.resolve().is_relative_to(folder.resolve()):
        return None
    return f"{path}:{class_name}" if class_name else str(path)


def _entry_path(folder: Path) -> Path:
    digest = hashlib.sha256(str(folder.resolve()).encode(errors="surrogateescape")).hexdigest()
    return state_folder() / "runs" / f"{digest[:32]}.json"
