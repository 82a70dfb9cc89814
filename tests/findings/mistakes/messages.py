"""Messages of graph networks that return to their sources, and similar healthy programs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.findings.corpus.cases import Record
from tests.findings.mistakes.rows import says, silent

NODES, EDGES = 10, torch.randint(0, 10, (2, 40))
Sum = Callable[[Tensor, Tensor, Tensor], Tensor]


def pass_messages(record: Record, add_up: Sum) -> None:
    layer, head = nn.Linear(4, 6), nn.Linear(6, 6)
    with record(nn.ModuleList([layer, head])):
        h = layer(torch.randn(NODES, 4))
        head(add_up(h, *EDGES)).square().mean().backward()


def zeros() -> Tensor:
    return torch.zeros(NODES, 6)


@says("returned-messages", "scatter_add", "none of its neighbors")
def scatter_by_the_index_of_the_sources(record: Record) -> None:
    def add_up(h: Tensor, source: Tensor, target: Tensor) -> Tensor:
        rows = EDGES[0][:, None].expand(-1, 6)
        return zeros().scatter_add(0, rows, h.index_select(0, EDGES[0]) * 0.5)

    pass_messages(record, add_up)


@says("returned-messages", "index_add")
def weighted_messages_of_the_targets(record: Record) -> None:
    weights = torch.rand(40, 1)

    def add_up(h: Tensor, source: Tensor, target: Tensor) -> Tensor:
        messages = (h[target] * weights).relu()
        return zeros().index_add_(0, target, messages)

    pass_messages(record, add_up)


@silent("returned-messages")
def messages_from_source_to_target(record: Record) -> None:
    pass_messages(record, lambda h, source, target: zeros().index_add(0, target, h[source]))


@silent("returned-messages")
def messages_of_both_ends(record: Record) -> None:
    pass_messages(
        record, lambda h, source, target: zeros().index_add(0, target, h[source] - h[target])
    )


@silent("returned-messages")
def attention_that_is_normalized_by_target(record: Record) -> None:
    def add_up(h: Tensor, source: Tensor, target: Tensor) -> Tensor:
        scores = (h[source] * h[target]).sum(1, keepdim=True).exp()
        total = torch.zeros(NODES, 1).index_add(0, target, scores)
        return zeros().index_add(0, target, scores / total[target] * h[source])

    pass_messages(record, add_up)


@silent("returned-messages")
def deviations_from_the_mean_of_a_graph(record: Record) -> None:
    graphs = torch.arange(NODES) // 5

    def add_up(h: Tensor, source: Tensor, target: Tensor) -> Tensor:
        mean = torch.zeros(2, 6).index_add(0, graphs, h) / 5
        return torch.zeros(2, 6).index_add(0, graphs, (h - mean[graphs]) ** 2)

    pass_messages(record, add_up)


@says("returned-messages", "none of its neighbors")
def filters_of_edges_times_features_of_their_source(record: Record) -> None:
    edge, layer = nn.Linear(3, 6), nn.Linear(4, 6)
    with record(nn.ModuleList([edge, layer])):
        h = layer(torch.randn(NODES, 4))
        messages = edge(torch.randn(40, 3)).exp() * h[EDGES[0]]
        zeros().index_add(0, EDGES[0], messages).square().mean().backward()


@silent("returned-messages")
def filters_of_edges_that_read_both_ends(record: Record) -> None:
    edge, layer = nn.Linear(1, 6), nn.Linear(4, 6)
    with record(nn.ModuleList([edge, layer])):
        h, (source, target) = layer(torch.randn(NODES, 4)), EDGES
        distance = (h[source] - h[target]).norm(dim=1, keepdim=True)
        messages = edge(distance) * h[target]
        zeros().index_add(0, target, messages).square().mean().backward()


@silent("returned-messages")
def pooling_by_a_query_of_each_graph(record: Record) -> None:
    graphs, query = torch.arange(NODES) // 5, nn.Linear(4, 6)
    with record(query):
        h, q = query(torch.randn(NODES, 4)), query(torch.randn(2, 4))
        weighted = (h * q[graphs]).sum(1, keepdim=True).sigmoid() * h
        torch.zeros(2, 6).index_add(0, graphs, weighted).square().mean().backward()


@silent("returned-messages")
def sum_over_a_batch_of_graphs(record: Record) -> None:
    graphs = torch.arange(NODES) // 5
    pass_messages(
        record, lambda h, source, target: torch.zeros(2, 6).index_add(0, graphs, h.relu())
    )
