"""Memory and dtype: what keeps most for backward, float64 that crept in, views that keep it all.

Counted are the storages that `Node.saved` lists, not what the allocator holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate

from ...graph import Edge, Finding, Node, RetainedGraphs, SavedTensor, TensorMeta
from ...graph.nodes import CHECKPOINTED
from ...graph.text import listing
from ...graph.units import bytes_text
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at

# Below this nobody runs out of memory.
WORTH = 1 << 20
# What keeps or saves a smaller part of it all than this is not named, or not a warning.
SHARE = 0.1
# A view that is a quarter of its storage or less wastes most of what it keeps.
VIEW_SHARE = 4


@rule(of=(SavedTensor,))
def most_memory(reading: Reading) -> Iterator[Finding]:
    """Which modules, or operations, keep most for backward, in order of bytes."""
    nodes = reading.graph.nodes
    activations = {node.id: _activation_bytes(node) for node in nodes if node.saved}
    total = sum(activations.values())
    if total < WORTH:
        return
    # By (module, ""), or ("", operation) outside of all modules.
    kept: Counter[tuple[str, str]] = Counter()
    keepers: dict[tuple[str, str], list[Node]] = {}
    alike = _alike(reading)
    parts_of = {node.module: "" for node in nodes}
    for module in parts_of:
        parts_of[module] = _part(module, alike)
    for i, nbytes in activations.items():
        if nbytes:
            node = nodes[i]
            place = (parts_of[node.module], "" if node.module else node.title)
            kept[place] += nbytes
            keepers.setdefault(place, []).append(node)
    most = kept.most_common(3)
    most = [(place, n) for place, n in most if n >= total * SHARE]
    parts = listing(
        f"{_place(*place)}{_blocks(place[0], alike)} "
        f"({_largest(keepers[place])}{bytes_text(n)}, {n / total:.0%})"
        for place, n in most
    )
    where = f"most of it in {parts}" if most else f"less than a tenth in each of {len(kept)} places"
    yield finding(
        "info",
        f"Backward keeps {bytes_text(total)} of activations, {where}.",
        cause="saved for backward",
        advice=_less_memory(reading, activations, alike),
        nodes=tuple(node.id for place, _ in most for node in keepers[place]),
    )


def _alike(reading: Reading) -> dict[str, str]:
    """For each block that is one of several alike, as layers.3, what they are called: layers.*."""
    titles: dict[str, set[str]] = {}  # by module
    for node in reading.graph.nodes:
        titles.setdefault(node.module, set()).add(node.title)
    inside: dict[str, set[tuple[str, frozenset[str]]]] = {}
    for module, own in titles.items():
        path = module.split(".")
        for end, segment in enumerate(path[:-1], 1):
            if segment.isdigit():
                block = ".".join(path[:end])
                inside.setdefault(block, set()).add((".".join(path[end:]), frozenset(own)))
    groups: dict[tuple[str, frozenset[tuple[str, frozenset[str]]]], list[str]] = {}
    for block, parts in inside.items():
        groups.setdefault((block.rpartition(".")[0], frozenset(parts)), []).append(block)
    return {
        block: f"{around}.*" if around else "*"
        for (around, _), blocks in groups.items()
        for block in blocks
        if len(blocks) > 2
    }


def _part(module: str, alike: dict[str, str]) -> str:
    """The module; of a block that is one of several alike, its part in all of them."""
    path = module.split(".")
    for end in range(1, len(path)):
        block = ".".join(path[:end])
        if block in alike:
            return f"{alike[block]}.{path[end]}"
    return module


def _blocks(part: str, alike: dict[str, str]) -> str:
    """ " of 80 blocks"; nothing for what there is once."""
    blocks = part.rpartition(".")[0]
    count = sum(name == blocks for name in alike.values())
    return f" of {count} blocks" if count else ""


def _less_memory(reading: Reading, activations: dict[int, int], alike: dict[str, str]) -> str:
    """Which blocks to put under a checkpoint, and what backward would then keep less; "" where no
    blocks save a tenth.

    Of a block that runs again its input stays, and what it keeps comes back while its backward
    runs: what is kept after it is free by then. A batch norm that runs again would count the batch
    twice in its running statistics.
    """
    best, saved = "", sum(activations.values()) * SHARE
    for name, blocks in _choices(reading, activations, alike).items():
        less = sum(block.kept for block in blocks)
        if less >= saved:
            less -= _staying(reading, blocks)
        back = max(max(0, block.kept - block.after) for block in blocks)
        if less - back >= saved:
            best, saved = _run_again(name, len(blocks), less), less - back
    return best


@dataclass(slots=True)
class _Block:
    """A module, and what it keeps for backward, in bytes."""

    name: str
    kept: int = 0  # inside
    given: list[Edge] = field(default_factory=list)  # that lead into it, but from leaves
    last: int = 0  # the last of its nodes
    after: int = 0  # what nodes after that keep
    once: bool = False  # is it not to run again: a batch norm, or a checkpoint, runs in it


def _choices(
    reading: Reading, activations: dict[int, int], alike: dict[str, str]
) -> dict[str, list[_Block]]:
    """Blocks that may run again, by name: those alike together, the outer before the inner."""
    nodes = reading.graph.nodes
    modules = [node.module for node in nodes]
    last = {module: i for i, module in enumerate(modules)}
    kept: Counter[str] = Counter()  # by module, as all below
    for i, nbytes in activations.items():
        kept[modules[i]] += nbytes
    once = {
        node.module
        for node in nodes
        if "batch_norm" in node.title or node.note.startswith(CHECKPOINTED)
    }
    around = {module: _inside(module) for module in last}
    blocks: dict[str, _Block] = {}
    for module, names in around.items():
        for name in names:
            block = blocks.setdefault(name, _Block(name))
            block.kept += kept[module]
            block.last = max(block.last, last[module])
            block.once |= module in once
    sets = {module: frozenset(names) for module, names in around.items()}
    for edge in reading.graph.edges:
        start, end = modules[edge.source], modules[edge.target]
        if start == end or nodes[edge.source].leaf:
            continue
        inside = sets[start]
        for name in around[end]:
            if name not in inside:
                blocks[name].given.append(edge)
    # By node: what it and those after it keep.
    later = [0, *accumulate(activations.get(node.id, 0) for node in reversed(nodes))][::-1]
    choices: dict[str, list[_Block]] = {}
    for name, block in sorted(blocks.items(), key=lambda item: item[0].count(".")):
        block.after = later[block.last + 1]
        choices.setdefault(alike.get(name, name), []).append(block)
    return {n: group for n, group in choices.items() if not any(b.once for b in group)}


def _staying(reading: Reading, blocks: list[_Block]) -> int:
    """Bytes that are kept though these blocks run again: of what they are given, and of what they
    keep together with nodes outside."""
    nodes, names = reading.graph.nodes, {block.name for block in blocks}
    modules = {node.module for node in nodes}
    again = {module for module in modules if not names.isdisjoint(_inside(module))}
    staying: dict[tuple[object, TensorMeta], int] = {}  # by who counts it, or who made it
    for node in nodes:
        for saved in node.saved if node.module not in again else ():
            owner = saved.shared_with
            if owner is not None and nodes[owner].module in again and saved.kind == "activation":
                staying[owner, saved.tensor] = saved.tensor.nbytes or 0
    given: dict[tuple[int, int], set[int]] = {}  # who keeps it, by who made it
    for edge in (edge for block in blocks for edge in block.given):
        owners = given.setdefault((edge.source, edge.output_nr), set())
        meta = reading.meta(edge.source, edge.output_nr)
        for i, made in ((edge.source, True), (edge.target, False)):
            for saved in nodes[i].saved:
                if saved.tensor == meta and saved.name.startswith("result") == made:
                    owners.add(i if saved.shared_with is None else saved.shared_with)
    for made_by, owners in given.items():
        meta = reading.meta(*made_by)
        if meta is not None and all(nodes[i].module in again for i in owners):
            staying[min(owners, default=made_by), meta] = meta.nbytes or 0
    return sum(staying.values())


@lru_cache(1 << 14)  # asked for of each choice
def _inside(module: str) -> tuple[str, ...]:
    """The modules that a module is in, itself among them, less the model: "a", "a.b"."""
    path = module.split(".") if module else []
    return tuple([".".join(path[:end]) for end in range(1, len(path) + 1)])


def _run_again(name: str, count: int, less: int) -> str:
    which = f"each of {name}" if count > 1 else _place(name)
    return (
        f"To trade time for memory, run {which} under torch.utils.checkpoint: backward would keep "
        f"about {bytes_text(less)} less."
    )


def _activation_bytes(node: Node) -> int:
    """Bytes of activations."""
    return sum([saved.nbytes for saved in node.saved if saved.kind == "activation"])


def _largest(nodes: list[Node]) -> str:
    """The operation in a module that keeps most of what it keeps; outside, its name is said."""
    largest = max(nodes, key=_activation_bytes)
    return f"{largest.title}, " if largest.module else ""


def _place(module: str, operation: str = "") -> str:
    return f"module {module}" if module.isdigit() else module or operation


@rule(of=(RetainedGraphs,))
def kept_history(reading: Reading) -> Iterator[Finding]:
    """The graphs of earlier steps are still alive: a result was kept with its history."""
    kept = reading.graph.step.retained
    if kept is None:
        return
    alive = f"The graphs of {kept.steps} earlier steps are still alive"
    if kept.node is not None:
        message = f"{alive}, and backward runs through them again: {reading.call(kept.node)}"
        message += f"{at(kept.where)} was computed from one of them."
    elif kept.label and kept.where:
        message = f"{alive}: {kept.label} keeps what {kept.where} made, with its history"
        message += f", appended{at(kept.added)}." if kept.added else "."
    else:
        made = f"what {kept.where} made" if kept.where else "a result of each"
        message = f"{alive}: {made} is kept, with its history."
    yield finding(
        "warning" if kept.where or kept.node is not None else "info",
        message,
        cause="history kept from step to step",
        advice="Keep a number of it, item(), or detach() what is kept.",
        where=kept.where,
        nodes=() if kept.node is None else (kept.node,),
    )


@rule(of=("float64",))
def float64_crept_in(reading: Reading) -> Iterator[Finding]:
    """A result became float64 although the parameters are not: twice the memory, half the speed."""
    graph = reading.graph
    dtypes = {p.tensor.dtype for p in graph.parameters} or {
        meta.dtype
        for n in graph.nodes
        if n.leaf == "parameter" and (meta := reading.meta(n.id)) is not None
    }
    wide = {n.id for n in graph.nodes for m in n.outputs if m and m.dtype == "float64"}
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


@rule(of=(SavedTensor,))
def view_keeps_storage(reading: Reading) -> Iterator[Finding]:
    """A small view saved for backward keeps alive a large storage that nothing else needs."""
    large = [
        (node, saved)
        for node in reading.graph.nodes
        for saved in node.saved
        if saved.nbytes >= WORTH and saved.kind == "activation"
    ]
    largest: Counter[int] = Counter()  # tensor saved from the storages counted at a node
    for node in reading.graph.nodes if large else ():
        for saved in node.saved:
            if saved.shared_with is not None:
                known = largest[saved.shared_with]
                largest[saved.shared_with] = max(known, saved.tensor.nbytes or 0)
    total = sum(_activation_bytes(node) for node in reading.graph.nodes) if large else 0
    for node, saved in large:
        needed = max(saved.tensor.nbytes or 0, largest[node.id])
        if saved.nbytes - needed < WORTH or needed * VIEW_SHARE > saved.nbytes:
            continue
        yield finding(
            "warning" if saved.nbytes >= SHARE * total else "info",
            f"{reading.call(node.id)}{at(node.source)} saves {saved.name or 'a tensor'} "
            f"({saved.tensor}, {bytes_text(needed)}), a view that keeps "
            f"{bytes_text(saved.nbytes)} alive.",
            cause="a view keeps its whole storage",
            advice="Use clone() on the slice, so that the rest can be freed.",
            where=node.source,
            nodes=(node.id,),
        )
