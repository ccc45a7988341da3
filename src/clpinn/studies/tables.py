"""A study as a table: one row per problem and variant, aggregated over seeds, beside published figures."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clpinn.errors import Outcome, StudyError
from clpinn.runs.evaluate import Aggregate, aggregate
from clpinn.studies.cells import CellResult
from clpinn.studies.study import Cell, Study, Variant

Results = Mapping[str, CellResult | None]
"""What the cells gave, by their names; None where a cell has not ended."""


@dataclass(frozen=True)
class Column:
    """A figure of a cell. `kind` tells how it is written: error, share, number or time."""

    title: str
    kind: str
    read: Callable[[dict[str, Any]], float | None]
    """From the metrics of a cell."""
    of_means: tuple[str, str] | None = None
    """Of a reduction: the columns before and after. Over seeds it is that of their means, as in the paper."""


def _number(figures: Mapping[str, Any], key: str) -> float | None:
    """A figure by its key: None if it is not there, NaN if it is not finite, which files hold as null."""
    if key not in figures:
        return None
    return math.nan if figures[key] is None else float(figures[key])


def _over_outputs(key: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda metrics: _number(metrics.get("macro") or {}, key)


def _mean_of_outputs(key: str) -> Callable[[dict[str, Any]], float | None]:
    def read(metrics: dict[str, Any]) -> float | None:
        figures = [_number(figures, key) for figures in metrics.get("outputs", {}).values()]
        known = [value for value in figures if value is not None]
        return sum(known) / len(known) if known else None

    return read


def _of_output(output: str, key: str) -> Callable[[dict[str, Any]], float | None]:
    def read(metrics: dict[str, Any]) -> float | None:
        outputs = metrics.get("outputs", {})
        return _number(outputs[output], key) if output in outputs and len(outputs) > 1 else None

    return read


def _plain(key: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda metrics: _number(metrics, key)


def _seconds(*activities: str, per: float = 1.0) -> Callable[[dict[str, Any]], float | None]:
    def read(metrics: dict[str, Any]) -> float | None:
        times = metrics.get("seconds", {})
        return sum(times.get(name, 0.0) for name in activities) / per if times else None

    return read


COLUMNS: dict[str, Column] = {
    "mse": Column("MSE", "error", _over_outputs("mse")),
    "macro": Column("macro rel. L2", "error", _over_outputs("rel_l2_macro")),
    **{f"macro_{name}": Column(f"macro of {name}", "error", _of_output(name, "rel_l2_macro")) for name in "uvp"},
    **{f"mse_{name}": Column(f"MSE of {name}", "error", _of_output(name, "mse")) for name in "uvp"},
    "worst": Column("worst rel. L2", "error", _over_outputs("rel_l2_worst")),
    "res_pde": Column("Res-PDE", "error", _plain("res_pde_macro")),
    "max_abs_mean": Column("mean largest error", "error", _mean_of_outputs("max_abs_mean")),
    "queries": Column("queries", "number", _plain("queries")),
    "hole": Column("coverage hole", "error", _plain("coverage_hole")),
    "adam_minutes": Column("Adam with search, min", "time", _seconds("adam", "selection", "queries", per=60)),
    "lbfgs_minutes": Column("L-BFGS, min", "time", _seconds("lbfgs", per=60)),
    "minutes": Column("both, min", "time", _seconds("adam", "selection", "queries", "lbfgs", per=60)),
    "seconds": Column("training, s", "time", _seconds("adam", "selection", "queries", "lbfgs", "natural")),
    "query_seconds": Column("queries, s", "time", _seconds("queries")),
    "select_seconds": Column("selection, s", "time", _seconds("selection")),
    "search_seconds": Column("search, s", "time", _plain("search_seconds")),
    "memory": Column("peak memory, MiB", "number", _plain("peak_memory_mib")),
    "before": Column("before", "error", _plain("before")),
    "after": Column("after", "error", _plain("after")),
    "reduction": Column("reduction", "share", _plain("reduction"), ("before", "after")),
    "improved": Column("improved", "share", _plain("improved")),
    "difficult_before": Column("before, worst quarter", "error", _plain("difficult_before")),
    "difficult_after": Column("after, worst quarter", "error", _plain("difficult_after")),
    "difficult_reduction": Column(
        "reduction, worst quarter", "share", _plain("difficult_reduction"), ("difficult_before", "difficult_after")
    ),
    "difficult_factor": Column("before / after, worst quarter", "time", _plain("difficult_factor")),
    "difficult_improved": Column("improved, worst quarter", "share", _plain("difficult_improved")),
    "mse_before": Column("MSE before", "error", _plain("mse_before")),
    "mse_after": Column("MSE after", "error", _plain("mse_after")),
    "median_before": Column("median before", "error", _plain("median_before")),
    "median_after": Column("median after", "error", _plain("median_after")),
    "worst_before": Column("worst before", "error", _plain("worst_before")),
    "worst_after": Column("worst after", "error", _plain("worst_after")),
    "seconds_per_target": Column("s per target", "time", _plain("seconds_per_target")),
    "online": Column("trained per target", "number", _plain("online")),
}
"""All columns that a study may ask for, by name. Others are QUANTITY@VALUE: an error at one theta, `rel_l2@0.05`."""


def column(name: str) -> Column:
    """A column by its name."""
    if name in COLUMNS:
        return COLUMNS[name]
    quantity, at, value = name.partition("@")
    if not at:
        raise StudyError(
            f"A table has no column {name!r}. It has {', '.join(COLUMNS)}, and errors at one theta such as rel_l2@0.05."
        )
    return Column(f"{quantity.replace('_', ' ')} at {value}", "error", lambda metrics: None)


def figure(result: CellResult, variant: Variant, name: str, problem: Any) -> float | None:
    """One figure of a cell; None if it has none of that name. An infinite or undefined one is NaN."""
    metrics = result.metrics
    if variant.adaptation is not None:
        checkpoints = metrics["checkpoints"]
        chosen = str(variant.steps) if variant.steps is not None else list(checkpoints)[-1]
        metrics = {**metrics, **checkpoints[chosen]}
    value = _at_theta(result, name, problem) if "@" in name else column(name).read(metrics)
    if value is not None and metrics.get("outcome") == Outcome.DIVERGED and column(name).kind == "error":
        return math.nan  # what is left is the network of the last finite loss, which is no result
    return value


def _at_theta(result: CellResult, name: str, problem: Any) -> float | None:
    """The mean over outputs of a quantity at the candidate with this value of the only parameter."""
    quantity, _, text = name.partition("@")
    (parameter,) = problem.parameters.names
    rows = [i for i, value in enumerate(result.errors.get(parameter, [])) if math.isclose(value, float(text))]
    columns = [quantity] if quantity == "res_pde" else [f"{quantity}_{output}" for output in problem.outputs]
    if not rows or any(key not in result.errors for key in columns):
        return None
    return sum(result.errors[key][rows[0]] for key in columns) / len(columns)


@dataclass(frozen=True)
class Entry:
    """A figure of a row by seed, beside what is published: mean and standard deviation."""

    by_seed: Mapping[int, float]
    published: tuple[float, float | None] | None
    mean: float | None = None
    """The mean, where it is another one than that over seeds."""

    @property
    def found(self) -> Aggregate | None:
        """Mean and spread over the seeds; None without any."""
        if not self.by_seed:
            return None
        found = aggregate(self.by_seed)
        return found if self.mean is None else replace(found, mean=self.mean)

    @property
    def ratio(self) -> float | None:
        """Found divided by published."""
        found = self.found
        if found is None or not found.seeds or self.published is None or not self.published[0]:
            return None
        return found.mean / self.published[0]


@dataclass(frozen=True)
class Row:
    """What a variant gave on a problem."""

    problem: str
    label: str
    done: tuple[int, ...]
    missing: tuple[int, ...]
    diverged: tuple[int, ...]
    recoveries: int | None
    entries: Mapping[str, Entry]


@dataclass(frozen=True)
class Table:
    """A study at one budget."""

    study: Study
    budget: float
    cells: Mapping[tuple[str, str, int], Cell]
    results: Results
    columns: Mapping[str, tuple[str, ...]]
    """By problem, the columns that have a figure."""
    rows: tuple[Row, ...]

    def done(self, problem: str) -> dict[str, dict[int, CellResult]]:
        """What the cells of a problem gave, by row and seed; rows without any are left out."""
        found: dict[str, dict[int, CellResult]] = {}
        for (name, row, seed), cell in self.cells.items():
            result = self.results.get(cell.name)
            if name == problem and result is not None:
                found.setdefault(row, {})[seed] = result
        return found

    @property
    def header(self) -> str:
        """What was asked and at which budget."""
        share = "all steps" if self.budget == 1 else f"{100 * self.budget:g} % of the steps"
        source = f" In the paper: {self.study.source}." if self.study.source else ""
        if any(variant.adaptation for variant in self.study.variants) and self.budget != 1:
            share += " of the bases; adaptations make all of theirs"
        if all(variant.budget for variant in self.study.variants):
            share = "as few steps as the events allow"
        return f"{self.study.question or self.study.name}{source} Budget: {share}."


def table(study: Study, budget: float, results: Results) -> Table:
    """The table of a study: cells of this budget only, so no mean is over unequal budgets."""
    cells = study.cells(budget)
    rows = [
        _row(study, cells, results, problem, variant) for problem in study.problems for variant in study.rows(problem)
    ]
    columns = {problem: _shown(study, [row for row in rows if row.problem == problem]) for problem in study.problems}
    return Table(study, budget, cells, results, columns, tuple(rows))


def _shown(study: Study, rows: Sequence[Row]) -> tuple[str, ...]:
    """The columns with a figure; where nothing has ended yet, all that every problem has."""
    if not any(row.done for row in rows):
        special = [name for name in study.columns if "@" in name or name.endswith(("_u", "_v", "_p"))]
        published = [name for name in study.columns if any(row.entries[name].published is not None for row in rows)]
        return tuple(name for name in study.columns if name in published or name not in special)
    return tuple(
        name
        for name in study.columns
        if any(row.entries[name].by_seed or row.entries[name].published is not None for row in rows)
    )


def _row(
    study: Study, cells: Mapping[tuple[str, str, int], Cell], results: Results, problem: str, variant: Variant
) -> Row:
    seeds = variant.seeds or study.seeds
    by_seed = {seed: cells[problem, variant.label, seed] for seed in seeds}
    done = {seed: result for seed, cell in by_seed.items() if (result := results.get(cell.name)) is not None}
    published = study.published.get(problem, {}).get(variant.label, {})

    def figures(name: str) -> dict[int, float]:
        found = {seed: figure(result, variant, name, by_seed[seed].loaded) for seed, result in done.items()}
        return {seed: value for seed, value in found.items() if value is not None}

    entries = {}
    for name in study.columns:
        known, mean, of_means = published.get(name), None, column(name).of_means
        if of_means is not None and done:
            before, after = (aggregate(figures(each)).mean for each in of_means)
            mean = 1 - after / before
        entries[name] = Entry(figures(name), None if known is None else (known[0] or 0.0, known[1]), mean)
    recoveries = [result.metrics["recoveries"] for result in done.values() if "recoveries" in result.metrics]
    return Row(
        problem,
        variant.label,
        tuple(done),
        tuple(seed for seed in seeds if seed not in done),
        tuple(seed for seed, result in done.items() if result.metrics.get("outcome") == Outcome.DIVERGED),
        sum(recoveries) if recoveries else None,
        entries,
    )


AS_IN_THE_PAPER = ("remedies=0", "tasks.exclude=")
"""Settings that all studies of the paper have, and that a heading does not repeat."""


def notes(study: Study, problem: str) -> str:
    """The settings by which all cells of a problem differ from those of their methods; "" without any."""
    settings = [set(variant.settings) for variant in study.rows(problem)]
    shared = sorted(set.intersection(*settings)) if settings else []
    return ", ".join(each for each in shared if not each.startswith(AS_IN_THE_PAPER))


def to_records(table: Table) -> list[dict[str, Any]]:
    """One flat record per problem, row and column, for CSV and JSON."""
    records = []
    for row in table.rows:
        for name in table.columns[row.problem]:
            entry = row.entries[name]
            found, published = entry.found, entry.published
            records.append(
                {
                    "study": table.study.name,
                    "budget": table.budget,
                    "problem": row.problem,
                    "row": row.label,
                    "column": name,
                    "mean": None if found is None or not found.seeds else found.mean,
                    "sd": None if found is None or not found.seeds else found.sd,
                    "seeds": 0 if found is None else len(found.seeds),
                    "not_finite": 0 if found is None else len(found.non_finite),
                    "missing": len(row.missing),
                    "recoveries": row.recoveries,
                    "published_mean": None if published is None else published[0],
                    "published_sd": None if published is None else published[1],
                    "ratio": entry.ratio,
                }
            )
    return records


FORMS: dict[str, Callable[[float], str]] = {
    "error": lambda value: f"{value:.3g}",
    "share": lambda value: f"{value:.1%}",
    "number": lambda value: f"{value:.0f}",
    "time": lambda value: f"{value:.3g}",
}


def text_of(entry: Entry, kind: str) -> str:
    """A found figure as text: mean ± standard deviation, and how many seeds are not finite."""
    found, form = entry.found, FORMS[kind]
    if found is None:
        return "missing"
    if not found.seeds:
        return "not finite"
    spread = f" ± {form(found.sd)}" if len(found.seeds) > 1 else ""
    apart = f" ({len(found.non_finite)} not finite)" if found.non_finite else ""
    return f"{form(found.mean)}{spread}{apart}"


def published_text(entry: Entry, kind: str) -> str:
    """A published figure as text."""
    if entry.published is None:
        return "–"
    mean, sd = entry.published
    return FORMS[kind](mean) + (f" ± {FORMS[kind](sd)}" if sd is not None else "")


def ratio_text(entry: Entry) -> str:
    return "–" if entry.ratio is None else f"{entry.ratio:.2g}"


def markdown(table: Table) -> str:
    """The table as Markdown, one part per problem."""
    return "\n\n".join(_markdown_part(table, problem) for problem in table.study.problems)


def lines(table: Table, problem: str) -> tuple[list[str], list[list[str]]]:
    """Titles and cells of the part of one problem: found, and where there are published figures these and the ratio."""
    titles, rows = [table.study.name or "variant", "seeds"], []
    shown = table.columns[problem]
    of_problem = [row for row in table.rows if row.problem == problem]
    compared = {name: any(row.entries[name].published is not None for row in of_problem) for name in shown}
    for name in shown:
        titles += [column(name).title] + (["paper", "ratio"] if compared[name] else [])
    show_recoveries = any(row.recoveries is not None for row in of_problem)
    titles += ["recoveries"] if show_recoveries else []
    for row in of_problem:
        seeds = f"{len(row.done)} of {len(row.done) + len(row.missing)}"
        if row.diverged:
            seeds += f" ({len(row.diverged)} diverged)"
        cells = [row.label, seeds]
        for name in shown:
            entry, kind = row.entries[name], column(name).kind
            cells.append(text_of(entry, kind))
            cells += [published_text(entry, kind), ratio_text(entry)] if compared[name] else []
        rows.append(cells + ([_count_text(row.recoveries)] if show_recoveries else []))
    return titles, rows


def _count_text(count: int | None) -> str:
    return "–" if count is None else str(count)


def _markdown_part(table: Table, problem: str) -> str:
    titles, rows = lines(table, problem)
    head = f"**{problem}**" + (f" ({special})" if (special := notes(table.study, problem)) else "")
    body = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles), *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join([head, "", *body])


def missing(tables: Sequence[Table]) -> int:
    """Cells that have not ended."""
    return sum(len(row.missing) for each in tables for row in each.rows)
