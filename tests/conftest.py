"""Shared by all tests: many runs compile the same programs, so compiled ones are kept for the session."""

import os
import tempfile

_folder = tempfile.TemporaryDirectory(prefix="clpinn-tests-")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", _folder.name)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
# One thread of BLAS a worker: with more, the threads of all workers spin for the same cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
