"""Test that nothing is reported of healthy trainings whose steps train different parts.

Each training follows public programs of its kind, with smaller layers and random data.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from graphviz_torch import find, load
from graphviz_torch.graph import Training
from graphviz_torch.integrations.command.main import main

GAN = """\
import torch, torch.nn as nn
torch.manual_seed(0)
class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        first = nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU()
        self.main = nn.Sequential(*first, nn.Linear(16, 8), nn.Tanh())
    def forward(self, x): return self.main(x)
class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        first = nn.Linear(8, 16), nn.LeakyReLU(0.2)
        self.main = nn.Sequential(*first, nn.Linear(16, 1), nn.Sigmoid())
    def forward(self, x): return self.main(x).squeeze(1)
netG, netD = Generator(), Discriminator()
criterion = nn.BCELoss()
fixed_noise = torch.randn(6, 4)
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
for i in range(10):
    netD.zero_grad()
    real = torch.randn(16, 8)
    label = torch.full((16,), 1.0)
    output = netD(real)
    errD_real = criterion(output, label)
    errD_real.backward()
    D_x = output.mean().item()
    noise = torch.randn(16, 4)
    fake = netG(noise)
    label.fill_(0.0)
    output = netD(fake.detach())
    errD_fake = criterion(output, label)
    errD_fake.backward()
    D_G_z1 = output.mean().item()
    errD = errD_real + errD_fake
    optimizerD.step()
    netG.zero_grad()
    label.fill_(1.0)
    output = netD(fake)
    errG = criterion(output, label)
    errG.backward()
    D_G_z2 = output.mean().item()
    optimizerG.step()
    if i % 5 == 0:
        pic = netG(fixed_noise).detach().numpy()
"""

DQN = """\
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
class QNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 2))
    def forward(self, x): return self.network(x)
q_network = QNetwork()
optimizer = torch.optim.Adam(q_network.parameters(), lr=1e-3)
target_network = QNetwork()
target_network.load_state_dict(q_network.state_dict())
for step in range(60):
    obs = torch.randn(1, 4)
    q_values = q_network(obs)
    actions = torch.argmax(q_values, dim=1).numpy()
    if step > 5:
        if step % 2 == 0:
            o, n, a = torch.randn(8, 4), torch.randn(8, 4), torch.randint(0, 2, (8, 1))
            r, d = torch.randn(8), torch.zeros(8)
            with torch.no_grad():
                target_max, _ = target_network(n).max(dim=1)
                td_target = r.flatten() + 0.99 * target_max * (1 - d.flatten())
            old_val = q_network(o).gather(1, a).squeeze()
            loss = F.mse_loss(td_target, old_val)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 10 == 0:
            for t, q in zip(target_network.parameters(), q_network.parameters()):
                t.data.copy_(1.0 * q.data + 0.0 * t.data)
"""

C51 = """\
import torch, torch.nn as nn
torch.manual_seed(0)
class QNetwork(nn.Module):
    def __init__(self, n_atoms=11, v_min=-5, v_max=5):
        super().__init__()
        self.n_atoms = n_atoms
        self.register_buffer("atoms", torch.linspace(v_min, v_max, steps=n_atoms))
        self.n = 2
        self.network = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, self.n * n_atoms))
    def get_action(self, x, action=None):
        logits = self.network(x)
        pmfs = torch.softmax(logits.view(len(x), self.n, self.n_atoms), dim=2)
        q_values = (pmfs * self.atoms).sum(2)
        if action is None:
            action = torch.argmax(q_values, 1)
        return action, pmfs[torch.arange(len(x)), action]
q_network = QNetwork()
optimizer = torch.optim.Adam(q_network.parameters(), lr=1e-3, eps=0.01 / 8)
target_network = QNetwork()
target_network.load_state_dict(q_network.state_dict())
for step in range(60):
    actions, pmf = q_network.get_action(torch.randn(1, 4))
    actions = actions.numpy()
    if step > 5:
        if step % 2 == 0:
            o, n, a = torch.randn(8, 4), torch.randn(8, 4), torch.randint(0, 2, (8, 1))
            r, d = torch.randn(8, 1), torch.zeros(8, 1)
            with torch.no_grad():
                _, next_pmfs = target_network.get_action(n)
                next_atoms = r + 0.99 * target_network.atoms * (1 - d)
                delta_z = target_network.atoms[1] - target_network.atoms[0]
                tz = next_atoms.clamp(-5, 5)
                b = (tz + 5) / delta_z
                l = b.floor().clamp(0, 10)
                u = b.ceil().clamp(0, 10)
                d_m_l = (u + (l == u).float() - b) * next_pmfs
                d_m_u = (b - l) * next_pmfs
                target_pmfs = torch.zeros_like(next_pmfs)
                for i in range(target_pmfs.size(0)):
                    target_pmfs[i].index_add_(0, l[i].long(), d_m_l[i])
                    target_pmfs[i].index_add_(0, u[i].long(), d_m_u[i])
            _, old_pmfs = q_network.get_action(o, a.flatten())
            loss = (-(target_pmfs * old_pmfs.clamp(min=1e-5, max=1 - 1e-5).log()).sum(-1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 10 == 0:
            target_network.load_state_dict(q_network.state_dict())
"""

FORWARD_FORWARD = """\
import torch, torch.nn as nn
from torch.optim import Adam
torch.manual_seed(0)
class Layer(nn.Linear):
    def __init__(self, i, o):
        super().__init__(i, o)
        self.relu = torch.nn.ReLU()
        self.opt = Adam(self.parameters(), lr=0.03)
        self.threshold = 2.0
        self.num_epochs = 5
    def forward(self, x):
        x_direction = x / (x.norm(2, 1, keepdim=True) + 1e-4)
        return self.relu(torch.mm(x_direction, self.weight.T) + self.bias.unsqueeze(0))
    def train(self, x_pos, x_neg):
        for i in range(self.num_epochs):
            g_pos = self.forward(x_pos).pow(2).mean(1)
            g_neg = self.forward(x_neg).pow(2).mean(1)
            apart = torch.cat([-g_pos + self.threshold, g_neg - self.threshold])
            loss = torch.log(1 + torch.exp(apart)).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return self.forward(x_pos).detach(), self.forward(x_neg).detach()
class Net(torch.nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.layers = []
        for d in range(len(dims) - 1):
            self.layers = self.layers + [Layer(dims[d], dims[d + 1])]
    def predict(self, x):
        h = x
        for layer in self.layers: h = layer(h)
        return h.pow(2).mean(1)
    def train(self, x_pos, x_neg):
        h_pos, h_neg = x_pos, x_neg
        for i, layer in enumerate(self.layers):
            h_pos, h_neg = layer.train(h_pos, h_neg)
net = Net([8, 16, 16])
net.train(torch.randn(32, 8), torch.randn(32, 8) + 1)
print(net.predict(torch.randn(3, 8)).shape)
"""

LAYERS_IN_TURN = """\
import torch, torch.nn as nn
torch.manual_seed(0)
layers = nn.ModuleList([nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 16)])
opts = [torch.optim.Adam(l.parameters(), lr=0.03) for l in layers]
for _ in range(4):
    pos, neg = torch.randn(32, 8), torch.randn(32, 8) + 1
    for layer, opt in zip(layers, opts):
        hp, hn = layer(pos).relu(), layer(neg).relu()
        apart = torch.cat([2 - hp.pow(2).mean(1), hn.pow(2).mean(1) - 2])
        loss = torch.log(1 + torch.exp(apart)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        pos, neg = hp.detach(), hn.detach()
"""

ACCUMULATION = """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
head = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
for step in range(6):
    optimizer.zero_grad()
    for micro in range(3):
        x = torch.randn(8, 4)
        (model(x).square().mean() / 3).backward()
    head(x).square().mean().backward()
    optimizer.step()
"""


WITHOUT_GRADIENTS = """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
target = torch.nn.Sequential(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.optim.SGD(target.parameters(), lr=0.1)
for step in range(6):
    x = torch.randn(8, 4)
    with torch.no_grad():
        wanted = target(x)
    optimizer.zero_grad()
    (model(x) - wanted).square().mean().backward()
    optimizer.step()
    if step % 2:
        other.step()
"""

OTHER_NAMES_AT_FIRST = """\
import torch, torch.nn as nn
body, head = nn.Sequential(nn.Linear(3, 16), nn.ReLU()), nn.Linear(16, 4)
with torch.no_grad():
    print(body(torch.randn(2, 3)).shape)
model = nn.Sequential(body, head)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 3)), torch.arange(8) % 4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_an_optimizer_that_steps_without_a_gradient_trains_nothing_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(WITHOUT_GRADIENTS)
    main(["run", "--steps", "20", "-o", "run.json.gz", "train.py"])
    run = load("run.json.gz")
    assert isinstance(run, Training)
    assert run.alternation == ""


@pytest.mark.parametrize(
    ("script", "steps", "turns"),
    [
        pytest.param(GAN, 8, "netD in every second step", id="gan"),
        pytest.param(DQN, 8, "", id="dqn"),
        pytest.param(C51, 8, "", id="c51"),
        pytest.param(FORWARD_FORWARD, 10, "", id="forward-forward"),
        pytest.param(
            LAYERS_IN_TURN,
            12,
            "layers.0 in every third step, layers.1 in every third step, "
            "layers.2 in every third step",
            id="layers in turn",
        ),
        pytest.param(ACCUMULATION, 6, "", id="accumulation"),
        pytest.param(OTHER_NAMES_AT_FIRST, 6, "", id="other names at first"),
    ],
)
def test_nothing_is_wrong_in_a_training_whose_parts_learn_in_turn_or_not_at_all(
    script: str,
    steps: int,
    turns: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(script)
    assert main(["run", "--steps", "20", "-o", "run.json.gz", "train.py"]) == 0
    said = capsys.readouterr().err
    run = load("run.json.gz")
    assert isinstance(run, Training)
    # Notes are true: a rollout with gradients, a target network that no_grad cuts off on purpose.
    assert [found for found in find(run) if found.severity != "info"] == []
    assert f"{len(run.steps)} steps recorded" in said
    nothing = (
        r"nothing found(?: in \d+ recorded steps)? \(.*\)(?:; --steps 0 .*)?; --experiment .*\n"
    )
    notes = r"(?:\d+ notes?: .* \(--notes shows all\)\n)?"
    assert re.search(f"{nothing}{notes}run.json.gz\ngraphviz-torch: see it: ", said)
    assert run.alternation == (turns and f"trained in turn: {turns}")
    assert turns in " ".join(said.split())
    assert len(run.steps) >= steps


def test_a_network_that_learns_in_its_own_step_is_told_what_cuts_it_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = GAN.replace("output = netD(fake)\n", "output = netD(netG(noise).detach())\n")
    Path("train.py").write_text(wrong)
    main(["run", "--steps", "8", "-o", "run.json.gz", "train.py"])
    run = load("run.json.gz")
    found = [each for each in find(run) if each.severity != "info"]
    assert any("netG" in each.message and "detach()" in each.message for each in found)


def test_a_network_is_named_with_its_owner_where_a_method_of_the_owner_calls_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(C51)
    assert main(["run", "-o", "run.json.gz", "train.py"]) == 0
    run = load("run.json.gz")
    assert isinstance(run, Training)
    names = {p.name.partition(".network.")[0] for p in run.graph.parameters}
    assert names == {"q_network", "target_network"}
    labels = {node.label for node in run.graph.nodes if node.leaf}
    assert "q_network.network.0.weight" in labels
