"""Every exception that a user can meet, and every way in which a run can end.

ClpinnError
├── DomainError      a box, axis, grid or sampler that makes no sense
├── ProblemError     a problem that contradicts itself or cannot be loaded
├── SettingsError    a setting that does not exist or has no such value
├── CacheError       a cache file that cannot be trusted
├── CheckpointError  a checkpoint that cannot be written, read, or put into the structure asked for
├── SurrogateError   a file that holds no surrogate, or not one that can be used here
├── ExportError      something that a file format cannot hold
├── TranslationError a network that cannot be translated to another language
├── RunError         a run directory that cannot be used for what was asked
│   └── BusyError    a run directory that another process works in
├── StudyError       a study that makes no sense, or cannot run as it was asked to
└── PlotError        a figure that makes no sense for a run, or cannot be written
"""

import sys
import warnings
from enum import StrEnum


class ClpinnError(Exception):
    """Base of every error that clpinn raises on purpose."""

    exit_code = 1
    """What the command ends with."""


class DomainError(ClpinnError, ValueError):
    """A box, axis, grid or sampler that makes no sense."""


class ProblemError(ClpinnError, ValueError):
    """A problem that contradicts itself or cannot be loaded."""


class SettingsError(ClpinnError, ValueError):
    """A setting that does not exist or has no such value."""


class CacheError(ClpinnError):
    """A cache file that cannot be trusted."""


class CheckpointError(ClpinnError):
    """A checkpoint that cannot be written, read, or put into the structure asked for."""


class SurrogateError(ClpinnError):
    """A file that holds no surrogate, or not one that can be used here."""


class ExportError(ClpinnError):
    """Something that a file format cannot hold."""


class TranslationError(ClpinnError):
    """A network that cannot be translated to another language."""


class RunError(ClpinnError):
    """A run directory that cannot be used for what was asked."""


class BusyError(RunError):
    """A run directory that another process works in."""

    exit_code = 75  # as sendmail's EX_TEMPFAIL: the same may work later


class StudyError(ClpinnError, ValueError):
    """A study that makes no sense, or cannot run as it was asked to."""


class PlotError(ClpinnError):
    """A figure that makes no sense for a run, or cannot be written."""


class Outcome(StrEnum):
    """How a run ended, by the name that metrics.json holds."""

    FINISHED = "finished"
    TIME = "time"
    STEPS = "steps"
    UNTIL = "until"
    ERROR = "error"
    STOPPED = "stopped"
    DIVERGED = "diverged"

    @property
    def exit_code(self) -> int:
        """What the command ends with."""
        return {Outcome.DIVERGED: 3, Outcome.STOPPED: 130}.get(self, 0)

    @property
    def advice(self) -> str:
        """What to do next."""
        return {
            Outcome.FINISHED: "Progress has ended. To go on anyway, resume with --seconds or --steps.",
            Outcome.TIME: "The time is over. To go on, resume with a larger --seconds.",
            Outcome.STEPS: "The steps are done. To go on, resume with a larger --steps.",
            Outcome.UNTIL: "The validation loss is reached. To go on, resume with a lower --until.",
            Outcome.ERROR: "The estimated error is reached. To go on, resume with a lower --error.",
            Outcome.STOPPED: "The run was stopped. To go on from its checkpoint, use --resume.",
            Outcome.DIVERGED: "The loss is not finite. Look for roots, logarithms, powers and quotients that are not "
            "defined for every value a network may give.",
        }[self]


class OutsideBoxWarning(UserWarning):
    """A value lies outside the box the problem was stated on."""


def warn_outside(message: str) -> None:
    """Issue an OutsideBoxWarning that points at the first line outside clpinn."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "clpinn":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, OutsideBoxWarning, stacklevel=level)
