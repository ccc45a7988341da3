"""Exceptions a user can meet.

ClpinnError
├── DomainError      a box, axis, grid or sampler that makes no sense
├── ProblemError     a problem that contradicts itself or cannot be loaded
├── CacheError       a cache file that cannot be trusted
├── CheckpointError  a checkpoint that cannot be written or used (in checkpoint.py)
├── SurrogateError   a file that holds no surrogate (in surrogate.py)
├── ExportError      something that a file format cannot hold (in export.py)
├── RunError         a run directory that cannot be used for what was asked (in runs.py)
└── PlotError        a figure that makes no sense for a run (in report/style.py)
"""

import sys
import warnings


class ClpinnError(Exception):
    """Base of every error clpinn raises on purpose."""

    exit_code = 1
    """What the command ends with."""


class DomainError(ClpinnError, ValueError):
    """A box, axis, grid or sampler that makes no sense."""


class ProblemError(ClpinnError, ValueError):
    """A problem that contradicts itself or cannot be loaded."""


class CacheError(ClpinnError):
    """A cache file that cannot be trusted."""


class OutsideBoxWarning(UserWarning):
    """A value lies outside the box the problem was stated on."""


def warn_outside(message: str) -> None:
    """An OutsideBoxWarning that points at the first line outside clpinn."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "clpinn":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, OutsideBoxWarning, stacklevel=level)
