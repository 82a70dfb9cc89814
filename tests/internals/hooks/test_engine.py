"""Test the watch on backward while other code replaces the same functions."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from graphviz_torch import find, record
from graphviz_torch.internals.hooks.engine import EngineWatch
from tests.support.programs import in_threads


def watching() -> tuple[EngineWatch, list[str]]:
    """Return an open watch, and the list of events that it reports."""
    seen: list[str] = []
    watch = EngineWatch(lambda *_: seen.append("begin"), lambda *_: seen.append("end"))
    watch.open()
    return watch, seen


def backward() -> None:
    torch.ones(1, requires_grad=True).exp().backward()


def wrap() -> Any:
    """Replace the function that runs backward, as another library may; return the previous one."""
    theirs = torch.autograd.graph._engine_run_backward

    @functools.wraps(theirs)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return theirs(*args, **kwargs)

    put(wrapper)
    return theirs


def put(function: Any) -> None:
    torch.autograd.graph._engine_run_backward = function
    torch.autograd._engine_run_backward = function  # type: ignore[attr-defined]


def test_watches_that_end_in_another_order_see_on_and_leave_nothing() -> None:
    before = torch.autograd.graph._engine_run_backward
    first, seen_first = watching()
    second, seen_second = watching()
    first.close()
    backward()
    assert (seen_first, seen_second) == ([], ["begin", "end"])
    second.close()
    backward()
    assert seen_second == ["begin", "end"]
    assert torch.autograd.graph._engine_run_backward is before


def test_a_watch_that_another_thread_ends_is_over() -> None:
    before = torch.autograd.graph._engine_run_backward
    watch, seen = watching()
    in_threads(watch.close)
    backward()
    assert seen == []
    assert torch.autograd.graph._engine_run_backward is before


def test_what_others_replaced_meanwhile_stays_and_backward_is_noticed_once_ever_after() -> None:
    before = torch.autograd.graph._engine_run_backward
    try:
        watch, seen = watching()
        ours = wrap()
        theirs = torch.autograd.graph._engine_run_backward
        watch.close()
        assert torch.autograd.graph._engine_run_backward is theirs
        backward()
        assert seen == []
        again, seen = watching()  # theirs leads to ours still
        backward()
        assert seen == ["begin", "end"]
        put(ours)  # they put back what they found
        backward()
        assert seen == ["begin", "end"] * 2
        again.close()
        backward()
        assert seen == ["begin", "end"] * 2
        assert torch.autograd.graph._engine_run_backward is before
    finally:
        put(before)


@pytest.mark.parametrize(
    ("path", "name", "graphs"),
    [
        ("torch/distributed/pipelining/stage.py", "_backward_metadata_inference", 1),
        ("torch/distributed/pipelining/stage.py", "backward_one_chunk", 2),
        ("project/stage.py", "_backward_metadata_inference", 2),
        ("torch/cuda/graphs.py", "make_graphed_callables", 1),
        ("project/graphs.py", "make_graphed_callables", 2),
    ],
)
def test_a_backward_that_pytorch_runs_ahead_is_not_a_part_of_the_step(
    path: str, name: str, graphs: int
) -> None:
    source = f"def {name}(x):\n    (x * 0).log().sum().backward()\n"
    module: dict[str, Any] = {}
    exec(compile(source, f"/site-packages/{path}", "exec"), module)
    x = torch.ones(2, requires_grad=True)
    with record() as recording:
        module[name](x)
        x.grad = None
        x.exp().sum().backward()
    assert len(recording.graphs) == graphs
    assert ("nonfinite-value" in {each.rule for each in find(recording)}) == (graphs == 2)
