"""Reading an autograd graph: live `grad_fn`s in topological order, and the `Graph` made of them.

Nothing is re-run, no saved tensor is unpacked, no hook is left, and no tensor or node is held once
`trace` has returned. Attributes of nodes are read where a custom Function cannot shadow them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import repeat
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor

from .deep import brace
from .graph import Edge, Graph, LeafKind, Node
from .inferred import COPIES, backward_copies, infer_modules
from .metadata import DEVICE_LABELS as DEVICE_LABELS
from .metadata import Metadata, Outputs, defined, is_custom
from .metadata import device_label as device_label
from .metadata import tensor_meta as tensor_meta
from .names import BufferName, Names, ParameterName, caller_names
from .nesting import flatten as flatten
from .nesting import is_nesting
from .uncollected import uncollected

# Any: torch gives nodes of C++ and of Python classes with no common public type.
GradFn = Any
Sources = tuple[tuple[GradFn | None, int], ...]  # `next_functions` of a node

Ids = dict[GradFn, int]  # the id of each node, in the order of ids

_new: Any = tuple.__new__  # a Node or an Edge from a row of its fields, without a call of Python's
_ACCUMULATE = "AccumulateGrad"


def walk(outputs: Any) -> list[GradFn]:
    """The live nodes behind `outputs`, in the order of `trace(outputs).nodes`: inputs first.

    Hold the list only as long as you need it: it keeps the graph, and what the graph saved, alive.

    Raises:
        TypeError, ValueError: as `trace`.
    """
    return list(connected([root for root, _ in roots(outputs)])[0])


def roots(outputs: Any) -> list[tuple[GradFn, int]]:
    """The live node and `output_nr` behind each tensor of `outputs`, in the order given.

    In a nesting, tensors that require no gradient are passed over.

    Raises:
        TypeError, ValueError: as `trace`.
    """
    tensors = flatten(outputs)
    if not tensors:
        if is_nesting(outputs):
            raise ValueError(
                f"outputs holds no tensor: {_shorten(outputs)}. "
                "Pass what you would call backward() on."
            )
        raise TypeError(
            f"outputs is a {type(outputs).__name__}, not a tensor: {_shorten(outputs)}. "
            "Pass a tensor, or a list, tuple, dict or dataclass of tensors."
        )
    with torch._C.DisableTorchFunction():
        found = [end for _, tensor in tensors if (end := _end(tensor)) is not None]
    if not found:
        path, tensor = tensors[0]
        where = f"outputs{'.' if path[:1] not in ('', '[') else ''}{path}"
        others = f", and {len(tensors) - 1} more" if len(tensors) > 1 else ""
        raise ValueError(
            f"{where} ({tensor_meta(tensor)}){others}: no autograd graph, for requires_grad is "
            "False. Was it computed under torch.no_grad() or inference_mode(), or detached?"
        )
    return found


def trace(outputs: Any, *, names: Names = None) -> Graph:
    """The autograd graph behind `outputs`, read without running anything.

    It may be called before and after `backward()`: nodes, edges and shapes outlive the saved
    tensors that backward frees.

    Args:
        outputs: a tensor, or any nesting of lists, tuples, dicts and dataclasses of tensors.
        names: what to call the tensors: a dict of tensors by name, an `nn.Module` (its parameters'
            names), `{}` for no names; None reads the caller's variables.

    Returns:
        A Graph with a node for every autograd node, in topological order, inputs before users; the
        order is the same on every run. `module` is filled in where the parameters' names tell it
        with certainty; `transfers` holds the copies between devices that backward will make.

    Raises:
        TypeError: if `outputs` is no tensor and no nesting, or `names` none of the above.
        ValueError: if no tensor in it has an autograd graph.

    >>> import torch
    >>> x = torch.ones(3, requires_grad=True)
    >>> y = (x * 2).sum()
    >>> [(node.name, node.label) for node in trace(y).nodes]
    [('AccumulateGrad', 'x'), ('MulBackward0', ''), ('SumBackward0', 'y')]
    """
    ends = roots(outputs)
    named = caller_names(names, outputs)
    ids, edges = connected([fn for fn, _ in ends])
    return read(ids, edges, ends, named)


@lru_cache(maxsize=4096)
def operation(name: str) -> str:
    """The forward's name for an autograd node's: "AddmmBackward0" -> "addmm"; "" for a leaf."""
    if name == _ACCUMULATE:
        return ""
    stem = re.sub(r"Backward\d*$", "", name)
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])", "_", stem).lower()


def _kind(kind: type) -> tuple[str, str, str]:
    """What all nodes of a class have in common: name, operation, note."""
    name = kind.__name__
    if not is_custom(kind):
        return name, operation(name), ""
    forward: Any = kind._forward_cls  # type: ignore[attr-defined]
    if forward is torch.utils.checkpoint.CheckpointFunction:
        return name, "checkpoint", "checkpoint: backward runs this part's forward again"
    if name == "CompiledFunctionBackward" and forward.__module__.startswith("torch."):
        return name, "compiled", "torch.compile region"
    return name, name.removesuffix("Backward"), ""


def _name_cpp(fns: list[GradFn], names: list[str], operations: list[str]) -> None:
    """Ask those C++ nodes for their names that have no Python class of their own."""
    for i, name in enumerate(names):
        if name == "CppFunction":
            names[i] = str(type(fns[i]).name(fns[i])).rpartition("::")[2].rstrip(">")
            operations[i] = operation(names[i])


def connected(starts: list[GradFn]) -> tuple[Ids, tuple[Edge, ...]]:
    """All live nodes behind `starts` with their ids, inputs before users, and their edges.

    Makes the graph safe to free. The ids hold its nodes.
    """
    with uncollected():
        ids, edges = _ordered(starts)
        brace(ids, edges)
    return ids, edges


def _ordered(starts: list[GradFn]) -> tuple[Ids, tuple[Edge, ...]]:
    """All nodes behind `starts`, inputs before users, and their edges by target and `input_nr`."""
    # Explicit stack: a recursive walk dies at about 1,000 nodes. The nodes are held meanwhile, for
    # a node's Python object may die with its last reference and give its address to another.
    # The graph has no cycle, so a node that is met again has its id by then.
    ids: Ids = {}
    found: list[Edge] = []
    stack: list[tuple[GradFn, Sources, Iterator[tuple[GradFn | None, int]]]] = []
    for start in starts:
        if start in ids:
            continue
        fn, sources = start, start.next_functions
        rest = iter(sources)
        while True:
            for source, _ in rest:
                if source not in ids and source is not None:
                    below = source.next_functions
                    if below:
                        stack.append((fn, sources, rest))
                        fn, sources, rest = source, below, iter(below)
                        break
                    ids[source] = len(ids)
            else:
                target = len(ids)
                for input_nr, (source, output_nr) in enumerate(sources):
                    if source is not None:  # an input that needs no gradient has no edge
                        found.append(_new(Edge, (ids[source], target, output_nr, input_nr)))
                ids[fn] = target
                if not stack:
                    break
                fn, sources, rest = stack.pop()
    return ids, tuple(found)


def read(
    ids: Ids,
    edges: tuple[Edge, ...],
    ends: list[tuple[GradFn, int]],
    named: Iterable[tuple[str, Tensor]],
) -> Graph:
    """The Graph of live nodes.

    Args:
        ids, edges: what `connected` gave.
        ends: node and `output_nr` of each output.
        named: names and tensors; the first name of a tensor wins.
    """
    # No torch-function mode and no tensor subclass is to see what is read.
    with uncollected(), torch._C.DisableTorchFunction():
        fns = list(ids)
        roots = tuple((ids[fn], output_nr) for fn, output_nr in ends)
        outputs = _outputs(fns, edges, roots)
        types = list(map(type, fns))
        kinds = {kind: _kind(kind) for kind in set(types)}
        names, operations, notes = (
            list(map({kind: row[k] for kind, row in kinds.items()}.__getitem__, types))
            for k in range(3)
        )
        if "CppFunction" in names:
            _name_cpp(fns, names, operations)
        variables = {i: fns[i].variable for i, name in enumerate(names) if name == _ACCUMULATE}
        labels, owners, kept = _labels(ids, variables, named)
        leaf = [""] * len(fns)
        for i, variable in variables.items():
            leaf[i] = "buffer" if i in kept else _leaf_kind(variable)
        owners = {i: paths for i, paths in owners.items() if leaf[i] == "parameter"}
        module = [""] * len(fns)
        if owners:
            for i, path in infer_modules(edges, operations, owners).items():
                module[i] = path
        none = repeat("")
        rows = zip(
            *(ids.values(), names, outputs, labels, operations, leaf, module, none, none, notes),
            *(repeat(()), repeat(()), repeat(None), repeat(None)),
            strict=False,
        )
        nodes = tuple(map(_new, repeat(Node), rows))
        copies = any(kind.__name__ in COPIES for kind in kinds)
        transfers = backward_copies(edges, names, outputs) if copies else ()
        return Graph(nodes, edges, roots, transfers)


def _outputs(
    fns: list[GradFn], edges: tuple[Edge, ...], roots: tuple[tuple[int, int], ...]
) -> list[Outputs]:
    """The outputs of each node, None for one that autograd left undefined."""
    outputs, doubtful = Metadata().outputs(fns)
    if doubtful:
        used = {i: {nr for node, nr in roots if node == i} for i in doubtful}
        for source, _, output_nr, _ in edges:
            if source in used:
                used[source].add(output_nr)
        for i in doubtful:
            outputs[i] = defined(fns[i], outputs[i], used[i])
    return outputs


def _labels(
    ids: Ids,
    variables: dict[int, Tensor],
    named: Iterable[tuple[str, Tensor]],
) -> tuple[list[str], dict[int, set[str]], set[int]]:
    """Labels by node; for leaves the modules that own them; the leaves that are buffers.

    The first name of an output wins; a node with several named outputs shows all of them.
    """
    leaves = {id(variable): i for i, variable in variables.items()}
    labels = [""] * len(ids)
    several: dict[int, dict[int, str]] = {}  # names by output_nr
    owners: dict[int, set[str]] = {}
    buffers: set[int] = set()
    for name, tensor in named:
        i = leaves.get(id(tensor))
        if i is not None:
            labels[i] = labels[i] or str(name)
            if isinstance(name, ParameterName):
                owners.setdefault(i, set()).add(name.rpartition(".")[0])
                if isinstance(name, BufferName):
                    buffers.add(i)
        elif tensor.requires_grad and not _is_stale(tensor) and tensor.grad_fn in ids:
            i = ids[tensor.grad_fn]
            several.setdefault(i, {}).setdefault(tensor.output_nr, str(name))
    for i, by_output in several.items():
        labels[i] = ", ".join(by_output[nr] for nr in sorted(by_output))
    return labels, owners, buffers


def _is_stale(tensor: Tensor) -> bool:
    # Reading the node of a view whose base was changed in place makes a new node.
    return tensor._is_view() and tensor._version > 0


def _leaf_kind(variable: Tensor) -> LeafKind:
    if isinstance(variable, torch.nn.Parameter):
        return "parameter"
    return "buffer" if isinstance(variable, torch.nn.Buffer) else "tensor"


def _end(tensor: Tensor) -> tuple[GradFn, int] | None:
    if not tensor.requires_grad:
        return None
    if tensor.grad_fn is not None:
        return tensor.grad_fn, tensor.output_nr
    # A leaf: this finds its accumulator, and makes one if it has none yet.
    with torch.inference_mode(False):
        return torch.autograd.graph.get_gradient_edge(tensor).node, 0


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
