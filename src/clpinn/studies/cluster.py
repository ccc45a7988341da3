"""Cells as tasks of a Dask cluster, whose workers share the file system of the study."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clpinn.errors import StudyError
from clpinn.machine import cores
from clpinn.runs.display import Display
from clpinn.studies.schedule import Place
from clpinn.studies.work import run_order

CONNECT_SECONDS = 10
"""How long a scheduler may take to answer."""
RETRIES = 3
"""How often a task is tried again after an error of the cluster. Dask itself moves the tasks of workers that died."""


@contextmanager
def on_cluster(scheduler: str, devices: int | None, display: Display) -> Iterator[Place]:
    """Tasks of a Dask cluster.

    `scheduler` is an address, tcp://host:8786, or a scheduler file. Without `devices` a cell takes the cores of a
    worker, divided by its threads.
    """
    try:
        from distributed import Client
    except ImportError:
        raise StudyError("A cluster needs Dask: pip install 'clpinn[cluster]'.") from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what goes wrong is told once, by the study
    where: dict[str, Any] = {"address": scheduler}
    if Path(scheduler).suffix == ".json":
        where = {"scheduler_file": scheduler}
    if "scheduler_file" in where and not Path(scheduler).is_file():
        raise StudyError(f"There is no scheduler file {scheduler}. Start a scheduler: dask scheduler --scheduler-file.")
    try:
        client = Client(**where, timeout=CONNECT_SECONDS)
    except (OSError, TimeoutError, ValueError) as error:
        raise StudyError(
            f"No Dask scheduler answers at {scheduler} ({error}). Start one (dask scheduler), or give its address: "
            "--scheduler tcp://host:8786. Nothing was changed."
        ) from None
    with client:
        workers = client.scheduler_info(n_workers=-1)["workers"]
        if not workers:
            display.message(f"The scheduler at {scheduler} has no workers yet. Cells start when one comes.")
        if devices is None and workers:
            found: Any = client.run(cores)
            devices = min(count // max(1, workers[name]["nthreads"]) for name, count in found.items())
        executor = client.get_executor(pure=False, retries=RETRIES)

        def has_workers() -> bool:
            try:
                return bool(client.scheduler_info(n_workers=-1)["workers"])
            except (OSError, TimeoutError):  # the scheduler is gone
                return False

        yield Place(lambda order: executor.submit(run_order, order), max(1, devices or 1), has_workers)
