"""The rule about the modules that save the most memory for backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

from ...graph import FAILURE_RULES, Finding, Node, SavedTensor, TensorMeta
from ...graph.text import listing
from ...graph.units import bytes_text
from ..graph_reading import Reading
from ..rule import finding, rule

# Amounts below this number of bytes are not reported.
MIN_BYTES = 1 << 20
# Modules with a smaller share of the activations are not named. A view that keeps a smaller share
# alive has severity info.
MIN_SHARE = 0.1
_Owner = tuple[str, str]  # (module, ""), or ("", operation) outside of all modules


@rule("info", of=(SavedTensor,), caused_by=("retained-graph", "exception", *FAILURE_RULES))
def most_memory(reading: Reading) -> Iterator[Finding]:
    """The modules, and the operations outside of modules, that save the most bytes for backward.

    ## Why it matters

    Activations often need more memory than parameters, gradients and optimizer states together, and
    limit the batch size. The report names the modules with the largest activations, and the blocks
    that are worth a checkpoint.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64))
    with record(model) as recording:
        model(torch.randn(2048, 64)).mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64))
    with record(model) as recording:
        checkpoint(model, torch.randn(2048, 64), use_reentrant=False).mean().backward()
    ```

    ## When it is intended

    The finding has severity info, because the program has no fault. If there is enough memory,
    change nothing: a checkpoint computes the forward a second time.

    ## Not detected

    Memory that autograd does not save is not counted: temporary results, gradients, optimizer
    states and the cache of the allocator. Activations of less than 1 MiB in total are not reported.

    ## See also

    - [torch.utils.checkpoint](https://docs.pytorch.org/docs/stable/checkpoint.html)
    - [Understanding CUDA memory usage](https://docs.pytorch.org/docs/stable/torch_cuda_memory.html)
    """
    nodes, activations = reading.graph.nodes, reading.activations
    total = sum(activations.values())
    if total < MIN_BYTES:
        return
    modules = [node.module for node in nodes]
    keepers: dict[_Owner, list[int]] = {}
    for i, nbytes in activations.items():
        if nbytes:
            module = modules[i]
            place = (module, "" if module else nodes[i].title)
            if place in keepers:
                keepers[place].append(i)
            else:
                keepers[place] = [i]
    own = {place: sum([activations[i] for i in ids]) for place, ids in keepers.items()}
    parent_of = _parents(modules)
    repeated = _repeated_blocks(reading, modules, parent_of)
    merged = _merged_paths(parent_of, repeated)
    parts = {(module, operation): (merged[module], operation) for module, operation in keepers}
    kept: dict[_Owner, int] = {}
    for place, nbytes in own.items():
        kept[parts[place]] = kept.get(parts[place], 0) + nbytes
    most = [(place, n) for place, n in Counter(kept).most_common(3) if n >= total * MIN_SHARE]
    named = {
        part: [
            nodes[i] for i in sorted([i for p in keepers if parts[p] == part for i in keepers[p]])
        ]
        for part, _ in most
    }
    said = listing(
        f"{_place(*place)}{_blocks(place[0], repeated)} "
        f"({_largest(reading, named[place])}{bytes_text(n)}, {n / total:.0%})"
        for place, n in most
    )
    where = f"most of it in {said}" if most else f"less than a tenth in each of {len(kept)} places"
    yield finding(
        "info",
        f"Backward keeps {bytes_text(total)} of activations, {where}.",
        cause="saved for backward",
        advice=_checkpoint_advice(reading, modules, own, parent_of, repeated),
        nodes=tuple([node.id for place, _ in most for node in named[place]]),
    )


def _parents(modules: Sequence[str]) -> dict[str, str]:
    """Return the path of each module, and of all modules around it, with the path of its parent.

    Outer modules come before inner ones. The parent of a top-level module is "".
    """
    found: dict[str, str] = {}
    for module in dict.fromkeys(modules):
        missing: list[str] = []
        path = module
        while path and path not in found:
            missing.append(path)
            path = path.rpartition(".")[0]
        for inner in reversed(missing):
            found[inner] = path
            path = inner
    return found


def _repeated_blocks(
    reading: Reading, modules: Sequence[str], parent_of: dict[str, str]
) -> dict[str, str]:
    """Return the common name of each repeated block, such as "layers.*" for layers.3."""
    titles: dict[str, list[str]] = {}
    for title, nodes in reading.by_title.items():
        for module in {modules[node.id] for node in nodes} - {""}:
            if module in titles:
                titles[module].append(title)
            else:
                titles[module] = [title]
    inside: dict[str, set[tuple[str, ...]]] = {}  # block -> paths and titles of the modules in it
    for module, own in titles.items():
        block = module
        while block := parent_of[block]:
            if block[block.rfind(".") + 1 :].isdigit():
                part = (module[len(block) + 1 :], *own)
                if block in inside:
                    inside[block].add(part)
                else:
                    inside[block] = {part}
    groups: dict[tuple[str, frozenset[tuple[str, ...]]], list[str]] = {}
    for block, parts in inside.items():
        groups.setdefault((parent_of[block], frozenset(parts)), []).append(block)
    return {
        block: f"{outer}.*" if outer else "*"
        for (outer, _), blocks in groups.items()
        if len(blocks) > 2
        for block in blocks
    }


def _merged_paths(parent_of: dict[str, str], repeated: dict[str, str]) -> dict[str, str]:
    """Return the path of each module, with the common name of a repeated block: "layers.*.fc"."""
    found = {"": ""}
    for module, outer in parent_of.items():
        if found[outer] != outer:
            found[module] = found[outer]
        elif outer in repeated:
            found[module] = f"{repeated[outer]}.{module[len(outer) + 1 :]}"
        else:
            found[module] = module
    return found


def _blocks(path: str, repeated: dict[str, str]) -> str:
    """Return a phrase such as " of 80 blocks"; "" if the module is not in a repeated block."""
    blocks = path.rpartition(".")[0]
    count = sum(name == blocks for name in repeated.values())
    return f" of {count} blocks" if count else ""


def _checkpoint_advice(
    reading: Reading,
    modules: Sequence[str],
    own: dict[_Owner, int],
    parent_of: dict[str, str],
    repeated: dict[str, str],
) -> str:
    """Return advice on the blocks to checkpoint; "" if no blocks would save a tenth of the bytes.

    A checkpointed block keeps its input, and computes its activations again while its own backward
    runs, after activations of later blocks were freed. Blocks with a batch norm are left out,
    because the second run would update the running statistics again.

    Args:
        modules: path of the module of each node.
        own: bytes of activations by module.
        parent_of: parent of each module, as `_parents` returns it.
        repeated: common name of each repeated block.
    """
    best, saved = "", sum(reading.activations.values()) * MIN_SHARE
    once, last = (
        _modules_not_to_rerun(reading),
        dict(zip(modules, range(len(modules)), strict=True)),
    )
    later: list[int] | None = None
    for name, blocks in _candidate_blocks(own, parent_of, repeated, saved).items():
        homes: dict[str, str] = {}  # module inside a block -> the block
        for module, outer in parent_of.items():
            if module in blocks:
                homes[module] = module
            elif outer in homes:
                homes[module] = homes[outer]
        if not once.isdisjoint(homes):
            continue
        less = sum(blocks.values()) - _bytes_of_checkpoints(reading, list(map(homes.get, modules)))
        later = _bytes_from(reading) if later is None else later
        ends: dict[str, int] = {}
        for module, end in last.items():
            block = homes.get(module)
            if block is not None and end >= ends.get(block, 0):
                ends[block] = end
        back = max(max(0, kept - later[ends[block] + 1]) for block, kept in blocks.items())
        if less - back >= saved:
            best, saved = _checkpoint_text(name, len(blocks), less), less - back
    return best


def _candidate_blocks(
    own: dict[_Owner, int], parent_of: dict[str, str], repeated: dict[str, str], least: float
) -> dict[str, dict[str, int]]:
    """Return common name of repeated blocks -> block -> bytes of activations, outer blocks first.

    The common name of "layers.0" and "layers.1" is "layers.*". A name whose blocks have fewer than
    `least` bytes in total is left out.

    Args:
        own: bytes of activations by module.
        parent_of: parent of each module, as `_parents` returns it.
        repeated: common name of each repeated block.
        least: minimum number of bytes.
    """
    kept = {module: own.get((module, ""), 0) for module in parent_of}
    for module, outer in reversed(parent_of.items()):
        if outer:
            kept[outer] += kept[module]
    sums: dict[str, int] = {}
    for block, nbytes in kept.items():
        name = repeated.get(block, block)
        sums[name] = sums.get(name, 0) + nbytes
    enough = [block for block in kept if sums[repeated.get(block, block)] >= least]
    choices: dict[str, dict[str, int]] = {}
    for block in sorted(enough, key=lambda block: block.count(".")):
        choices.setdefault(repeated.get(block, block), {})[block] = kept[block]
    return choices


def _modules_not_to_rerun(reading: Reading) -> set[str]:
    """Return the modules in which a batch norm or a checkpoint runs."""
    titles = reading.by_title.items()
    found = {node.module for title, nodes in titles if "batch_norm" in title for node in nodes}
    noted = [node for node in reading.graph.nodes if node.note]  # few nodes have notes
    return found | {node.module for node in noted if node.is_checkpointed}


def _bytes_from(reading: Reading) -> list[int]:
    """Return, for each node, the bytes of activations that this node and all later ones save."""
    kept = [0] * (len(reading.graph.nodes) + 1)
    for i, nbytes in reading.activations.items():
        kept[i] = nbytes
    return [*accumulate(reversed(kept))][::-1]


def _bytes_of_checkpoints(reading: Reading, home: Sequence[str | None]) -> int:
    """Return the bytes that are still saved if blocks are checkpointed.

    These are the inputs of the blocks, and storages that nodes outside of the blocks also save.

    Args:
        home: the block of each node; None for nodes outside of the blocks.
    """
    nodes = reading.graph.nodes
    # Tensors that are still saved, each with the node whose saved bytes include it, or with the
    # node and output that computed it.
    staying: set[tuple[object, TensorMeta]] = set()
    for node in [node for node, block in zip(nodes, home, strict=True) if block is None]:
        for saved in node.saved:
            owner = saved.shared_with
            if owner is not None and home[owner] is not None and saved.kind == "activation":
                staying.add((owner, saved.tensor))
    # (node, output_nr) that produced a block's input -> the nodes that save the input.
    given: dict[tuple[int, int], set[int]] = {}
    for edge in [edge for edge in reading.graph.edges if home[edge.source] != home[edge.target]]:
        source, target = edge.source, edge.target
        if home[target] is None or nodes[source].leaf:
            continue
        owners = given.setdefault((source, edge.output_nr), set())
        meta = reading.meta(source, edge.output_nr)
        for i, made in ((source, True), (target, False)):
            for saved in nodes[i].saved:
                if saved.tensor == meta and saved.name.startswith("result") == made:
                    owners.add(i if saved.shared_with is None else saved.shared_with)
    for made_by, owners in given.items():
        meta = reading.meta(*made_by)
        if meta is not None and None not in [home[i] for i in owners]:
            staying.add((min(owners, default=made_by), meta))
    metas = Counter([meta for _, meta in staying])
    return sum([times * (meta.nbytes or 0) for meta, times in metas.items()])


def _checkpoint_text(name: str, count: int, less: int) -> str:
    which = f"each of {name}" if count > 1 else _place(name)
    return (
        f"To save memory at the cost of time, run {which} under torch.utils.checkpoint: about "
        f"{bytes_text(less)} less would be saved for backward."
    )


def _largest(reading: Reading, nodes: list[Node]) -> str:
    """Return the operation in a module that saves the most bytes, such as "gelu, ".

    Return "" for nodes outside of modules.
    """
    largest = max(nodes, key=lambda node: reading.activations[node.id])
    return f"{largest.title}, " if largest.module else ""


def _place(module: str, operation: str = "") -> str:
    return f"module {module}" if module.isdigit() else module or operation
