"""Test the result of `find` as text, as HTML, and over several steps."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from torch import nn

from graphviz_torch import Finding, Graph, find, record
from graphviz_torch.findings.check import CheckedCounts, Findings
from graphviz_torch.findings.repeated_findings import RunFindings
from graphviz_torch.graph import Node, Parameter, TensorMeta

LOST = Finding(
    "never-called",
    "warning",
    "head.weight got no gradient.",
    "Call head.",
    "never called",
    "a.py:3",
)
NOTE = Finding("frozen", "info", "body is frozen.")


def test_a_healthy_recording_says_what_was_checked() -> None:
    model = nn.Linear(2, 1)
    with record(model) as recording:
        model(torch.randn(4, 2)).sum().backward()
    nodes = len(recording.graph.nodes)
    assert str(find(recording)) == f"{nodes} nodes, 2 parameters: nothing found"


def test_findings_print_as_a_table_with_what_to_try_below_each() -> None:
    assert Findings([LOST, NOTE, NOTE], CheckedCounts(7, 1)).to_text(notes=True).splitlines()[
        :-2
    ] == [
        "7 nodes, 1 parameter: 1 warning, 2 notes",
        "warning never-called  a.py:3",
        "        head.weight got no gradient.",
        "        -> Call head.",
        "info    frozen",
        "        body is frozen.",
    ]


def test_a_message_fits_the_terminal_unless_all_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    long = Finding("frozen", "warning", "many words " * 20, "try this " * 20)
    found = Findings([long], CheckedCounts(7, 1))
    assert max(map(len, str(found).splitlines())) <= 80
    assert found.to_text(wide=True).splitlines()[2:] == [
        f"        {long.message}",
        f"        -> {long.advice}",
    ]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "50")
    assert 40 < max(map(len, str(found).splitlines())) <= 50


def test_a_notebook_shows_a_table_in_which_a_name_is_no_markup() -> None:
    hostile = Finding("frozen", "info", "<script>alert(1)</script> & co")
    page = Findings([LOST, hostile], CheckedCounts(7, 1))._repr_html_()
    assert "<script>" not in page
    rows = ElementTree.fromstring(f"<div>{page}</div>").findall(".//tbody/tr")
    cells = [[cell.text or "" for cell in row] for row in rows]
    assert cells[0][:5] == [
        "warning", "never-called", LOST.message, "Call head.", "a.py:3",
    ]  # fmt: skip
    assert cells[1][2] == "<script>alert(1)</script> & co"
    assert page.partition("<details>")[0].count("<th>") == 5  # one backward: no column of steps


def test_what_differs_in_numbers_alone_is_one_thing_with_its_steps() -> None:
    grows = [Finding("exploding-gradient", "warning", f"from 1 to {n}e5") for n in (2, 3)]
    other = Finding("exploding-gradient", "warning", "from 1 to 2e5", where="b.py:9")
    found = RunFindings()
    for step, each in enumerate((grows[0], other, grows[1])):
        found.add(step, [each])
    once = found.merge(3)
    assert [(f.where, f.steps) for f in once] == [("", (0, 2)), ("b.py:9", (1,))]
    assert once[0].message == "from 1 to 3e5"  # the last one's, as its nodes are
    zeros = RunFindings()
    for step, given in enumerate(("1 zero", "120 zeros", "2 copies", "1 copy")):
        zeros.add(step, [Finding("nonfinite-value", "error", f"log was given {given}.")])
    assert [found.steps for found in zeros.merge(4)] == [(0, 1), (2, 3)]


@pytest.mark.parametrize(
    ("other", "severity"), [("b.0", "info"), ("bc", "warning"), ("", "warning")]
)
def test_a_layer_that_another_step_calls_is_no_mistake(other: str, severity: str) -> None:
    lost = Finding("never-called", "warning", "b.0.weight got no gradient: b was never called.")
    more = Finding("dead-relu", "warning", "relu is dead.")
    meta, found = TensorMeta((3,), "float32", "cpu"), RunFindings()
    called = Parameter(f"{other}.weight", meta, True, module_called=True)
    found.add(0, [lost, more])
    found.add(1, [more], [Graph((), parameters=(called,))])
    severities = {each.rule: each.severity for each in found.merge(2)}
    assert severities == {"never-called": severity, "dead-relu": "warning"}


@pytest.mark.parametrize(
    ("other", "severity"), [("first", "info"), ("first.0", "warning"), ("", "warning")]
)
def test_a_parameter_that_only_some_steps_use_is_no_mistake(other: str, severity: str) -> None:
    """The first state of truncated backpropagation is used by the first window alone."""
    model = nn.Linear(2, 2)
    model.first = nn.Parameter(torch.zeros(2))
    with record(model) as recording:
        model(torch.ones(3, 2)).square().sum().backward()
    unused = find(recording)
    assert [each.severity for each in unused if each.rule == "output-not-in-loss"] == ["warning"]
    found = RunFindings()
    if other:
        used = Parameter(other, TensorMeta((2,), "float32", "cpu"), True, node=0)
        found.add(0, [], [Graph((Node(0, "AccumulateGrad", ()),), parameters=(used,))])
    found.add(1, unused)
    severities = {each.rule: each.severity for each in found.merge(2)}
    assert severities["output-not-in-loss"] == severity


def test_a_cause_that_holds_in_each_of_several_steps_is_told_once() -> None:
    body, head = nn.Linear(2, 2), nn.Linear(2, 1)
    with record(nn.ModuleList([body, head])) as recording:
        for _ in range(3):
            head(body(torch.randn(4, 2)).detach()).sum().backward()
    (found,) = find(recording)
    assert (found.rule, found.steps) == ("cut-gradient", (0, 1, 2))


def test_the_steps_of_a_finding_that_holds_in_some_are_named() -> None:
    from dataclasses import replace

    some = replace(LOST, steps=(0, 1, 2, 6))
    text = str(Findings([some], CheckedCounts(7, 1, 9)))
    assert "backwards 1 to 3, 7 of 9" in text


def test_where_no_gradient_was_recorded_that_is_said() -> None:
    layer = nn.Linear(2, 1)
    with record(layer, gradients="finite") as recording:
        layer(torch.ones(3, 2)).square().mean().backward()
    assert find(recording).checked.missing == ("gradients not recorded",)
    with record(layer) as recording:
        layer(torch.ones(3, 2)).square().mean().backward()
    assert find(recording).checked.missing == ()
