"""`immutable` and `mutable` make classes that behave as dataclasses with the same fields do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import graphviz_torch.findings.table  # noqa: F401 (it imports the events of rules)
from graphviz_torch.graph.events import CLASSES, Event
from graphviz_torch.graph.immutable import immutable, mutable


def made(kind: Any) -> Any:
    """Return an event with a text in each field that has no default."""
    fields = dataclasses.fields(kind)
    return kind(**{f.name: "text" for f in fields if f.default is dataclasses.MISSING}, times=2)


def frozen(event: Any) -> Any:
    """Return the same values as an instance of a frozen dataclass."""
    fields = [(f.name, Any, dataclasses.field(default=None)) for f in dataclasses.fields(event)]
    kind = dataclasses.make_dataclass(type(event).__name__, fields, frozen=True)
    return kind(*(getattr(event, field.name) for field in dataclasses.fields(event)))


@pytest.mark.parametrize("kind", CLASSES.values(), ids=CLASSES)
def test_an_event_has_the_values_and_the_equality_of_a_frozen_dataclass(kind: Any) -> None:
    event, other = made(kind), dataclasses.replace(made(kind), times=3)
    assert dataclasses.asdict(event) == dataclasses.asdict(frozen(event))
    assert event == made(kind) != other
    assert hash(event) == hash(made(kind)) == hash(frozen(event))
    assert event != frozen(event)  # an instance of another class
    assert pickle.loads(pickle.dumps(event)) == copy.deepcopy(event) == event
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.times = 4
    with pytest.raises(dataclasses.FrozenInstanceError):
        del event.times
    assert not hasattr(event, "__dict__")


@pytest.mark.parametrize(
    "call",
    [
        lambda kind: kind(unknown=1),
        lambda kind: kind("a.py:1", where="a.py:2"),
        lambda kind: kind(*range(9)),
    ],
)
def test_wrong_arguments_of_an_event_are_refused(call: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="Event"):
        call(Event)


def test_a_missing_argument_is_named() -> None:
    @immutable
    class Fault:
        owner: str

    with pytest.raises(TypeError, match="owner"):
        Fault()  # type: ignore[call-arg]


def classes(decorator: Any, **options: Any) -> tuple[Any, Any]:
    """Return a class and one that inherits from it, with defaults of each kind."""

    @decorator(**options)
    class Box:
        width: int
        tags: list[str] = dataclasses.field(default_factory=list)
        note: str = dataclasses.field(default="none", compare=False, repr=False)

    @decorator(**options)
    class Lid(Box):
        loose: bool = False

        def __post_init__(self) -> None:
            self.tags.append("lid")

    return Box, Lid


PAIRS = [
    (classes(immutable), classes(dataclasses.dataclass, frozen=True, slots=True)),
    (classes(mutable), classes(dataclasses.dataclass, slots=True)),
    (classes(immutable, slots=False), classes(dataclasses.dataclass, frozen=True)),
    (classes(mutable, eq=False), classes(dataclasses.dataclass, slots=True, eq=False)),
]


def outcome(call: Callable[[], Any]) -> Any:
    """Return the text of a result, or the class of the exception."""
    try:
        return repr(call()).split(" at 0x")[0]
    except Exception as error:
        return type(error)


@pytest.mark.parametrize(("ours", "dataclass"), PAIRS)
def test_a_class_behaves_as_the_dataclass_does(ours: Any, dataclass: Any) -> None:
    for mine, theirs in zip(ours, dataclass, strict=True):

        def same(call: Callable[[Any], Any], mine: Any = mine, theirs: Any = theirs) -> None:
            assert outcome(lambda: call(mine)) == outcome(lambda: call(theirs))

        for _ in range(2):  # the first instance compiles `__init__`
            same(lambda kind: kind(3))
            same(lambda kind: kind(3, ["a"], note="b"))
            same(lambda kind: kind())
            same(lambda kind: kind(3, width=3))
            same(lambda kind: kind(3, unknown=1))
            same(lambda kind: kind(*range(9)))
        same(lambda kind: kind(3).tags is kind(3).tags)
        same(lambda kind: kind(3) == kind(3, note="other"))
        same(lambda kind: kind(3) == kind(4))
        same(lambda kind: len({kind(3, ()), kind(3, (), "other"), kind(4, ())}))
        same(lambda kind: setattr(kind(3), "width", 4))
        same(lambda kind: delattr(kind(3), "width"))
        same(lambda kind: dataclasses.replace(kind(3), width=4))
        same(lambda kind: dataclasses.asdict(kind(3)))
        same(lambda kind: hasattr(kind(3), "__dict__"))
        same(lambda kind: copy.deepcopy(kind(3)))
        same(lambda kind: copy.copy(kind(3)).tags is kind(3).tags)
        same(lambda kind: str(inspect.signature(kind)))
