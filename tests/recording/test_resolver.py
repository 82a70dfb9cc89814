"""Test that records of a run become values of one graph, with records made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from graphviz_torch.findings.rules.unchanging import UnchangingTerm
from graphviz_torch.graph import Operand, TensorMeta
from graphviz_torch.internals.frames import CodePosition
from graphviz_torch.recording.backward import Backward, BackwardCall
from graphviz_torch.recording.program.events import Events, NodeLine, TensorRecord, UserLine
from graphviz_torch.recording.program.source_lines import Origins
from graphviz_torch.recording.resolver import Resolver

SCALAR = TensorMeta((), "float32", "cpu")
CALL = BackwardCall(None, [], 0, False, False, True, None)
SITE: CodePosition = ((lambda: None).__code__, 0)
# Node 0 has the sequence number 11, node 1 has 12, and nodes 2 and 3 are leaves.
NUMBERS, LEAVES = [11, 12, -1, -1], {77: 2, 33: 3}


def resolver(position: int = 0) -> Resolver:
    """Return a resolver for a graph whose first node was created at "train.py:3"."""
    reading: Any = SimpleNamespace(leaves=LEAVES)
    backward = Backward(position, CALL, reading, NUMBERS, frozenset(), {}, {}, {}, None)
    origins: Origins[Any] = Origins(11)
    origins.add_nodes(11, 12, (SITE, None))
    program: Any = SimpleNamespace(origins=origins)
    return Resolver(backward, program, lambda place: "train.py:3" if place else "")


def test_nodes_and_leaves_become_ids_and_others_are_skipped() -> None:
    assert resolver().nodes([12, 99, 11], [77, 78]) == (1, 0, 2)


def test_the_leaves_of_a_set_are_in_the_order_of_the_graph() -> None:
    assert resolver().nodes([12, 11], {33, 77}) == (1, 0, 2, 3)
    assert resolver().nodes([12, 11], [33, 77]) == (1, 0, 3, 2)


def test_only_the_graph_of_the_backward_that_ran_a_node_has_the_node() -> None:
    assert [resolver(1).ran_node(5, run) for run in (1, 2, 3)] == [None, 5, None]


def test_records_become_operands_and_lines_become_text() -> None:
    first, leaf = TensorRecord("loss", SCALAR, 11, 0), TensorRecord("w", SCALAR, None, 77)
    noted = ((first, leaf), NodeLine(11), NodeLine(12), UserLine(SITE), UserLine(None), 3, None)
    operands = (Operand("loss", SCALAR, "train.py:3", 0), Operand("w", SCALAR, "", 2))
    assert resolver().value(noted) == (operands, "train.py:3", "", "train.py:3", "", 3, None)


def test_an_event_gets_its_line_its_nodes_and_the_number_of_occurrences() -> None:
    events = Events()
    for count in (1, 2):
        used = TensorRecord("task", SCALAR, 12, 0)
        events.note(UnchangingTerm(), SITE, [11], [77], term=used, count=count)
    (record,) = events.noted_before(1)
    task = Operand("task", SCALAR, "", 1)
    expected = UnchangingTerm(where="train.py:3", nodes=(0, 2), times=2, term=task, count=2)
    assert resolver().event(record) == expected
