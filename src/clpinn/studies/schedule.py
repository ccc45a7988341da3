"""Running the cells of a study: each in a process of its own, several at once, here or on a cluster."""

import queue
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from clpinn.errors import Outcome, StudyError
from clpinn.machine import available_cores
from clpinn.problems.loader import split_name
from clpinn.runs.directory import RunDirectory
from clpinn.runs.display import Display, duration_text
from clpinn.studies.cells import CellState, cell_folder, state_of
from clpinn.studies.cost import total_rows
from clpinn.studies.study import Cell
from clpinn.studies.work import BUSY, run_order
from clpinn.training.settings import to_dict

LOOK_SECONDS, PROGRESS_SECONDS, AGAIN_SECONDS = 1.0, 5.0, 10.0
"""Time between two looks whether a cell has ended, between two looks how far cells are, and before a cell is tried
again that another process works in or that somebody stopped."""

MOST_JOBS = 1024


@dataclass(frozen=True)
class Place:
    """Where cells run."""

    submit: Callable[[dict[str, Any]], "Future[dict[str, Any]]"]
    """Starts the cell of an order, or queues it."""
    devices: int
    """JAX devices of a cell, unless the user says otherwise."""
    has_workers: Callable[[], bool] = lambda: True
    """Whether somebody is there to work on what is queued."""


@dataclass
class Outcomes:
    """How the cells of a study ended."""

    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """By the title of a cell, why it failed."""
    stopped: bool = False


@contextmanager
def on_this_machine(jobs: int, stop: Callable[[], bool]) -> Iterator[Place]:
    """Processes on this machine, each with its own share of the cores. More jobs than cores share them."""
    cores = available_cores()
    if not 1 <= jobs <= MOST_JOBS:
        raise StudyError(f"--jobs needs a number from 1 to {MOST_JOBS}, but got {jobs}.")
    slots: queue.Queue[list[int]] = queue.Queue()
    for i in range(jobs):
        slots.put(cores[i::jobs] or [cores[i % len(cores)]])

    def work(order: dict[str, Any]) -> dict[str, Any]:
        slot = slots.get()
        try:
            return run_order(order | {"cores": slot}, stop)
        finally:
            slots.put(slot)

    with ThreadPoolExecutor(jobs) as threads:
        yield Place(lambda order: threads.submit(work, order), max(1, len(cores) // jobs))


def run_cells(
    titles: Mapping[str, Cell],
    folder: Path,
    place: Place,
    common: dict[str, Any],
    display: Display,
    name: str,
    stop: Callable[[], bool],
) -> Outcomes:
    """Run the cells that are not done, bases before what adapts them. Returns when all have ended or stopped.

    `titles` are the cells by what to call them. `common` is what all orders have in common: devices,
    checkpoint_seconds and stop_file.
    """
    title_of = {cell.name: title for title, cell in titles.items()}
    bases = {cell.base.name: cell.base for cell in titles.values() if cell.base is not None}
    title_of = {name: f"base {name}" for name in bases} | title_of
    unique = list((bases | {cell.name: cell for cell in titles.values()}).values())
    states = {cell.name: state_of(cell, folder) for cell in unique}  # another configuration is an error before all
    outcomes = Outcomes(done=sum(state.done for state in states.values()))
    waiting = [cell for cell in unique if not states[cell.name].done]
    progress = _Progress(unique, states, title_of, folder, name, display)
    running: dict[Future[dict[str, Any]], Cell] = {}
    later: list[tuple[float, Cell]] = []
    while waiting or running or later:
        stopping = stop()
        now = time.monotonic()
        waiting += [cell for when, cell in later if when <= now]
        later = [(when, cell) for when, cell in later if when > now]
        if stopping:
            outcomes.stopped |= bool(waiting or later or running)
            waiting, later = [], []
            if running and not place.has_workers():  # nobody would tell of what is queued
                for future in running:
                    future.cancel()
        for cell in list(waiting):
            base = cell.base
            if base is not None and title_of[base.name] in outcomes.failed:
                outcomes.failed[title_of[cell.name]] = f"its base {base.name} failed"
                waiting.remove(cell)
            elif base is None or state_of(base, folder).done:
                running[place.submit(_order(cell, folder, common))] = cell
                waiting.remove(cell)
        ended, _ = wait(running, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
        if not running and (waiting or later):
            time.sleep(LOOK_SECONDS)
        for future in ended:
            cell = running.pop(future)
            code, message = _result(future)
            if code == Outcome.STOPPED.exit_code and stop():
                outcomes.stopped = True
            elif code in (BUSY, Outcome.STOPPED.exit_code):
                later.append((time.monotonic() + AGAIN_SECONDS, cell))
            elif code in (0, Outcome.DIVERGED.exit_code) and state_of(cell, folder).done:
                outcomes.done += 1
                display.message(f"{title_of[cell.name]}: {state_of(cell, folder).text}")
            else:
                outcomes.failed[title_of[cell.name]] = message
                display.message(f"{title_of[cell.name]}: failed, see {_log(cell, folder)}")
        progress.show(list(running.values()))
    return outcomes


def _result(future: "Future[dict[str, Any]]") -> tuple[int, str]:
    try:
        result = future.result()
    except CancelledError:
        return Outcome.STOPPED.exit_code, ""
    except Exception as error:  # a worker that died too often, or a scheduler that is gone
        return 1, f"{type(error).__name__}: {error}"
    return result["code"], result["message"]


def _log(cell: Cell, folder: Path) -> Path:
    return folder / "logs" / f"{cell.name}.log"


def _order(cell: Cell, folder: Path, common: dict[str, Any]) -> dict[str, Any]:
    """What the process of a cell is told. A run goes on with as many devices as it was started with."""
    own = cell_folder(cell, folder)
    directory = RunDirectory(own)
    devices = len(directory.config["devices"]) if cell.adaptation is None and directory.started else 0
    base = cell.base
    return common | {
        "problem": _from_anywhere(cell.problem),
        "settings": to_dict(cell.settings),
        "adaptation": None if cell.adaptation is None else asdict(cell.adaptation),
        "base": None if base is None else str(cell_folder(base, folder).resolve()),
        "key": cell.key,
        "folder": str(own.resolve()),
        "log": str(_log(cell, folder).resolve()),
        "cores": None,
        "devices": devices or common["devices"],
    }


def _from_anywhere(problem: str) -> str:
    """A problem's name with the whole path of its file: a worker may run in another folder."""
    file, kind = split_name(problem)
    if not file:
        return problem
    path = str(Path(file).resolve())
    return f"{path}:{kind}" if kind else path


class _Progress:
    """How far all cells are, weighed by what they cost, with the time left at the speed so far."""

    def __init__(
        self,
        cells: list[Cell],
        states: Mapping[str, CellState],
        titles: Mapping[str, str],
        folder: Path,
        name: str,
        display: Display,
    ):
        self._titles, self._folder, self._name, self._display = titles, folder, name, display
        self._costs = {cell.name: total_rows(cell) for cell in cells}
        self._shares = {name: state.share for name, state in states.items()}
        self._watched: dict[str, Cell] = {}
        self._start, self._looked, self._before = time.monotonic(), -PROGRESS_SECONDS, self._done()

    def _done(self) -> float:
        total = sum(self._costs.values())
        return sum(self._costs[name] * share for name, share in self._shares.items()) / total if total else 1.0

    def show(self, running: list[Cell]) -> None:
        """Look at the cells that run, and at those that did since the last look."""
        self._watched.update({cell.name: cell for cell in running})
        seconds = time.monotonic() - self._start
        if seconds - self._looked < PROGRESS_SECONDS:
            return
        self._looked = seconds
        self._shares |= {name: state_of(cell, self._folder).share for name, cell in self._watched.items()}
        self._watched = {}
        done, shares = self._done(), self._shares
        left = seconds * (1 - done) / (done - self._before) if done > self._before else None
        complete = sum(share == 1 for share in shares.values())
        at_work = ", ".join(f"{self._titles[name]} ({share:.0%})" for name, share in shares.items() if 0 < share < 1)
        times = duration_text(seconds) + ("" if left is None else f", {duration_text(left)} left")
        self._display.study(f"{self._name}: {complete} of {len(shares)} cells, {times}  {at_work}", done)
