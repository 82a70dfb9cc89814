"""Test waits for collectives, and how often each line starts one."""

from __future__ import annotations

import traceback
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from graphviz_torch import load, record, save, to_text
from graphviz_torch.distributed import CollectiveCounter, collectives
from tests.recording.test_collectives import alone

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")


def test_of_a_work_the_line_is_known_that_waits_for_it_whichever_is_waited_for_first() -> None:
    x, y = torch.ones(3), torch.ones(5)
    with alone(), record() as recording:
        works = [dist.all_reduce(x, async_op=True), dist.all_reduce(y, async_op=True)]
        works[1].wait()
        works[0].wait()
        dist.all_reduce(x)
        dist.barrier()
        dist.all_reduce(y, async_op=True)
        torch.ones(3, requires_grad=True).sum().backward()
    begun, *_ = lines = [int(each.where.rpartition(":")[2]) for each in collectives(recording)]
    assert lines == [begun, begun, begun + 3, begun + 4, begun + 5]
    waits = [each.waited_where.rpartition(":")[2] for each in collectives(recording)]
    assert waits == [f"{begun + 2}", f"{begun + 1}", "", "", ""]
    assert [each.asynchronous for each in collectives(recording)] == [
        True,
        True,
        False,
        False,
        True,
    ]


def test_the_line_that_waits_stands_in_files_and_tables(tmp_path: Path) -> None:
    with alone(), record() as recording:
        x = torch.ones(3, requires_grad=True)
        work = dist.all_reduce(x.detach(), async_op=True)
        work.wait()
        x.sum().backward()
    graph = recording.graph
    [sent] = load(save(graph, tmp_path / "step.json")).collectives
    assert sent == graph.collectives[0]
    file, _, begun = sent.where.rpartition(":")
    assert sent.waited_where == f"{file}:{int(begun) + 1}"
    assert f"  {sent.where}  {sent.waited_where}" in to_text(graph, wide=True)
    waits_at_once = replace(graph, collectives=(replace(sent, waited_where=""),))
    assert "waited at" in to_text(graph, wide=True)
    assert "waited at" not in to_text(waits_at_once, wide=True)


def test_a_work_and_its_tensor_live_no_longer_than_without() -> None:
    with alone("fake", 2), record():  # gloo has threads that hold it for a moment
        tensor = torch.ones(3)
        work = dist.all_reduce(tensor, async_op=True)
        gone = weakref.ref(work), weakref.ref(tensor)
        del work, tensor
        assert [each() for each in gone] == [None, None]


def test_an_error_in_a_collective_has_no_line_of_ours() -> None:
    def lines() -> list[str]:
        group: Any = dist.group.WORLD
        with pytest.raises(RuntimeError, match="not connected") as error:
            group.recv([torch.ones(1)], 0, 0)  # from itself
        return [each.name for each in traceback.extract_tb(error.tb)]

    with alone():
        assert lines() == ["lines"]
        with record():
            assert lines() == ["lines", "redispatch"]  # which is PyTorch's


def test_collectives_are_counted_by_line_without_a_recording() -> None:
    with CollectiveCounter() as counter, alone():
        x = torch.ones(3)
        for _ in range(4):
            dist.all_reduce(x)
        dist.broadcast(x, 0)
        at = counter.position()
        work = dist.all_reduce(x, async_op=True)
        dist.barrier()
        work.wait()
    counts = {(each.kind, each.where.partition(":")[0]): each.times for each in at.calls}
    file = Path(__file__).name
    assert counts == {("all_reduce", file): 4, ("broadcast", file): 1}
    assert (at.last, at.state) == (1, "outside")
    assert [each.times for each in counter.position().calls] == [4, 1, 1, 1]


def test_no_method_of_a_group_or_a_work_stays_ours() -> None:
    methods = dict(vars(dist.ProcessGroup)), dict(vars(dist.Work))
    with alone(), record():
        ours = dict(vars(dist.ProcessGroup)), dict(vars(dist.Work))
        assert ours[0]["allreduce"] is not methods[0]["allreduce"]
        assert ours[1]["wait"] is not methods[1]["wait"]
    assert (dict(vars(dist.ProcessGroup)), dict(vars(dist.Work))) == methods
