"""What autograd knows of live nodes, and the `Graph` made of it.

Attributes of nodes are read where a custom Function cannot shadow them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor

from ..graph import Edge, Graph, LeafKind, Node
from ..graph.gc import with_gc_disabled
from ..graph.nodes import REGION
from ..internals.compiled import is_region
from ..internals.functions import TensorBase
from ..internals.hooks.modes import unseen_calls
from ..internals.tensors.accumulator import accumulator
from ..internals.tensors.metadata import (
    Outputs,
    all_outputs,
    attributes,
    defined_outputs,
    is_custom,
)
from .infer import COPIES, backward_copies, infer_modules
from .names import BufferName, ParameterName
from .region_reader import region_of
from .regions import CLOSED, Region

# Any: torch gives nodes of C++ and of Python classes with no common public type.
GradFn = Any
Ids = dict[GradFn, int]  # the id of each live node, in the order of ids
End = tuple[GradFn, int]  # a live node and the number of its output

_new: Any = tuple.__new__  # a Node from a row of its fields, without a call of Python's
_ACCUMULATE = "AccumulateGrad"
_FIELDS = frozenset(Node._fields)


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
    if is_region(kind):
        return name, "compiled", REGION
    return name, name.removesuffix("Backward"), ""


def _name_cpp(fns: list[GradFn], names: list[str], operations: list[str]) -> None:
    """Ask those C++ nodes for their names that have no Python class of their own."""
    for i, name in enumerate(names):
        if name == "CppFunction":
            names[i] = str(type(fns[i]).name(fns[i])).rpartition("::")[2].rstrip(">")
            operations[i] = operation(names[i])


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read from live nodes; it holds none of them."""

    columns: dict[str, Sequence[Any]]  # by the field of Node
    edges: tuple[Edge, ...]
    ends: tuple[tuple[int, int], ...]  # node id and `output_nr` of each output
    leaves: dict[int, int]  # the id of each leaf's node, by id() of the leaf
    owners: dict[int, set[str]]  # for the leaves that are parameters, the modules that have them
    regions: dict[int, Region]  # what torch.compile made of a part, by the id of its node

    def graph(self, **columns: Iterable[Any]) -> Graph:
        """The Graph, with these columns beside those read, or in their place.

        Raises:
            ValueError: for a column that is not a field of Node, or not one value for each node.
        """
        names, outputs = self.columns["name"], self.columns["outputs"]
        count = len(names)
        known = {**self.columns, **columns}
        defaults = Node._field_defaults
        if unknown := known.keys() - _FIELDS:
            raise ValueError(f"Node has no field {min(unknown)!r} for a column to fill.")
        rows = (known[k] if k in known else repeat(defaults[k], count) for k in Node._fields)
        nodes = tuple(map(_new, repeat(Node), zip(*rows, strict=True)))
        copies = not COPIES.isdisjoint(names)
        transfers = backward_copies(self.edges, names, outputs) if copies else ()
        return Graph(nodes, self.edges, self.ends, transfers)

    def modules(self) -> list[str]:
        """The column of modules, as far as the names of the parameters tell them."""
        found = [""] * len(self.columns["id"])
        if self.owners:
            operations = self.columns["operation"]
            for i, path in infer_modules(self.edges, operations, self.owners).items():
                found[i] = path
        return found


@with_gc_disabled
def read(
    ids: Ids,
    edges: tuple[Edge, ...],
    ends: list[tuple[GradFn, int]],
    named: Iterable[tuple[str, Tensor]],
) -> Reading:
    """Read live nodes.

    Args:
        ids, edges: what `connected` gave.
        ends: node and `output_nr` of each output.
        named: names and tensors; the first name of a tensor wins.
    """
    # No torch-function mode and no tensor subclass is to see what is read.
    with unseen_calls():
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
        leaves = dict(zip(map(id, variables.values()), variables, strict=True))
        labels, owners, kept = _labels(ids, leaves, named)
        kept_attributes = attributes(fns)
        if "convolution" in operations:
            for source, target, output_nr, input_nr in edges:
                if input_nr == 1 and operations[target] == "convolution":
                    weight = outputs[source][output_nr]
                    if weight is not None:
                        kept_attributes[target] += _kernel_size(weight.shape)
        leaf = [""] * len(fns)
        for i, variable in variables.items():
            plain = type(variable) is torch.nn.Parameter  # as most
            leaf[i] = "buffer" if i in kept else "parameter" if plain else _leaf_kind(variable)
        owners = {i: paths for i, paths in owners.items() if leaf[i] == "parameter"}
        compiled = [i for i, note in enumerate(notes) if note == REGION]
        regions = {i: inside for i in compiled if (inside := region_of(fns[i])) is not None}
        for i in compiled:
            notes[i] = REGION if i in regions else f"{REGION}: {CLOSED}"
    columns = {
        "id": range(len(fns)),
        "name": names,
        "outputs": outputs,
        "label": labels,
        "operation": operations,
        "leaf": leaf,
        "note": notes,
        "attributes": kept_attributes,
    }
    return Reading(columns, edges, roots, leaves, owners, regions)


@lru_cache(maxsize=256)
def _kernel_size(weight: tuple[int, ...]) -> tuple[str, ...]:
    """The attribute of a convolution that the shape of its weight tells."""
    return (f"kernel_size={weight[2:]}",)


def _outputs(
    fns: list[GradFn], edges: tuple[Edge, ...], roots: tuple[tuple[int, int], ...]
) -> list[Outputs]:
    """The outputs of each node, None for one that autograd left undefined."""
    outputs, doubtful = all_outputs(fns)
    if doubtful:
        used = {i: {nr for node, nr in roots if node == i} for i in doubtful}
        for source, _, output_nr, _ in edges:
            if source in used:
                used[source].add(output_nr)
        for i in doubtful:
            outputs[i] = defined_outputs(fns[i], outputs[i], used[i])
    return outputs


def _labels(
    ids: Ids,
    leaves: dict[int, int],
    named: Iterable[tuple[str, Tensor]],
) -> tuple[list[str], dict[int, set[str]], set[int]]:
    """Labels by node; for leaves the modules that own them; the leaves that are buffers.

    Args:
        ids: of the nodes.
        leaves: ids of the leaves' nodes, by id() of the leaf.
        named: names and tensors.

    The first name of an output wins; a node with several named outputs shows all of them.
    """
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
        elif tensor.requires_grad and not is_stale(tensor) and tensor.grad_fn in ids:
            i = ids[tensor.grad_fn]
            several.setdefault(i, {}).setdefault(tensor.output_nr, str(name))
    for i, by_output in several.items():
        labels[i] = ", ".join(by_output[nr] for nr in sorted(by_output))
    return labels, owners, buffers


def is_stale(tensor: Tensor) -> bool:
    """Would reading its node make a new one: as of a view whose base was changed in place."""
    try:
        return TensorBase._is_view(tensor) and tensor._version > 0
    except Exception:  # of a subclass that does not tell
        return True


def _leaf_kind(variable: Tensor) -> LeafKind:
    if isinstance(variable, torch.nn.Parameter):
        return "parameter"
    return "buffer" if isinstance(variable, torch.nn.Buffer) else "tensor"


def is_alive(fn: GradFn) -> bool:
    """Is a node there: the object that stands for a custom Function's may outlive it (to 2.12)."""
    try:
        return fn.next_functions is not None
    except (AttributeError, RuntimeError):  # let go of, or gone
        return False


def made_by(tensor: Tensor) -> Any:
    """The live node that made a tensor, a leaf's own node; None where autograd has none.

    It has none for a tensor that requires no gradient, and inside a compiled region.
    """
    with unseen_calls():
        fn = tensor.grad_fn
        if fn is None and type(tensor) is Tensor and not tensor.requires_grad:
            return None
    return accumulator(tensor) if fn is None else fn


def sources_of(fn: GradFn) -> list[GradFn]:
    """The nodes that it reads from."""
    return [source for source, _ in fn.next_functions if source is not None]


def ends_of(output: Any) -> list[End]:
    """The live node behind a tensor or a gradient edge, if there is one."""
    if isinstance(output, Tensor):
        fn = made_by(output)
        with unseen_calls():
            return [] if fn is None else [(fn, output.output_nr)]
    return [(output.node, output.output_nr)]
