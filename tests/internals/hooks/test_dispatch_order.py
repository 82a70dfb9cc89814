"""Test watches that end out of order, in another thread, or by garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from graphviz_torch import simulate_accelerator
from graphviz_torch.internals.hooks.dispatch import Dispatched, OperatorWatch
from graphviz_torch.recording.transfers.operators import OPERATORS
from tests.support.programs import in_threads


def switch() -> tuple[bool, bool]:
    """Return whether the watched key is included, and excluded, in this thread."""
    key = torch._C.DispatchKey.AutocastIPU
    return (
        torch._C._dispatch_tls_is_dispatch_key_included(key),
        torch._C._dispatch_tls_is_dispatch_key_excluded(key),
    )


def registered() -> bool:
    """Return True if a watched operator has a kernel for the key."""
    return torch._C._dispatch_has_kernel_for_dispatch_key("aten::_to_copy", "AutocastIPU")


OFF = switch()


def watching() -> tuple[OperatorWatch, list[str]]:
    """Return an open watch, and the list of operators that it reports."""
    seen: list[str] = []

    def see(call: Dispatched) -> None:
        seen.append(call.operator)

    return OperatorWatch(OPERATORS, see).__enter__(), seen


def leave(watch: OperatorWatch) -> None:
    watch.__exit__(None, None, None)


def test_a_watch_sees_on_after_an_older_one_ended_and_the_last_one_switches_off() -> None:
    with simulate_accelerator() as [device]:
        first, _ = watching()
        second, seen = watching()
        leave(first)
        torch.ones(1).to(device)
        assert seen == ["aten::_to_copy"]
        leave(second)
        assert switch() == OFF
        assert not registered()
        torch.ones(1).to(device)
        assert seen == ["aten::_to_copy"]


def test_a_watch_that_another_thread_ends_leaves_the_watches_there_as_they_are() -> None:
    with simulate_accelerator():
        watch, _ = watching()

        def elsewhere() -> tuple[list[str], tuple[bool, bool]]:
            with simulate_accelerator() as [device]:
                other, seen = watching()
                leave(watch)
                torch.ones(1).to(device)
                leave(other)
            return seen, switch()

        assert in_threads(elsewhere) == [(["aten::_to_copy"], OFF)]
        assert not registered()
        # This thread's switch is out of the other's reach: the next watch here puts it back.
        assert torch.equal(torch.ones(2).to(torch.float64), torch.ones(2, dtype=torch.float64))
        following, _ = watching()
        leave(following)
        assert switch() == OFF


def test_a_generator_that_is_collected_ends_its_watch_and_no_other() -> None:
    def held() -> Iterator[None]:
        with OperatorWatch(OPERATORS, lambda call: None):
            yield

    with simulate_accelerator() as [device]:
        generator: Any = held()
        next(generator)
        watch, seen = watching()
        around: list[Any] = [generator]
        around.append(around)  # so that the collector alone can end it
        del generator, around
        gc.collect()
        torch.ones(1).to(device)
        assert seen == ["aten::_to_copy"]
        leave(watch)
        assert switch() == OFF


def test_a_watch_entered_where_the_key_is_on_leaves_it_on() -> None:
    key = torch._C.DispatchKey.AutocastIPU
    with OperatorWatch(OPERATORS, lambda call: None):
        pass  # every operator falls through the key from now on
    torch._C._dispatch_tls_set_dispatch_key_included(key, True)
    torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
    try:
        watch, _ = watching()
        leave(watch)
        assert switch() == (True, False)
    finally:
        torch._C._dispatch_tls_set_dispatch_key_included(key, OFF[0])
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, OFF[1])


def test_a_watch_that_ends_while_an_operator_is_watched_lets_it_finish() -> None:
    result: list[Tensor] = []

    def see(call: Dispatched) -> None:
        leave(watch)
        result.append(call.result)

    with simulate_accelerator() as [device]:
        watch = OperatorWatch(OPERATORS, see).__enter__()
        moved = torch.ones(1).to(device)
        assert result[0] is moved
        following, seen = watching()
        torch.ones(1).to(device)
        leave(following)
        assert seen == ["aten::_to_copy"]
        assert switch() == OFF
