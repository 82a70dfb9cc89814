"""Test that patches are installed by the first and removed by the last watcher, in any order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from torch.nn.modules import module as nn_module

from graphviz_torch.internals.hooks import watch
from graphviz_torch.internals.hooks.dispatch import OperatorWatch, _libraries, watch_devices
from graphviz_torch.internals.hooks.engine import EngineWatch
from graphviz_torch.internals.hooks.modules import ModuleWatch
from graphviz_torch.internals.hooks.watch import Installation, Replacement
from graphviz_torch.internals.tensors.metadata import DEVICE_LABELS
from tests.support.interrupts import Interrupt, interrupted

PACKAGE = watch.__file__.removesuffix("hooks/watch.py")


class Toy:
    """A watcher that needs three patches together."""

    parts: ClassVar[set[str]] = set()

    def __init__(self) -> None:
        self.open: Callable[[], None] = lambda: TOY.add(self)
        self.close: Callable[[], None] = lambda: TOY.discard(self)


def _install() -> None:
    for part in ("a", "b", "c"):
        Toy.parts.add(part)


def _remove() -> None:
    for part in ("a", "b", "c"):
        Toy.parts.discard(part)


TOY: Installation[Toy] = Installation(_install, _remove)
RUN_BACKWARD = torch.autograd.graph._engine_run_backward


def toy_is_there() -> bool:
    assert Toy.parts in ({"a", "b", "c"}, set())
    return bool(Toy.parts)


def engine_is_there() -> bool:
    there = [
        p._engine_run_backward is not RUN_BACKWARD for p in (torch.autograd, torch.autograd.graph)
    ]  # type: ignore[attr-defined]
    assert len(set(there)) == 1
    return there[0]


def module_hooks_are_there() -> bool:
    names = ("pre_hooks", "hooks", "hooks_always_called")
    there = ["graphviz_torch" in getattr(nn_module, f"_global_forward_{name}") for name in names]
    assert len(set(there)) == 1
    return there[0]


SEAMS: dict[str, tuple[Callable[[], Any], Callable[[], bool]]] = {
    "toy": (Toy, toy_is_there),
    "engine": (lambda: EngineWatch(lambda *_: None, lambda *_: None), engine_is_there),
    "modules": (lambda: ModuleWatch(lambda *_: None, lambda *_: None), module_hooks_are_there),
}


class Watchers(RuleBasedStateMachine):
    """Watchers of every seam come and go; each seam is installed while it has one."""

    watchers = Bundle("watchers")

    def __init__(self) -> None:
        super().__init__()
        self.threads = [ThreadPoolExecutor(1) for _ in range(3)]
        self.open: dict[str, list[Any]] = {name: [] for name in SEAMS}

    def on(self, thread: int, run: Callable[[], Any]) -> Any:
        return self.threads[thread].submit(run).result()

    @rule(target=watchers, name=st.sampled_from(sorted(SEAMS)), thread=st.integers(0, 2))
    def comes(self, name: str, thread: int) -> tuple[str, Any]:
        watcher = SEAMS[name][0]()
        self.on(thread, watcher.open)
        self.open[name].append(watcher)
        return name, watcher

    @rule(watcher=watchers, thread=st.integers(0, 2))
    def goes(self, watcher: tuple[str, Any], thread: int) -> None:
        name, watch = watcher
        self.on(thread, watch.close)
        self.open[name] = [other for other in self.open[name] if other is not watch]

    @rule(name=st.sampled_from(sorted(SEAMS)), thread=st.integers(0, 2), at=st.integers(1, 25))
    def comes_while_interrupted(self, name: str, thread: int, at: int) -> None:
        watcher = SEAMS[name][0]()
        if not self.on(thread, lambda: interrupted(watcher.open, Interrupt(at, PACKAGE))):
            self.open[name].append(watcher)
        else:
            watcher.close()  # as a `with` of ours does; it may have come with its last line

    @rule(watcher=watchers, thread=st.integers(0, 2), at=st.integers(1, 25))
    def goes_while_interrupted(self, watcher: tuple[str, Any], thread: int, at: int) -> None:
        name, watch = watcher
        arrived = self.on(thread, lambda: interrupted(watch.close, Interrupt(at, PACKAGE)))
        if arrived and at <= 3:
            watch.close()  # before it had begun
        self.open[name] = [other for other in self.open[name] if other is not watch]

    @invariant()
    def each_seam_is_installed_while_it_has_a_watcher(self) -> None:
        for name, (_, there) in SEAMS.items():
            assert there() == bool(self.open[name]), name

    def teardown(self) -> None:
        for name, watchers in self.open.items():
            for watcher in watchers:
                watcher.close()
            assert not SEAMS[name][1]()
        for thread in self.threads:
            thread.shutdown()


TestWatchers = Watchers.TestCase
TestWatchers.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_an_installation_that_fails_leaves_nothing() -> None:
    there: list[str] = []

    def install() -> None:
        there.append("half")
        raise MemoryError

    broken = Installation[str](install, there.clear)
    with pytest.raises(MemoryError):
        broken.add("a")
    assert (there, broken.watchers) == ([], ())


def test_operators_are_watched_while_a_watch_is_open_and_a_device_is_there() -> None:
    device = torch.device("meta", 99)
    first, second = (
        OperatorWatch({"aten::copy_": lambda *_: False}, lambda call: None) for _ in range(2)
    )
    first.__enter__()
    second.__enter__()
    try:
        DEVICE_LABELS[device] = "other:0"
        watch_devices()
        assert _libraries
        first.__exit__()
        assert _libraries
    finally:
        del DEVICE_LABELS[device]
        first.__exit__()
        second.__exit__()
    assert not _libraries


class Owner:
    """An owner of functions to replace: one of its own, one that it inherits, and a static one."""

    def own(self) -> str:
        return "own"

    @staticmethod
    def static() -> str:
        return "static"


class Child(Owner):
    pass


def adding(text: str) -> Callable[[Any], Any]:
    return lambda original: lambda *args: original(*args) + text


def test_replaced_functions_call_the_originals_which_are_put_back() -> None:
    before = dict(vars(Owner)), dict(vars(Child))
    rows = [
        (Owner, "own", adding("!")),
        (Owner, "static", adding("!")),
        (Child, "own", adding("?")),
    ]
    replacement = Replacement[str](lambda: rows)
    replacement.add("a")
    replacement.add("b")
    assert (Owner().own(), Owner.static(), Child().own()) == ("own!", "static!", "own!?")
    replacement.discard("a")
    assert Child().own() == "own!?"
    replacement.discard("b")
    assert (dict(vars(Owner)), dict(vars(Child))) == before


@pytest.mark.parametrize("order", [*permutations("abc")], ids="".join)
def test_replacements_of_one_function_end_in_any_order(order: tuple[str, ...]) -> None:
    original = Owner.own
    nested = {
        name: Replacement[str](lambda name=name: [(Owner, "own", adding(name))])  # type: ignore[misc]
        for name in "abc"
    }
    for replacement in nested.values():
        replacement.add("watcher")
    assert Owner().own() == "ownabc"
    for name in order:
        nested[name].discard("watcher")
    assert Owner.own is original


def test_what_other_code_put_in_our_place_is_kept_and_ours_leaves_when_it_does() -> None:
    original = Owner.own
    replacement = Replacement[str](lambda: [(Owner, "own", adding("!"))])
    replacement.add("a")
    ours = Owner.own
    theirs = lambda self: ours(self) + " of others"  # noqa: E731
    Owner.own = theirs  # type: ignore[method-assign]
    replacement.discard("a")
    assert Owner.own is theirs
    Owner.own = ours  # type: ignore[method-assign]
    replacement.add("b")
    assert Owner().own() == "own!"
    replacement.discard("b")
    assert Owner.own is original
