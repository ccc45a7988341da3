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


class ClpinnError(Exception):
    """Base of every error clpinn raises on purpose."""


class DomainError(ClpinnError, ValueError):
    """A box, axis, grid or sampler that makes no sense."""


class ProblemError(ClpinnError, ValueError):
    """A problem that contradicts itself or cannot be loaded."""


class CacheError(ClpinnError):
    """A cache file that cannot be trusted."""


class OutsideBoxWarning(UserWarning):
    """A value lies outside the box the problem was stated on."""
