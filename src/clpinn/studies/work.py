"""Running the process of one cell, on this machine or as a task of a cluster's worker."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from clpinn.errors import BusyError, Outcome
from clpinn.machine import STOP_SIGNALS

POLL_SECONDS = 0.2
"""Time between two looks whether the cell has ended or should stop."""
LINES = 20
"""Lines of a cell's log that an error message may come from."""
BUSY = BusyError.exit_code


def run_order(order: dict[str, Any], stop: Callable[[], bool] | None = None) -> dict[str, Any]:
    """Run an order's cell to its end: {"code", "message"}. `stop` is asked now and then whether to stop it.

    Without `stop` the order names a file: the cell stops when that file is there. This is what reaches the workers of
    a cluster, which share the file system of the study.
    """
    if stop is None:
        flag = Path(order["stop_file"])
        stop = flag.exists
    if stop():
        return {"code": Outcome.STOPPED.exit_code, "message": ""}
    log = Path(order["log"])
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as errors:
        # A session of its own: Ctrl-C reaches the study only, which then ends its cells.
        process = subprocess.Popen(
            [sys.executable, "-m", "clpinn.studies.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            while process.poll() is None:
                if stop() and not process.stdin.closed:
                    process.stdin.close()
                time.sleep(POLL_SECONDS)
        except BrokenPipeError:  # it ended before it read its order: the log says why
            process.wait()
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()
    code = process.returncode
    if -code in STOP_SIGNALS:
        code = Outcome.STOPPED.exit_code
    return {"code": code, "message": _why(code, log) if code else ""}


def _why(code: int, log: Path) -> str:
    """Why a process ended: the signal that ended it, or the last line of its log."""
    if code < 0:
        name = signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
        memory = " (by hand, or because the machine had no memory left)" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{memory}"
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else f"its process ended with the exit code {code}"
