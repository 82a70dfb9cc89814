"""Training scripts with a mistake that only several steps show, and healthy ones.

Each mistake was reported in public. The table also contains its repair.
"""

from __future__ import annotations

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

MISSPELT = """\
for p in model[0].parameters():
    p.require_grad = False  # cause
"""
FROZEN_BY_A_WRONG_NAME = MISSPELT + ZERO_GRAD.format(kind="SGD")
FROZEN = FROZEN_BY_A_WRONG_NAME.replace("require_grad", "requires_grad")

JUDGED = """\
maker, judge = nn.Linear(4, 4), nn.Linear(4, 1)
first = torch.optim.SGD(maker.parameters(), lr=0.1)
second = torch.optim.SGD(judge.parameters(), lr=0.1)
for _ in range(6):
    first.zero_grad()
    second.zero_grad()
    fake = maker(torch.randn(16, 4))
    loss = judge(fake).mean() - judge(torch.randn(16, 4)).mean()
    loss.backward()  # cause
    second.step()
    (-judge(maker(torch.randn(16, 4)))).mean().backward()
    first.step()
"""
JUDGED_APART = JUDGED.replace("judge(fake)", "judge(fake.detach())")

RUNNING_LOSS = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
running = 0.0
for _ in range(12):
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
for _ in range(12):
    x, y = batch()
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss)  # cause
"""
LIST_OF_NUMBERS = LIST_OF_LOSSES.replace("append(loss)", "append(loss.item())")

NAN_IN_ONE_BATCH = """\
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for step in range(8):
    x, y = batch()
    if step == 1: x[3, 2] = float("nan")
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()  # cause
    optimizer.step()
"""
INFINITE_SLOPE = """\
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for step in range(8):
    x, y = batch()
    optimizer.zero_grad()
    ((model(x) * (step > 0)) ** 2).sum(1).sqrt().mean().backward()  # cause
    optimizer.step()
"""

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
# A parameter that is a variable of the script: optimized, changed by hand, or left as it is.
SCALE = """\
images, texts = nn.Linear(4, 8), nn.Linear(4, 8)
scale = nn.Parameter(torch.tensor(1.0))
optimizer = torch.optim.AdamW([*images.parameters(), *texts.parameters(){more}], lr=0.01)
for _ in range(5):
    x, _ = batch()
    logits = scale.exp() * images(x) @ texts(x).T  # cause
    loss = F.cross_entropy(logits, torch.arange(len(x)))
    optimizer.zero_grad()
    scale.grad = None
    loss.backward()
    optimizer.step()
    {change}
"""
BY_HAND = ("scale.data -= 0.1 * scale.grad", "with torch.no_grad(): scale -= 0.1 * scale.grad")
SCALE_OF_EACH_STEP = SCALE.format(more="", change="pass").replace(
    "    x, _ = batch()", "    x, scale = batch()[0], nn.Parameter(torch.tensor(1.0))"
)
# The weight of a module that is not called, which a loop's variable names.
WEIGHT_OF_ANOTHER = """\
other = nn.Linear(4, 4)
for weight in other.parameters(): weight.data.mul_(0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(4):
    x, y = batch()
    optimizer.zero_grad()
    F.mse_loss(model(other.forward(x)), y).backward()
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
    "SGD without zero_grad": (NO_ZERO_GRAD.format(kind="SGD"), "missing-zero-grad"),
    "AdamW without zero_grad": (NO_ZERO_GRAD.format(kind="AdamW"), "missing-zero-grad"),
    "clipped after the step": (CLIPPED_LATE, "ineffective-clipping"),
    "a running loss": (RUNNING_LOSS, "retained-graph"),
    "a list of losses": (LIST_OF_LOSSES, "retained-graph"),
    "weights that are NaN from a batch on": (NAN_IN_ONE_BATCH, "nonfinite-value"),
    "weights that are NaN from a gradient on": (INFINITE_SLOPE, "nonfinite-gradient"),
    "stepped between forward and backward": (STEPPED_BETWEEN, "changed-in-place"),
    "an optimizer that never steps": (NEVER_STEPPED, "optimizer-never-stepped"),
    "dropout in an evaluation at the end": (DROPS_IN_EVALUATION, "dropout-in-eval-mode"),
    "a state with its history": (STATE_CARRIED_OVER, "backward-twice"),
    "one optimizer under two names": (HEAD_WITHOUT_OPTIMIZER, "not-in-optimizer"),
    "layers in a list": (LAYERS_IN_A_LIST, "not-registered"),
    "two losses in a step": (JUDGED, "mixed-losses"),
}
HEALTHY = {
    "SGD": ZERO_GRAD.format(kind="SGD"),
    "clipped": CLIPPED,
    "frozen": FROZEN,
    "judged apart": JUDGED_APART,
    "a running number": RUNNING_NUMBER,
    "a list of numbers": LIST_OF_NUMBERS,
    "stepped after the backward": STEPPED_AFTER,
    "both stepped": BOTH_STEPPED,
    "dropout in training": DROPS_IN_TRAINING,
    "a list of layers that is optimized": LIST_THAT_IS_OPTIMIZED,
    "a scale that is optimized": SCALE.format(more=", scale", change="pass"),
    "a scale changed by .data": SCALE.format(more="", change=BY_HAND[0]),
    "a scale changed by hand": SCALE.format(more="", change=BY_HAND[1]),
    "a scale that each step makes anew": SCALE_OF_EACH_STEP,
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
