"""Test `run` under torchrun: one file and one report for all ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from graphviz_torch import Finding, Graph, load, record, to_text
from graphviz_torch.distributed import rank_chart
from graphviz_torch.graph import Collective, Training, TrainingStep
from graphviz_torch.graph.collective import rank_waits
from graphviz_torch.integrations.ranks import (
    RankReport,
    Ranks,
    merge_findings,
    merge_graphs,
    merge_steps,
)
from tests.support.processes.forks import forked

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")

TRAINING = """
import time, torch, torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = model(torch.randn(3, 4)).square().mean()
    if dist.get_rank() == 1:
        loss = loss + model.module[0].weight.detach().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 1:
        time.sleep(0.5)
    dist.all_reduce(loss.detach())
print(f"rank {dist.get_rank()} is done\\n", end="")  # at once: two ranks write here
dist.destroy_process_group()
"""


def test_two_ranks_write_one_file_and_one_report_that_names_who_differs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    command = ("-m", "graphviz_torch", "run", "--notes", "-o", "step.json", "train.py")
    done = forked(*command, folder=tmp_path, ranks=2)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 is done", "rank 1 is done"]
    said = done.stderr
    assert said.count("3 steps recorded on 2 ranks") == 1
    assert said.count("Rank 1: ") == 1
    assert "Rank 0: " not in said
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", "step.json"}
    run = load(tmp_path / "step.json")
    assert isinstance(run, Training)
    assert [step.number for step in run.steps] == [0, 1, 2]  # the last one of both ranks
    graph = run.graph
    assert [title for _, title in graph.segments] == ["rank 0", "rank 1"]
    assert [each.kind for each in graph.collectives] == ["all_reduce", "all_reduce"]
    [wait] = [each for each in rank_waits(graph.collectives) if each.late == 1]
    [(rank, seconds)] = wait.seconds
    assert rank == 0
    assert 0.3 < seconds < 60  # what rank 1 slept, less what rank 0 was later
    assert "for rank 1 in all_reduce at train.py:18" in to_text(graph)
    assert all(f">rank {rank}<" in rank_chart(graph).source for rank in (0, 1))


def step(x: Tensor, *, twice: bool = False) -> Graph:
    with record() as recording:
        y = (x * 2).sum()
        (y + (x.sin().sum() if twice else 0)).backward()
    return recording.graph


def test_ranks_that_do_the_same_are_one_graph_whatever_their_gradients_are() -> None:
    one, other = step(torch.ones(3, requires_grad=True)), step(torch.zeros(3, requires_grad=True))
    third = step(torch.ones(3, requires_grad=True), twice=True)
    assert merge_graphs({0: one, 1: other}) == one
    joined = merge_graphs({0: one, 1: third, 2: other})
    assert [title for _, title in joined.segments] == ["ranks 0 and 2", "rank 1"]
    assert len(joined.nodes) == len(one.nodes) + len(third.nodes)


def test_ranks_that_send_to_others_than_each_other_are_not_one() -> None:
    graph = step(torch.ones(3, requires_grad=True))
    sent = [replace(graph, collectives=(Collective("send", 8, peer=peer),)) for peer in (1, 2)]
    assert merge_graphs({0: sent[0], 1: sent[0]}).segments == ()
    assert [title for _, title in merge_graphs(dict(enumerate(sent))).segments] == [
        "rank 0",
        "rank 1",
    ]


def test_what_all_ranks_find_is_said_once() -> None:
    shared, alone = Finding("a", "info", "All do it."), Finding("b", "error", "Some do it.")
    reports = [
        RankReport(0, 3, (shared,)),
        RankReport(1, 3, (shared, alone)),
        RankReport(2, 3, (alone, shared)),
    ]
    messages = [finding.message for finding in merge_findings(reports)]
    assert messages == ["All do it.", "Ranks 1 and 2: Some do it."]


def test_each_backward_of_a_step_is_put_together_with_that_of_the_other_ranks() -> None:
    one, two = (step(torch.ones(3, requires_grad=True), twice=twice) for twice in (False, True))
    steps = {0: TrainingStep(4, (one, two)), 1: TrainingStep(4, (one, one))}
    whole = merge_steps(steps)
    assert (whole.number, len(whole.backwards), whole.backwards[0]) == (4, 2, one)
    assert [title for _, title in whole.graph.segments] == ["rank 0", "rank 1"]
    other = merge_steps({0: steps[0], 1: TrainingStep(4, (two,))})
    assert other.backwards == (two,)  # which of the first one's is which is not known


def test_steps_of_ranks_that_are_not_the_same_one_are_not_compared() -> None:
    graph = step(torch.ones(3, requires_grad=True))
    sent = replace(graph, collectives=(Collective("barrier", 0, group_size=2),))
    reports = [RankReport(r, 1, (), TrainingStep(0, (g,))) for r, g in enumerate((sent, graph))]
    assert [found.rule for found in merge_findings(reports)] == ["mismatched-collectives"]
    later = RankReport(1, 2, (), TrainingStep(1, (graph,)))
    assert merge_findings([reports[0], later]) == []


def test_a_rank_that_ended_early_is_not_waited_for_longer_than_asked() -> None:
    store = dist.HashStore()
    first, second = Ranks(0, 3, store), Ranks(1, 3, store)
    graph = step(torch.ones(3, requires_grad=True))
    second.report(RankReport(1, 2, (), TrainingStep(1, (graph,))))
    second.finish()
    assert first.reports(seconds=0.1) == {1: RankReport(1, 2, (), TrainingStep(1, (graph,)))}


def test_a_report_that_cannot_be_read_is_left_out() -> None:
    store = dist.HashStore()
    store.set(Ranks(1, 2, store)._key(1), b"not compressed")
    assert Ranks(0, 2, store).reports() == {}


def test_a_process_that_torchrun_did_not_start_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    assert Ranks.from_environment() is None
