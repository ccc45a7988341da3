"""Remove a run from its directory, and nothing else."""

from pathlib import Path

from clpinn.files import is_temporary
from clpinn.runs.directory import (
    ADAPTED,
    CHECKPOINT,
    ERRORS,
    EVENTS,
    HISTORY,
    LOCK,
    METRICS,
    MODEL,
    TASKS,
    RunDirectory,
)
from clpinn.runs.records import CONFIG
from clpinn.training.checkpoint import files_in

FILES = (METRICS, MODEL, ADAPTED, ERRORS, HISTORY, EVENTS, "report.html")
"""What runs, `clpinn adapt` and `clpinn report` write, besides the configuration and folders."""


def remove_run(directory: RunDirectory) -> list[str]:
    """Remove the files of a run, which must be locked; the names of what was removed.

    The lock and every other file stay. Links are not followed.
    """
    folder, checkpoints, tasks = (directory.folder / name for name in ("", CHECKPOINT, TASKS))
    files = [folder / name for name in FILES] + [path for path in folder.iterdir() if is_temporary(path)]
    if not checkpoints.is_symlink():
        files += files_in(checkpoints)
    removed = [str(file.relative_to(folder)) for file in files if _removed(file)]
    for task in _folders_in(tasks):
        if RunDirectory(task).started:
            removed += [f"{TASKS}/{task.name}/{name}" for name in remove_run(RunDirectory(task))]
            _removed(task / LOCK)
            _remove_if_empty(task)
    _remove_if_empty(checkpoints)
    _remove_if_empty(tasks)
    # The configuration goes last: until then the directory is still a run, which can be removed again.
    return removed + [CONFIG] * _removed(folder / CONFIG)


def _folders_in(folder: Path) -> list[Path]:
    if not folder.is_dir() or folder.is_symlink():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())


def _removed(file: Path) -> bool:
    """Remove a file or a link to one, and say whether there was one."""
    if not (file.is_file() or file.is_symlink()):
        return False
    file.unlink()
    return True


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
        folder.rmdir()
