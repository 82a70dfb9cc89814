"""Memory and dtype: what keeps most for backward, float64 that crept in, views that keep it all.

Counted are the storages that `Node.saved` lists, not what the allocator holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..graph import Finding
from .rule import Reading, at, finding, listing, rule, size

# Below this nobody runs out of memory.
WORTH = 1 << 20
# A view that is a quarter of its storage or less wastes most of what it keeps.
VIEW_SHARE = 4


@rule()
def most_memory(reading: Reading) -> Iterator[Finding]:
    """What keeps most for backward: the modules, or the operations, in order of bytes."""
    kept: Counter[str] = Counter()
    keepers: dict[str, list[int]] = {}
    for node in reading.graph.nodes:
        nbytes = sum(saved.nbytes for saved in node.saved if saved.kind == "activation")
        if nbytes:
            name = node.module or node.title
            kept[name] += nbytes
            keepers.setdefault(name, []).append(node.id)
    total = sum(kept.values())
    if total < WORTH:
        return
    most = kept.most_common(3)
    parts = listing(f"{name} ({size(n)}, {n / total:.0%})" for name, n in most)
    yield finding(
        "info",
        f"Backward keeps {size(total)} of activations, most of it in {parts}.",
        cause="saved for backward",
        advice=f"To trade time for memory, run {most[0][0]} under torch.utils.checkpoint.",
        nodes=tuple(node for name, _ in most for node in keepers[name]),
    )


@rule()
def float64_crept_in(reading: Reading) -> Iterator[Finding]:
    """A result became float64 although the parameters are not: twice the memory, half the speed."""
    graph = reading.graph
    dtypes = {p.tensor.dtype for p in graph.parameters} or {
        meta.dtype
        for n in graph.nodes
        if n.leaf == "parameter" and (meta := reading.meta(n.id)) is not None
    }
    wide = {n.id for n in graph.nodes if any(m and m.dtype == "float64" for m in n.outputs)}
    if "float64" in dtypes or not dtypes or not wide:
        return
    origins = [i for i in sorted(wide) if not any(e.source in wide for e in reading.inputs[i])]
    # A cast says what it does; a promotion, or a tensor from NumPy, happens unseen.
    meant = all(graph.nodes[i].name.startswith("ToCopy") for i in origins)
    line = next((graph.nodes[i].source for i in origins if graph.nodes[i].source), "")
    yield finding(
        "info" if meant else "warning",
        f"{listing(reading.call(i) for i in origins)} made float64{at(line)}, and {len(wide)} of "
        f"{len(graph.nodes)} nodes hold it, though the parameters are {listing(sorted(dtypes))}.",
        cause="cast to float64" if meant else "promotion to float64",
        advice="Convert what comes from NumPy with torch.as_tensor(array, dtype=torch.float32), "
        "and make constants in the dtype of what they meet.",
        where=line,
        nodes=tuple(origins),
    )


@rule()
def view_keeps_storage(reading: Reading) -> Iterator[Finding]:
    """A small view saved for backward keeps alive a large storage that nothing else needs."""
    largest: Counter[int] = Counter()  # tensor saved from the storages counted at a node
    for node in reading.graph.nodes:
        for saved in node.saved:
            if saved.shared_with is not None:
                seen = largest[saved.shared_with]
                largest[saved.shared_with] = max(seen, saved.tensor.nbytes or 0)
    for node in reading.graph.nodes:
        for saved in node.saved:
            needed = max(saved.tensor.nbytes or 0, largest[node.id])
            waste = saved.nbytes - needed
            if saved.kind != "activation" or waste < WORTH or needed * VIEW_SHARE > saved.nbytes:
                continue
            yield finding(
                "warning",
                f"{reading.call(node.id)}{at(node.source)} saves {saved.name or 'a tensor'} "
                f"({saved.tensor}, {size(needed)}), a view that keeps {size(saved.nbytes)} alive.",
                cause="a view keeps its whole storage",
                advice="Use clone() on the slice, so that the rest can be freed.",
                where=node.source,
                nodes=(node.id,),
            )
