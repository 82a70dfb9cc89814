"""`graphviz-torch diff`: compare two saved graphs, or two JSON reports of `rehearse`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...graph.files.file import json_of
from ...graph.files.limits import Limits
from .files import DIFFERENCES, read_saved, say
from .options import add_options, given_options
from .pictures import draw

if TYPE_CHECKING:
    from ...compare import GraphDiff

_REHEARSAL = b'"graphviz_torch rehearsal"'  # text at the beginning of a JSON report of `rehearse`
# Kinds of changes for which `--fail-on structure` returns 1.
_STRUCTURE = ("shape", "dtype", "device", "attribute")


def add_diff(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `diff`."""
    from ... import diff

    one = "a saved graph; run.json.gz@0 is step 0 (default: the last)"
    for name, text in (("a", one), ("b", "a second graph")):
        parser.add_argument(name, type=Path, metavar=name.upper(), help=f"{text}; - reads stdin")
    text = "draw both graphs in one picture with the differences marked; - writes to stdout"
    parser.add_argument("-o", "--out", type=Path, help=text)
    text = "format of the differences on stdout (default text)"
    parser.add_argument("--format", choices=("text", "json"), default="text", help=text)
    parser.add_argument("--wide", action="store_true", help="show every line, however long")
    text = (
        "difference: exit with 1 if the graphs differ (default); structure: only if nodes, edges, "
        "shapes, dtypes, devices or attributes differ; never: exit with 0"
    )
    choices = ("difference", "structure", "never")
    parser.add_argument("--fail-on", choices=choices, default="difference", help=text)
    text = "report the first operation whose values differ; needs `run --fingerprints`"
    parser.add_argument("--fingerprints", action="store_true", help=text)
    add_options(parser, diff)
    parser.set_defaults(run=_diff)


def _diff(parsed: argparse.Namespace) -> int:
    from ... import Graph, diff

    if parsed.a == parsed.b == Path("-"):
        raise ValueError("only one of the two graphs can come from stdin.")
    titles = _title(parsed.a), _title(parsed.b)
    if (reports := _reports(parsed.a, parsed.b)) is not None:
        return _rehearsals(parsed, *reports)
    if parsed.fingerprints:
        return _compare_values(parsed, titles)
    a, b = read_saved(parsed.a), read_saved(parsed.b)
    difference = diff(a, b, titles=titles, **given_options(parsed, diff))
    if parsed.out is not None:
        draw(difference, parsed.out, None)
    if parsed.out != Path("-"):
        if parsed.format == "json":
            say(_json(difference))
        else:
            say(difference.to_text(wide=parsed.wide), DIFFERENCES)
            if not (isinstance(a, Graph) and isinstance(b, Graph)):
                say("After the first step, the file of a run has norms with two digits only.")
    return int(_fails(difference, parsed.fail_on))


def _compare_values(parsed: argparse.Namespace, titles: tuple[str, str]) -> int:
    """Print the first operation whose values differ; return 1 if there is one, else 0.

    Two training runs are compared step by step, up to the first step that differs. With
    `--fail-on never`, return 0 in any case.
    """
    from ...compare import first_difference
    from ...graph import Training

    a, b = read_saved(parsed.a), read_saved(parsed.b)
    pairs = []
    if isinstance(a, Training) and isinstance(b, Training):
        steps_of_b = {step.number: step for step in b.steps}
        pairs = [(one, steps_of_b[one.number]) for one in a.steps if one.number in steps_of_b]
    if not pairs:
        found = first_difference(a, b, titles=titles)
    for one, other in pairs:  # a difference in one step changes the weights of all later steps
        at = (f"{titles[0]}@{one.number}", f"{titles[1]}@{one.number}")
        found = first_difference(one, other, titles=at)
        if found:
            break
    if parsed.out is not None:
        draw(found, parsed.out, None)
    if parsed.out != Path("-"):
        if parsed.format == "json":
            names = ("equal", "equal_to", "before", "after", "relative", "at_end", "kind")
            head = {"format": "graphviz_torch first difference", "version": 1}
            say(json.dumps(head | {name: getattr(found, name) for name in names}))
        else:
            say(found.to_text())
    return int(parsed.fail_on != "never" and bool(found))


def _reports(a: Path, b: Path) -> tuple[Any, Any] | None:
    """Return the contents of both files if they are JSON reports of `rehearse`, else None."""
    found = []
    for path in (a, b):
        if path.suffix != ".json" or not path.is_file():
            return None
        with path.open("rb") as file:
            if _REHEARSAL not in file.read(len(_REHEARSAL) + 20):
                return None
        found.append(_report(path))
    return found[0], found[1]


def _report(path: Path) -> Any:
    """Return the content of a JSON report of `rehearse`.

    Raises:
        ValueError: if the file is not JSON, or exceeds the limits for saved graphs.
    """
    size = path.stat().st_size
    limits = Limits(size)
    try:
        limits.check_text(size)
        text = path.read_bytes()
        limits.check(text)
        return json_of(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _rehearsals(parsed: argparse.Namespace, a: Any, b: Any) -> int:
    """Print the differences between two reports of `rehearse`, rank by rank.

    Return 1 if they differ, else 0; with `--fail-on never`, return 0 in any case.
    """
    from ...rehearsal import compare_rehearsals

    if parsed.out is not None or parsed.fingerprints:
        raise ValueError(
            "-o and --fingerprints are for graphs: for two rehearsals, diff prints text or JSON."
        )
    one, two = (each if isinstance(each, list) else [each] for each in (a, b))
    for report in (*one, *two):
        compare_rehearsals(report, report)  # raises ValueError if `report` is malformed
    by_rank = {report["rank"]: report for report in two}
    if len(one) == len(two) == 1:
        by_rank = {one[0]["rank"]: two[0]}
    pairs = [(each, by_rank[each["rank"]]) for each in one if each["rank"] in by_rank]
    if not pairs:
        raise ValueError(
            f"{parsed.a} and {parsed.b} are reports of different ranks: pass reports of one rank."
        )
    differences = [compare_rehearsals(*pair) for pair in pairs]
    if parsed.format == "json":
        say(json.dumps([each.to_dict() for each in differences]))
    else:
        for (before, _), each in zip(pairs, differences, strict=True):
            head = f"rank {before['rank']:,}:\n" if len(pairs) > 1 else ""
            say(head + each.to_text())
    return int(parsed.fail_on != "never" and any(differences))


def _title(path: Path) -> str:
    return "standard input" if path == Path("-") else path.name


def _fails(difference: GraphDiff, fail_on: str) -> bool:
    if fail_on != "structure":
        return fail_on == "difference" and bool(difference)
    nodes_and_edges = (
        difference.added or difference.removed or difference.added_edges or difference.removed_edges
    )
    return bool(nodes_and_edges) or any(each.what in _STRUCTURE for each in difference.changed)


def _json(difference: GraphDiff) -> str:
    return json.dumps(
        {
            "format": "graphviz_torch diff",
            "version": 1,
            "added": difference.added,
            "removed": difference.removed,
            "changed": [
                {name: getattr(each, name) for name in ("a", "b", "what", "before", "after")}
                for each in difference.changed
            ],
            "added_edges": difference.added_edges,
            "removed_edges": difference.removed_edges,
        }
    )
