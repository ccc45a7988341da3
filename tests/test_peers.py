"""The table of benchmarks/peers.py, from cells that are there."""

import runpy
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def test_table_shows_means_over_seeds_and_ratios_to_clpinn(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    tables = runpy.run_path(str(BENCHMARKS / "peers.py"))["tables"]
    cells = {}
    for seed, ours in enumerate((1e-3, 3e-3)):
        cell = {"macro": ours, "worst": 2 * ours, "steps": 100, "seconds": 60.1, "cores": 2}
        cells[seed, "burgers", 60.0, "clpinn"] = cell
        cells[seed, "burgers", 60.0, "jinns"] = cell | {"macro": 5e-3, "version": "1.10"}
    lines = tables(cells)
    assert "jinns 1.10" in lines[0]
    assert "| burgers | 60 | clpinn | 2 | 100 | 2.00e-03 (1.0e-03–3.0e-03) | 1.0 | 4.00e-03" in "\n".join(lines)
    assert "| burgers | 60 | jinns | 2 | 100 | 5.00e-03 (5.0e-03–5.0e-03) | 2.5 | 4.00e-03" in "\n".join(lines)
    assert len([line for line in lines if line.startswith("| burgers")]) == 2 + 4
