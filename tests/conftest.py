"""Shared by all tests: many runs compile the same programs, so compiled ones are kept for the session."""

import gc
import os
import shutil
import tempfile
from pathlib import Path

import pytest

_folder = tempfile.TemporaryDirectory(prefix="clpinn-tests-")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", _folder.name)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# What a run records about its problem file stays out of the user's own state directory.
os.environ["CLPINN_STATE"] = os.path.join(_folder.name, "state")
# Most of the time goes to compilation, which is shorter by a third without XLA's costly passes.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# One thread of BLAS a worker: with more, the threads of all workers spin for the same cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


MOST_MAPS = 20_000
"""Memory maps of a process before its compiled programs are dropped. Linux allows 65530; beyond them XLA crashes."""


@pytest.fixture(autouse=True, scope="module")
def few_programs():
    """Every compiled program holds some memory maps: drop them between two files before there are too many."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > MOST_MAPS:
        import jax

        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def chromium():
    """A headless Chromium, driven by playwright."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def pytest_terminal_summary(terminalreporter):
    """What tests measured and nothing asserts: it comes with the reports, from whatever process."""
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{name}: {value}")
