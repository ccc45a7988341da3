"""The docs cannot lie: every command and code block of README.md and docs/*.md runs here, in the order of its page.

How a block is run:

- A page is a session in a folder of its own, which has the examples in it.
- Python blocks of a page share their names. An indented block continues the last class of its page.
- Commands run one by one, in this process. Only those of clpinn itself run; `OTHER_TOOLS` says why others do not.
- Training is cut short: `small` makes every run 3 steps of a small network, whatever its bounds are, and `few_points`
  makes grids coarse.
- A run that a page speaks of without making it is one of `PREPARED`.
- A block after the comment <!-- not run: REASON --> is not run.
"""

import re
import shlex
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from typer.testing import CliRunner

import clpinn as cl
from clpinn.cli.app import app
from clpinn.estimation import estimate
from clpinn.formulation import problem as formulation
from clpinn.formulation.validation import validate
from clpinn.problems.loader import BENCHMARKS
from clpinn.runs import run as running
from clpinn.surrogate import adapt, correct_box, error_map

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^(?:<!-- not run: (?P<reason>.+) -->\n+)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
OTHER_TOOLS = {"pip": "it installs packages", "pytest": "it would run this test", "mkdocs": "it serves until Ctrl-C"}
PREPARED = {
    "runs/burgers-free-0": ["burgers"],
    "runs/b": ["burgers"],
    "runs/c": ["burgers", "--method", "acr"],
    "runs/d": ["burgers", "--seed", "1"],
    "runs/k": ["kovasznay"],
}
"""Options of `clpinn train` for the runs that pages speak of."""


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    kind: str
    text: str
    reason: str | None

    @property
    def place(self) -> str:
        return f"{self.page}, line {self.line}"


def blocks(path: Path) -> list[Block]:
    text = path.read_text()
    return [
        Block(path.name, text.count("\n", 0, match.start("text")), match["kind"], match["text"], match["reason"])
        for match in BLOCK.finditer(text)
    ]


def commands(text: str) -> list[list[str]]:
    """The commands of a block, as words, without comments."""
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [words for line in lines for part in line.split("&&") if (words := shlex.split(part, comments=True))]


@pytest.fixture
def small(monkeypatch):
    """Three steps of a small network, whatever the settings of a run say."""
    original = running._run

    def run(problem: Any, settings: Any, *arguments: Any, **options: Any) -> Any:
        network = replace(settings.network, width=6, depth=2, support=settings.network.support and 2)
        settings = replace(
            settings,
            network=network,
            natural=replace(settings.natural, rows=64),
            tasks=replace(settings.tasks, active=min(settings.tasks.active, 3), evaluations=2),
            steps=3,
            seconds=None,
            until=None,
        )
        return original(problem, settings, *arguments, **options)

    monkeypatch.setattr(running, "_run", run)
    monkeypatch.setattr(adapt, "ROWS", 64)
    # Networks of three steps are so wrong that no estimate of their error is resolved: it is given up at once.
    monkeypatch.setattr(estimate, "NEWTON_STEPS", 2)
    monkeypatch.setattr(estimate, "HOPELESS", 1)
    monkeypatch.setattr(error_map, "THETAS", 3)
    monkeypatch.setattr(correct_box, "THETAS", 3)
    monkeypatch.setattr("clpinn.cli.train.use_devices", lambda devices: None)  # JAX has started already


@pytest.fixture
def few_points(monkeypatch):
    """Few thetas and few points of evaluation, for benchmarks and for other problems."""

    def thinned(grid: cl.Grid, count: int) -> cl.Grid:
        chosen = {
            name: values[np.unique(np.linspace(0, len(values) - 1, count).astype(int))]
            for name, values in grid.values.items()
        }
        return cl.Grid(**chosen)

    for kind in BENCHMARKS.values():
        problem = kind()
        parameters = len(problem.parameters)
        monkeypatch.setattr(kind, "candidates", thinned(problem.candidates, 5 if parameters == 1 else 2))
        monkeypatch.setattr(kind, "evaluation", thinned(problem.evaluation, 12))
        monkeypatch.setattr(kind, "interior", cl.Interior(64))
        monkeypatch.setattr(kind, "reference_version", None)
    monkeypatch.setattr(formulation, "CANDIDATES", dict.fromkeys(formulation.CANDIDATES, 3))
    monkeypatch.setattr(formulation, "EVALUATION", dict.fromkeys(formulation.EVALUATION, 12))


class Session:
    """A page in a folder of its own."""

    def __init__(self, prepared: Path):
        self.prepared = prepared
        self.names: dict[str, Any] = {"__name__": "page"}
        self.class_text = ""
        self.ran, self.marked = 0, 0

    def run(self, block: Block) -> None:
        if block.reason is not None or block.kind not in ("python", "sh"):
            self.marked += 1
        elif block.kind == "python":
            self.python(block)
        else:
            for words in commands(block.text):
                self.command(words)

    def python(self, block: Block) -> None:
        text = block.text
        if text.startswith(" "):
            text = self.class_text = self.class_text + text
        elif "\nclass " in "\n" + text:
            self.class_text = text
        self.provide(text)
        exec(compile(text, block.place, "exec"), self.names)
        plt.close("all")
        self.ran += 1

    def command(self, words: list[str]) -> None:
        if words[0] in OTHER_TOOLS:
            self.marked += 1
            return
        assert words[0] == "clpinn", f"{words[0]} is no command of clpinn: mark the block with <!-- not run: ... -->"
        if words[1] != "train":
            self.provide(" ".join(words))
        done = CliRunner().invoke(app, words[1:], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        self.ran += 1

    def provide(self, text: str) -> None:
        """Copy the prepared runs that a text names and this page did not make."""
        for name in re.findall(r"\bruns/[\w-]+", text):
            if name in PREPARED and not Path(name).exists():
                shutil.copytree(self.prepared / name, name)


@pytest.mark.slow
def test_every_command_and_code_block_runs(tmp_path, monkeypatch, small, few_points, record_property):
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    monkeypatch.chdir(prepared)
    for folder, options in PREPARED.items():
        done = CliRunner().invoke(app, ["train", *options, "--out", folder], catch_exceptions=False)
        assert done.exit_code == 0, done.output
    ran = marked = 0
    for page in PAGES:
        folder = tmp_path / page.stem
        folder.mkdir()
        (folder / "examples").symlink_to(ROOT / "examples")
        monkeypatch.chdir(folder)
        session = Session(prepared)
        for block in blocks(page):
            try:
                session.run(block)
            except BaseException as error:
                error.add_note(f"This was {block.place}:\n{block.text}")
                raise
        for value in session.names.values():
            if isinstance(value, type) and issubclass(value, cl.Problem) and value.__module__ == "page":
                validate(value())
        ran, marked = ran + session.ran, marked + session.marked
    run = "runs/burgers-free-0"
    files = ["field.nc", "errors.pdf", "better.clpinn", f"{run}/report.html", f"{run}/adapted.clpinn"]
    assert all((tmp_path / "README" / file).stat().st_size > 0 for file in files)
    record_property("blocks and commands of the docs", f"{ran} ran, {marked} were marked")
    assert ran > 60


def test_a_block_is_marked_by_a_comment_with_a_reason(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Text\n\n<!-- not run: X stands for a name -->\n\n```sh\na X\n```\n\n```sh\nclpinn b  # c\n```\n")
    first, second = blocks(page)
    assert first.reason == "X stands for a name" and second.reason is None and second.line == 9
    assert commands(second.text) == [["clpinn", "b"]]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "CITATION.cff"])
def test_the_paper_is_cited(page):
    text = " ".join((ROOT / page).read_text().replace(">", " ").split())
    assert (
        "Continual-Learning Physics-Informed Neural Networks for Parameterized Partial Differential Equations" in text
    )
    for given, family in (("Xujia", "Chen"), ("Xinyue", "Hu"), ("Letian", "Chen"), ("Yi", "Liu"), ("Wenhui", "Fan")):
        assert f"{given} {family}" in text or f"family-names: {family}, given-names: {given}" in text
    assert "https://github.com/pigofmomo/CLPINN" in text
