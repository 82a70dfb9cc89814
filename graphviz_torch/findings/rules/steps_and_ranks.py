"""Several graphs: one that grows from step to step, and ranks that do not do the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ...graph import Finding, Graph
from ...graph.text import listing
from ..rule import finding, rule
from ..words import at

# Two sizes are a difference, three a trend.
STEPS = 3


@rule(reads="steps")
def growing_graph(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """The graph grows by the same amount from step to step: a result was kept with its history."""
    if graphs[-1].step.retained is not None:
        return  # told by that graph alone
    if any(map(_asked_for_inputs, graphs[-STEPS:])):
        return  # what is computed from gradients goes on through them: steps inside a step
    if len({sum(bool(node.leaf) for node in graph.nodes) for graph in graphs[-STEPS:]}) > 1:
        return  # more of the model learns than before
    counts = [len(graph.nodes) for graph in graphs[-STEPS:]]
    growth = counts[-1] - counts[-2] if len(counts) == STEPS else 0
    if growth <= 0 or counts[1] - counts[0] != growth:
        return
    # Leaves stay; what is added in each step is made at the lines of the loop.
    made, before = (
        Counter((n.title, n.source, n.module) for n in g.nodes if not n.leaf)
        for g in graphs[:-3:-1]
    )
    added = set(made - before)
    newest = graphs[-1].nodes
    new = [n for n in newest if (n.title, n.source, n.module) in added]
    # The history hangs on the first step's result: a sum, or a state that is carried on.
    kept = next((n for n in new if n.title == "add" and not n.module), new[0] if new else None)
    where = kept.source if kept is not None else ""
    yield finding(
        "warning",
        f"The graph grows by {growth} nodes in each step ({listing(map(str, counts))} nodes): a "
        f"result is kept with its history{at(where)}.",
        cause="history kept from step to step",
        advice="Add numbers, not tensors (total += loss.item()), or detach() what is carried over.",
        where=where,
        nodes=() if kept is None else (kept.id,),
    )


def _asked_for_inputs(graph: Graph) -> bool:
    """Was it `torch.autograd.grad` that ran: no leaf did."""
    ran = [node.leaf for node in graph.nodes if node.order is not None]
    return bool(ran) and not any(ran)


@rule(reads="ranks")
def skipped_parameter(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """A rank has no gradient for a parameter that has one on other ranks: DDP waits for it."""
    having = [{p.name for p in graph.parameters if p.has_grad} for graph in graphs]
    known = [{p.name for p in graph.parameters if p.requires_grad} for graph in graphs]
    everywhere = dict.fromkeys(p.name for graph in graphs for p in graph.parameters)
    groups: dict[tuple[int, ...], list[str]] = {}
    for name in everywhere:
        missing = tuple(r for r in range(len(graphs)) if name in known[r] - having[r])
        if missing and any(name in names for names in having):
            groups.setdefault(missing, []).append(name)
    for ranks, names in groups.items():
        uncalled = all(
            p.module_called is False for r in ranks for p in graphs[r].parameters if p.name in names
        )
        which = f"Rank{'s' if len(ranks) > 1 else ''} {listing(map(str, ranks), most=8)}"
        yield finding(
            "error",
            f"{which} skipped {listing(names)}, which other ranks have a gradient for"
            f"{': its module was never called there' if uncalled else ''}.",
            cause="never called on that rank" if uncalled else "no gradient on that rank",
            advice="Run the same modules on every rank, or use "
            "DistributedDataParallel(find_unused_parameters=True).",
        )
