"""Notebooks: what a run shows in one, and the notebook among the examples."""

import re
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

TRAINING = """
import sys
sys.path.insert(0, "tests")
import clpinn as cl
from clpinn.runs import display
from small import Decay
display.LIVE_SECONDS = 0.0
surrogate = cl.train(Decay(), steps=4)
"""


def executed(notebook: Any, folder: str = ".") -> Any:
    """The notebook after a real kernel has run it."""
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    return notebook


def texts(outputs: list[Any]) -> str:
    return "\n".join(output.get("text", output.get("data", {}).get("text/plain", "")) for output in outputs)


def test_a_run_in_a_notebook_shows_one_bar_that_stays():
    silent = "cl.train(Decay(), steps=4, progress=False);"
    notebook = executed(new_notebook(cells=[new_code_cell(TRAINING), new_code_cell(silent)]))
    loud, silent = (cell.outputs for cell in notebook.cells)
    assert silent == [] and "compiling" in texts(loud)
    bars = [output.data["text/html"] for output in loud if "<progress" in str(output.get("data", {}))]
    assert len(bars) == 1 and 'value="1.000"' in bars[0] and "natural 4  loss" in bars[0]
    assert all(output.output_type != "error" for output in loud)


@pytest.mark.slow
def test_the_tour_runs_and_is_kept_without_outputs(tmp_path):
    notebook = nbformat.read("examples/tour.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    executed(notebook, str(tmp_path))
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    measured = re.search(r"worst (\S+)", texts(outputs))
    assert measured is not None and float(measured[1]) < 5e-2
    assert [path.name for path in tmp_path.iterdir()] == []
