"""Test the rules on copies between devices, on graphs whose copies differ in one property."""

from __future__ import annotations

import pytest

from graphviz_torch import Graph
from graphviz_torch.graph import Edge, Node
from tests.findings.by_hand.graphs import META, MIB, NUMBER
from tests.findings.by_hand.transfers import GPU, moved, read, sent
from tests.support.recorded import every


def test_the_same_leaf_copied_again_and_again_is_told_by_the_graph_alone() -> None:
    nodes = (
        Node(0, "AccumulateGrad", (META,), "w", leaf="tensor"),
        *(Node(i, "ToCopyBackward0", (GPU,), operation="to_copy") for i in (1, 2, 3)),
    )
    edges = tuple(Edge(0, i) for i in (1, 2, 3))
    transfers = tuple(sent(node=i, label="w") for i in (1, 2, 3))
    assert every("repeated-copy", Graph(nodes, edges, transfers=transfers))


def test_tiny_copies_are_a_warning_where_they_are_known_to_be_of_one_step() -> None:
    for known in ({"node": 0}, {"in_forward": True}):
        (found,) = every("tiny-copies", moved(*[sent(data=i, **known) for i in range(20)]))
        assert found.severity == "warning"
    first, second = ([sent(data=i, moment=m) for i in range(20)] for m in (3, 5))
    assert [f.severity for f in every("tiny-copies", moved(*first))] == ["info"]
    (found,) = every("tiny-copies", moved(*first, *second))
    assert (found.severity, len(found.transfers)) == ("warning", 40)
    assert found.message.endswith("move 40.0 KiB in total (2 such rows).")
    assert every("tiny-copies", moved(*[sent(data=i, moment=i) for i in range(20)])) == []


def test_what_moves_with_its_whole_module_is_no_row_and_not_pageable() -> None:
    large = GPU._replace(shape=(MIB,))
    for rule, tensor in (("tiny-copies", GPU), ("pageable-copy", large)):
        for operation, told in (("to", True), ("Module.to", False)):
            how = {"operation": operation, "tensor": tensor, "pinned": False}
            copies = [sent(data=i, **how) for i in range(20)]
            assert bool(every(rule, moved(*copies))) == told


def test_tiny_copies_of_several_modules_are_no_row() -> None:
    copies = [sent(data=i, module=f"layers.{i // 4}") for i in range(20)]
    assert every("tiny-copies", moved(*copies)) == []


@pytest.mark.parametrize(("side", "severity"), [(8, "info"), (MIB, "warning")])
def test_a_round_trip_of_little_data_is_a_note(side: int, severity: str) -> None:
    meta = META._replace(shape=(side,))
    there = sent(data=1, tensor=meta._replace(device="cuda:0"))
    (found,) = every("round-trip", moved(there, read(data=1, operation="to", tensor=meta)))
    assert (found.severity, found.transfers) == (severity, (0, 1))
    assert found.message.endswith("with no nodes in between.")


def test_what_a_library_reads_in_a_forward_is_told_without_an_advice() -> None:
    known = {"operation": "bool", "in_forward": True, "label": "", "tensor": NUMBER}
    (found,) = every("device-sync", moved(read(**known, library="transformers")))
    assert found.severity == "info"
    assert found.message.startswith("a f32[] is read by transformers with bool() in the forward")
    assert not found.advice
    (own,) = every("device-sync", moved(read(**known)))
    assert (own.severity, "torch.where" in own.advice) == ("warning", True)


def test_a_mask_in_a_library_has_its_size_read_by_that() -> None:
    known = {"operation": "getitem", "label": "mask", "tensor": NUMBER._replace(dtype="int32")}
    (found,) = every("device-sync", moved(read(**known, module="first", library="pyg")))
    assert found.message.startswith("Indexing with mask by pyg in the forward of first")
    assert not found.advice
