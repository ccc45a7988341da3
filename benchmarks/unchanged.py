"""Whether a change of structure has changed a result: the same short runs at another revision and in the working tree.

    python benchmarks/unchanged.py e227ff8                   every case, bit for bit
    python benchmarks/unchanged.py e227ff8 --cases natural   the cases whose name contains "natural"
    python benchmarks/unchanged.py e227ff8 --within 1e-9     for a change of what is compiled together, which may round

The other revision runs in a git worktree of its own. What it gave is kept in the temporary directory, by revision and
by the text of the cases, so a second comparison with it takes half the time (`--fresh` runs it again). Wall times are
the only figures that are not compared. Exit code 1 where a case differs.
"""

import argparse
import dataclasses
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TIMES = ("seconds", "wall_seconds", "search_seconds", "compile_seconds", "peak_memory_mib")
"""Fields of metrics and logs that are never the same twice."""


# Cases: each returns arrays by name and plain values, through the public interface alone ----------------------


def _problems() -> dict[str, Any]:
    import jax.numpy as jnp
    import numpy as np

    import clpinn as cl

    class Burgers(cl.problems.Burgers):
        interior = cl.Interior(300, anchors=[[0.0, 0.5], [0.01, 0.9]])  # pyright: ignore[reportArgumentType]
        candidates = cl.Grid(nu=np.linspace(0.01, 1, 12))
        evaluation = cl.Grid(x=np.linspace(-1, 1, 21), t=np.linspace(0, 1, 6))

    class Kovasznay(cl.problems.Kovasznay):
        candidates = cl.Grid(Re=np.linspace(5, 500, 5))
        evaluation = cl.Grid(x=np.linspace(-0.5, 1.0, 11), y=np.linspace(-0.5, 1.5, 11))

    class Own(cl.Problem):
        """Heat in a bar whose length is a parameter, with soft conditions of every kind and measured data."""

        coordinates = cl.Box(x=(0, 1), t=(0, 1))
        parameters = cl.Box(length=(0.5, 2.0), kappa=cl.log(0.05, 0.5))
        outputs = ("u",)
        interior = cl.Interior(200)
        conditions = (
            cl.Condition("ends", lambda d: d.u, on=cl.boundary("x"), points=20),
            cl.Condition("start", lambda d, x, length: d.u - jnp.sin(jnp.pi * x / length), on=cl.at(t=0), points=20),
            cl.Data(
                "sensors",
                at={"x": [0.3, 0.4], "t": [0.5, 0.6], "length": [1.0, 1.5], "kappa": [0.1, 0.2]},
                values={"u": [0.5, 0.3]},
                weight=0.1,
            ),
        )
        candidates = cl.Grid(length=[0.5, 1.0, 1.5, 2.0], kappa=[0.05, 0.1, 0.5])
        evaluation = cl.Grid(x=np.linspace(0, 1, 9), t=np.linspace(0, 1, 5))

        def place(self, x, t, length):
            return {"x": length * x, "t": t}

        def residual(self, d, kappa):
            return d.u_t - kappa * d.u_xx

        def prior(self, length, kappa):
            return 1 / kappa

        def reference(self, x, t, length, kappa):
            return {"u": jnp.exp(-kappa * (jnp.pi / length) ** 2 * t) * jnp.sin(jnp.pi * x / length)}

    return {"burgers": Burgers(), "soft burgers": Burgers(hard=False), "kovasznay": Kovasznay(), "own": Own()}


def _small(settings: Any, **changes: Any) -> Any:
    """The settings with a small network, and with groups of settings changed: tasks={"active": 3}."""
    groups = {"network": {"width": 8, "depth": 2}} | {n: dict(v) for n, v in changes.items() if isinstance(v, dict)}
    plain = {name: value for name, value in changes.items() if not isinstance(value, dict)}
    nested = {name: dataclasses.replace(getattr(settings, name), **values) for name, values in groups.items()}
    return dataclasses.replace(settings, **nested, **plain)


def _trained(problem: Any, settings: Any, folder: Path) -> tuple[dict[str, Any], Any]:
    """A run as arrays and plain values: weights, metrics and logs."""
    import jax
    import numpy as np

    import clpinn as cl

    result = cl.run(problem, settings, folder)
    leaves = jax.tree.leaves(result.network)
    about: dict[str, Any] = {f"weights {i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    about["metrics"] = _without_times(json.loads((folder / "metrics.json").read_text()))
    for name in ("history", "events"):
        path = folder / f"{name}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        about[name] = [_without_times(json.loads(line)) for line in lines]
    return about, result.surrogate


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(item) for key, item in value.items() if key not in TIMES}
    return [_without_times(item) for item in value] if isinstance(value, list) else value


POOL = {"active": 3, "replay": 2, "interval": 10, "evaluations": 3}
# Rivals' tasks were spaced on Burgers' log axis until that was mended: the cases state what e227ff8 did.
LOG_SPACED = {"linear": ()}
WIDER = {"active": 5, "replay": 2, "interval": 10, "evaluations": 3}


def _natural(problem: str, method: str, **changes: Any) -> Callable[[Path], dict[str, Any]]:
    def case(folder: Path) -> dict[str, Any]:
        import clpinn as cl

        stated = _problems()[problem]
        return _trained(stated, _small(cl.natural(stated, method), **changes), folder)[0]

    return case


def _paper(problem: str, method: str, **changes: Any) -> Callable[[Path], dict[str, Any]]:
    def case(folder: Path) -> dict[str, Any]:
        import clpinn as cl

        stated = _problems()[problem]
        changes.setdefault("adam", {"steps": 40})
        changes.setdefault("lbfgs", {"steps": 20})
        return _trained(stated, _small(cl.paper(stated, method), **changes), folder)[0]

    return case


def _using(folder: Path) -> dict[str, Any]:
    """A surrogate in use: calls, fields, derivatives, trust, heads by Levenberg-Marquardt and by Adam, evaluation."""
    import jax
    import numpy as np

    import clpinn as cl

    problem = _problems()["burgers"]
    about, surrogate = _trained(problem, _small(cl.natural(problem), steps=20), folder)
    about["call"] = surrogate(x=[0.1, -0.3], t=[0.5, 0.9], nu=0.03)["u"]
    about["derivative"] = surrogate.derivative("u_xnu", x=[0.1, -0.3], t=[0.5, 0.9], nu=0.03)
    about["field"] = surrogate.field(7, nu=[0.03, 0.3])["u"].values
    about["function"] = np.asarray(surrogate.function("u_t")(x=0.2, t=0.4, nu=0.1)["u_t"])
    about["trust"] = surrogate.trust(nu=0.03).summary()
    for optimizer, steps in (("lm", None), ("adam", 20)):
        options = {"optimizer": optimizer, "steps": steps}
        if hasattr(cl, "AdaptSettings"):  # revisions of before take the options one by one
            options = {"settings": cl.AdaptSettings(**options)}
        adapted = surrogate.adapt_many([[0.0113], [0.05], [0.4]], **options)
        for i, leaf in enumerate(jax.tree.leaves(adapted.heads)):
            about[f"{optimizer} {i}"] = np.asarray(leaf)
        about[f"{optimizer} errors"] = cl.evaluate(problem, adapted, [[0.0113], [0.4]]).outputs["u"].rel_l2
    return about


def _own(folder: Path) -> dict[str, Any]:
    """A user's problem with soft conditions, data and `place`: trained, asked at physical points, adapted, trusted."""
    import jax
    import numpy as np

    import clpinn as cl

    problem = _problems()["own"]
    about, surrogate = _trained(problem, _small(cl.natural(problem), steps=20), folder)
    about["call"] = surrogate(x=[0.1, 0.9], t=0.5, length=[0.7, 1.5], kappa=0.1)["u"]
    about["trust"] = surrogate.trust(length=1.0, kappa=0.1).summary()
    adapted = surrogate.adapt(length=1.2, kappa=0.07)
    for i, leaf in enumerate(jax.tree.leaves(adapted.heads)):
        about[f"lm {i}"] = np.asarray(leaf)
    return about


CASES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "natural free": _natural("kovasznay", "free", steps=20),
    "natural uni": _natural("burgers", "uni", steps=20, tasks={"active": 3}),
    "natural acr": _natural("own", "acr", steps=60, tasks=WIDER),
    "natural acr2": _natural("burgers", "acr2", steps=60, tasks=POOL, network={"width": 8, "depth": 2}),
    "adam-lbfgs uni": _paper("soft burgers", "uni", tasks={"active": 3}),
    "adam-lbfgs ag": _paper("soft burgers", "ag", tasks=POOL),
    "adam-lbfgs acr": _paper("own", "acr", tasks=WIDER),
    "adam-lbfgs acr2-full": _paper("soft burgers", "acr2-full", tasks=POOL, batch=0.5),
    "p2inn": _paper("soft burgers", "p2inn", tasks={"active": 3, **LOG_SPACED}, lbfgs={"steps": 0}),
    "hyperpinn": _paper("soft burgers", "hyperpinn", tasks={"active": 3, **LOG_SPACED}, lbfgs={"steps": 0}),
    "metapinn": _paper("soft burgers", "metapinn", network={"width": 6, "depth": 2, "support": 2}, tasks=LOG_SPACED),
    "standard": _paper("soft burgers", "standard"),
    "natural standard": _natural("burgers", "standard", steps=20),
    "surrogate in use": _using,
    "own problem": _own,
}


# Running and comparing ---------------------------------------------------------------------------------------


def measure(names: list[str], folder: Path) -> None:
    """Run the cases with the clpinn that this process imports; write what each gave to a file of its own."""
    import jax
    import numpy as np

    jax.config.update("jax_num_cpu_devices", 2)
    for name in names:
        with tempfile.TemporaryDirectory() as run:
            found = CASES[name](Path(run))
        print(f"  {name}", flush=True)
        arrays = {key: value for key, value in found.items() if isinstance(value, np.ndarray)}
        plain = {key: value for key, value in found.items() if key not in arrays}
        np.savez(folder / f"{name}.npz", plain=np.array(json.dumps(plain)), **arrays)


def _measured(source: Path, names: list[str], folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(source / "src"), "PYTHONWARNINGS": "ignore"}
    environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(_store() / "compiled"))
    environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    command = [sys.executable, __file__, "--measure", str(folder), "--cases", *names]
    subprocess.run(command, env=environment, check=True, cwd=tempfile.gettempdir())


def _store() -> Path:
    folder = Path(tempfile.gettempdir()) / "clpinn-unchanged"
    folder.mkdir(exist_ok=True)
    return folder


def _at(revision: str, names: list[str], fresh: bool) -> Path:
    """A folder with what the cases gave at a revision; those that were measured before are not run again."""
    commit = subprocess.run(["git", "rev-parse", revision], cwd=ROOT, check=True, capture_output=True, text=True)
    cases = Path(__file__).read_text().partition("# Running and comparing")[0]
    key = hashlib.sha256(cases.encode()).hexdigest()[:12]
    folder = _store() / f"{commit.stdout.strip()}-{key}"
    folder.mkdir(exist_ok=True)
    missing = [name for name in names if fresh or not (folder / f"{name}.npz").exists()]
    print(f"{revision}: {len(names) - len(missing)} of {len(names)} cases from {folder}")
    if missing:
        with tempfile.TemporaryDirectory() as temporary:
            source = Path(temporary) / "source"
            subprocess.run(["git", "worktree", "add", "--detach", "-q", str(source), revision], cwd=ROOT, check=True)
            try:
                _measured(source, missing, folder)
            finally:
                subprocess.run(["git", "worktree", "remove", "--force", str(source)], cwd=ROOT, check=True)
    return folder


def differences(before: Any, after: Any, where: str = "") -> list[tuple[str, float]]:
    """Where two values differ, and by how much relative to the larger (infinite where they cannot be compared)."""
    import numpy as np

    if isinstance(before, dict) and isinstance(after, dict):
        found = [(f"{where}/{key}", math.inf) for key in before if key not in after]  # what is new is no change
        for key in before:
            if key in after:
                found += differences(before[key], after[key], f"{where}/{key}")
        return found
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after))
        return [row for i, (one, other) in pairs for row in differences(one, other, f"{where}/{i}")]
    if isinstance(before, np.ndarray) and isinstance(after, np.ndarray):
        if before.shape != after.shape or before.dtype != after.dtype:
            return [(where, math.inf)]
        if before.tobytes() == after.tobytes():
            return []
        size = max(float(np.max(np.abs(before))), np.finfo(float).tiny)
        return [(where, float(np.max(np.abs(before - after))) / size)]
    if type(before) is type(after) and before == after:
        return []
    if isinstance(before, float) and isinstance(after, float):
        return [(where, abs(before - after) / max(abs(before), abs(after)))]
    return [(where, math.inf)]


def compare(before: Path, after: Path, names: list[str], within: float) -> bool:
    """Print a line for each case; whether all are the same, or within the given relative difference."""
    import numpy as np

    good = True
    for name in names:
        parts = []
        for folder in (before, after):
            with np.load(folder / f"{name}.npz", allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files if key != "plain"}
                parts.append(arrays | json.loads(str(file["plain"])))
        found = sorted(differences(*parts), key=lambda row: -row[1])
        if not found:
            print(f"{name:24} identical")
            continue
        largest = found[0][1]
        good &= largest <= within
        places = ", ".join(f"{where} {size:.1e}" for where, size in found[:4])
        print(f"{name:24} {'within' if largest <= within else 'DIFFERS'} {largest:.1e} in {len(found)}: {places}")
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", nargs="?", help="what to compare the working tree with")
    parser.add_argument("--cases", nargs="+", default=[""], help="cases whose names contain one of these")
    parser.add_argument("--within", type=float, default=0.0, help="relative difference that is accepted")
    parser.add_argument("--fresh", action="store_true", help="run the revision again though its results are kept")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = [name for name in CASES if any(part in name for part in options.cases)]
    if options.measure:
        measure(names, options.measure)
        return
    if options.revision is None or not names:
        parser.error(f"give a revision to compare with, and cases among: {', '.join(CASES)}")
    before = _at(options.revision, names, options.fresh)
    print("working tree:")
    with tempfile.TemporaryDirectory() as folder:
        _measured(ROOT, names, Path(folder))
        sys.exit(0 if compare(before, Path(folder), names, options.within) else 1)


if __name__ == "__main__":
    main()
