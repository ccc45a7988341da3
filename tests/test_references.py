import hashlib
import multiprocessing
import os

import numpy as np
import pytest
from small import Known

import clpinn as cl
from clpinn.formulation import references


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CLPINN_CACHE", str(tmp_path))


class Counted(Known):
    reference_version = 1
    calls = 0

    def reference(self, x, a):
        type(self).calls += 1
        return {"u": a * x + 1}


def test_cache_is_used_and_a_damaged_file_is_rebuilt(tmp_path):
    Counted.calls = 0
    first = np.array(references.reference_table(Counted()))
    assert Counted.calls == 3 and first.shape == (3, 1, 3)
    assert np.array_equal(references.reference_table(Counted()), first) and Counted.calls == 3
    (path,) = (tmp_path / "references").iterdir()
    good = path.read_bytes()
    for damage in (good[:-1], good[:50], b"", good[:200] + bytes([good[200] ^ 1]) + good[201:], b"x" * 500):
        path.write_bytes(damage)
        with pytest.warns(UserWarning, match="is damaged. It is computed again"):
            assert np.array_equal(references.reference_table(Counted()), first)
        assert path.read_bytes() == good
    foreign = good[:-32].replace(b"<f8", b"<i8")
    path.write_bytes(foreign + hashlib.sha256(foreign).digest())
    with pytest.warns(UserWarning, match="is not of this problem. It is computed again"):
        references.reference_table(Counted())
    assert [p.name for p in (tmp_path / "references").iterdir()] == [path.name]


def test_cache_name_changes_with_version_options_and_grids():
    class Newer(Counted):
        reference_version = 2

    class Other(Counted):
        candidates = cl.Grid(a=[0.0, 0.25, 1.0])

    def other_body():
        class Counted(cl.Problem):
            coordinates = cl.Box(x=(-1, 1))
            parameters = cl.Box(a=(0, 1))
            reference_version = 1

        return Counted

    problems = (Counted(), Newer(), Other(), other_body()())
    assert len({references._name(problem) for problem in problems}) == 4
    # The form of the conditions does not change the solution.
    assert references._name(cl.problems.Burgers(True)) == references._name(cl.problems.Burgers(False))


def test_a_cache_that_cannot_be_written_is_not_needed(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CLPINN_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="could not be kept"):
        assert references.reference_table(Counted()).shape == (3, 1, 3)


def _fill(folder: str) -> bool:
    os.environ["CLPINN_CACHE"] = folder
    table = references.reference_table(Counted())
    return bool(np.allclose(table[2, 0], [0, 1, 2]))


def test_two_processes_at_once(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_fill, [str(tmp_path)] * 6) == [True] * 6


def test_by_theta_solves_each_theta_once_and_broadcasts():
    solved = []

    def solve(a, b):
        solved.append((a, b))
        return lambda x: a * x + b

    x = np.linspace(0, 1, 5)
    values = references.by_theta(solve, cl.Box(x=(0, 1)), (x[:, None],), (np.array([1.0, 2.0, 1.0]), 3.0))
    assert np.allclose(values, x[:, None] * [1, 2, 1] + 3) and sorted(solved) == [(1, 3), (2, 3)]
    with pytest.raises(cl.DomainError, match="x is 2"):
        references.by_theta(solve, cl.Box(x=(0, 1)), (2.0,), (1.0, 3.0))
