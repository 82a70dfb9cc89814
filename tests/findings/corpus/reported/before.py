"""Bugs from public threads, collected before the rules of this year were written."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributions import Normal
from torch.nn import functional as F
from torch.optim import SGD, Adam

from graphviz_torch import simulate_accelerator
from tests.findings.corpus.cases import Record, reported

GITHUB = "https://github.com/"
NO_GRAD = "does not require grad"
IN_PLACE = "modified by an inplace operation"


# --- cuts ---------------------------------------------------------------------------------------


@reported(
    GITHUB + "pytorch/pytorch/issues/1339",
    cause="The second model gets the argmax of the first one's output, which has no gradient.",
    words=r"\bmax\(\)|argmax|indices",
)
def argmax_between_two_models(record: Record) -> None:
    first, second = nn.Linear(4, 6), nn.Embedding(6, 3)
    optimizer = SGD([*first.parameters(), *second.parameters()], lr=0.1)
    with record(nn.ModuleList([first, second])):
        y = first(torch.randn(8, 4))
        chosen = torch.max(y, 1)[1]  # cause
        loss = F.cross_entropy(second(chosen), torch.randint(3, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@reported(
    GITHUB + "LZGMatrix/BOP19_CDPN_2019ICCV/issues/4",
    cause="The loss is computed of coordinates that argmax gave.",
    words=r"argmax",
    raises=NO_GRAD,
)
def coordinates_from_argmax(record: Record) -> None:
    model = nn.Conv1d(3, 64, 1)
    with record(model):
        bins = model(torch.randn(2, 3, 10))
        coordinates = torch.argmax(bins, dim=1)  # cause
        coordinates = 2.0 * coordinates.float() / 63.0 - 1.0
        loss = F.l1_loss(coordinates, torch.rand(2, 10))
        loss.backward()


@reported(
    GITHUB + "isayev/ReLeaSE/issues/39",
    cause="The policy loss is summed up of numbers read with item().",
    words=r"item\(\)",
    raises=NO_GRAD,
)
def policy_loss_of_items(record: Record) -> None:
    policy = nn.Linear(4, 3)
    optimizer = Adam(policy.parameters())
    with record(policy):
        rl_loss, discounted = torch.zeros(1), 1.0
        for _ in range(4):
            log_probs = F.log_softmax(policy(torch.randn(1, 4)), dim=1)
            rl_loss -= log_probs[0, 1].item() * discounted  # cause
            discounted *= 0.9
        optimizer.zero_grad()
        rl_loss.backward()
        optimizer.step()


@reported(
    GITHUB + "wangle53/CSA-CDGAN/issues/5",
    cause="The adversarial term of the generator's loss is computed of a detached prediction.",
    words=r"detach",
)
def adversarial_term_detached(record: Record) -> None:
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = Adam(generator.parameters())
    with record(nn.ModuleDict({"generator": generator, "critic": critic})):
        fake, real = generator(torch.randn(8, 4)), torch.randn(8, 4)
        pred_fake = critic(fake).detach()  # cause
        err_adv = F.binary_cross_entropy_with_logits(pred_fake, torch.ones(8, 1))
        err_con = F.l1_loss(fake, real)
        optimizer.zero_grad()
        (err_adv + 50 * err_con).backward()
        optimizer.step()


@reported(
    GITHUB + "queenie88/A-GCN/issues/4",
    cause="The learned adjacency is detached, so that the weights that make it learn nothing.",
    words=r"detach",
)
def adjacency_detached(record: Record) -> None:
    class Adaptive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.theta, self.phi, self.out = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            adj = torch.softmax(self.theta(x) @ self.phi(x).transpose(1, 2), dim=-1)
            adj = adj.detach()  # cause
            return self.out(adj @ x).mean(1)

    model = Adaptive()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(4, 5, 6)), torch.tensor([0, 1, 0, 1])).backward()
            optimizer.step()


@reported(
    GITHUB + "yifita/deep_cage/issues/16",
    cause="The regularization of the weights is computed of weights that were detached.",
    words=r"detach",
)
def regularization_of_detached_weights(record: Record) -> None:
    net = nn.Linear(3, 5)
    optimizer = Adam(net.parameters())
    with record(net):
        points, cage = torch.randn(10, 3), torch.randn(5, 3)
        weights = net(points).softmax(1)
        deformed = weights @ cage
        weights = weights.detach()  # cause
        loss = F.mse_loss(deformed, points) + 0.1 * weights.clamp(max=0).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@reported(
    GITHUB + "Ugenteraan/Deep_Hierarchical_Classification/issues/6",
    cause="The dependency term is computed of argmaxes, so no gradient comes from it.",
    words=r"argmax|compar|no gradient",
)
def dependency_term_of_argmax(record: Record) -> None:
    model = nn.ModuleDict({"upper": nn.Linear(6, 2), "lower": nn.Linear(6, 4)})
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        x = torch.randn(8, 6)
        upper, lower = model["upper"](x), model["lower"](x)
        wrong = torch.argmax(upper, 1) != torch.argmax(lower, 1) // 2  # cause
        dloss = wrong.float().mean()
        loss = F.cross_entropy(upper, torch.zeros(8, dtype=torch.long))
        loss = loss + F.cross_entropy(lower, torch.zeros(8, dtype=torch.long)) + dloss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@reported(
    GITHUB + "jankrepl/deepdow/pull/106",
    cause="sample() draws under no_grad; rsample() lets the gradient through.",
    words=r"\bsample|rsample",
)
def sample_instead_of_rsample(record: Record) -> None:
    model = nn.ModuleDict({"encoder": nn.Linear(6, 4), "decoder": nn.Linear(2, 6)})
    optimizer = Adam(model.parameters())
    with record(model):
        x = torch.randn(16, 6)
        mean, log_std = model["encoder"](x).chunk(2, dim=1)
        z = Normal(mean, log_std.exp()).sample()  # cause
        loss = F.mse_loss(model["decoder"](z), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# --- leaves, and what becomes of them ------------------------------------------------------------


@reported(
    GITHUB + "speechbrain/speechbrain/issues/735",
    cause="Variable(loss, requires_grad=True) makes the loss a leaf: backward ends there.",
    words=r"leaf|Variable",
)
def loss_made_a_variable(record: Record) -> None:
    model = nn.Linear(8, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            predict = model(torch.randn(8, 8)).argmax(1).float()
            loss = F.mse_loss(predict, torch.rand(8))
            loss = Variable(loss, requires_grad=True)  # cause
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@reported(
    GITHUB + "vinsis/ternary-quantization/issues/4",
    cause="What .to(device) gives of a leaf is not a leaf.",
    words=r"\bleaf",
    raises="can't optimize a non-leaf Tensor",
)
def scaling_factors_moved_after_they_were_made(record: Record) -> None:
    with simulate_accelerator() as (device,), record():
        scaling = [torch.ones(2, requires_grad=True).to(device) for _ in range(3)]  # cause
        SGD(scaling, lr=0.1)


@reported(
    GITHUB + "pytorch/pytorch/issues/19778",
    cause="The view of a leaf is not a leaf, so that its .grad stays None.",
    words=r"\bleaf",
    raises="NoneType",
)
def gradient_of_a_view(record: Record) -> None:
    with record():
        points = torch.tensor([0.25, 0.75], requires_grad=True).view(2, 1, 1)  # cause
        for _ in range(2):
            points.square().sum().backward()
            with torch.no_grad():
                points -= 0.1 * points.grad


@reported(
    GITHUB + "BaiTheBest/SparseLLM/issues/13",
    cause="s = s - lr * s.grad makes a new tensor that is not a leaf and has no .grad.",
    words=r"\bleaf",
    raises="NoneType",
)
def update_makes_a_new_tensor(record: Record) -> None:
    with record():
        s = torch.randn(4, 3, requires_grad=True)
        for _ in range(3):
            loss = (s.sum(1) - 1).square().mean()
            loss.backward()
            s = s - 0.1 * s.grad  # cause
            s.grad.zero_()


@reported(
    GITHUB + "Atcold/NYU-DLSP20/issues/765",
    cause="A parameter that requires grad is written to in place, through a view.",
    words=r"\bleaf",
    raises="a view of a leaf Variable",
)
def sinusoids_written_into_an_embedding(record: Record) -> None:
    embedding = nn.Embedding(10, 4)
    with record():
        theta = torch.arange(10.0)[:, None] / 10_000 ** (torch.arange(4.0) / 4)
        embedding.weight[:, 0::2] = torch.sin(theta[:, 0::2])  # cause


# --- a term that trains nothing ------------------------------------------------------------------


@reported(
    GITHUB + "facebookresearch/DomainBed/issues/50",
    cause="Without create_graph the gradients in the penalty are constants.",
    words=r"create_graph",
)
def penalty_without_create_graph(record: Record) -> None:
    network = nn.Linear(6, 2)
    optimizer = Adam(network.parameters())
    with record(network):
        losses = []
        for _ in range(2):
            losses.append(F.cross_entropy(network(torch.randn(8, 6)), torch.randint(2, (8,))))
        mean = sum(losses) / 2
        params = list(network.parameters())
        mean_grad = torch.autograd.grad(mean, params, retain_graph=True)  # cause
        penalty = 0.0
        for loss in losses:
            grads = torch.autograd.grad(loss, params, retain_graph=True)  # cause
            penalty += sum((g - m).pow(2).sum() for g, m in zip(grads, mean_grad, strict=True))
        optimizer.zero_grad()
        (mean + 1000 * penalty).backward()
        optimizer.step()
