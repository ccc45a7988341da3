"""Notebooks: what a run shows in one, and the notebook among the examples."""

from typing import Any

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
