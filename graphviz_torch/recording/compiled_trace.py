"""Find the autograd nodes inside a compiled region, from the operations that Dynamo traced.

Dynamo runs the operations on fake tensors, which have autograd nodes but no values. The nodes,
edges and shapes are therefore those of the uncompiled program. The operations upstream of a cut are
found as well. The compiler removes these, so they are shown as nodes that do not run.
"""

from __future__ import annotations

import operator
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from types import FrameType, SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from ..graph import Event, TensorMeta
from ..graph.immutable import NamedTuple
from ..internals.compiler.dynamo_trace import Break, Recompiled
from ..internals.functions import TensorBase
from ..internals.hooks.calls import Called
from ..internals.hooks.dispatch import sequence_number
from ..internals.hooks.modes import unseen_operators
from ..internals.tensors.metadata import tensor_meta
from ..tracing.nodes import GradFn, grad_fn_of, operation, read_nodes
from ..tracing.region_reader import expect_region, origin, set_region
from ..tracing.regions import END, Region, RegionCut, RegionEvent, RegionNode
from ..tracing.tracer import collect_nodes
from .cuts.record import READS, cut_name, detached_results
from .program.events import TensorRecord
from .program.identities import Identities
from .queries.graph_breaks import compilation_events
from .queries.pairs import PairedTensors, pairs

_SAMPLE = re.compile(r"torch.distributions.[^\n]*, in sample\n")
# Name of a node in Dynamo's trace -> name of the same node in eager mode.
_RENAMED = {"NativeBatchNormLegitBackward0": "NativeBatchNormBackward0"}


class _Operation(NamedTuple):
    """An operation that created nodes."""

    start: int  # the operation created nodes with start <= sequence number < end
    end: int
    meta: dict[str, Any]  # `meta` of the operation's node in Dynamo's graph
    function: str = ""  # name of the custom Function that the operation applied, if any
    order: list[int] | None = None  # for each operand, its position among the call's arguments


class _Cut(NamedTuple):
    """An operation whose result requires no gradient although an operand does."""

    how: str  # name of the cut
    tensor: TensorMeta  # the operation's result
    before: list[GradFn]  # the nodes that created the operands
    meta: dict[str, Any]  # `meta` of the operation's node in Dynamo's graph
    after: list[int]  # sequence numbers of the nodes that used the result
    results: list[int]  # indices of graph outputs computed from the result without any other node


class OperationTrace:
    """The operations of one graph, in the order in which Dynamo traced them."""

    def __init__(self) -> None:
        self._operations: list[_Operation] = []
        self._cuts: list[_Cut] = []
        self._behind: dict[int, list[_Cut]] = {}  # id() of a tensor -> the cuts upstream of it
        # id() of a tensor -> id() of the graph inputs from which the tensor was computed
        self._from: dict[int, frozenset[int]] = {}
        # id() of a tensor -> its node at its first use, which an in-place change may replace later
        self._inputs: dict[int, GradFn] = {}
        self._tensors: list[Tensor] = []  # keeps tensors alive, so that no id() is reused
        self._operands: list[Tensor] = []  # operands of the running operation
        self._makers: list[GradFn] = []  # nodes of the operands that require a gradient
        self._start = 0
        self._pairs = Pairs()
        self._metas: list[dict[str, Any]] = []  # `meta` of all operations
        self._region: Region | None = None
        # id(), path and class of each module that ran; None if the graph ends at a graph break
        self.modules: tuple[tuple[int, str, str], ...] | None = None

    def on_operation_start(self, operands: list[Tensor]) -> None:
        """Store the operands of an operation, and the nodes that created them, before it runs."""
        self._operands, self._makers = operands, []
        for tensor in operands:
            if tensor.requires_grad:
                fn = _maker(tensor)
                self._makers.append(fn)
                self._inputs.setdefault(id(tensor), fn)
        self._tensors += operands
        self._start = sequence_number()

    def on_operation_end(self, function: Any, meta: dict[str, Any], made: list[Tensor]) -> None:
        """Record an operation that has run; if it passes no gradient, record it as a cut.

        Args:
            function: the called function.
            meta: `meta` of the operation's node in Dynamo's graph.
            made: the tensors that the operation returned.
        """
        behind = self._add(_Operation(self._start, sequence_number(), meta))
        lost = detached_results(self._operands, made) if self._makers else None
        if lost is not None and (how := _sampling_name(meta) or cut_name(function, lost)):
            tensor = tensor_meta(lost[0] if lost else self._operands[0])
            cut = _Cut(how, tensor, self._makers, meta, [], [])
            self._cuts.append(cut)
            behind.append(cut)
        self._add_results(behind, made)

    def on_call(
        self, function: Any, meta: dict[str, Any], args: Any, kwargs: Any, result: Any
    ) -> None:
        """Check the arguments of a call that returned.

        Args:
            function: the called function.
            meta: `meta` of the call's node in Dynamo's graph.
            args: arguments of the call.
            kwargs: keyword arguments of the call.
            result: the fake result.
        """
        self._pairs.call(function, meta, args, kwargs, result)

    def on_apply(
        self, function: type, meta: dict[str, Any], operands: list[Tensor], made: list[Tensor]
    ) -> None:
        """Record the `apply` of a custom Function as one operation with one node.

        Args:
            function: the class of the Function.
            meta: `meta` of the operation's node in Dynamo's graph.
            operands: the tensors that `apply` was given.
            made: the tensors that `apply` returned.
        """
        self.on_operation_start(operands)
        numbers = [grad_fn_of(tensor)._sequence_nr() for tensor in made if tensor.requires_grad]
        start = min(numbers, default=self._start)
        operation = _Operation(start, start + bool(numbers), meta, function.__name__)
        self._add_results(self._add(operation), made)

    def on_operand_order(self, order: list[int]) -> None:
        """Store, for the Function applied last, each operand's position among the arguments."""
        if self._operations and self._operations[-1].function:
            self._operations[-1] = self._operations[-1]._replace(order=order)

    def _add(self, operation: _Operation) -> list[_Cut]:
        """Record an operation, and return the cuts that its results depend on.

        A cut is a call that passes no gradient, such as `detach`.
        """
        self._metas.append(operation.meta)
        behind = {id(cut): cut for t in self._operands for cut in self._behind.get(id(t), ())}
        if operation.end > operation.start:
            self._operations.append(operation)
            for cut in behind.values():
                cut.after.append(operation.end - 1)
            return []
        return [*behind.values()]

    def _add_results(self, behind: list[_Cut], made: list[Tensor]) -> None:
        """Store the tensors that an operation returned, with the cuts that they depend on.

        Args:
            behind: the cuts (calls that pass no gradient) upstream of the tensors.
            made: the tensors.
        """
        self._tensors += made
        known = self._from
        needed = [known.get(id(one), frozenset((id(one),))) for one in self._operands]
        known.update(dict.fromkeys(map(id, made), frozenset().union(*needed)))
        for one in made if behind else ():
            if not one.requires_grad:
                self._behind[id(one)] = behind
        self._operands = []

    def on_graph_complete(
        self,
        inputs: list[Tensor],
        results: list[Tensor | None],
        broken: Break | None,
        again: Recompiled | None,
    ) -> None:
        """Build the region from the recorded operations, once the graph is complete.

        The traced tensors are then dropped.

        Args:
            inputs: inputs of the graph.
            results: outputs of the graph; None for outputs that are not tensors.
            broken: the graph break that ends the graph, if any.
            again: the recompilation that created the graph, if any.
        """
        modules = (row for meta in self._metas for row in origin(meta).modules)
        self.modules = None if broken else tuple(dict.fromkeys(modules))
        with unseen_operators():
            region = self._read(inputs, results)
        self._region = replace(region, events=(*region.events, *compilation_events(broken, again)))
        self._operations, self._cuts, self._metas, self._tensors = [], [], [], []
        self._operands, self._makers, self._behind, self._inputs = [], [], {}, {}
        self._from = {}
        self._pairs.noted = []

    @property
    def region(self) -> Region | None:
        """Return the traced operations as a compiled region; None if unreadable or incomplete."""
        return self._region

    def expect_node(self, start: int, end: int) -> None:
        """Expect this region's autograd node among those with start <= sequence number < end."""
        if self._region is not None:
            expect_region(start, end, self._region)

    def on_graph_compiled(self, kinds: list[Any]) -> None:
        """Assign the region to the class of autograd nodes that the compiler created for it.

        Nothing is assigned unless compilation created exactly one class.
        """
        if len(kinds) == 1 and self._region is not None:
            set_region(kinds[0], self._region)

    def _read(self, inputs: list[Tensor], results: list[Tensor | None]) -> Region:
        ends = [_maker(one) for one in results if one is not None and one.requires_grad]
        live, _ = collect_nodes(ends)
        self._find_cut_outputs(results, ran=bool(ends))
        cuts = [cut for cut in self._cuts if cut.after or cut.results or cut.how in READS]
        cut_off = {fn: None for cut in cuts for fn in cut.before}
        ids, edges = collect_nodes([*(fn for fn in cut_off if fn not in live), *ends])
        made = {fn: each for fn in ids if (each := self._operation(fn)) is not None}
        places = {fn: i for i, fn in enumerate(made)}
        inner = {ids[fn]: i for fn, i in places.items()}
        columns = read_nodes(ids, edges, [(fn, 0) for fn in ends], ()).columns
        nodes = []
        for fn, each in made.items():
            name, outputs, attributes = (
                columns[field][ids[fn]] for field in ("name", "outputs", "attributes")
            )
            name = f"{each.function}Backward" if each.function else _RENAMED.get(name, name)
            title = each.function or operation(name)
            where = origin(each.meta)
            nodes.append(RegionNode(name, title, outputs, where, attributes, fn in live))
        inside, users = [], defaultdict[int, list[tuple[int, int]]](list)
        orders = {ids[fn]: each.order for fn, each in made.items() if each.order is not None}
        for edge in edges:
            order = orders.get(edge.target, ())
            if edge.input_nr < len(order):
                edge = edge._replace(input_nr=order[edge.input_nr])
            if edge.target in inner and edge.source in inner:
                moved = edge._replace(source=inner[edge.source], target=inner[edge.target])
                inside.append(moved)
            elif edge.target in inner:
                users[edge.source].append((inner[edge.target], edge.input_nr))
        sources = [self._inputs.get(id(tensor)) for tensor in inputs]
        # An input that only dead code uses has no user, because the compiler removes dead code.
        changed = any(
            s is not None and _maker(t) is not s for t, s in zip(inputs, sources, strict=True)
        )
        passed = {None, *ends}
        entries = [
            sorted(users[ids.get(fn, -1)])
            or ([(END, 0)] if changed or (fn in passed and fn not in cut_off) else [])
            for fn in sources
        ]
        return Region(
            tuple(nodes),
            tuple(inside),
            tuple(tuple(user for user, _ in entry) for entry in entries),
            tuple(dict.fromkeys(places[fn] for fn in ends if fn in places)),
            tuple(_region_cut(cut, fn, places, sources, live) for cut in cuts for fn in cut.before),
            _events(self._pairs.noted, places),
            tuple(tuple(input_nr for _, input_nr in entry) for entry in entries),
            from_inputs=self._from_inputs(inputs, results),
        )

    def _find_cut_outputs(self, results: list[Tensor | None], *, ran: bool) -> None:
        """Add to each cut the outputs of the graph that were computed from the cut's result.

        Args:
            results: outputs of the graph.
            ran: True if any output requires a gradient. If none does, the outputs of a cut are also
                added to each cut upstream of it.
        """
        for i, one in enumerate(results):
            for cut in self._behind.get(id(one), ()):
                cut.results.append(i)
        later: list[tuple[set[int], _Cut]] = []
        for cut in self._cuts[::-1] if not ran else ():
            for before, other in later:
                if not before.isdisjoint(cut.after):
                    cut.results.extend(other.results)
            later.append(({fn._sequence_nr() for fn in collect_nodes(cut.before)[0]}, cut))

    def _from_inputs(
        self, inputs: list[Tensor], results: list[Tensor | None]
    ) -> tuple[tuple[int, ...], ...]:
        """Return for each output of the graph the indices of the inputs that it depends on.

        Args:
            inputs: inputs of the graph.
            results: outputs of the graph; None for outputs that are not tensors.
        """
        numbers = {id(tensor): i for i, tensor in enumerate(inputs)}
        needed = [self._from.get(id(one), frozenset((id(one),))) for one in results]
        return tuple(
            tuple(sorted(numbers[key] for key in each & numbers.keys())) for each in needed
        )

    def _operation(self, fn: GradFn) -> _Operation | None:
        """Return the operation of the traced graph that created a node; None for other nodes."""
        number = fn._sequence_nr()
        at = bisect_right(self._operations, number, key=attrgetter("start")) - 1
        each = self._operations[at] if at >= 0 else None
        return each if each is not None and number < each.end else None


def _region_cut(
    cut: _Cut,
    fn: GradFn,
    places: Mapping[GradFn, int],
    sources: list[GradFn],
    live: Collection[GradFn],
) -> RegionCut:
    """Return the `RegionCut` for one operand of a cut (a call that passes no gradient).

    Args:
        cut: the cut.
        fn: the node that created the operand.
        places: index of each node inside the region.
        sources: the nodes that created the graph's inputs.
        live: the nodes that receive a gradient.
    """
    numbers = {one._sequence_nr(): place for one, place in places.items()}
    after = tuple(numbers[number] for number in cut.after if number in numbers)
    input_nr = sources.index(fn) if fn in sources else None
    before, _ = collect_nodes([fn])
    return RegionCut(
        cut.how,
        cut.tensor,
        places.get(fn),
        after,
        origin(cut.meta),
        input_nr,
        tuple(i for i, source in enumerate(sources) if source in before),
        tuple(sorted(set(cut.results))),
        shown=cut.how in READS or any(s in before and s not in live for s in sources),
    )


def _events(pairs: list[PairedCall], places: Mapping[GradFn, int]) -> tuple[RegionEvent, ...]:
    """Return the events of calls with two tensors; of equal events at a line, only the latest.

    Args:
        pairs: the events that were found while the graph was traced.
        places: index of each node inside the region.
    """
    numbers = {fn._sequence_nr(): place for fn, place in places.items()}
    found = {}
    for pair in pairs:
        where = origin(pair.meta)
        nodes = tuple(numbers[number] for number in pair.numbers if number in numbers)
        operands = tuple(
            (one.tensor, None if one.number is None else numbers.get(one.number))
            for one in pair.operands
        )
        key = pair.event, where.place, where.library
        found[key] = RegionEvent(pair.event, nodes, operands, where)
    return tuple(found.values())


def _maker(tensor: Tensor) -> GradFn:
    """Return the autograd node that created a traced tensor.

    A view taken under no_grad has no node, so the node of the view's base is returned.
    """
    base = tensor._base if tensor.is_leaf and TensorBase._is_view(tensor) else None
    return grad_fn_of(tensor if base is None else base)


def _sampling_name(meta: Mapping[str, Any]) -> str:
    """Return "sample" if a distribution's `sample()` runs the operation under no_grad; else ""."""
    found = _SAMPLE.search(meta.get("stack_trace") or "")
    return "" if found is None or torch.is_grad_enabled() else "sample"


# Functions of Python's `operator` module, as in Dynamo's graph -> the equivalent tensor methods,
# which the checks know.
_OPERATORS: dict[Any, Any] = {
    getattr(operator, name): getattr(TensorBase, f"__{name}__")
    for name in ["sub", "add", "mul", "truediv", "eq", "ne", "gt", "lt", "ge", "le", "getitem"]
}


class PairedCall(NamedTuple):
    """An event caused by a call inside a compiled region."""

    event: Event  # the event; its line, nodes and operands are not set
    numbers: tuple[int, ...]  # sequence numbers of the nodes that the call created
    operands: tuple[TensorRecord, ...]
    meta: dict[str, Any]  # `meta` of the call's node in Dynamo's graph


class Pairs:
    """The query `PairedTensors`, applied to one graph that Dynamo traced with fake tensors."""

    def __init__(self) -> None:
        self._query, self._program = PairedTensors(), _NamelessProgram()
        self.noted: list[PairedCall] = []

    def call(
        self, function: Any, meta: dict[str, Any], args: Any, kwargs: Any, result: Any
    ) -> None:
        """Check one call of the graph, and add a `PairedCall` to `self.noted` for each event.

        Args:
            function: the called function.
            meta: `meta` of the call's node in Dynamo's graph.
            args: arguments of the call.
            kwargs: keyword arguments of the call.
            result: the fake result.
        """
        function, frame = _OPERATORS.get(function, function), cast(Any, None)
        event = Called(function, tuple(args), kwargs, result, frame, 0, 0)
        for row in (
            pairs(event, cast(Any, self._program)) if function in PairedTensors.functions else ()
        ):
            for found in self._query.read(row):
                if "operands" in found.latest:
                    call = found.event, found.numbers, found.latest["operands"], meta
                    self.noted.append(PairedCall(*call))


class _NamelessProgram:
    """A `Program` without names and source lines, for graphs traced with fake tensors."""

    def __init__(self) -> None:
        self.identities = Identities()
        self.steps = SimpleNamespace(count=0, is_own_call=lambda frame: False)
        self.log = SimpleNamespace(admits=lambda *args, **kwargs: False)

    def label(self, tensor: Tensor, frame: FrameType | None) -> str:
        return ""

    def labels(self, given: Sequence[Tensor], frame: FrameType | None) -> list[str]:
        return [""] * len(given)

    def place(self, frame: FrameType | None) -> None:
        return None
