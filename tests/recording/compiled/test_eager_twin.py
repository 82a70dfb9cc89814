"""Compare recordings of a compiled model with compiled="eager" with the uncompiled model.

The expected values come from the same model without torch.compile, and from Dynamo's own counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import eval_frame
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from graphviz_torch import find, load, record
from graphviz_torch.graph import Graph
from graphviz_torch.integrations.command.main import main
from graphviz_torch.integrations.training import record_steps
from graphviz_torch.recording.recording import Recording
from tests.recording.test_compiled import INDUCTOR, nothing_compiled_stays  # noqa: F401

REMARK = "values and times are those of eager mode"


class Model(nn.Module):
    def __init__(self, calls: Callable[[Model, Tensor], Tensor]) -> None:
        super().__init__()
        self.encoder, self.gate, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.deep = nn.ModuleList(nn.Linear(8, 8) for _ in range(12))
        self.words = nn.Embedding(8, 8)
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        return self.calls(self, x)


def detached(m: Model, x: Tensor) -> Tensor:
    return m.head(m.encoder(x) * m.gate(x).detach())


def under_no_grad(m: Model, x: Tensor) -> Tensor:
    with torch.no_grad():
        gate = m.gate(x)
    return m.head(m.encoder(x) * gate)


def unused(m: Model, x: Tensor) -> Tensor:
    return m.head(m.encoder(x))


def argmax(m: Model, x: Tensor) -> Tensor:
    return m.head(m.encoder(x) + m.words(m.gate(x).argmax(-1)))


def root_of_zero(m: Model, x: Tensor) -> Tensor:
    return m.head((m.encoder(x) - m.encoder(x)).sqrt())


def deep_sigmoids(m: Model, x: Tensor) -> Tensor:
    for layer in m.deep:
        x = torch.sigmoid(layer(x) * 0.01)
    return m.head(x)


BUGS = (detached, under_no_grad, unused, argmax, root_of_zero, deep_sigmoids)


def step(model: Callable[[Tensor], Tensor]) -> Tensor:
    loss = model(torch.linspace(0, 1, 32).view(4, 8)).square().mean()
    loss.backward()
    return loss.detach()


def recorded(calls: Callable[[Model, Tensor], Tensor], backend: str | None) -> Graph:
    torch.manual_seed(0)
    model = Model(calls)
    run = model if backend is None else torch.compile(model, backend=backend)
    for _ in range(2):
        step(run)
    model.zero_grad()
    with record(model, compiled="open" if backend is None else "eager") as recording:
        step(run)
    return recording.graph


def described(graph: Graph) -> list[str]:
    """Return all fields of each node except times, as text, in which all NaN are equal."""
    return [repr([*node._replace(seconds=None, note="")]) for node in graph.nodes]


@pytest.mark.parametrize("calls", BUGS)
@pytest.mark.parametrize("backend", ["aot_eager", INDUCTOR])
def test_a_bug_in_a_model_compiled_before_is_told_as_in_eager(
    backend: str, calls: Callable[[Model, Tensor], Tensor]
) -> None:
    eager, twin = recorded(calls, None), recorded(calls, backend)
    assert find(twin) == find(eager) != []
    assert described(twin) == described(eager)


def test_afterwards_the_compiled_code_is_used_again_and_nothing_is_compiled() -> None:
    backend = CompileCounterWithBackend("aot_eager")
    torch.manual_seed(0)
    model = Model(detached)
    run = torch.compile(model, backend=backend)
    before = step(run)
    counts = (backend.frame_count, counters["stats"]["unique_graphs"], counters["frames"]["total"])
    calls = len(backend.graphs)
    assert counts[0] == 1
    with record(compiled="eager"):
        assert step(run).equal(step(model))
    assert step(run).equal(before)
    again = (backend.frame_count, counters["stats"]["unique_graphs"], counters["frames"]["total"])
    assert (again, len(backend.graphs)) == (counts, calls)
    with record() as recording:
        step(run)
    assert "compiled" in [node.operation for node in recording.graph.nodes]


def test_a_model_that_was_not_compiled_yet_is_compiled_by_the_next_step_alone() -> None:
    model = Model(detached)
    model.compile(backend="aot_eager", fullgraph=True)
    with record(compiled="eager"):
        step(model)
    assert counters["stats"]["unique_graphs"] == 0
    step(model)
    assert counters["stats"]["unique_graphs"] == 1


def test_the_outputs_say_that_the_numbers_are_eagers(tmp_path: Path) -> None:
    twin = recorded(detached, "aot_eager")
    path = twin.save(tmp_path / "twin.json")
    said = [node.id for node in load(path).nodes if REMARK in node.note]
    assert said == [node for node, _ in twin.outputs]
    assert not any(REMARK in node.note for node in recorded(detached, None).nodes)


def test_the_stance_of_the_program_is_as_before_also_after_an_error() -> None:
    with torch.compiler.set_stance("eager_on_recompile"):
        before = eval_frame._stance
        with record(compiled="eager"):
            assert eval_frame._stance.stance == "force_eager"
        with pytest.raises(ZeroDivisionError), record(compiled="eager"):
            raise ZeroDivisionError
        assert eval_frame._stance is before


def test_a_stance_that_the_program_chooses_in_the_block_stays() -> None:
    with record(compiled="eager"):
        torch.compiler.set_stance("fail_on_recompile")
    try:
        assert eval_frame._stance.stance == "fail_on_recompile"
    finally:
        torch.compiler.set_stance("default")


def test_recordings_of_two_threads_may_end_in_any_order() -> None:
    first, second = record(compiled="eager"), record(compiled="eager")
    opened, closes = threading.Event(), threading.Event()

    def other() -> None:
        with second:
            opened.set()
            closes.wait()

    thread = threading.Thread(target=other)
    with first:
        thread.start()
        opened.wait()
    assert eval_frame._stance.stance == "force_eager"
    closes.set()
    thread.join()
    assert eval_frame._stance.stance == "default"


def recorded_there(x: Tensor) -> Recording:
    with record(compiled="eager") as recording:
        x.sin().sum().backward()
    return recording


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_inside_a_compiled_function_it_is_said_that_it_runs_compiled() -> None:
    @torch.compile(backend="eager")
    def compiled(x: Tensor) -> Recording:
        torch._dynamo.graph_break()
        return recorded_there(x)

    graph = compiled(torch.ones(3, requires_grad=True)).graph
    [note] = filter(None, (node.note for node in graph.nodes))
    assert note.startswith("not recorded: RuntimeError: attempted to set_stance")
    assert REMARK not in note


def test_steps_of_a_training_that_are_recorded_as_eager_compile_nothing_more() -> None:
    model = Model(detached)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = torch.compile(model, backend="aot_eager")
    graphs = []
    with record_steps(model, at=[1, 2], compiled="eager") as steps:
        for _ in range(5):
            step(run)
            optimizer.step()
            optimizer.zero_grad()
            graphs.append(counters["stats"]["unique_graphs"])
    assert graphs == [1, 1, 1, 1, 1]
    assert "compiled" not in [node.operation for node in steps.graph.nodes]
    assert "cut-gradient" in [found.rule for found in steps.findings]


SCRIPT = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
run = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    run(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("how", "compiled"), [("eager", 0), ("closed", 1)])
def test_run_records_a_script_as_it_is_asked(
    how: str, compiled: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    assert main(["run", "--compiled", how, "-o", "run.json", "train.py"]) == 0
    for each in load("run.json").steps:
        assert [node.operation for node in each.graph.nodes].count("compiled") == compiled


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(ValueError, match='pass "open", "closed" or "eager"'):
        record(compiled="eagre")  # type: ignore[arg-type]


class Reads(nn.Module):
    """A model that reads a number of its result, which waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(x)
        if hidden.detach().sum().item() > 1e9:
            return hidden * 2
        return hidden


def test_what_a_compiled_model_copies_is_recorded_as_it_is_written(sim: torch.device) -> None:
    model = Reads().to(sim)
    kinds = []
    for run in (model, torch.compile(model, backend="eager")):
        with record(model, compiled="eager") as recording:
            run(torch.randn(2, 4).to(sim)).sum().backward()
        kinds.append([(copy.kind, copy.module) for copy in recording.graph.transfers])
    assert kinds[1] == kinds[0]
    assert "DtoH" in [kind for kind, _ in kinds[0]]
