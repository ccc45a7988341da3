"""Cores and memory of the machine."""

import os
import resource
import sys
import threading
from types import SimpleNamespace

import pytest

from clpinn import machine


@pytest.mark.parametrize("count", [1, 3])
def test_work_is_done_by_as_many_threads_as_there_are_cores(monkeypatch, count):
    monkeypatch.setattr(machine, "cores", lambda: count)
    machine._threads.cache_clear()
    # Each item waits until as many run at once: fewer threads would never pass.
    together, threads, items = threading.Barrier(count), set(), []

    def work(item: int) -> None:
        threads.add(threading.get_ident())
        together.wait(timeout=60)
        items.append(item)

    machine.on_all_cores(work, range(4 * count))
    assert len(threads) == count and sorted(items) == list(range(4 * count))
    machine._threads.cache_clear()


def test_cores_are_those_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert machine.cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.cores() == 1


def test_free_memory_is_below_all_memory():
    assert 2**28 < machine.free_memory() <= machine.memory() < 2**50


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1)])
def test_peak_memory_is_in_mebibytes_on_every_system(monkeypatch, platform, unit):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=300 * 2**20 // unit))
    assert machine.peak_memory() == 300


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_is_what_the_system_says():
    def highest() -> float:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))

    before = highest()
    assert before - 1 <= machine.peak_memory() <= highest() + 1
