"""Follow the advice of each finding: the finding is gone, and the named parameters learn."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from graphviz_torch import Finding, Graph, find, record
from graphviz_torch.graph import Collective
from graphviz_torch.graph.units import bytes_text
from tests.findings.advice.rows import FOLLOWED, MEANT, Program
from tests.findings.corpus.cases import Recorder
from tests.support.recorded import only

for folder in ("advice", "mistakes"):
    for file in sorted((Path(__file__).parent / folder).glob("*.py")):
        import_module(f"tests.findings.{folder}.{file.stem}")


def run(
    program: Program, raises: str | None = None, **options: Any
) -> tuple[list[Finding], set[str], set[str], float]:
    """Return the findings, all parameters, those with a nonzero gradient, and the loss."""
    torch.manual_seed(0)
    recorder = Recorder()
    loss, said = math.nan, ""
    try:
        loss = program(recorder, **options).item()
    except Exception as error:
        said = str(error)
    assert bool(said) == bool(raises), said
    assert re.search(raises or "", said)
    learning = {
        p.name
        for graph in recorder.recording.graphs
        for p in graph.parameters
        if p.node is not None
        and any(s is not None and s.norm > 0 for s in graph.nodes[p.node].grad_outputs)
    }
    known = {p.name for graph in recorder.recording.graphs for p in graph.parameters}
    return find(recorder.recording), known, learning, loss


@pytest.mark.parametrize("name", FOLLOWED)
def test_who_follows_an_advice_is_helped(name: str) -> None:
    row = FOLLOWED[name]
    before, _, learned, loss = run(row.program, row.raises, followed=False)
    assert row.says in next(f.advice for f in before if f.rule == row.rule)
    after, there, learns, loss_then = run(row.program, followed=True)
    loud = {f.rule for f in after if f.severity != "info"}
    assert row.rule not in {f.rule for f in after}
    assert loud <= {f.rule for f in before}
    assert learns >= learned & there - set(row.freezes) | set(row.learns)  # tied ones are one
    assert math.isfinite(loss_then)
    assert loss_then == pytest.approx(loss, rel=row.rounded) or not row.same_loss


@pytest.mark.parametrize("name", MEANT)
def test_what_is_cut_on_purpose_is_told_without_advice(name: str) -> None:
    found, _, learned, loss = run(MEANT[name])
    assert [f.advice for f in found if f.rule in ("cut-gradient", "frozen")] == [""]
    assert learned
    assert math.isfinite(loss)


def test_a_teacher_or_a_copy_behind_a_cut_is_not_warned_of() -> None:
    for name in ("teacher_under_no_grad", "target_network_behind_detach_in_the_optimizer"):
        assert [f for f in run(MEANT[name])[0] if f.severity != "info"] == []


class Rerun(nn.Module):
    """A module inside a checkpoint."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.inside, x, use_reentrant=False)


def block() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))


def kept(graph: Graph) -> int:
    saved = (saved for node in graph.nodes for saved in node.saved)
    return sum(each.nbytes for each in saved if each.kind == "activation")


class Residual(nn.Module):
    """A block that is given to two of its nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inside = nn.LayerNorm(64), block()

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.inside(self.norm(x))


def ending_in_tanh() -> nn.Sequential:
    return nn.Sequential(block(), nn.Tanh())


BLOCKS: dict[str, tuple[Callable[[], nn.Module], int, nn.Module]] = {
    "one": (block, 1, nn.Identity()),
    "one whose input is kept before it": (block, 1, nn.Tanh()),
    "several": (block, 6, nn.Identity()),
    "several that are given to two of their nodes": (Residual, 6, nn.Identity()),
    "several that keep what the next one is given": (ending_in_tanh, 6, nn.Identity()),
}


@pytest.mark.parametrize("outputs", [512, 2048])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_that_runs_again_saves_what_the_advice_says(name: str, outputs: int) -> None:
    make, count, before = BLOCKS[name]

    def graph(around: type[nn.Module] | None) -> Graph:
        blocks = [make() if around is None else around(make()) for _ in range(count)]
        end = nn.Linear(64, outputs), nn.LogSoftmax(1)
        model = nn.Sequential(nn.Linear(16, 64), before, nn.Sequential(*blocks), *end)
        with record(model) as recording:
            model(torch.randn(2048, 16)).square().mean().backward()
        return recording.graph

    before_it = graph(None)
    said = only("most-memory", before_it).advice
    less = kept(before_it) - kept(graph(Rerun))
    assert "under torch.utils.checkpoint" in said
    assert f"about {bytes_text(less)} less would be saved" in said


def test_a_block_that_saves_less_than_a_tenth_is_not_advised() -> None:
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4096), nn.LogSoftmax(1))
    with record(model) as recording:
        model(torch.randn(512, 16)).square().mean().backward()
    found = only("most-memory", recording.graph)
    assert found.advice == ""
    assert "module 1" not in found.message


def test_what_ran_in_eval_mode_or_learns_in_turn_is_not_called_frozen() -> None:
    teacher, student = nn.Linear(4, 4).eval().requires_grad_(False), nn.Linear(4, 4)
    with record(nn.ModuleDict({"teacher": teacher, "student": student})) as recording:
        for part, other in ((student, teacher), (student, teacher)):
            x = torch.randn(8, 4)
            (part(x) - other(x)).square().mean().backward()
    assert [f for f in find(recording) if f.rule == "frozen"] == []


def rules_of(*ranks: Graph) -> dict[str, str]:
    """Return the advice by rule, for faults between ranks."""
    return {found.rule: found.advice for found in find(list(ranks))}


def test_ranks_that_run_the_same_modules_skip_no_parameter() -> None:
    def step(used: list[str]) -> Graph:
        model = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 2)})
        with record(model) as recording:
            sum(model[name](torch.ones(3, 4)).square().mean() for name in used).backward()
        return recording.graph

    said = rules_of(step(["a"]), step(["b"]))["ddp-unused-parameter"]
    assert said == "Run the same modules on every rank."
    both = [step(["a", "b"]), step(["a", "b"])]
    assert "ddp-unused-parameter" not in rules_of(*both)
    gradients = [node.grad_outputs[0] for graph in both for node in graph.nodes if node.leaf]
    assert len(gradients) == 8  # two weights and two biases on two ranks
    assert all(each is not None and each.norm > 0 for each in gradients)


def test_a_rank_that_reads_once_after_many_steps_keeps_none_waiting(sim: torch.device) -> None:
    def step(logged: str) -> tuple[Graph, float]:
        model = nn.Linear(4, 2, bias=False).to(sim)
        nn.init.ones_(model.weight)
        values, losses = [], []
        with record(model) as recording:
            for _ in range(3):
                loss = model(torch.ones(3, 4).to(sim)).square().mean()
                loss.backward()
                if logged == "each step":
                    values.append(loss.item())
                elif logged == "after the steps":
                    losses.append(loss.detach())
        values += [loss.item() for loss in losses]
        sent = (Collective("all_reduce", 4),)  # of a process group, which is not here
        return replace(recording.graph, collectives=sent), sum(values)

    (first, total), (second, _) = step("each step"), step("never")
    said = rules_of(first, second)["rank-only-sync"]
    assert "keep x.detach(), and call item() once for many steps" in said
    first, after = step("after the steps")
    assert "rank-only-sync" not in rules_of(first, second)
    assert after == total == 3 * 16.0
