"""A run is one recording: over several steps it tells what `record` around the script tells.

Each script with a mistake was reported by somebody, and has its repair beside it.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphviz_torch import Graph, StepBorders, Training, find, load, record
from graphviz_torch.integrations.command.main import main
from graphviz_torch.integrations.steps import LoopSteps, due_steps

MODEL = """\
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
def batch(): return torch.randn(16, 4), torch.randn(16, 1)
"""

NO_ZERO_GRAD = """\
optimizer = torch.optim.{kind}(model.parameters(), lr=1e-3)
for _ in range(6):
    x, y = batch()
    F.mse_loss(model(x), y).backward()
    optimizer.step()  # cause
"""
ZERO_GRAD = NO_ZERO_GRAD.replace("    x, y", "    optimizer.zero_grad()\n    x, y")

CLIPPED_LATE = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    x, y = batch()
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # cause
"""
CLIPPED = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    x, y = batch()
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""

RUNNING_LOSS = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
running = 0.0
for _ in range(6):
    x, y = batch()
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    running = 0.9 * running + 0.1 * loss  # cause
"""
RUNNING_NUMBER = RUNNING_LOSS.replace("0.1 * loss", "0.1 * loss.item()")

LIST_OF_LOSSES = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(6):
    x, y = batch()
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss)  # cause
"""
LIST_OF_NUMBERS = LIST_OF_LOSSES.replace("append(loss)", "append(loss.item())")

STEPPED_BETWEEN = """\
critic = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
opt_D = torch.optim.SGD(critic.parameters(), lr=0.1)
opt_G = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x, y = batch()
    fake = model(x)
    G_loss = -critic(fake).mean()
    D_loss = critic(fake.detach()).mean() - critic(y).mean()
    opt_D.zero_grad()
    D_loss.backward()
    opt_D.step()  # cause
    opt_G.zero_grad()
    G_loss.backward()
    opt_G.step()
"""
STEPPED_AFTER = """\
critic = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
opt_D = torch.optim.SGD(critic.parameters(), lr=0.1)
opt_G = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x, y = batch()
    fake = model(x)
    D_loss = critic(fake.detach()).mean() - critic(y).mean()
    opt_D.zero_grad()
    D_loss.backward()
    opt_D.step()
    opt_G.zero_grad()
    (-critic(fake).mean()).backward()
    opt_G.step()
"""

STATE_CARRIED_OVER = """\
cell, head = nn.RNNCell(4, 8), nn.Linear(8, 1)
optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.01)
state = torch.zeros(16, 8)
for _ in range(4):
    x, y = batch()
    state = cell(x, state)  # cause
    optimizer.zero_grad()
    F.mse_loss(head(state), y).backward()
    optimizer.step()
"""
STATE_WITH_ITS_HISTORY = STATE_CARRIED_OVER.replace(
    "[*cell.parameters(), *head.p", "[*head.p"
).replace("backward()", "backward(retain_graph=True)")
STATE_DETACHED = STATE_CARRIED_OVER.replace("cell(x, state)", "cell(x, state.detach())")

NEVER_STEPPED = """\
head = nn.Linear(4, 1)
optimizer, other = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, head))
for _ in range(4):
    x, y = batch()
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
    other.zero_grad()
    F.mse_loss(head(x), y).backward()  # cause
"""
BOTH_STEPPED = NEVER_STEPPED + "    other.step()\n"

DROPS_IN_EVALUATION = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(F.dropout(x, 0.5))  # cause

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    x, y = batch()
    optimizer.zero_grad()
    F.mse_loss(net(x), y).backward()
    optimizer.step()
net.eval()
with torch.no_grad():
    print(F.mse_loss(net(x), y).item())
"""
DROPS_IN_TRAINING = DROPS_IN_EVALUATION.replace("x, 0.5", "x, 0.5, self.training")

LAYERS_IN_A_LIST = """\
class Merge(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = [nn.Linear(4, 8), nn.Linear(4, 8)]

    def forward(self, x):
        return sum(part(x) for part in self.parts)  # cause

merge, head = Merge(), nn.Linear(8, 1)
optimizer = torch.optim.SGD([*merge.parameters(), *head.parameters()], lr=0.1)
for _ in range(4):
    x, y = batch()
    optimizer.zero_grad()
    F.mse_loss(head(merge(x)), y).backward()
    optimizer.step()
"""
LIST_THAT_IS_OPTIMIZED = LAYERS_IN_A_LIST.replace(
    "[*merge.parameters(), ", "[*(p for m in merge.parts for p in m.parameters()), "
)

NO_LAYER_KNOWN = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(4, 4) for _ in range(2)]

def main():
    net = Net()
    torch.optim.SGD(net.parameters(), lr=0.1)  # cause

try:
    main()
except ValueError as error:
    if {known}: raise
"""

# A graph that the next step's backward runs through again, and one that none does.
CARRIED_OVER = """\
cell = nn.RNNCell(4, 1)
optimizer = torch.optim.SGD([*model.parameters(), *cell.parameters()], lr=0.0)
state = torch.zeros(16, 1)
for _ in range(4):
    x, y = batch()
    state = cell(x, state)
    loss = F.mse_loss(model(x) + state, y)
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
"""
FLATTENED_FIRST = """\
flatten = nn.Flatten()
teacher = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    x, y = batch()
    x = flatten(x[:, None])
    with torch.no_grad():
        goal = teacher(x)
    optimizer.zero_grad()
    (F.mse_loss(model(x), y) + F.mse_loss(model(x), goal)).backward()
    optimizer.step()
"""

HEAD_WITHOUT_OPTIMIZER = """\
head = nn.Linear(1, 1)
opt = torch.optim.AdamW(model.parameters())
def update(optimizer):
    optimizer.step()  # cause
for i in range(4):
    x, y = batch()
    opt.zero_grad(); head.zero_grad()
    F.mse_loss(head(model(x)), y).backward()
    [update(each) for each in [opt]] if i % 2 else update(opt)
"""
PARTS = """\
parts = nn.ModuleDict({"encoder": nn.Linear(4, 3), "decoder": nn.Linear(3, 1)})
optimizer = torch.optim.AdamW([*parts["encoder"].parameters(), *parts["decoder"].parameters()])
for _ in range(4):
    x, y = batch()
    optimizer.zero_grad()
    F.mse_loss(parts["decoder"](parts["encoder"](x)), y).backward()
    optimizer.step()
"""
DCGAN = """\
netG = nn.Sequential(nn.Linear(2, 8), nn.ReLU(True), nn.Linear(8, 4))
netD = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2, True), nn.Linear(8, 1), nn.Sigmoid())
criterion = nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4)
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4)
for i in range(4):
    netD.zero_grad()
    real, label = torch.randn(16, 4), torch.full((16,), 1.0)
    output = netD(real).squeeze(1)
    errD_real = criterion(output, label)
    errD_real.backward()
    D_x = output.mean().item()
    fake = netG(torch.randn(16, 2))
    label.fill_(0.0)
    output = netD(fake.detach()).squeeze(1)
    errD_fake = criterion(output, label)
    errD_fake.backward()
    D_G_z1 = output.mean().item()
    errD = errD_real + errD_fake
    optimizerD.step()
    netG.zero_grad()
    label.fill_(1.0)
    output = netD(fake).squeeze(1)
    errG = criterion(output, label)
    errG.backward()
    D_G_z2 = output.mean().item()
    optimizerG.step()
    print(errD.item(), errG.item(), D_x, D_G_z1, D_G_z2)
"""

# Programs with two optimizers or more, as many people write them: nothing is wrong.
MATRICES_AND_VECTORS = """\
optimizers = [
    torch.optim.Muon([p for p in model.parameters() if p.dim() == 2], lr=1e-3),
    torch.optim.AdamW([p for p in model.parameters() if p.dim() < 2], lr=1e-3),
]
for _ in range(4):
    x, y = batch()
    F.mse_loss(model(x), y).backward()
    for optimizer in optimizers:
        optimizer.step()
    for optimizer in optimizers:
        optimizer.zero_grad()
"""
EACH_CLEARS_ITS_OWN = """\
first, last = model[0], model[2]
optimizers = [torch.optim.AdamW(part.parameters()) for part in (first, last)]
for _ in range(4):
    x, y = batch()
    F.mse_loss(model(x), y).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
"""
ACTOR_AND_CRITIC = """\
from torch.distributions import Categorical
actor, critic = nn.Linear(4, 3), nn.Linear(4, 1)
opt_actor = torch.optim.AdamW(actor.parameters(), lr=1e-3)
opt_critic = torch.optim.AdamW(critic.parameters(), lr=1e-3)
for _ in range(4):
    state, reward = torch.randn(16, 4), torch.randn(16)
    policy = Categorical(logits=actor(state))
    action = policy.sample()
    value = critic(state).squeeze(1)
    advantage = (reward - value).detach()
    loss = -(policy.log_prob(action) * advantage).mean() + F.mse_loss(value, reward)
    opt_actor.zero_grad()
    opt_critic.zero_grad()
    loss.backward()
    opt_actor.step()
    opt_critic.step()
"""
CODEBOOK = """\
encoder, decoder, codebook = nn.Linear(4, 3), nn.Linear(3, 4), nn.Embedding(8, 3)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
opt_codes = torch.optim.SGD(codebook.parameters(), lr=0.1)
for _ in range(4):
    x, _ = batch()
    z = encoder(x)
    code = torch.cdist(z, codebook.weight).argmin(1)
    q = codebook(code)
    loss = F.mse_loss(decoder(z + (q - z).detach()), x)
    loss = loss + F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
    optimizer.zero_grad()
    opt_codes.zero_grad()
    loss.backward()
    optimizer.step()
    opt_codes.step()
"""
ALPHA = """\
log_alpha = torch.zeros((), requires_grad=True)
opt, opt_alpha = torch.optim.Adam(model.parameters()), torch.optim.Adam([log_alpha])
for _ in range(4):
    x, y = batch()
    error = F.mse_loss(model(x), y)
    opt.zero_grad()
    (error * log_alpha.exp().detach()).backward()
    opt.step()
    opt_alpha.zero_grad()
    (-log_alpha * (error.detach() - 1.0)).backward()
    opt_alpha.step()
"""
AVERAGED = """\
import copy
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
for _ in range(4):
    x, y = batch()
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    with torch.no_grad():
        for a, p in zip(average.parameters(), model.parameters()): a.lerp_(p, 0.1)
    print(loss.item(), *(p.norm().item() for p in model.parameters()))
"""

# A script, the rule that names its mistake, what the script is repaired.
MISTAKES = {
    "SGD without zero_grad": (NO_ZERO_GRAD.format(kind="SGD"), "uncleared-gradient"),
    "AdamW without zero_grad": (NO_ZERO_GRAD.format(kind="AdamW"), "uncleared-gradient"),
    "clipped after the step": (CLIPPED_LATE, "clipped-in-vain"),
    "a running loss": (RUNNING_LOSS, "kept-history"),
    "a list of losses": (LIST_OF_LOSSES, "kept-history"),
    "stepped between forward and backward": (STEPPED_BETWEEN, "changed-in-place"),
    "an optimizer that never steps": (NEVER_STEPPED, "optimizer-never-stepped"),
    "dropout in an evaluation at the end": (DROPS_IN_EVALUATION, "dropout-in-evaluation"),
    "a state with its history": (STATE_CARRIED_OVER, "backward-twice"),
    "one optimizer under two names": (HEAD_WITHOUT_OPTIMIZER, "not-in-optimizer"),
    "layers in a list": (LAYERS_IN_A_LIST, "not-registered"),
}
HEALTHY = {
    "SGD": ZERO_GRAD.format(kind="SGD"),
    "clipped": CLIPPED,
    "a running number": RUNNING_NUMBER,
    "a list of numbers": LIST_OF_NUMBERS,
    "stepped after the backward": STEPPED_AFTER,
    "both stepped": BOTH_STEPPED,
    "dropout in training": DROPS_IN_TRAINING,
    "a list of layers that is optimized": LIST_THAT_IS_OPTIMIZED,
    "a module without parameters first": FLATTENED_FIRST,
    "Muon and AdamW": MATRICES_AND_VECTORS,
    "each clears its own": EACH_CLEARS_ITS_OWN,
    "actor and critic": ACTOR_AND_CRITIC,
    "a codebook": CODEBOOK,
    "a temperature": ALPHA,
    "an average": AVERAGED,
    "a state that is detached": STATE_DETACHED,
    "parts of a dict": PARTS,
    "a DCGAN that prints its losses": DCGAN,
}


def found(
    script: str, folder: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[list[dict[str, Any]], str]:
    """What `graphviz-torch run` finds in a script, and what it says of it."""
    path = folder / "train.py"
    path.write_text(MODEL + script)
    main(["run", "--format", "json", *options, str(path)])
    out, said = capsys.readouterr()
    return json.loads(out.splitlines()[-1])["findings"], said


def told(script: str, folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """What `graphviz-torch run` prints of a script, in one line."""
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
    lines = (MODEL + script).splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if text.endswith("# cause"))
    told = f"{loud[0]['where']} {loud[0]['message']}"
    assert f"train.py:{line}" in told


def test_a_state_whose_history_never_fails_is_told_with_the_line_that_carries_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    findings, _ = found(STATE_WITH_ITS_HISTORY, tmp_path, capsys, "--steps", "0")
    [told] = [each for each in findings if each["rule"] == "kept-history"]
    lines = (MODEL + STATE_WITH_ITS_HISTORY).splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if text.endswith("# cause"))
    assert f"train.py:{line}" in f"{told['where']} {told['message']}"


def test_a_missing_zero_grad_is_told_where_steps_in_between_are_not_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--steps", "2", "--every", "4")
    findings, _ = found(NO_ZERO_GRAD.format(kind="SGD"), tmp_path, capsys, *options)
    assert [each["rule"] for each in findings] == ["uncleared-gradient"]
    assert found(ZERO_GRAD.format(kind="SGD"), tmp_path, capsys, *options)[0] == []


def each_step(kind: type[torch.optim.Optimizer], clears: str, *, micro: int = 1) -> list[list[str]]:
    """The rules found in each of four steps, each in a recording of its own."""
    model = nn.Linear(3, 1)
    optimizer = kind(model.parameters(), lr=1e-3)  # type: ignore[call-arg]
    told = []
    for _ in range(4):
        if clears in ("before", "to zero"):
            optimizer.zero_grad(set_to_none=clears == "before")
        with record(model) as recording:
            if clears == "first":
                optimizer.zero_grad()
            for _ in range(micro):
                model(torch.randn(4, 3)).square().mean().div(micro).backward()
            optimizer.step()
            if clears == "last":
                optimizer.zero_grad()
        told.append([each.rule for graph in recording.graphs for each in find(graph)])
    return told


KINDS = [torch.optim.SGD, torch.optim.AdamW]


@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_zero_grad_is_told_by_one_recording_for_each_step(
    kind: type[torch.optim.Optimizer], micro: int
) -> None:
    assert each_step(kind, "never", micro=micro) == [[], *[["uncleared-gradient"]] * 3]


@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize("clears", ["before", "to zero", "first", "last"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_that_are_cleared_between_or_in_recordings_are_not_told(
    kind: type[torch.optim.Optimizer], clears: str, micro: int
) -> None:
    assert each_step(kind, clears, micro=micro) == [[]] * 4


def test_gradients_that_several_recordings_add_up_for_one_step_are_not_told() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(8):
        with record(model) as recording:
            model(torch.randn(4, 3)).square().mean().div(4).backward()
            if i % 4 == 3:
                optimizer.step()
        if i % 4 == 3:
            optimizer.zero_grad()
        assert find(recording.graph) == []


def test_what_was_done_between_recordings_is_no_mistake_of_theirs() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):  # a new gradient may lie where the old one was
        with record(model) as recording:
            model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
        assert find(recording.graph) == []
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()


def test_what_a_recording_knows_of_gradients_for_the_next_one_goes_and_hinders_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gc.collect()
    with record(model):
        model(torch.randn(4, 3)).sum()  # no gradient, nothing to know
    nothing = ours()["_SteppedGradient"]
    for _ in range(3):
        with record(model):
            model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
    assert ours()["_SteppedGradient"] == nothing + 1
    assert all(
        weakref.getweakrefcount(each) == 0 for p in model.parameters() for each in (p, p.grad)
    )
    gradient = weakref.ref(model.weight.grad)
    optimizer.zero_grad()
    assert gradient() is None
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)
    model.to(torch.float64)
    del optimizer
    assert ours()["_SteppedGradient"] == nothing


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_said_of_healthy_steps(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    findings, _ = found(HEALTHY[name], tmp_path, capsys, "--steps", "0")
    assert [each for each in findings if each["severity"] != "info"] == []


def test_a_graph_that_is_kept_in_each_step_is_told_unless_a_later_step_runs_through_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = ZERO_GRAD.format(kind="SGD").replace("backward()", "backward(retain_graph=True)")
    findings, _ = found(kept, tmp_path, capsys)
    [told] = [each for each in findings if each["rule"] == "graph-kept-for-nothing"]
    assert told["where"] == "train.py:11"
    assert " 3 times" in told["message"]
    findings, _ = found(CARRIED_OVER, tmp_path, capsys)
    assert "graph-kept-for-nothing" not in [each["rule"] for each in findings]


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
    command = [sys.executable, "-m", "graphviz_torch", "run", "-o", str(out), str(path)]
    subprocess.run(command, check=False, capture_output=True)
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
    assert "dropout-in-evaluation" in [each.rule for each in find(run)]
    assert [each["rule"] for each in findings] == ["dropout-in-evaluation"]


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


def test_a_report_is_printed_once_and_says_in_which_steps_a_finding_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(MODEL + ONCE_CUT)
    main(["run", "--steps", "6", str(path)])
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("got no gradient") == 1
    assert "In step 1 to 2 of 6, and no longer." in said
    path.write_text(MODEL + NO_ZERO_GRAD.format(kind="SGD"))
    main(["run", "--steps", "2", str(path)])
    said = capsys.readouterr().err
    assert said.count("they were not cleared") == 1
    assert said.splitlines()[-1] == (
        "warning, as said above: uncleared-gradient train.py:11, in step 2 of 2"
    )


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
    assert "parts.spare was never called. [never-called]" in said
    assert "In each of 3 steps." in said


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
    said = told(PLAYERS, tmp_path, capsys, "--steps", "0", "--experiment")
    assert "16 steps recorded" in said
    assert said.count("[sum-loss]") == 1
    assert "In step 1" not in said


def test_silence_is_told_apart_from_health(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(MODEL + CLIPPED)
    main(["run", str(path)])
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "graphviz-torch: 3 steps recorded",
        "nothing found (no experiment)",
    ]


def training(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()


def ours() -> Counter[str]:
    """How many objects there are of each class of the package."""
    gc.collect()
    kinds = [type(each) for each in gc.get_objects()]
    names = [(str(getattr(kind, "__module__", "")), kind.__qualname__) for kind in kinds]
    return Counter(name for module, name in names if module.startswith("graphviz_torch"))


@pytest.mark.parametrize("every", [1, 7])
def test_a_run_keeps_no_more_the_longer_it_is(every: int) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    gc.collect()  # else the run knows, weakly, what other tests have left
    steps = LoopSteps(due_steps(every=every), lambda step, found: None)
    training(model, optimizer, 770)  # a hundred steps are remembered
    early = ours()
    training(model, optimizer, 140)
    late = ours()
    steps.close()
    assert late == early


def of_each_step(*, one: bool) -> list[Graph]:
    """The graph of each step of a training: by one recording, or by one for each."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    found: list[Graph] = []
    outer = record(model, values=True) if one else nullcontext()
    with outer as run:
        for _ in range(3):
            with nullcontext() if one else record(model, values=True) as own:
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
    with StepBorders(lambda: order.append("end")):
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
