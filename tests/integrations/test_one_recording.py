"""Compare the findings of `run` over several steps with those of `record` around the script."""

from __future__ import annotations

import gc
import json
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphviz_torch import Graph, find, load, record
from graphviz_torch.findings.rules.meaning.optimizers import RecreatedOptimizer
from graphviz_torch.findings.rules.meaning.parameter_groups import EmptyParameterGroup
from graphviz_torch.graph import Node, Step, TensorMeta, Training
from graphviz_torch.integrations import StepEnds
from graphviz_torch.integrations.command.main import main
from graphviz_torch.integrations.command.reports import StepContents
from graphviz_torch.integrations.steps import LoopSteps, _call, due_steps
from tests.integrations import scripts
from tests.integrations.scripts_of_steps import (
    CARRIED_OVER,
    CLIPPED,
    DROPS_IN_EVALUATION,
    FROZEN_BY_A_WRONG_NAME,
    HEALTHY,
    MISTAKES,
    MODEL,
    NO_LAYER_KNOWN,
    NO_ZERO_GRAD,
    SCALE,
    STATE_WITH_ITS_HISTORY,
    WEIGHT_OF_ANOTHER,
    ZERO_GRAD,
)
from tests.support.observable import objects_of_ours
from tests.support.processes.forks import forked


def found(
    script: str, folder: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[list[dict[str, Any]], str]:
    """Return the findings of `graphviz-torch run` for a script, and its output."""
    path = folder / "train.py"
    path.write_text(MODEL + script)
    main(["run", "--format", "json", *options, str(path)])
    out, said = capsys.readouterr()
    return json.loads(out.splitlines()[-1])["findings"], said


def told(script: str, folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Return the output of `graphviz-torch run` for a script, in one line."""
    path = folder / "train.py"
    path.write_text(MODEL + script)
    main(["run", *options, str(path)])
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("steps", ["3", "0"])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_over_several_steps_is_told_once_with_its_line(
    name: str, steps: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, rule = MISTAKES[name]
    findings, _ = found(script, tmp_path, capsys, "--steps", steps)
    loud = [each for each in findings if each["severity"] != "info"]
    assert [each["rule"] for each in loud] == [rule], loud
    assert [each["rule"] for each in findings].count(rule) == 1
    lines = (MODEL + script).splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if text.endswith("# cause"))
    told = f"{loud[0]['where']} {loud[0]['message']}"
    assert f"train.py:{line}" in told


def test_a_state_whose_history_never_fails_is_told_with_the_line_that_carries_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    findings, _ = found(STATE_WITH_ITS_HISTORY, tmp_path, capsys, "--steps", "0")
    [told] = [each for each in findings if each["rule"] == "retained-graph"]
    lines = (MODEL + STATE_WITH_ITS_HISTORY).splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if text.endswith("# cause"))
    assert f"train.py:{line}" in f"{told['where']} {told['message']}"


def test_a_missing_zero_grad_is_told_where_steps_in_between_are_not_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--steps", "2", "--every", "4")
    findings, _ = found(NO_ZERO_GRAD.format(kind="SGD"), tmp_path, capsys, *options)
    assert [each["rule"] for each in findings] == ["missing-zero-grad"]
    assert found(ZERO_GRAD.format(kind="SGD"), tmp_path, capsys, *options)[0] == []


def test_a_mistake_before_the_first_step_has_its_line_in_that_step_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MODEL + FROZEN_BY_A_WRONG_NAME)
    # In this process the test's own frames would be around the script's.
    run = scripts.recorded("--format", "json", "train.py", folder=tmp_path)
    findings = json.loads(run.stdout.splitlines()[-1])["findings"]
    assert [each["where"] for each in findings] == ["train.py:8"]


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_said_of_healthy_steps(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    findings, _ = found(HEALTHY[name], tmp_path, capsys, "--steps", "0")
    assert [each for each in findings if each["severity"] != "info"] == []


def test_a_parameter_that_is_a_variable_is_told_where_no_optimizer_holds_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    findings, _ = found(SCALE.format(more="", change="pass"), tmp_path, capsys)
    told = [each for each in findings if each["rule"] == "not-registered"]
    assert [(each["severity"], each["message"]) for each in told] == [
        ("info", "No optimizer holds scale, which got a gradient at train.py:12.")
    ]
    for script in (SCALE.format(more=", scale", change="pass"), WEIGHT_OF_ANOTHER):
        findings, _ = found(script, tmp_path, capsys)
        assert "not-registered" not in {each["rule"] for each in findings}


def test_a_graph_that_is_kept_in_each_step_is_told_unless_a_later_step_runs_through_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = ZERO_GRAD.format(kind="SGD").replace("backward()", "backward(retain_graph=True)")
    findings, _ = found(kept, tmp_path, capsys)
    [told] = [each for each in findings if each["rule"] == "unneeded-retain-graph"]
    assert told["where"] == "train.py:11"
    assert " 3 times" in told["message"]
    findings, _ = found(CARRIED_OVER, tmp_path, capsys)
    assert "unneeded-retain-graph" not in [each["rule"] for each in findings]


@pytest.mark.parametrize("known", [True, False])
def test_layers_of_which_the_optimizer_got_none_are_told_where_that_ends_the_script(
    known: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    findings, _ = found(NO_LAYER_KNOWN.format(known=known), tmp_path, capsys)
    said = [(each["rule"], each["where"]) for each in findings]
    assert said == ([("not-registered", "train.py:14")] if known else [])


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_script_that_is_killed_after_its_last_step_leaves_that_step_too(
    end: str, tmp_path: Path
) -> None:
    out, path = tmp_path / "run.json.gz", tmp_path / "train.py"
    script = ZERO_GRAD.format(kind="SGD").replace("range(6)", "range(2)")
    path.write_text(f"{MODEL}import os, signal\n{script}{end}\n")
    forked("-m", "graphviz_torch", "run", "-o", out, path, folder=tmp_path)
    run = load(out)
    assert isinstance(run, Training)
    assert [step.number for step in run.steps] == [0, 1]
    assert all(node.order is not None for node in run.graph.nodes)


def test_what_an_evaluation_shows_that_no_step_follows_is_in_the_file_of_the_last_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.json"
    findings, said = found(DROPS_IN_EVALUATION, tmp_path, capsys, "--steps", "0", "-o", str(out))
    run = load(out)
    assert isinstance(run, Training)
    assert [step.number for step in run.steps] == [0, 1]
    assert "2 steps recorded" in said
    assert "dropout-in-eval-mode" in [each.rule for each in find(run)]
    assert [each["rule"] for each in findings] == ["dropout-in-eval-mode"]


ONCE_CUT = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(6):
    x, y = batch()
    h = model[0](x)
    h = h.detach() if i < 2 else h
    optimizer.zero_grad()
    F.mse_loss(model[2](h.tanh()), y).backward()
    optimizer.step()
"""


EVAL = """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.eval()
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(16, 4)).square().mean().backward()
    optimizer.step()
"""


def test_where_eval_was_called_before_the_first_step_is_told_of_each_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(EVAL)
    main(["run", str(path)])
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("trained in eval mode") == 1
    assert "eval() was called at train.py:6." in said
    assert "= note: in each of 3 steps" in said


def test_a_report_is_printed_once_and_says_in_which_steps_a_finding_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(MODEL + ONCE_CUT)
    main(["run", "--steps", "6", str(path)])
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("got no gradient") == 1
    assert "= note: in steps 1 to 2 of 6, and no longer" in said
    path.write_text(MODEL + NO_ZERO_GRAD.format(kind="SGD"))
    main(["run", "--steps", "2", str(path)])
    said = capsys.readouterr().err
    assert said.count("they were not cleared") == 1
    assert said.splitlines()[-2] == "graphviz-torch: 2 steps recorded; see above"


SPARE = """\
model = nn.ModuleDict({"head": nn.Linear(4, 1), "spare": nn.Linear(4, 1)})
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = model
    def forward(self, x):
        return self.parts["head"](x)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    x, y = batch()
    optimizer.zero_grad()
    F.mse_loss(net(x), y).backward()
    optimizer.step()
"""


def test_a_layer_that_is_never_called_is_told_alike_in_each_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(SPARE, tmp_path, capsys)
    assert said.count("got no gradient") == 1
    assert "warning[never-called]: parts.spare.weight and parts.spare.bias got no" in said
    assert "= note: in each of 3 steps" in said


PLAYERS = """\
rival = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 1))
players = {model: torch.optim.SGD(model.parameters(), lr=0.1)}
players[rival] = torch.optim.SGD(rival.parameters(), lr=0.1)
for i in range(8):
    for player, optimizer in players.items():
        x, y = batch()
        optimizer.zero_grad()
        loss = F.mse_loss(player(x), y, reduction="sum")
        loss.backward()
        optimizer.step()
"""


def test_what_experiments_find_is_told_of_the_run_and_not_of_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(PLAYERS, tmp_path, capsys, "--steps", "0", "--experiment", "--notes")
    assert "16 steps recorded" in said
    assert said.count("[sum-loss]") == 1
    assert "In step 1" not in said


def test_silence_is_told_apart_from_health(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.py"
    loss = "F.mse_loss(model(x), y)"
    printed = CLIPPED.replace(loss, f"loss = {loss}; print(loss.item()); loss")
    path.write_text(MODEL + printed)
    main(["run", str(path)])
    said = capsys.readouterr()
    first, _, third, _ = map(float, said.out.split())
    assert said.err.splitlines()[-3:-1] == [
        "graphviz-torch: 3 steps recorded",
        "nothing found in 3 recorded steps (optimizer stepped, 4 parameters, "
        f"loss {first:.4g} -> {third:.4g}); --steps 0 records all; --experiment tries changes",
    ]


def backward_from(value: float, where: str, scale: float | None = None) -> Graph:
    meta = TensorMeta((), "float32", "cpu")
    loss = Node(0, "MseLossBackward0", (meta,), where=where, values=((value,),))
    return Graph((loss,), (), ((0, 0),), step=Step(loss_scale=scale))


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([(0, [(2.0, "a.py:3")])], "loss 2"),
        ([(0, [(8.0, "a.py:3", 4.0)]), (1, [(2.0, "a.py:3", 2.0)])], "loss 2 -> 1"),
        ([(0, [(5.0, "a.py:3")]), (0, [(2.0, "a.py:3")]), (1, [(1.0, "a.py:3")])], "loss 2 -> 1"),
        ([(0, [(2.0, "a.py:3")]), (1, [(1.0, "a.py:4")])], ""),  # players in turn
        ([(0, [(2.0, "a.py:3"), (1.0, "a.py:3")])], ""),  # two backwards in one step
    ],
)
def test_losses_of_one_line_are_compared(steps: Any, said: str) -> None:
    contents = StepContents()
    for number, losses in steps:
        contents.add(number, [backward_from(*loss) for loss in losses])
    assert str(contents) == said


def training(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("every", [1, 7])
def test_a_run_keeps_no_more_the_longer_it_is(every: int) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    gc.collect()  # else the run knows, weakly, what other tests have left
    steps = LoopSteps(due_steps(every=every), lambda step, found: None)
    kept = []
    for count in (110, 20):  # a hundred steps are remembered, and forwards by their callers' lines
        training(model, optimizer, count * every)
        kept.append(objects_of_ours())
    steps.close()
    assert kept[0] == kept[1]


def of_each_step(*, one: bool) -> list[Graph]:
    """Return the graph of each step of a training, from one recording or one per step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    found: list[Graph] = []
    outer = record(model, fingerprints=True) if one else nullcontext()
    with outer as run:
        for _ in range(3):
            with nullcontext() if one else record(model, fingerprints=True) as own:
                optimizer.zero_grad()
                model(torch.ones(2, 3)).square().mean().backward()
                optimizer.step()
                found += run.next_step() if run is not None else []
            found += own.graphs if own is not None else []
    return [
        replace(graph, nodes=tuple(n._replace(seconds=None) for n in graph.nodes), events=())
        for graph in found
    ]


def test_a_slice_of_a_run_is_what_a_recording_of_that_step_alone_gives() -> None:
    assert len(of_each_step(one=True)) == 3
    assert of_each_step(one=True) == of_each_step(one=False)


@pytest.mark.parametrize("every", [1, 5])
def test_parameters_are_bit_equal_and_nothing_is_left(every: int) -> None:
    ends = []
    for recorded in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        steps = LoopSteps(due_steps(every=every), lambda s, f: None) if recorded else None
        training(model, optimizer, 12)
        if steps is not None:
            steps.close()
        ends.append([p.detach().clone() for p in model.parameters()])
    assert all(map(torch.equal, *ends))
    assert torch._C._len_torch_function_stack() == 0
    assert "graphviz_torch" not in nn.modules.module._global_forward_pre_hooks


def test_a_step_ends_where_the_next_one_begins_and_its_tail_belongs_to_it() -> None:
    order: list[str] = []
    model = nn.Linear(3, 1)
    data = torch.utils.data.DataLoader(torch.ones(6, 3), batch_size=2)
    optimizers = [torch.optim.SGD([p], lr=0.1) for p in model.parameters()]
    average = torch.zeros(1, 3)
    with StepEnds(lambda: order.append("end")):
        for x in data:
            order.append("batch")
            model(x).sum().backward()
            first, last = optimizers
            first.step()
            first.zero_grad()
            last.step()
            order.append("stepped")
            with torch.no_grad():
                average.lerp_(model.weight, 0.1)
            order.append("tail")
            last.zero_grad()
            order.append("cleared")
    assert order == ["batch", "stepped", "tail", "cleared", "end"] * 3


@pytest.mark.parametrize("block", [record, lambda: StepEnds(lambda: None)])
def test_a_block_leaves_the_context_variables_as_they_were(block: Any) -> None:
    with block():
        pass  # a variable that has never been set is not in a context
    before = dict(copy_context())
    with block():
        assert dict(copy_context()) != before
    assert dict(copy_context()) == before


def test_calls_of_one_line_are_told_apart_by_names_and_groups_and_not_by_counts() -> None:
    anew = [
        RecreatedOptimizer(where="t.py:3", what=what, count=3) for what in ("scaler", "optimizer")
    ]
    groups = [EmptyParameterGroup(where="t.py:3", group=i, groups=2) for i in range(2)]
    assert len({_call(event) for event in [*anew, *groups]}) == 4
    assert _call(replace(anew[0], count=4, times=2)) == _call(anew[0])
