"""Test where the steps of a script end: each has as many steps as its author would count."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphviz_torch import load
from graphviz_torch.graph import Training
from tests.support.processes.forks import forked

MODEL = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
def loss(): return model(torch.randn(6, 4)).square().mean()
"""

BY_DATA = """\
for i in range(5):
    model.zero_grad()
    loss().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.1)
"""

NO_GRAD = """\
for i in range(5):
    loss().backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
            p.grad.zero_()
"""

ANOTHER_TENSOR = """\
for i in range(5):
    loss().backward()
    for p in model.parameters():
        p.data = p.data - 0.1 * p.grad
        p.grad = None
"""

ALL_AT_ONCE = """\
for i in range(5):
    model.zero_grad()
    loss().backward()
    with torch.no_grad():
        torch._foreach_add_([*model.parameters()], [p.grad for p in model.parameters()], alpha=-0.1)
"""

GRAD_FUNCTION = """\
parameters = list(model.parameters())
for i in range(5):
    gradients = torch.autograd.grad(loss(), parameters)
    with torch.no_grad():
        for p, g in zip(parameters, gradients):
            p.sub_(0.1 * g)
"""

WITHOUT_MODULES = """\
w = torch.randn(4, 1, requires_grad=True)
def update():
    w.data -= 0.1 * w.grad
    w.grad.zero_()
for i in range(5):
    (torch.randn(6, 4) @ w).square().mean().backward()
    update()
"""

ACCUMULATED_BY_HAND = """\
for i in range(5):
    model.zero_grad()
    for _ in range(3):
        (loss() / 3).backward()
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.1)
"""

OWN_OPTIMIZER = """\
class Own:
    def __init__(self, parameters): self.parameters = list(parameters)
    def zero_grad(self):
        for p in self.parameters: p.grad = None
    @torch.no_grad()
    def step(self):
        for p in self.parameters: p.add_(p.grad, alpha=-0.1)
own = Own(model.parameters())
for i in range(5):
    own.zero_grad()
    loss().backward()
    own.step()
"""

SALIENCY = """\
for i in range(5):
    x = torch.randn(2, 4, requires_grad=True)
    model(x).sum().backward()
    model.zero_grad()
"""

NOTHING_CHANGED = """\
for i in range(12):
    x = torch.randn(2, 4, requires_grad=True)
    model(x).sum().backward()
"""

ADAM = """\
optimizer = torch.optim.Adam(model.parameters())
for i in range(5):
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
    with torch.no_grad():
        for p in model.parameters():
            p.grad.norm().item()
            p.clamp_(-1, 1)
"""

ATTACK = """\
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for i in range(5):
    x = torch.randn(6, 4)
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(3):
        model(x + delta).square().mean().backward()
        delta.data = (delta + 0.1 * delta.grad.sign()).clamp(-0.3, 0.3)
        delta.grad.zero_()
    optimizer.zero_grad()
    model(x + delta.detach()).square().mean().backward()
    optimizer.step()
"""

SHARPNESS = """\
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for i in range(5):
    loss().backward()
    with torch.no_grad():
        for p in model.parameters(): p.add_(p.grad, alpha=0.01)
    grads = [p.grad.clone() for p in model.parameters()]
    optimizer.zero_grad()
    loss().backward()
    with torch.no_grad():
        for p, g in zip(model.parameters(), grads): p.sub_(g, alpha=0.01)
    optimizer.step()
    optimizer.zero_grad()
"""

LBFGS = """\
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
def closure():
    optimizer.zero_grad()
    value = loss()
    value.backward()
    return value
for i in range(5):
    optimizer.step(closure)
"""

TWO_OPTIMIZERS = """\
head = nn.Linear(4, 1)
optimizers = torch.optim.Adam(model.parameters()), torch.optim.SGD(head.parameters(), 0.1)
for i in range(3):
    for optimizer, module in zip(optimizers, (model, head)):
        optimizer.zero_grad()
        module(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()
"""

SCALER = """\
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10)
for i in range(6):
    optimizer.zero_grad()
    factor = float("inf") if i in (0, 1, 3) else 1.0
    scaler.scale(loss() * factor).backward()
    scaler.step(optimizer)
    scaler.update()
"""

ACCUMULATION = """\
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for i in range(5):
    for _ in range(10):
        (loss() / 10).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

EVALUATION = """\
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for i in range(5):
    optimizer.zero_grad()
    loss().backward()
    model.eval()
    with torch.no_grad():
        for _ in range(10): loss()
    model.train()
    optimizer.step()
"""

# The script, how many steps it has, and how many backwards the first of them has.
PROGRAMS = {
    "by .data": (BY_DATA, 5, 1),
    "under no_grad": (NO_GRAD, 5, 1),
    "by another tensor": (ANOTHER_TENSOR, 5, 1),
    "all at once": (ALL_AT_ONCE, 5, 1),
    "by autograd.grad": (GRAD_FUNCTION, 5, 1),
    "without modules": (WITHOUT_MODULES, 5, 1),
    "accumulated by hand": (ACCUMULATED_BY_HAND, 5, 3),
    "an optimizer of its own": (OWN_OPTIMIZER, 5, 1),
    "saliency": (SALIENCY, 5, 1),
    "nothing changed": (NOTHING_CHANGED, 5, 8),
    "an optimizer, and a clamp": (ADAM, 5, 1),
    "an attack": (ATTACK, 5, 4),
    "sharpness-aware": (SHARPNESS, 5, 2),
    "LBFGS": (LBFGS, 5, 4),
    "two optimizers": (TWO_OPTIMIZERS, 6, 1),
    "a scaler that skips": (SCALER, 6, 1),
    "accumulation": (ACCUMULATION, 5, 10),
    "an evaluation": (EVALUATION, 5, 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_script_has_the_steps_that_its_author_would_count(name: str, tmp_path: Path) -> None:
    source, steps, backwards = PROGRAMS[name]
    (tmp_path / "train.py").write_text(MODEL + source)
    command = ("-m", "graphviz_torch", "run", "--steps", "0", "-o", "run.json", "train.py")
    done = forked(*command, folder=tmp_path)
    run = load(tmp_path / "run.json")
    assert isinstance(run, Training), done.stderr
    assert [step.number for step in run.steps] == [*range(steps)]
    graphs = run.steps[0].graphs
    assert sum(node.order == 0 for graph in graphs for node in graph.nodes) == backwards


RECORDED = """\
from graphviz_torch.integrations.training import FindingsError, record_steps
seen = []
with record_steps(model, every=2, folder="graphs") as steps:
    for i in range(5):
        model.zero_grad()
        loss().backward()
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.1)
print(steps.step, [step.number for step in load("graphs/run.json.gz").steps])
with record_steps(model, at=1) as steps:
    for i in range(4):
        model.zero_grad()
        loss().backward()
        print(torch._C._len_torch_function_stack(), end=" ")
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.1)
print(torch._C._len_torch_function_stack())
try:
    with record_steps(model, raise_on="error") as steps:
        model.zero_grad()
        (loss() * float("nan")).backward()
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.1)
except FindingsError as error:
    print(traceback.extract_tb(error.__traceback__)[0].line)
print(torch._C._len_torch_function_stack())
"""


def test_a_loop_without_an_optimizer_is_counted_between_recorded_steps_and_may_be_ended(
    tmp_path: Path,
) -> None:
    before = "import traceback\nfrom graphviz_torch import load\n"
    (tmp_path / "loop.py").write_text(before + MODEL + RECORDED)
    done = forked("loop.py", folder=tmp_path)
    counted, modes, line, left = done.stdout.splitlines()
    assert counted == "5 [0, 2, 4]"
    # One looks for the end of a step, one records; after the last step neither does.
    assert modes.split()[:2] == ["1", "2"]
    assert line == "p.data.add_(p.grad, alpha=-0.1)"
    assert left == "0", done.stderr
