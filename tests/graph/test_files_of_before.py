"""Graphs saved before a change of names load, and `find` says of them what it said then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphviz_torch import find, load
from graphviz_torch.graph import Cause, RetainedGraphs, Step
from graphviz_torch.graph.json import from_json, to_json

SAVED = Path(__file__).parents[1] / "golden" / "saved"


@pytest.mark.parametrize("name", ["trace", "recording", "failed"])
def test_a_graph_saved_before_gives_the_same_findings(name: str) -> None:
    graph = load(SAVED / f"{name}.json")
    found = [[f.rule, f.severity, [*f.nodes], [*f.transfers]] for f in find(graph)]
    assert found == json.loads((SAVED / f"{name}.findings.json").read_text())
    assert from_json(to_json(graph)) == graph


def test_events_saved_before_give_the_same_findings_word_for_word() -> None:
    """Each line: a graph with events of every kind, as version 2 wrote it, and what was found."""
    for line in (SAVED / "events.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert row["graph"]["version"] == 2
        graph = from_json(json.dumps(row["graph"]))
        assert [
            f"{f.rule} {f.severity} {f.cause}: {f.message} -> {f.advice} at {f.where} {[*f.nodes]}"
            for f in find(graph)
        ] == row["findings"]
        assert from_json(to_json(graph)) == graph


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("kind", "party", r"graph\.events\.kind holds a wrong value: 'party' is none of"),
        ("label", 3, r"graph\.events\.label holds a wrong value: an int is not text"),
        ("more", "x", r"graph\.events has an unknown field 'more'"),
    ],
)
def test_wrong_events_of_before_are_refused(name: str, value: Any, reason: str) -> None:
    data = json.loads((SAVED / "events.jsonl").read_text().splitlines()[0])["graph"]
    data["events"]["items"][name] = {"distinct": [value], "at": [0]}
    with pytest.raises(ValueError, match=reason):
        from_json(json.dumps(data))


@pytest.mark.parametrize("detail", ["9" * 5_000, "-1", "many", "\u0663", "made 9e9 NaN and x: "])
@pytest.mark.parametrize("kind", ["step", "eval", "nonfinite", "clip", "unregistered"])
def test_a_detail_that_says_nothing_counts_nothing(kind: str, detail: str) -> None:
    data = json.loads((SAVED / "events.jsonl").read_text().splitlines()[0])["graph"]
    data["events"]["items"]["kind"]["distinct"] = [kind]
    data["events"]["items"]["detail"] = {"distinct": [detail], "at": [0]}
    [event] = from_json(json.dumps(data)).events
    counts = [getattr(event, name, 0) for name in ("foreign", "nan", "inf")]
    assert counts == [0, 0, 0]
    assert find(from_json(json.dumps(data))) is not None


def test_what_a_field_is_called_today_has_its_value_of_before() -> None:
    graph = load(SAVED / "recording.json")
    retained = RetainedGraphs(2, "total", "train.py:30", None)
    assert graph.step == Step(1024.0, retained, "train.py:35", 0)
    assert {p.name: p.stepped for p in graph.parameters}["head.weight"] is True
    assert {p.name: p.module_called for p in graph.parameters}["unused.weight"] is False
    failure = load(SAVED / "failed.json").failure
    assert failure is not None
    assert failure.modified is not None
    assert failure.causes == (Cause("add_", "train.py:45", (13,), "e.add_(1)"),)
