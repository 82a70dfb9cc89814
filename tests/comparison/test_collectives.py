"""Test that `diff` reports collectives whose number or size differs, and no others."""

from __future__ import annotations

from dataclasses import replace

from graphviz_torch import Graph, diff
from graphviz_torch.graph import Collective, Edge, Node, TensorMeta

META = (TensorMeta((8,), "float32", "cpu"),)
SENT = Collective("all_gather", 1024, "float32", 2, group="dp", module="enc.fc", phase="forward")


def recorded(*sent: Collective, module: str = "enc", order: int | None = 0) -> Graph:
    first = Node(0, "AddmmBackward0", META, "y", "addmm", f"{module}.fc", order=order)
    second = first._replace(id=1, name="ReluBackward0", operation="relu", module=f"{module}.norm")
    return Graph((first, second), (Edge(0, 1),), ((1, 0),), collectives=sent)


def test_counts_and_bytes_that_differ_are_told_by_module_kind_and_group() -> None:
    changed = diff(recorded(SENT, SENT), recorded(SENT, replace(SENT, kind="all_reduce")))
    assert changed
    assert changed.to_text().splitlines()[2:] == [
        "collectives:",
        "  ~ enc.fc: all_gather (dp) 2, 2.0 KiB -> 1, 1.0 KiB",
        "  ~ enc.fc: all_reduce (dp) 0, 0 B -> 1, 1.0 KiB",
    ]
    assert "collectives changed" in changed.to_text()


def test_the_same_in_both_is_no_difference_on_other_lines_nodes_and_under_another_name() -> None:
    moved = replace(SENT, where="train.py:9", node=0, asynchronous=True)
    assert not diff(recorded(SENT), recorded(moved))
    renamed = recorded(replace(SENT, module="encoder.fc"), module="encoder")
    assert not diff(recorded(SENT), renamed)


def test_a_graph_that_did_not_run_sends_nothing_to_compare() -> None:
    assert not diff(recorded(order=None), recorded(SENT))
    assert diff(recorded(), recorded(SENT))
