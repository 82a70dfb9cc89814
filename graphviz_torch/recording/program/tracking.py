"""Observe the later uses of a tensor, without keeping the tensor alive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from torch import Tensor

from ...internals.dynamo import not_compiled
from ...internals.tensors.references import Ref

_MAX_USES = 32  # nodes that are kept as users of a trail's tensors; older nodes are dropped


class UseObserver(Protocol):
    """An object, such as a recorded copy, that is notified when a tensor is used or freed."""

    data: int  # number of the copied data

    def on_use(self) -> None:
        """Handle a call that takes the tensor as an argument."""

    def on_free(self) -> None:
        """Handle that the tensor was freed."""


class Trail:
    """The history of a detached tensor: the cuts and calls from which it was computed.

    Autograd creates no nodes for computations after a cut, such as `detach`. Trails take the place
    of these nodes. A call creates at most one trail, which refers to the trails of the call's
    operands. If all operands have the same trail and the call makes no cut, its results get that
    trail.

    Args:
        starts: the cut that the call made, if any.
        behind: the trails of the call's operands.
        steps: True for the result of a step function, such as round, or of a comparison.
    """

    __slots__ = ("after", "behind", "starts", "steps")

    def __init__(
        self, starts: tuple[Any, ...], behind: tuple[Trail, ...], steps: bool = False
    ) -> None:
        self.starts = starts
        self.behind = behind
        self.steps = steps
        # Sequence numbers of nodes that used a tensor with this trail.
        self.after: list[int] | None = None

    def nearest(self) -> Iterator[Any]:
        """Yield the cuts of the history, nearest first.

        A cut is a call that passes no gradient, such as `detach`.
        """
        met = {self}
        level = [self]
        while level:
            for trail in level:
                yield from trail.starts
            behind = dict.fromkeys(one for trail in level for one in trail.behind)
            level = [trail for trail in behind if trail not in met]
            met.update(level)


def with_predecessors(trails: Iterable[Trail]) -> list[Trail]:
    """Return these trails and all earlier ones they refer to, in reverse topological order."""
    order: list[Trail] = []
    met: set[Trail] = set()
    for start in trails:
        if start in met:
            continue
        met.add(start)
        stack = [(start, iter(start.behind))]
        while stack:
            trail, rest = stack[-1]
            next_trail = next((one for one in rest if one not in met), None)
            if next_trail is None:
                order.append(trail)
                stack.pop()
            else:
                met.add(next_trail)
                stack.append((next_trail, iter(next_trail.behind)))
    return order[::-1]


class _Followed(Ref):
    """A weak reference to a tensor whose later uses are observed."""

    __slots__ = ("copies", "key", "trail")

    key: int  # id() of the tensor
    trail: Trail | None
    copies: tuple[UseObserver, ...]


class Tracker:
    """The tensors whose later uses are observed."""

    def __init__(self) -> None:
        self.known: dict[int, _Followed] = {}  # by id() of the tensor
        self.used: dict[Trail, None] = {}  # trails of tensors that nodes used

    def add(self, tensor: Tensor, copy: UseObserver) -> None:
        """Notify an observer of each call that uses a tensor, and when the tensor is freed.

        Args:
            tensor: the tensor, of which only a weak reference is kept.
            copy: the observer, such as the record of a copy between devices.
        """
        followed = self._follow(tensor)
        followed.copies = (*followed.copies, copy)

    def copied_data(self, tensor: Tensor) -> list[int]:
        """Return `Transfer.data` of the copies that made this tensor; usually none or one."""
        followed = self.known.get(id(tensor))
        if followed is None or followed() is not tensor:
            return []
        return [copy.data for copy in followed.copies]

    def set_trail(self, tensor: Tensor, trail: Trail) -> None:
        """Store a `Trail` as the history of a new detached tensor."""
        self._follow(tensor).trail = trail

    def trails(self, given: Iterable[Tensor]) -> dict[Trail, None]:
        """Return the distinct trails (detached histories) of a call's arguments.

        The observers of these tensors are notified of their use.
        """
        found: dict[Trail, None] = {}
        known = self.known
        for tensor in given:
            followed = known.get(id(tensor))
            if followed is not None and followed() is tensor:
                for copy in followed.copies:
                    copy.on_use()
                trail = followed.trail
                # A tensor that a custom Function returned after it was detached has the Function's
                # node, and is no longer detached.
                if trail is not None and (tensor.is_leaf or not tensor.requires_grad):
                    found[trail] = None
        return found

    def use(self, behind: Iterable[Trail], numbers: Iterable[int]) -> None:
        """Record that autograd nodes used tensors with these trails (detached histories).

        Args:
            behind: the trails.
            numbers: sequence numbers of the nodes.
        """
        for trail in behind:
            trail.after = [*(trail.after or ()), *numbers][-_MAX_USES:]
            self.used[trail] = None

    def forget_trails(self) -> None:
        """Forget all trails (detached histories), but continue to notify observers."""
        self.used = {}
        for key, found in list(self.known.items()):
            found.trail = None
            if not found.copies:
                self.known.pop(key, None)

    def clear(self) -> None:
        """Stop observing all tensors. The trails in `used` are kept."""
        self.known.clear()

    def _follow(self, tensor: Tensor) -> _Followed:
        key = id(tensor)
        found = self.known.get(key)
        if found is None or found() is not tensor:
            found = self.known[key] = _Followed(tensor, self._on_free)
            found.key, found.trail, found.copies = key, None, ()
        return found

    @not_compiled  # called inside a compiled region if that region frees the tensor
    def _on_free(self, followed: _Followed) -> None:
        if self.known.get(followed.key) is followed:
            del self.known[followed.key]
            for copy in followed.copies:
                copy.on_free()


def public_name(func: Any) -> str:
    """Return a function's name as the user knows it: "copy_", or "float" for `__float__`."""
    name = getattr(func, "__name__", "")
    if type(name) is not str:
        return ""
    return name[2:-2] if name.startswith("__") and name.endswith("__") else name
