"""One cell in a process of its own: `python -m clpinn.studies.process`, with the order on standard input.

The first line is the order as JSON. The cell stops when standard input ends, so also when whoever started it is killed,
and on Ctrl-C, SIGTERM and SIGUSR1. A run stops after its current step, with a checkpoint. An adaptation stops at once:
the groups of targets that are done are kept.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> None:
    """Run the cell of the order on standard input. The exit code tells how it ended."""
    order = json.loads(sys.stdin.readline())
    _use_cores(order["cores"], order["devices"])
    from clpinn.errors import ClpinnError, Outcome

    stop = threading.Event()
    at_end = stop.set if order["adaptation"] is None else _leave
    threading.Thread(target=_wait_for_end, args=(at_end,), daemon=True).start()
    try:
        sys.exit(_run(order, stop).exit_code)
    except (ClpinnError, OSError) as error:
        print(str(error), file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 1))
    except KeyboardInterrupt:
        sys.exit(Outcome.STOPPED.exit_code)


def _use_cores(cores: list[int] | None, devices: int) -> None:
    """Keep to these cores (all if None), with so many JAX devices."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    import jax

    jax.config.update("jax_num_cpu_devices", devices)


def _wait_for_end(then: Callable[[], None]) -> None:
    sys.stdin.read()
    then()


def _leave() -> None:
    """End this process at once, whatever it computes."""
    os.kill(os.getpid(), signal.SIGTERM)


def _run(order: dict[str, Any], stop: threading.Event) -> Any:
    """Train or adapt, and say how it ended."""
    from clpinn.errors import Outcome
    from clpinn.problems import load_problem
    from clpinn.runs.callbacks import Callbacks
    from clpinn.runs.directory import RunDirectory
    from clpinn.runs.run import run
    from clpinn.studies.adapting import Adapting, adapt_cell
    from clpinn.surrogate.adapt_settings import AdaptSettings
    from clpinn.training.settings import from_dict

    settings = from_dict(order["settings"])
    problem = load_problem(order["problem"], paper=settings.optimizer == "adam-lbfgs")
    folder = Path(order["folder"])
    if order["adaptation"] is not None:
        options = order["adaptation"] | {"settings": AdaptSettings(**order["adaptation"]["settings"])}
        adapt_cell(Adapting(**options), RunDirectory(Path(order["base"]), problem), folder, order["key"])
        return Outcome.FINISHED

    def step(_: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt

    def message(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    callbacks = Callbacks(step=step, message=message)
    directory = RunDirectory(folder, problem)
    resume = directory.started
    seconds = order["checkpoint_seconds"]
    return run(
        problem, settings, folder, resume, order["problem"], seconds, progress=False, callbacks=callbacks
    ).outcome


if __name__ == "__main__":
    main()
