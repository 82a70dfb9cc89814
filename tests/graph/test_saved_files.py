"""Test that graphs saved by earlier versions load, with the findings of that time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphviz_torch import find, load
from graphviz_torch.graph import Cause, RetainedGraphs, Step
from graphviz_torch.graph.json import from_json, to_json

SAVED = Path(__file__).parents[1] / "golden" / "saved"


@pytest.mark.parametrize("name", ["trace", "recording", "failed"])
def test_a_saved_graph_gives_the_same_findings(name: str) -> None:
    graph = load(SAVED / f"{name}.json")
    found = [[f.rule, f.severity, [*f.nodes], [*f.transfers]] for f in find(graph)]
    assert found == json.loads((SAVED / f"{name}.findings.json").read_text())
    assert from_json(to_json(graph)) == graph


def test_saved_events_give_the_same_findings_word_for_word() -> None:
    """Each line: a graph with events of every kind, and what was found."""
    for line in (SAVED / "events.jsonl").read_text().splitlines():
        row = json.loads(line)
        graph = from_json(json.dumps(row["graph"]))
        assert [
            f"{f.rule} {f.severity} {f.cause}: {f.message} -> {f.advice} at {f.where} {[*f.nodes]}"
            for f in find(graph)
        ] == row["findings"]
        assert to_json(from_json(to_json(graph))) == to_json(graph)  # a NaN is equal to no other


def test_a_saved_field_has_its_value() -> None:
    graph = load(SAVED / "recording.json")
    retained = RetainedGraphs(2, "total", "train.py:30", None)
    assert graph.step == Step(1024.0, retained, "train.py:35", 0)
    assert {p.name: p.stepped for p in graph.parameters}["head.weight"] is True
    assert {p.name: p.module_called for p in graph.parameters}["unused.weight"] is False
    failure = load(SAVED / "failed.json").failure
    assert failure is not None
    assert failure.modified is not None
    assert failure.causes == (Cause("add_", "train.py:45", (13,), "e.add_(1)"),)
