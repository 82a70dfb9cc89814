"""Print totals of a results file, and write the page that lists each architecture."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

Row = dict[str, Any]

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
_BARE_STEPS = (0.0, 0.001, 0.01, 0.05, math.inf)  # seconds; bounds of the groups of models
_REASONS = {  # why a model was not recorded -> pattern of the error
    "time limit": "not ended",
    "package that is not installed": "No module named|requires the",
    "memory limit": "alloc",
    "batch norm of a batch of one": "more than 1 value per channel",
    "no parameter or result with a gradient": "no parameter|no result|empty parameter list",
    "arguments that do not fit the forward": "argument|expected|must be|have to|[Ii]nput",
    "another version of a library": "import name|relative import|has no attribute",
}
_MOST_NAMES = 8  # largest number of models in a line


def table(rows: list[Row]) -> str:
    """Return the totals as text: stages, checks that failed, warnings by rule, costs, stills."""
    return "\n".join(_lines(rows))


def _lines(rows: list[Row]) -> Iterator[str]:
    ran = [row for row in rows if "nodes" in row]
    yield f"{len(rows)} models, {len(ran)} recorded"
    stages = Counter((row["library"], _stage(row)) for row in rows)
    yield from (f"  {count:5} {library}: {stage}" for (library, stage), count in stages.items())
    yield "not recorded:"
    errors = _grouped((row["error"][:70], row["name"]) for row in rows if "error" in row)
    yield from (f"  {line}" for line in errors[:25])
    yield "failed checks:"
    for line in _grouped(
        (f"{check}: {text[:90]}", row["name"])
        for row in ran
        for check, text in row["faults"].items()
    ):
        yield f"  {line}"
    yield "findings by rule, warnings and errors:"
    found = [(row, each) for row in ran for each in row.get("findings", ()) if each[0] != "info"]
    yield from (f"  {line}" for line in _grouped((each[1], row["name"]) for row, each in found))
    if ran:
        yield from _measures(ran)


def _stage(row: Row) -> str:
    if "nodes" not in row:
        return f"{row.get('stage', 'killed')}: not run"
    if row["faults"]:
        return "a check failed"
    return "all checks passed" if row["deterministic"] else "passed; not deterministic"


def _grouped(pairs: Iterable[tuple[str, str]]) -> list[str]:
    groups: dict[str, list[str]] = defaultdict(list)
    for key, name in pairs:
        groups[key].append(name)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [f"{len(names):4} {key}  ({', '.join(names[:_MOST_NAMES])})" for key, names in ordered]


def _measures(ran: list[Row]) -> Iterator[str]:
    drawn = [row["still"] for row in ran if "still" in row]
    fit = sum(still["fits"] for still in drawn)
    yield f"pictures that fit a page: {fit} of {len(drawn)} ({fit / max(1, len(drawn)):.1%})"
    timed = [row for row in ran if "seconds" in row]
    for least, below in itertools.pairwise(_BARE_STEPS):
        group = [row for row in timed if least <= row["seconds"][0] < below]
        name = f"bare steps of {least * 1e3:g} ms " + (
            "or more" if math.isinf(below) else f"to {below * 1e3:g} ms"
        )
        yield from _ratios(name, group)
    yield from _ratios("all that were timed", timed)
    more = [row["memory"][1] - row["memory"][0] for row in ran]
    median = statistics.median(more) / 2**20
    yield f"additional memory of the recorded step: median {median:.1f} MiB"
    exact = [row["flops"] for row in ran if len(row.get("flops", ())) == 3 and not row["flops"][1]]
    equal = sum(ours == theirs for ours, _, theirs in exact)
    yield (
        f"forwards with the FLOPs of PyTorch's counter: {equal} of {len(exact)} whose FLOPs are "
        "completely known"
    )


def _ratios(title: str, timed: list[Row]) -> Iterator[str]:
    ratios = sorted(row["seconds"][1] / row["seconds"][0] for row in timed)
    if len(ratios) > 1:
        tenths = statistics.quantiles(ratios, n=10, method="inclusive")
        marks = ", ".join(f"{tenths[i]:.2f}" for i in (0, 2, 6, 8))
        middle = statistics.median(ratios)
        yield (
            f"CPU time of the recorded step divided by that of the bare step, {title} "
            f"({len(ratios)}): median {middle:.2f} (deciles 1, 3, 7 and 9: {marks})"
        )


def _reason(row: Row) -> str:
    """Return the kind of error that kept a model from being recorded."""
    text = row["error"]
    return next(
        (reason for reason, pattern in _REASONS.items() if re.search(pattern, text)),
        "other errors of the model or of its example",
    )


def write_page(rows: list[Row], scaled: list[Row]) -> None:
    """Write docs/models.md: the recorded models by library, with versions and the date.

    Args:
        rows: results of small models.
        scaled: results of models with larger sizes, for the ratio of CPU times alone.
    """
    PAGE.write_text("\n".join(_page(rows, scaled)) + "\n")


_HEAD = """# Models that were recorded

One training step of each model ran three times, with random weights and small sizes: twice without
a recording (a *bare* step), and once with a recording, each in its own process. `python -m
tests.bench.foreign page RESULTS.jsonl` writes this page.

A model *passes* if all of these are true:

- Loss, gradients, updated parameters, buffers and random state of the recorded step are bit-equal
  to those of the bare step. They are not compared for a model that is *not deterministic*, whose
  two bare steps differ.
- The recorded nodes and edges are those that an independent walk over `grad_fn` visits, and the
  gradient norms are those that hooks receive.
- Each parameter has a gradient, or the recording says why it has none.
- The saved file loads as the same graph.
- The still picture, interactive view, TensorBoard graph, text and summary can be made."""


def _page(rows: list[Row], scaled: list[Row]) -> Iterator[str]:
    ran = [row for row in rows if "nodes" in row]
    torch = ran[0]["torch"].partition("+")[0] if ran else ""
    day = datetime.now(timezone.utc).date()
    yield _HEAD
    yield f"\nPyTorch {torch}, on a processor without a GPU, {day}.\n"
    yield "| library | version | recorded | passed | could not be built or run here |"
    yield "|---|---|---|---|---|"
    for library in sorted({row["library"] for row in rows}):
        own = [row for row in rows if row["library"] == library]
        recorded = [row for row in own if "nodes" in row]
        passed = sum(not row["faults"] for row in recorded)
        counts = f"{len(recorded)} | {passed} | {len(own) - len(recorded)}"
        yield f"| {_title(library)} | {_version(library)} | {counts} |"
    yield ""
    yield from (f"- {line}" for line in _measures(ran))
    sized = [row for row in scaled if "seconds" in row]
    size = "models of transformers with a width of 256 and a batch of 16"
    yield from (f"- {line}" for line in _ratios(size, sized))
    yield "\nThe others failed before they were recorded, or did not end in time:\n"
    reasons = Counter(_reason(row) for row in rows if "nodes" not in row)
    yield from (f"- {count} {reason}" for reason, count in reasons.most_common())
    for library in sorted({row["library"] for row in ran}):
        recorded = [row for row in ran if row["library"] == library]
        yield f"\n## {_title(library)}\n"
        plain = [row["name"] for row in recorded if not row["faults"] and row["deterministic"]]
        yield f"| passed |\n|---|\n| {_names(plain)} |"
        random = [row["name"] for row in recorded if not row["faults"] and not row["deterministic"]]
        if random:
            yield f"\n| passed, not deterministic |\n|---|\n| {_names(random)} |"
        failed = [row for row in recorded if row["faults"]]
        if failed:
            yield "\n| failed | check |\n|---|---|"
            yield from (f"| `{row['name']}` | {', '.join(row['faults'])} |" for row in failed)


def _title(library: str) -> str:
    return "TorchLens's menagerie" if library == "classics" else library


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names, key=str.lower))
