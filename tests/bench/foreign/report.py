"""Print totals of a results file, and write the page that lists each architecture."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

Row = dict[str, Any]

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
_MOST_NAMES = 8  # largest number of models in a line


def table(rows: list[Row]) -> str:
    """Return the totals as text: stages, checks that failed, warnings by rule, costs, stills."""
    return "\n".join(_lines(rows))


def _lines(rows: list[Row]) -> Iterator[str]:
    ran = [row for row in rows if "cpu" in row]
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
    if "cpu" not in row:
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
    for title, least in (
        ("all models", 0.0),
        ("bare steps of 10 ms or more", 0.01),
        ("bare steps of 50 ms or more", 0.05),
    ):
        ratios = sorted(row["cpu"][1] / row["cpu"][0] for row in ran if row["cpu"][0] > least)
        if len(ratios) > 1:
            tenths = statistics.quantiles(ratios, n=10, method="inclusive")
            marks = ", ".join(f"{10 * (i + 1)}% of them below {tenths[i]:.2f}" for i in (0, 4, 8))
            yield (
                f"CPU time of the recorded step divided by that of the bare step, for {title} "
                f"({len(ratios)} models): {marks}"
            )
    more = [row["memory"][1] - row["memory"][0] for row in ran]
    median = statistics.median(more) / 2**20
    yield f"additional memory of the recorded step: median {median:.1f} MiB"
    exact = [row["flops"] for row in ran if len(row.get("flops", ())) == 3 and not row["flops"][1]]
    equal = sum(ours == theirs for ours, _, theirs in exact)
    yield (
        f"forwards with the FLOPs of PyTorch's counter: {equal} of {len(exact)} whose FLOPs are "
        "completely known"
    )


def write_page(rows: list[Row]) -> None:
    """Write docs/models.md: the recorded models by library, with versions and the date."""
    PAGE.write_text("\n".join(_page(rows)) + "\n")


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


def _page(rows: list[Row]) -> Iterator[str]:
    ran = [row for row in rows if "cpu" in row]
    torch = ran[0]["torch"].partition("+")[0] if ran else ""
    day = datetime.now(timezone.utc).date()
    yield _HEAD
    yield f"\nPyTorch {torch}, on a processor without a GPU, {day}.\n"
    yield "| library | version | recorded | passed | could not be built or run here |"
    yield "|---|---|---|---|---|"
    for library in sorted({row["library"] for row in rows}):
        own = [row for row in rows if row["library"] == library]
        recorded = [row for row in own if "cpu" in row]
        passed = sum(not row["faults"] for row in recorded)
        counts = f"{len(recorded)} | {passed} | {len(own) - len(recorded)}"
        yield f"| {_title(library)} | {_version(library)} | {counts} |"
    yield ""
    yield from (f"- {line}" for line in _measures(ran))
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
