"""Compare recorded collectives with PyTorch's own counts, and test their lines and modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from graphviz_torch import Graph, load, record, save, summary, to_text
from graphviz_torch.distributed import collectives
from graphviz_torch.graph import Collective, TrainingStep
from graphviz_torch.internals.hooks import collectives as seam
from graphviz_torch.render.resolve import graph_and_findings
from tests.support.processes.launch import launched

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
WAYS = "DDP", "DDP with a hook", "FSDP2", "FSDP2 in bf16", "HSDP", "TP", "SP", "TP + FSDP2", "PP"


@pytest.fixture(scope="module")
def two() -> dict[str, list[dict[str, Any]]]:
    """The results of each kind of parallelism on two ranks."""
    return launched("tests.support.processes.parallelism", "gloo", ranks=2)


@pytest.fixture(scope="module")
def eight() -> dict[str, list[dict[str, Any]]]:
    """The results of those kinds that a fake group can run, as rank 0 of eight."""
    return launched("tests.support.processes.parallelism", "fake", "8", "FSDP2", "HSDP", "TP", "SP")


@pytest.mark.parametrize("way", WAYS)
def test_each_kind_is_there_as_often_as_pytorch_counts_it_and_nothing_changes(
    two: dict[str, list[dict[str, Any]]], way: str
) -> None:
    assert len(two[way]) == 2
    for rank in two[way]:
        assert rank["recorded"] == rank["counted"] != {}
        assert rank["equal"]
        assert rank["named"] == 1
        assert rank["missed"] == []
        assert rank["findings"] == []


def test_eight_ranks_in_one_process_are_counted_as_pytorch_does(
    eight: dict[str, list[dict[str, Any]]],
) -> None:
    assert [*eight] == ["FSDP2", "HSDP", "TP", "SP"]
    for [rank] in eight.values():
        assert rank["recorded"] == rank["counted"] != {}
        assert rank["equal"]


def test_what_wrappers_send_is_told_with_the_parameters_it_is_for(
    two: dict[str, list[dict[str, Any]]],
) -> None:
    [ddp, _], [fsdp, _] = two["DDP"], two["FSDP2"]
    assert ddp["parameters"] == ddp["counted"]["all_reduce"]
    assert fsdp["parameters"] == sum(fsdp["counted"].values())


@contextmanager
def alone(backend: str = "gloo", size: int = 1) -> Iterator[None]:
    """A process group in this process."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    store = FakeStore() if backend == "fake" else dist.HashStore()
    dist.init_process_group(backend, store=store, rank=0, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def test_a_bucket_of_ddp_names_the_parameters_that_a_hook_is_given() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    buckets: list[set[str]] = []

    def hook(state, bucket):  # type: ignore[no-untyped-def]
        buckets.append({names[id(parameter)] for parameter in bucket.parameters()})
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    with alone():
        ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.0002)
        ddp.register_comm_hook(None, hook)
        for _ in range(3):  # the buckets of the first backward are others
            buckets.clear()
            with record(ddp) as recording:
                ddp(torch.ones(3, 4)).sum().backward()
            sent = [each for each in collectives(recording) if each.kind == "all_reduce"]
            assert [{*each.parameters} for each in sent] == buckets
        assert len(buckets) > 1


def test_what_an_optimizer_sends_in_its_step_is_told_from_what_its_closure_sends() -> None:
    class Averaging(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self, closure: Any) -> None:  # type: ignore[override]
            with torch.enable_grad():
                closure()
            for parameter in self.param_groups[0]["params"]:
                dist.reduce_scatter_tensor(parameter.grad, parameter.grad)
                parameter -= 0.1 * parameter.grad

    weight = torch.ones(2, requires_grad=True)
    optimizer = Averaging([weight], {})

    def closure() -> None:
        loss = weight.square().sum()
        dist.all_reduce(loss.detach())
        loss.backward()

    with alone("fake"), record() as recording:
        optimizer.step(closure)
        dist.broadcast(weight.detach(), 0)
    phases = [(each.kind, each.phase) for each in collectives(recording)]
    assert phases == [
        ("all_reduce", "other"),
        ("reduce_scatter", "optimizer"),
        ("broadcast", "other"),
    ]


def test_a_gradient_that_is_averaged_by_hand_is_named_and_its_line() -> None:
    model = nn.Linear(2, 1)
    with alone(), record(model) as recording:
        model(torch.ones(3, 2)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    first, second = collectives(recording)
    assert (first.parameters, second.parameters) == (("weight",), ("bias",))
    assert first.nbytes == 2 * 4
    assert first.phase == "other"
    assert first.where.startswith("test_collectives.py:")
    assert (first.asynchronous, first.group, first.group_size) == (False, "", 1)


def test_of_a_parameter_is_known_whether_its_values_or_its_gradient_went_over() -> None:
    model = nn.Linear(2, 1)
    with alone(), record(model) as recording:
        model(torch.ones(3, 2)).sum().backward()
        dist.all_reduce(model.weight.grad)
        with torch.no_grad():
            dist.all_reduce(model.weight)
        dist.all_reduce(torch.ones(1))
    sent = [(each.parameters, each.gradients) for each in collectives(recording)]
    assert sent == [(("weight",), True), (("weight",), False), ((), None)]


def test_of_a_functional_one_the_line_is_known_that_waits_for_it() -> None:
    from torch.distributed import _functional_collectives as functional

    with alone(), record() as recording:
        x = torch.ones(3, requires_grad=True)
        total = functional.all_reduce(x.detach(), "sum", dist.group.WORLD)
        (total * x).sum().backward()
    [sent] = collectives(recording)
    begun, waited = (int(line.rpartition(":")[2]) for line in (sent.where, sent.waited_where))
    assert waited == begun + 1
    assert sent.asynchronous


def test_a_group_that_is_made_inside_the_block_is_seen_too() -> None:
    with record() as recording:
        x = torch.ones(3, requires_grad=True)
        with alone():
            dist.all_reduce(x.detach().clone())
        x.sum().backward()
    assert [each.kind for each in collectives(recording)] == ["all_reduce"]


def test_nothing_stays_and_without_a_group_no_operator_is_touched() -> None:
    theirs = dist.distributed_c10d._update_default_pg  # type: ignore[attr-defined]
    with record():
        assert seam._libraries == []
    with alone(), record():
        assert seam._libraries
    assert seam._libraries == []
    assert dist.distributed_c10d._update_default_pg is theirs  # type: ignore[attr-defined]


def test_ranks_that_give_and_take_alone_are_named() -> None:
    with alone("fake", 4), record() as recording:
        x = torch.ones(5, requires_grad=True)
        dist.broadcast(torch.ones(3), src=2)
        pair = dist.new_group([0, 3])
        dist.send(torch.ones(2), dst=3, group=pair)
        dist.barrier()
        x.sum().backward()
    sent = collectives(recording)
    assert [(each.kind, each.peer, each.nbytes) for each in sent[:2]] == [
        ("broadcast", 2, 12),
        ("send", 3, 8),
    ]
    assert (sent[1].group, sent[1].group_size) == ("ranks 0 and 3", 2)
    assert sent[2].kind == "barrier"


def divided_model() -> nn.Module:
    """Return a tensor-parallel model as rank 0 of two has it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import parallel

    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    return parallel.parallelize_module(model, mesh, plan)


def divided() -> Graph:
    model = divided_model()
    with record(model) as recording:
        model(torch.ones(3, 4, requires_grad=True)).sum().backward()
    return recording.graph


def test_a_redistribution_is_named_and_belongs_to_its_node_and_module() -> None:
    with alone("fake", 2):
        graph = divided()
    forward, backward = graph.collectives
    assert (forward.change, backward.change) == ("Partial → Replicate",) * 2
    assert (forward.group, forward.module, forward.phase) == ("tp", "2", "forward")
    assert (backward.module, backward.phase) == ("0", "backward")
    assert forward.node is not None
    assert backward.node is not None
    assert graph.nodes[forward.node].title == "Redistribute"
    assert graph.nodes[backward.node].order is not None


def test_a_node_says_how_the_ranks_divide_what_it_computes() -> None:
    outputs: dict[str, Any] = {}
    with alone("fake", 2):
        model = divided_model()
        for name, parameter in model.named_parameters():
            outputs[name] = parameter
        model[0].register_forward_hook(lambda _, __, out: outputs.update(fc1=out), prepend=True)
        with record(model) as recording:
            model(torch.ones(3, 4)).sum().backward()
        graph = recording.graph
        told = {each.name: graph.nodes[each.node].placement for each in graph.parameters}
        [inside] = {
            node.placement for node in graph.nodes if node.title == "addmm" and node.module == "0"
        }
        for name, text in {**told, "fc1": inside}.items():
            [placement], local = outputs[name].placements, outputs[name].to_local().shape
            theirs = repr(placement).replace("dim=", "").replace("()", "")  # "Shard(dim=0)"
            assert text == f"{theirs} on tp, local {[*local]}"
    assert not any(node.placement for node in graph.nodes if node.title == "relu")


def test_it_is_saved_summed_up_and_written(tmp_path: Path) -> None:
    with alone("fake", 2):
        graph = divided()
    assert load(save(graph, tmp_path / "step.json")) == graph
    rows = {row.module: row.sent_bytes for row in summary(graph).modules}
    assert rows == {"": 96, "0": 3 * 4 * 4, "1": None, "2": 3 * 4 * 4}
    text = to_text(graph, wide=True)
    assert "2 collectives" in text
    assert "all_reduce     48      1  tp, 2 ranks  forward   2" in text


def test_graphs_joined_have_each_collective_once() -> None:
    with alone("fake", 2), record() as recording:
        x = torch.ones(3, requires_grad=True)
        for _ in range(2):
            x.register_hook(lambda grad: dist.all_reduce(grad.clone()) and None)
        (x * 2).sum().backward()
        (x * 3).prod().backward()
    whole, _ = graph_and_findings(recording)
    assert len(whole.segments) == 2
    assert len(whole.collectives) == 4
    nodes = [each.node for each in whole.collectives]
    assert None not in nodes
    assert len({whole.nodes[node].id for node in nodes if node is not None}) == 2


@pytest.mark.parametrize(
    ("damaged", "says"),
    [
        (Collective("all_reduce", -1, "float32", 2), "-1 bytes"),
        (Collective("all_reduce", 1, "float32", 0), "group of 0"),
        (Collective("all_reduce", 1, "float32", 2, node=7), "node id 7"),
    ],
)
def test_a_collective_that_cannot_be_is_refused(damaged: Collective, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Graph((), collectives=(damaged,)).check()


@pytest.fixture(scope="module")
def engines() -> dict[str, list[dict[str, Any]]]:
    """Trainings by Accelerate and Lightning on two ranks."""
    pytest.importorskip("accelerate")
    pytest.importorskip("lightning")
    return launched("tests.support.processes.engines", ranks=2)


@pytest.mark.parametrize(
    ("engine", "steps"),
    [("accelerate", 1), ("lightning", 3)],  # a step of each; the whole fit of 12 samples a rank
)
def test_an_engine_trains_as_without_and_ddp_sends_one_bucket_a_step(
    engines: dict[str, list[dict[str, Any]]], engine: str, steps: int
) -> None:
    assert len(engines[engine]) == 2
    for rank in engines[engine]:
        assert rank["equal"]
        assert rank["named"]
        assert rank["sent"]["all_reduce in backward"] == steps
        assert rank["sent"]["broadcast in forward"] == 2  # of the first forward
        assert rank["findings"] == []


def test_a_step_of_several_backwards_has_each_collective_once() -> None:
    with alone("fake", 2), record() as recording:
        x = torch.ones(3, requires_grad=True)
        x.register_hook(lambda grad: dist.all_reduce(grad.clone()) and None)
        for _ in range(3):
            (x * 2).sum().backward()
    step = TrainingStep(0, tuple(recording.graphs))
    assert len(step.collectives) == 3
    own = [[each.own for each in graph.collectives] for graph in step.graphs]
    assert own == [[i == j for i in range(3)] for j in range(3)]


def test_a_gradient_is_known_after_a_collective_between_forward_and_backward() -> None:
    model = nn.Linear(3, 1, bias=False)
    with alone("fake", 2), record(model) as recording:
        y = model(torch.ones(2, 3)).sum()
        dist.all_reduce(y.detach())
        y.backward()
        dist.all_reduce(model.weight.grad)
    assert [each.parameters for each in recording.graph.collectives] == [(), ("weight",)]
