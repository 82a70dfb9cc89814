"""Test how sums are divided into their terms, however long they are."""

from __future__ import annotations

from typing import Any

import torch

from graphviz_torch import find, record
from graphviz_torch.findings.directions import NUMBER, linear_terms
from graphviz_torch.findings.graph_reading import Reading


def test_a_sum_is_divided_into_terms_with_their_factors() -> None:
    x = torch.ones(3, requires_grad=True)
    with record() as recording:
        a, b = x.exp(), x.sin()
        y: Any = 3 - (2 * a - b / 4) + a
        y.backward(torch.ones(3))
    graph = recording.graph
    names = {node.id: node.operation for node in graph.nodes}
    terms = linear_terms(Reading(graph), graph.outputs[0])
    found = {"number" if term == NUMBER else names[term[0]]: factor for factor, term in terms}
    assert found == {"number": 3.0, "exp": -1.0, "sin": 0.25}


def test_a_sum_that_is_doubled_often_is_divided_once() -> None:
    """Each of 60 sums has the one before as both operands: 2 ** 60 ways lead to the first."""
    x = torch.ones(3, requires_grad=True)
    with record() as recording:
        y: Any = x.exp()
        for _ in range(60):
            y = y + y
        y.mean().backward()
    graph = recording.graph
    [(factor, term)] = linear_terms(Reading(graph), graph.outputs[0])
    assert (factor, graph.nodes[term[0]].operation) == (2.0**60, "exp")


def test_a_quotient_of_sums_that_are_doubled_often_is_read() -> None:
    x, target = torch.rand(4, 3, requires_grad=True), torch.rand(4, 3)
    with record() as recording:
        y: Any = (x * target).sum()
        for _ in range(60):
            y = y + y
        (1 - y / (x.sum() + target.sum() + y)).backward()
    assert "overlap-loss" not in [found.rule for found in find(recording)]
