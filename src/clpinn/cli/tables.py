"""Results as tables on standard output. Each function takes the plain values that --json prints."""

import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

MOST_LINES = 25
"""Lines of a table of values; of more values some are shown, evenly spread."""


def print_line(text: str, soft_wrap: bool = False) -> None:
    Console().print(Text(text), soft_wrap=soft_wrap)


def print_problems(descriptions: dict[str, dict[str, Any]]) -> None:
    table = Table(title="Problems", show_lines=True)
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("equation, parameter box, evaluation")
    for name, description in descriptions.items():
        grids = f"{_product(description['candidates'])} thetas on a {_product(description['evaluation_grid'])} grid"
        lines = [
            description["equation"],
            _box_text(description["parameters"], ", "),
            f"{grids}; reference: {description['reference'] or 'none'}",
        ]
        table.add_row(Text(name), Text("\n".join(lines)))
    Console().print(table)
    print_line("More about one of them: clpinn problems NAME. Your own: clpinn problems my_pde.py:MyProblem")


def print_problem(name: str, description: dict[str, Any]) -> None:
    rows = {
        "equation": description["equation"] or "–",
        "coordinates": _box_text(description["coordinates"]),
        "parameters": _box_text(description["parameters"]) or "none",
        "outputs": ", ".join(description["outputs"]),
        "hard conditions": "yes" if description["hard_conditions"] else "no",
        "points per task": ", ".join(f"{count} {key}" for key, count in description["points_per_task"].items()),
        "candidate thetas": _product(description["candidates"]),
        "evaluation grid": _product(description["evaluation_grid"]),
        "reference": description["reference"] or "none: evaluation reports residuals only",
    }
    if description["reference_text"]:
        rows["reference put into\nthe problem"] = "\n".join(description["reference_text"])
    if "plot" in description:
        rows["picture"] = description["plot"]
    table = Table(title=Text(name), show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for key, value in rows.items():
        table.add_row(key, Text(value))
    Console().print(table)


def print_metrics(metrics: dict[str, Any], folder: Path) -> None:
    """Errors of a run per output, its residual, and its outcome if `metrics` has one."""
    screen = Console()
    if metrics["has_reference"]:
        screen.print(_errors_table(metrics))
    estimated = metrics.get("estimated")
    if estimated is not None:
        _print_estimates(screen, estimated)
    elif not metrics["has_reference"]:
        screen.print("The problem has no reference, and the run is too short to estimate errors at its end.")
        print_line(f"To estimate them: clpinn evaluate {folder}")
    if metrics.get("correction") is not None:
        print_line(_correction_text(metrics["correction"]), soft_wrap=True)
    validation = metrics.get("validation")  # natural gradient only
    validation_text = "" if validation is None else f", validation loss {_number(validation, '.1e')}"
    screen.print(f"mean |residual| {_number(metrics['res_pde_macro'])}{validation_text}", highlight=False)
    if metrics.get("not_learnt"):
        screen.print(f"not learnt: {', '.join(metrics['not_learnt'])}", style="bold red", markup=False, highlight=False)
    if "outcome" in metrics:
        activities = metrics.get("seconds", {})
        beside = {name: activities.get(name, 0.0) for name in ("evaluation", "correction")}
        training = metrics["wall_seconds"] - sum(beside.values())
        line = f"ended ({metrics['outcome']}) after {metrics['steps']} steps, {training:.0f} s"
        beside = {"compilation": metrics.get("compile_seconds", 0.0)} | beside
        line += "".join(f", {seconds:.0f} s of {name}" for name, seconds in beside.items() if seconds >= 1)
        if metrics["method"] != "free":
            line += f"; {metrics['active']} active and {metrics['replay']} replay tasks, {metrics['queries']} queries"
        screen.print(line, highlight=False)
    untried = metrics.get("correction") is None
    if untried and estimated is not None and estimated["resolved"] > 0.5 and estimated["thetas"] > 1:
        print_line(f"to correct it at every theta: clpinn adapt {folder} --box", soft_wrap=True)
    print_line(f"run: {folder}")


def _correction_text(correction: dict[str, Any]) -> str:
    """What the correction over the box did, beside the errors of the network alone."""
    if not correction["used"]:
        return f"not corrected: {correction['reason']}"
    text = f"corrected by estimated errors at {correction['thetas']} thetas. {correction['reason']}"
    alone = [
        f"{name} {_number(errors['rel_l2_macro'], '.1e')} (worst {_number(errors['rel_l2_worst'], '.1e')})"
        for name, errors in correction["network_outputs"].items()
    ]
    return text + (f" True errors of the network alone: {', '.join(alone)}." if alone else "")


def _errors_table(metrics: dict[str, Any]) -> Table:
    table = Table(title=Text(f"{metrics['problem']}, {metrics['method']}, seed {metrics['seed']}"))
    for header in ("output", "macro rel. L2", "worst rel. L2", "worst at", "MSE", "largest"):
        table.add_column(header, justify="left" if header in ("output", "worst at") else "right")
    for name, errors in metrics["outputs"].items():
        macro, worst, mse, largest = (
            _number(errors[key]) for key in ("rel_l2_macro", "rel_l2_worst", "mse", "max_abs")
        )
        worst_at = ", ".join(f"{key} = {value:.4g}" for key, value in errors.get("worst_at", {}).items())
        table.add_row(name, macro, worst, worst_at, mse, largest)
    return table


def _print_estimates(screen: Console, estimated: dict[str, Any]) -> None:
    """Estimated errors over the parameters, or why there are none."""
    thetas, share = estimated["thetas"], estimated["resolved"]
    if estimated["outputs"]:
        table = Table(title=Text("estimated errors (90 % spread), no reference used"))
        for header in ("output", "macro rel. L2", "worst rel. L2", "worst at"):
            table.add_column(header, justify="left" if header in ("output", "worst at") else "right")
        for name, figures in estimated["outputs"].items():
            worst_at = ", ".join(f"{key} = {value:.4g}" for key, value in figures["worst_at"].items())
            table.add_row(name, *(_spread(figures[key]) for key in ("macro", "worst")), worst_at)
        screen.print(table)
    text = f"{share:.0%} of {thetas} estimates are resolved"
    if share < 1:
        text += "; the error at the others is not known, and may be large"
    screen.print(text, style="bold red" if share < 1 else None, highlight=False)


def _spread(figure: dict[str, float | None]) -> str:
    numbers = (_number(figure[key], ".1e").replace("e-0", "e-").replace("e+00", "") for key in ("value", "low", "high"))
    return "{} ({}–{})".format(*numbers)


def print_heads(rows: list[dict[str, Any]], parameters: list[str], outputs: list[str], file: Path) -> None:
    """Estimates, losses of heads, and errors at each theta before and after; `outputs` are those with a reference.

    Below the table, the reason for each head or correction that is not used.
    """
    used = sum(row["used"] for row in rows)
    kind = "head" if "loss_before" in rows[0] else "correction"
    table = Table(title=Text(f"{kind}s at {len(rows)} thetas, {used} of them used"))
    figures = {"loss": "physics loss"} if kind == "head" else {}
    figures |= {"estimate": "estimated error"}
    for header in [*parameters, *figures.values(), *(f"error of {name}" for name in outputs), "answers"]:
        table.add_column(header, justify="right")
    for row in rows:
        cells = [f"{row[name]:.6g}" for name in parameters]
        cells += [_change(row[f"{key}_before"], row[f"{key}_after"], ".1e") for key in figures]
        cells += [_change(row["rel_l2_before"][name], row["rel_l2_after"][name], ".2e") for name in outputs]
        table.add_row(*cells, kind if row["used"] else "base")
    Console().print(table)
    for row in rows:
        if not row["used"]:
            theta = ", ".join(f"{name} = {row[name]:.6g}" for name in parameters)
            print_line(f"{theta}: {row['reason']}", soft_wrap=True)
    print_line(f"surrogate with {kind}s: {file}")


def print_box(summary: dict[str, Any], file: Path) -> None:
    """Errors before and after a correction over the box, at thetas that it had not seen."""
    verdict = "used" if summary["used"] else "not used, the base stays"
    table = Table(title=Text(f"correction over the box, from {summary['thetas']} thetas: {verdict}"))
    outputs = summary["outputs"]
    kinds = {"": "estimated"} | ({"true_": "true"} if any("true_before" in row for row in outputs.values()) else {})
    for header in ["output", *(f"{kind} {figure} error" for kind in kinds.values() for figure in ("macro", "worst"))]:
        table.add_column(header, justify="right")
    for name, row in outputs.items():
        cells = [
            _change(row[f"{kind}before"][figure], row[f"{kind}after"][figure], ".1e")
            for kind in kinds
            for figure in ("macro", "worst")
        ]
        table.add_row(name, *cells)
    if outputs:
        Console().print(table)
    print_line(summary["reason"], soft_wrap=True)
    if summary["resolved"] < 1:
        share = f"{100 * (1 - summary['resolved']):.0f} %"
        print_line(f"The error of {share} of the thetas is not known; they are not corrected.", soft_wrap=True)
    print_line(f"surrogate: {file}")


def print_prediction(title: str, prediction: dict[str, Any], error: Any) -> None:
    """The values of a field on a point or a line, if there are few; otherwise statistics per output. Then its error."""
    dimensions, values = len(prediction["grid"]), prediction.get("values")
    if values is not None and dimensions == 0:
        print_line(title, soft_wrap=True)
        for name, value in values.items():
            print_line(f"{name} = {_number(value, '.10g')}")
    elif values is not None and dimensions == 1:
        thetas = {name: value for name, value in prediction["theta"].items() if isinstance(value, list)}
        rows = thetas | prediction["coordinates"] | values
        table = Table(title=Text(title))
        for name in rows:
            table.add_column(Text(name), justify="right")
        lines = list(zip(*rows.values(), strict=True))
        shown = sorted({round(i * (len(lines) - 1) / (MOST_LINES - 1)) for i in range(MOST_LINES)})
        for i in shown if len(lines) > MOST_LINES else range(len(lines)):
            table.add_row(*(_number(value, ".10g") for value in lines[i]))
        Console().print(table)
        if len(lines) > MOST_LINES:
            print_line(f"{MOST_LINES} of {len(lines)} values. For all of them use --json or --out line.csv.")
    else:
        table = Table(title=Text(title))
        for header in ("output", "lowest", "mean", "highest"):
            table.add_column(header, justify="left" if header == "output" else "right")
        for name, statistics in prediction["outputs"].items():
            table.add_row(Text(name), *(_number(statistics[key], ".6g") for key in ("min", "mean", "max")))
        Console().print(table)
    if error is not None:
        print_line(str(error), soft_wrap=True)
    if "file" in prediction:
        print_line(f"field: {prediction['file']}")


def print_fit(title: str, summary: dict[str, Any]) -> None:
    """Estimates with standard errors and intervals, the noise, and what to know before using them."""
    table = Table(title=Text(title))
    for header in ("parameter", "value", "standard error", "95 % interval"):
        table.add_column(header, justify="left" if header == "parameter" else "right")
    for name, value in summary["values"].items():
        low, high = (_number(end, ".6g") for end in summary["intervals"][name])
        error = _number(summary["standard_errors"][name], ".2g")
        table.add_row(Text(name), _number(value, ".6g"), error, f"{low} to {high}")
    Console().print(table)
    for name, noise in summary["noise"].items():
        print_line(f"noise of {name}: {_number(noise, '.3g')}, {summary['measurements'][name]} measurements")
    for note in summary["notes"]:
        print_line(f"note: {note}", soft_wrap=True)
    if "plot" in summary:
        print_line(f"picture: {summary['plot']}")


def _number(value: float | None, form: str = ".3e") -> str:
    """A number as text; JSON's null stands for a number that is not finite."""
    return "not finite" if value is None or not math.isfinite(value) else f"{value:{form}}"


def _change(before: float | None, after: float | None, form: str) -> str:
    return f"{_number(before, form)} → {_number(after, form)}"


def _interval(axis: dict[str, Any]) -> str:
    scale = "" if axis["scale"] == "linear" else f" {axis['scale']}"
    return f"[{axis['low']:g}, {axis['high']:g}]{scale}"


def _box_text(axes: dict[str, Any], separator: str = "\n") -> str:
    return separator.join(f"{name} ∈ {_interval(axis)}" for name, axis in axes.items())


def print_studies(rows: list[dict[str, Any]]) -> None:
    table = Table(title="Studies")
    for title in ("name", "question", "in the paper", "cells"):
        table.add_column(title, no_wrap=title == "name", style="bold" if title == "name" else None)
    for row in rows:
        table.add_row(row["name"], row["question"], row["source"], str(row["cells"]))
    Console().print(table)
    print_line("To see what one would do: clpinn study run NAME --dry. Your own: clpinn study run my_study.py:Sweep")


def print_overview(name: str, values: dict[str, Any]) -> None:
    """The cells of a study with their states, and the hours that are left."""
    table = Table(title=name)
    for title in ("problem", "row", "seed", "state", "cell"):
        table.add_column(title)
    for cell in values["cells"]:
        table.add_row(*(Text(str(cell[key])) for key in ("problem", "row", "seed", "state", "cell")))
    Console().print(table)
    done = sum(cell["done"] for cell in values["cells"])
    print_line(
        f"{done} of {len(values['cells'])} cells are done. The rest takes about {values['hours']:.2g} hours on all "
        "cores of this machine, one after the other."
    )


def print_study(tables: list[Any]) -> None:
    """Tables of a study, one per problem."""
    from clpinn.studies.tables import lines, notes

    for each in tables:
        print_line(each.header, soft_wrap=True)
        for problem in each.study.problems:
            special = notes(each.study, problem)
            titles, rows = lines(each, problem)
            table = Table(title=Text(f"{problem}, {special}" if special else problem))
            for title in titles:
                table.add_column(title, overflow="fold")  # a narrow terminal must not cut off digits
            for row in rows:
                table.add_row(*map(Text, row))
            Console().print(table)


def _product(shape: list[int]) -> str:
    return "×".join(map(str, shape)) or "1"
