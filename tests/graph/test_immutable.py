"""Events behave as frozen dataclasses with the same fields do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import graphviz_torch.findings.table  # noqa: F401 (it imports the events of rules)
from graphviz_torch.graph.events import CLASSES, Event
from graphviz_torch.graph.immutable import Immutable, immutable


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
    class Fault(Immutable):
        owner: str

    with pytest.raises(TypeError, match="owner"):
        Fault()  # type: ignore[call-arg]
