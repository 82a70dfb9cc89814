"""Rules about memory: saved activations, graphs of earlier steps, float64, views of large storages.

Sizes are bytes of the storages in `Node.saved`, not of the memory that the allocator reserves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

from ...graph import Finding, Node, RetainedGraphs, SavedTensor, TensorMeta
from ...graph.text import listing
from ...graph.units import bytes_text
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at

# Amounts below this number of bytes are not reported.
MIN_BYTES = 1 << 20
# Modules with a smaller share of the activations are not named. A view that keeps a smaller share
# alive has severity info.
MIN_SHARE = 0.1
# A view of at most a quarter of its storage is reported.
VIEW_RATIO = 4
_Owner = tuple[str, str]  # (module, ""), or ("", operation) outside of all modules


@rule("info", of=(SavedTensor,))
def most_memory(reading: Reading) -> Iterator[Finding]:
    """A list of the modules, and of the operations outside of modules, that save the most bytes for
    backward.

    ## Why it matters

    Activations often need more memory than parameters, gradients and optimizer states together, so
    that they limit the batch size. The report names the modules with the largest activations, and
    the blocks that are worth a checkpoint.

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

    The finding has severity info, because the program has no fault. If the memory suffices, change
    nothing: a checkpoint computes the forward a second time.

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
    """Return the path of each module, in which the common name replaces a repeated block:
    "layers.*.fc".
    """
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
    """Return the bytes of activations by common name and block, outer blocks first.

    Blocks that have fewer than `least` bytes together are left out.
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
    """Return the bytes that remain if blocks are checkpointed: their inputs, and storages that
    nodes outside share.

    Args:
        home: the block of each node; None for nodes outside of the blocks.
    """
    nodes = reading.graph.nodes
    # (node that counts or computed the tensor, tensor)
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
    """Return the operation in a module that saves most, such as "gelu, "; "" for nodes outside of
    modules.
    """
    largest = max(nodes, key=lambda node: reading.activations[node.id])
    return f"{largest.title}, " if largest.module else ""


def _place(module: str, operation: str = "") -> str:
    return f"module {module}" if module.isdigit() else module or operation


@rule("warning", of=(RetainedGraphs,), also=("watch",))
def retained_graph(reading: Reading) -> Iterator[Finding]:
    """Graphs of earlier steps are still in memory, or the graph grows from step to step, because a
    result was kept with its history.

    ## Why it matters

    A tensor with a `grad_fn` keeps its graph alive, with all saved tensors of that graph. A running
    sum of losses, a list for a plot or a hidden state that is carried over keeps the graphs of all
    steps. Memory grows until the training ends with an out-of-memory error.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model, total = nn.Linear(4, 1), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(4):
            loss = model(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss  # <- reported
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    w, total = torch.randn(4, requires_grad=True), 0
    with record() as recording:
        for _ in range(4):
            total = total + (w * torch.randn(4)).sum()  # <- reported
            total.backward(retain_graph=True)
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model, total = nn.Linear(4, 1), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(4):
            loss = model(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    w, total = torch.randn(4, requires_grad=True), 0
    with record() as recording:
        for _ in range(4):
            loss = (w * torch.randn(4)).sum()
            loss.backward()
            total += loss.item()
    ```

    ## When it is intended

    Truncated backpropagation through time keeps the graphs of a few steps on purpose, and
    meta-learning keeps those of an inner loop. Their number is bounded: silence the rule at the
    line.

    ## Not detected

    A graph that only a C++ object keeps is not found. Growth that begins after the recorded steps
    is reported by `watch`.

    ## See also

    - [Frequently asked questions: out of memory](https://docs.pytorch.org/docs/stable/notes/faq.html)
    - [torch.Tensor.detach](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html)
    """
    kept = reading.graph.step.retained
    if kept is None:
        return
    alive = f"The graphs of {kept.steps} earlier steps are still alive"
    if kept.node is not None:
        message = f"{alive}, and backward runs through them again: {reading.call(kept.node)}"
        message += f"{at(kept.where)} was computed from one of them."
    elif kept.label and kept.where:
        message = f"{alive}: {kept.label} keeps the result of {kept.where} with its history"
        message += f", appended{at(kept.added_where)}." if kept.added_where else "."
    else:
        made = f"the result of {kept.where}" if kept.where else "a result of each"
        message = f"{alive}: {made} is kept with its history."
    yield finding(
        "warning" if kept.where or kept.node is not None else "info",
        message,
        cause="history kept from step to step",
        advice="Keep only the number, with item(), or keep a detach() of the tensor.",
        where=kept.where,
        nodes=() if kept.node is None else (kept.node,),
    )


@rule("warning", of=("float64",))
def unintended_float64(reading: Reading) -> Iterator[Finding]:
    """Results are float64 although the parameters are not, which costs memory and time.

    ## Why it matters

    Arrays of NumPy are float64 by default. An operation with a float64 tensor returns float64,
    which needs twice the memory, and on most GPUs 2 to 64 times as long.

    ## Example

    ```python
    import numpy
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    with record(model) as recording:
        target = torch.as_tensor(numpy.linspace(0, 1, 8))
        (model(torch.randn(8, 4)).squeeze(1) - target).square().mean().backward()  # <- reported
    ```

    ## Use instead

    ```python
    import numpy
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    with record(model) as recording:
        target = torch.as_tensor(numpy.linspace(0, 1, 8), dtype=torch.float32)
        (model(torch.randn(8, 4)).squeeze(1) - target).square().mean().backward()
    ```

    ## When it is intended

    Sums and tests may need the precision of float64. Convert only their inputs, and convert the
    result back.

    ## Not detected

    float64 tensors without gradients are not checked.

    ## See also

    - [Type promotion](https://docs.pytorch.org/docs/stable/tensor_attributes.html)
    """
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
    # A cast is explicit, and so is a promotion on the line of a cast. Other promotions are not.
    casts = {i for i in origins if graph.nodes[i].name.startswith("ToCopy")}
    lines = {graph.nodes[i].where for i in casts} - {""}
    meant = all(i in casts or graph.nodes[i].where in lines for i in origins)
    line = next((graph.nodes[i].where for i in origins if graph.nodes[i].where), "")
    yield finding(
        "info" if meant else "warning",
        f"{listing(reading.call(i) for i in origins)} returned float64{at(line)}, so {len(wide)} "
        f"of {len(graph.nodes)} nodes have float64 results, although the parameters are "
        f"{listing(sorted(dtypes))}.",
        cause="cast to float64" if meant else "promotion to float64",
        advice="Convert NumPy arrays with torch.as_tensor(array, dtype=torch.float32), and "
        "create constants in the dtype of the other operand.",
        where=line,
        nodes=tuple(origins),
    )


@rule("warning", of=(SavedTensor,), advanced=True)
def view_retains_storage(reading: Reading) -> Iterator[Finding]:
    """A small view that is saved for backward keeps a large storage alive, although nothing else
    needs it.

    ## Why it matters

    A view shares the storage of its base tensor. As long as the view is saved for backward, the
    whole storage stays in memory.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    w = torch.randn(1000, requires_grad=True)
    with record() as recording:
        table = torch.randn(2000, 1000)
        first = table[0]
        (w * first).sum().backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    w = torch.randn(1000, requires_grad=True)
    with record() as recording:
        table = torch.randn(2000, 1000)
        first = table[0].clone()
        (w * first).sum().backward()
    ```

    ## When it is intended

    The base may be a table that the program keeps for the whole training anyway.

    ## Not detected

    Views that the program keeps, but autograd does not save, are not seen.

    ## See also

    - [Tensor views](https://docs.pytorch.org/docs/stable/tensor_view.html)
    """
    nodes, activations = reading.graph.nodes, reading.activations
    large = [
        (nodes[i], saved)
        for i, nbytes in activations.items()
        for saved in (nodes[i].saved if nbytes >= MIN_BYTES else ())
        if saved.nbytes >= MIN_BYTES and saved.kind == "activation"
    ]
    # Node that counts a storage -> bytes of the largest tensor saved from it.
    largest: Counter[int] = Counter()
    for node in nodes if large else ():
        for saved in node.saved:
            if saved.shared_with is not None:
                known = largest[saved.shared_with]
                largest[saved.shared_with] = max(known, saved.tensor.nbytes or 0)
    total = sum(activations.values())
    for node, saved in large:
        needed = max(saved.tensor.nbytes or 0, largest[node.id])
        if saved.nbytes - needed < MIN_BYTES or needed * VIEW_RATIO > saved.nbytes:
            continue
        yield finding(
            "warning" if saved.nbytes >= MIN_SHARE * total else "info",
            f"{reading.call(node.id)}{at(node.where)} saves {saved.name or 'a tensor'} "
            f"({saved.tensor}, {bytes_text(needed)}), a view that keeps "
            f"{bytes_text(saved.nbytes)} alive.",
            cause="a view keeps its whole storage",
            advice="Call clone() on the slice, so that the storage of the base can be freed.",
            where=node.where,
            nodes=(node.id,),
        )
