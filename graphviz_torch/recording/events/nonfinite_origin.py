"""Find the node that computed the first NaN or Inf of a forward, and the reason.

When backward begins, while the nodes are alive, a snapshot of the backward's roots and of the saved
tensors is taken. On the CPU, the snapshot counts the non-finite elements at once. On other devices
it computes flags, which show that there are NaN or Inf, but not how many. The flags are copied when
the graphs are built, so that the program does not wait for the device. Tensors packed by hooks are
not unpacked. Negative infinity is normal in masks, and is ignored unless a logarithm or a division
computed it.

    BackwardSnapshot (counts, flags) ─► read() ─► BackwardSnapshot.origin() ─► NonfiniteOrigin
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from ...findings.rules.values import Origin
from ...graph.immutable import NamedTuple
from ...internals.functions import TensorBase, foreach_max, foreach_norm
from ...internals.probes import Probe, fetch
from ...internals.tensors.memory import is_on_cpu, readable, storage_id
from ...internals.tensors.metadata import HAS_SAVED_TENSOR_DATA, SAVED_NAMES
from ...tracing.nodes import GradFn, operation
from ..gradients.cpu import each_finite

# Operations whose -inf is not meant as a mask, but is a sign of a mistake.
_LOGS = ("log", "log2", "log10", "log1p", "logit", "div", "reciprocal", "rsqrt")


class NonfiniteOrigin(NamedTuple):
    """The node that computed the first NaN or Inf, and the reason."""

    number: int  # sequence number of the node
    operation: str
    nan: int | None  # number of NaN elements in the result; None: unknown, but at least one
    inf: int | None  # number of Inf elements in the result; None: unknown, but at least one
    reason: str  # for example "its divisor has 2 zeros"; "" if unknown
    origin: Origin  # whether the node's input, parameter or result was non-finite first
    in_loss: bool  # True if a root of the backward is non-finite


class _Counts(NamedTuple):
    nan: int
    inf: int
    minus: int = 0
    exact: bool = True  # False if the other fields are flags, so that 1 means "at least one"


class _Node(NamedTuple):
    number: int
    title: str
    sources: list[int]  # indices of the nodes that computed this node's inputs
    parameters: list[int]  # indices of the tensors that are parameters of the node
    elements: int  # number of elements of the node's input


class _Saved(NamedTuple):
    node: int
    name: str
    maker: int | None  # index of the node that created the tensor; None for a tensor without a node
    tensor: int  # index of the tensor


# The subject of a flag: (-1, index of a tensor), or (index of a node, index of a reason).
_Place = tuple[int, int]


class BackwardSnapshot:
    """Counts of the non-finite elements in a backward's roots and saved tensors.

    A snapshot keeps no node alive.

    Args:
        fns: live nodes, in topological order.
        losses: roots of the backward whose elements can be read, each with its node.
    """

    def __init__(
        self, fns: Sequence[GradFn], losses: Sequence[tuple[GradFn | None, Tensor]]
    ) -> None:
        self.flags: list[tuple[Probe, list[_Place]]] = []  # flags that are still on a device
        # By storage id: the program's name for a tensor, and the line that assigned it.
        self.names: dict[int, str] = {}
        self._nodes: list[_Node] = []
        self._saved: list[_Saved] = []
        self._reasons: dict[int, list[tuple[int, str]]] = {}
        places = {fn: i for i, fn in enumerate(fns)}
        tensors: list[Tensor] = []

        def number(tensor: Tensor) -> int:
            tensors.append(tensor)
            return len(tensors) - 1

        for place, fn in enumerate(fns):
            title, sources = operation(fn.name().rpartition("::")[2]), fn.next_functions
            leaves = [f.variable for f, _ in sources if type(f).__name__ == "AccumulateGrad"]
            weights = [number(one) for leaf in leaves for one in readable(leaf)]
            sizes = getattr(fn, "_saved_self_sym_sizes", (1,))
            known = [places[source] for source, _ in sources if source in places]
            row = int(fn._sequence_nr()), title, known, weights, math.prod(sizes)
            self._nodes.append(_Node(*row))
            by_name: dict[str, Tensor] = {}
            for name, maker, tensor in _saved_with_makers(fn):
                by_name[name] = tensor
                if maker is None or maker in places:
                    made = None if maker is None else places[maker]
                    self._saved.append(_Saved(place, name, made, number(tensor)))
            self._count(place, _masks(title, by_name))
        self._losses = [(places.get(fn, -1), number(one)) for fn, one in losses]
        self._counts = [_Counts(0, 0)] * len(tensors)
        self._storages = list(map(storage_id, tensors))
        self._measure(tensors)

    def take(self, places: Iterable[_Place], values: Iterable[int]) -> None:
        """Store flags that a device computed.

        Args:
            places: the subjects of the flags.
            values: three flags for each tensor, one flag for each reason.
        """
        numbers = iter(values)
        for node, i in places:
            if node < 0:
                nan, inf, minus = next(numbers), next(numbers), next(numbers)
                self._counts[i] = _Counts(nan, inf, minus, exact=False)
            else:
                self._reasons[node][i] = next(numbers), self._reasons[node][i][1]

    def origin(self) -> NonfiniteOrigin | None:
        """Return the node that computed the first NaN or Inf; None if all elements are finite."""
        known: dict[int, _Counts] = {}  # index of a node -> NaN and Inf in the node's results
        data: list[_Saved] = []
        for saved in self._saved:
            nan, inf, minus, exact = self._counts[saved.tensor]
            if saved.maker is not None:
                logs = self._nodes[saved.maker].title in _LOGS
                known[saved.maker] = _Counts(nan, inf + minus * logs, exact=exact)
            elif nan:
                data.append(saved)
        bad_losses = [each for each in self._losses if any(self._counts[each[1]][:3])]
        for node, tensor in bad_losses:
            nan, inf, minus, exact = self._counts[tensor]
            known[node] = _Counts(nan, inf + minus, exact=exact)
        bad = [node for node, counts in known.items() if any(counts[:2]) and node >= 0]
        if data and (not bad or data[0].node <= min(bad)):
            counts = self._counts[data[0].tensor]
            count = f"{counts.nan} NaN" if counts.exact else "NaN"
            named = self.names.get(self._storages[data[0].tensor], f"({data[0].name})")
            reason = f"its input {named} already contains {count}"
            made = counts._replace(inf=0)
            return self._origin_at(data[0].node, made, reason, "input", bool(bad_losses))
        return self._first(min(bad), known, bool(bad_losses)) if bad else None

    def _first(self, first: int, known: Mapping[int, _Counts], in_loss: bool) -> NonfiniteOrigin:
        """Return the node that computed the first NaN or Inf.

        This is the first node whose result is known to be non-finite, or an upstream node whose
        saved tensors or parameters explain the NaN or Inf.

        Args:
            first: the first node whose result is known to be non-finite.
            known: NaN and Inf in the results of nodes.
            in_loss: True if a root of the backward is non-finite.
        """
        made = known[first]
        for node in self._nodes_before(first, known):
            origin: Origin = "operation"
            reason = self._reason(node, known.get(node, made))
            weights = self._nodes[node].parameters
            if not reason and any(any(self._counts[i][:3]) for i in weights):
                origin, reason = "parameter", "one of its parameters already contains NaN or Inf"
            if reason:  # `made` has the counts of `first`, which are not exact for another node
                made = made._replace(exact=made.exact and node == first)
                return self._origin_at(node, made, reason, origin, in_loss)
        return self._origin_at(first, made, "", "operation", in_loss)

    def _origin_at(
        self, node: int, counts: _Counts, reason: str, origin: Origin, in_loss: bool
    ) -> NonfiniteOrigin:
        nan, inf = (count and (count if counts.exact else None) for count in counts[:2])
        number, title = self._nodes[node][:2]
        return NonfiniteOrigin(number, title, nan, inf, reason, origin, in_loss)

    def _nodes_before(self, first: int, known: Mapping[int, _Counts]) -> Iterator[int]:
        """Yield a node, and the upstream nodes for whose results no counts are known, latest first.

        Args:
            first: id of the node.
            known: counts of NaN and Inf in the results of nodes, by node id.
        """
        stack, seen = [first], {first}
        while stack:
            stack.sort()
            node = stack.pop()
            yield node
            fresh = [s for s in self._nodes[node].sources if s not in seen and s not in known]
            seen.update(fresh)
            stack.extend(dict.fromkeys(fresh))

    def _reason(self, node: int, counts: _Counts) -> str:
        """Return why a node computed NaN or Inf; "" if the reason is unknown."""
        for count, words in self._reasons.get(node, ()):
            if count:
                return words.format(count, s="" if count == 1 else "s")
        title = self._nodes[node].title
        if title in ("nll_loss", "nll_loss2d") and counts.nan:
            return "all targets were ignored, so there is nothing to average"
        if title == "mean" and counts.nan and not self._nodes[node].elements:
            return "its input has no elements"
        if title in ("var", "std") and counts.nan:
            return "its input has a single element"
        return ""

    def _count(self, node: int, masks: Iterable[tuple[Tensor, str]]) -> None:
        """Count the True elements of masks, which explain why a node computed NaN or Inf.

        Results on devices other than the CPU are added to `flags`, to be copied later.
        """
        reasons = self._reasons[node] = []
        for mask, words in masks:
            reasons.append((0, words))
            self._ask(torch.count_nonzero(mask), [(node, len(reasons) - 1)])

    def _measure(self, tensors: Sequence[Tensor]) -> None:
        """Count the non-finite elements of tensors.

        Results on devices other than the CPU are added to `flags`, to be copied later.
        """
        here = [tensor for tensor in tensors if is_on_cpu(tensor)]
        finite = each_finite(here)
        alike: dict[Any, list[int]] = defaultdict(list)
        for i, tensor in enumerate(tensors):
            if not is_on_cpu(tensor):
                alike[tensor.device, tensor.dtype].append(i)
            elif not finite:
                self._counts[i] = _counts(tensor)
        for same in alike.values():
            with suppress(RuntimeError):  # raised for dtypes for which PyTorch computes no maximum
                rows = _flags([tensors[i] for i in same])
                self._ask(rows, [(-1, i) for i in same])

    def _ask(self, flags: Tensor, places: list[_Place]) -> None:
        probe = Probe(flags)
        if probe.values is None:
            self.flags.append((probe, places))
        else:
            self.take(places, probe.values)


def read(snapshots: Sequence[BackwardSnapshot]) -> None:
    """Copy the flags of all snapshots to the CPU, with one copy from each device."""
    asked = [(each, *flags) for each in snapshots for flags in each.flags]
    rows = fetch([probe for _, probe, _ in asked])
    for (each, _, places), values in zip(asked, rows, strict=True):
        each.flags = []
        if values:  # otherwise the device has failed
            each.take(places, values)


def _saved_with_makers(fn: GradFn) -> Iterator[tuple[str, GradFn | None, Tensor]]:
    """Yield the readable saved tensors of a node.

    Yields:
        The name, the node that created the tensor (None if there is none), and the tensor.
    """
    for attribute, name in SAVED_NAMES[type(fn)] if HAS_SAVED_TENSOR_DATA else ():
        try:
            raw: Any = getattr(fn, attribute)
            if type(raw) is tuple or raw is None or raw.unpack_hook is not None:
                continue
            data = raw.data
            values = [] if isinstance(data, torch.nn.Parameter) else readable(data)
            tensor = getattr(fn, f"_saved_{name}") if values else None
        except RuntimeError:  # the tensor was freed by an earlier backward, or changed in place
            continue
        for one in values:
            yield name, None if tensor is None else tensor.grad_fn, one


def _counts(tensor: Tensor) -> _Counts:
    nan, plus, minus = (
        int(TensorBase.item(torch.sum(each(tensor))))
        for each in (torch.isnan, torch.isposinf, torch.isneginf)
    )
    return _Counts(nan, plus, minus)


def _flags(tensors: list[Tensor]) -> Tensor:
    """Return for each tensor three flags: contains NaN, contains Inf, contains -Inf but no Inf.

    The tensors must have the same dtype and device.
    """
    sizes, most = torch.stack(foreach_norm(tensors, math.inf)), torch.stack(foreach_max(tensors))
    plus = torch.isposinf(most)
    flags = torch.stack([torch.isnan(sizes), plus, torch.isinf(sizes) & ~plus], 1)
    return TensorBase.long(TensorBase.view(flags, -1))


def _masks(title: str, by_name: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, str]]:
    """Yield masks of the elements that make an operation return NaN or Inf, each with a reason.

    The first mask with a True element explains the result. In its reason, {} is replaced by the
    number of True elements.

    Args:
        title: name of the operation.
        by_name: the operation's saved tensors.
    """
    given, made = by_name.get("self"), by_name.get("result")
    if title == "div" and (divisor := by_name.get("other")) is not None:
        yield torch.eq(divisor, 0), "its divisor has {} zero{s}"
    elif title in ("log", "log2", "log10", "log1p", "logit") and given is not None:
        least = -1 if title == "log1p" else 0
        yield torch.lt(given, least), f"it was given {{}} number{{s}} below {least}"
        known = "it was given -1 in {} place{s}" if least else "it was given {} zero{s}"
        yield torch.eq(given, least), known
    elif title in ("softmax", "log_softmax") and made is not None:
        yield torch.any(torch.isnan(made), -1), "{} row{s} of its input held only -inf, or NaN"
    elif title in ("sqrt", "rsqrt") and made is not None:
        yield torch.isnan(made), "it was given {} negative number{s}"
        yield torch.isinf(made), "it was given {} zero{s}"
    elif title in ("exp", "expm1", "sinh", "cosh") and made is not None:
        yield torch.isposinf(made), "{} result{s} overflowed"
    elif title in ("acos", "asin") and given is not None:
        yield torch.gt(torch.abs(given), 1), "it was given {} number{s} outside -1 and 1"
    elif title == "pow" and given is not None:
        yield torch.lt(given, 0), "it was given {} negative number{s}"
