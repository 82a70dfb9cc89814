"""More bugs like those of `before`: shapes, losses, NaN, in-place changes, memory, devices."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam
from torch.utils.checkpoint import checkpoint

from graphviz_torch import simulate_accelerator
from tests.findings.corpus.cases import Record, reported

GITHUB = "https://github.com/"
NO_GRAD = "does not require grad"
IN_PLACE = "modified by an inplace operation"


# --- shapes and losses ---------------------------------------------------------------------------


@reported(
    GITHUB + "pytorch/pytorch/issues/16045",
    cause="Predictions of shape (100, 1) are compared with targets of shape (100,): 100 x 100.",
    words=r"broadcast|100, 100",
)
def regression_against_a_flat_target(record: Record) -> None:
    x = torch.randn(100, 2)
    y = 10 + 9 * x[:, 0] - 2 * x[:, 1] + torch.randn(100)
    model, loss_func = nn.Linear(2, 1), nn.MSELoss()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            optimizer.zero_grad()
            loss = loss_func(model(x), y)  # cause
            loss.backward()
            optimizer.step()


@reported(
    GITHUB + "PacktPublishing/Deep-Reinforcement-Learning-Hands-On/issues/33",
    cause="The advantage is (N,) minus (N, 1): every return minus every value.",
    words=r"broadcast|32, 32",
)
def advantage_of_all_pairs(record: Record) -> None:
    body, policy, value = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 1)
    model = nn.ModuleList([body, policy, value])
    optimizer = Adam(model.parameters())
    with record(model):
        h = body(torch.randn(32, 4)).relu()
        logits, value_v = policy(h), value(h)
        returns, actions = torch.randn(32), torch.randint(2, (32,))
        loss_value = F.mse_loss(value_v.squeeze(-1), returns)
        adv = returns - value_v.detach()  # cause
        log_prob = F.log_softmax(logits, 1)[range(32), actions]
        loss_policy = -(adv * log_prob).mean()
        optimizer.zero_grad()
        (loss_policy + loss_value).backward()
        optimizer.step()


@reported(
    GITHUB + "nishnik/Deep-Semantic-Similarity-Model-PyTorch/issues/2",
    cause="CrossEntropyLoss is given what softmax gave, and applies softmax again.",
    words=r"cross_entropy.*(softmax|probabilit)",
)
def softmax_before_cross_entropy(record: Record) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Softmax(dim=1))
    optimizer, criterion = SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss()
    with record(model):
        y_pred = model(torch.randn(8, 6))
        loss = criterion(y_pred, torch.randint(5, (8,)))  # cause
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@reported(
    GITHUB + "cvg/glue-factory/issues/89",
    cause="The head ends with a sigmoid and the loss applies one again.",
    words=r"sigmoid",
)
def sigmoid_before_bce_with_logits(record: Record) -> None:
    token = nn.Sequential(nn.Linear(8, 1), nn.Sigmoid())
    loss_fn = nn.BCEWithLogitsLoss(reduction="none")
    with record(token):
        score = token(torch.randn(16, 8)).squeeze(-1)
        correct = torch.randint(2, (16,))
        loss_fn(score, correct.float()).mean(-1).backward()  # cause


@reported(
    GITHUB + "AnubhavGupta3377/Text-Classification-Models-Pytorch/issues/9",
    cause="NLLLoss takes log-probabilities and is given probabilities.",
    words=r"nll_loss.*(softmax|probabilit)",
)
def softmax_before_nll(record: Record) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Softmax(dim=-1))
    criterion = nn.NLLLoss()
    with record(model):
        loss = criterion(model(torch.randn(8, 6)), torch.randint(4, (8,)))  # cause
        loss.backward()


@reported(
    GITHUB + "microsoft/ProDA/issues/20",
    cause="kl_div takes log-probabilities and is given the student's probabilities.",
    words=r"kl_div",
)
def kl_div_of_probabilities(record: Record) -> None:
    student, teacher = nn.Linear(6, 4), nn.Linear(6, 4)
    with record(student):
        x = torch.randn(8, 6)
        with torch.no_grad():
            target = F.softmax(teacher(x), dim=1)
        out = F.softmax(student(x), dim=1)
        loss_kd = F.kl_div(out, target, reduction="none")  # cause
        loss_kd.sum(1).mean().backward()


@reported(
    GITHUB + "FluxML/Flux.jl/issues/1546",
    cause="A softmax over one output is always 1: no gradient comes through it.",
    words=r"softmax",
)
def softmax_over_one_output(record: Record) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sigmoid(), nn.Linear(2, 1), nn.Softmax(dim=1))
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            output = model(torch.rand(16, 2))  # cause
            loss = F.mse_loss(output, torch.rand(16, 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@reported(
    GITHUB + "ultmaster/neuralpredictor.pytorch/issues/5",
    cause="The target is float64 and the prediction float32.",
    words=r"float64|double",
)
def target_in_double(record: Record) -> None:
    net = nn.Linear(4, 1)
    with record(net):
        predict = net(torch.randn(8, 4)).squeeze(-1)
        target = torch.rand(8, dtype=torch.float64)
        loss = F.mse_loss(predict, target)  # cause
        loss.backward()


# --- zeros ---------------------------------------------------------------------------------------


@reported(
    GITHUB + "Hiyuur/SR-TOD/issues/5",
    cause="The slope of sign is zero everywhere, so the threshold never learns.",
    words=r"\bsign\b",
)
def threshold_behind_a_sign(record: Record) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.learnable_thresh = nn.Conv2d(3, 1, 1), nn.Parameter(torch.tensor(0.1))

        def forward(self, x: Tensor, difference: Tensor) -> Tensor:
            mask = (torch.sign(difference - self.learnable_thresh) + 1) * 0.5  # cause
            return self.conv(x) * mask

    model = Masked()
    with record(model):
        model(torch.randn(2, 3, 8, 8), torch.rand(2, 1, 8, 8)).square().mean().backward()


@reported(
    GITHUB + "ProteomicsML/ProteomicsML/pull/203",
    cause="The last layer ends with a ReLU whose inputs are all negative: no gradient.",
    words=r"relu",
)
def relu_at_the_end(record: Record) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1), nn.ReLU())
    with torch.no_grad():
        model[2].bias.fill_(-4.0)
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            optimizer.zero_grad()
            F.mse_loss(model(torch.randn(64, 6)), torch.rand(64, 1)).backward()  # cause
            optimizer.step()


@reported(
    GITHUB + "phlippe/uvadlc_notebooks/issues/119",
    cause="Through ten sigmoids the gradient shrinks until the first layers hardly learn.",
    words=r"vanish|shrink|sigmoid",
)
def ten_sigmoids(record: Record) -> None:
    layers: list[nn.Module] = []
    for _ in range(10):
        layers += [nn.Linear(32, 32), nn.Sigmoid()]
    model = nn.Sequential(*layers, nn.Linear(32, 4))
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        logits = model(torch.randn(64, 32))  # cause
        loss = F.cross_entropy(logits, torch.randint(4, (64,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# --- NaN and Inf ---------------------------------------------------------------------------------


@reported(
    GITHUB + "pytorch/pytorch/issues/68425",
    cause="where() hides an exp that overflows, but its gradient is 0 * inf.",
    words=r"\bexp",
)
def exp_hidden_by_where(record: Record) -> None:
    scale = nn.Parameter(torch.tensor(1.0))
    with record():
        a = scale * torch.tensor([100.0, -1.0])
        b = torch.where(a <= 0, torch.exp(a), 1 + a)  # cause
        b.sum().backward()


@reported(
    GITHUB + "huggingface/sentence-transformers/pull/4033",
    cause="The slope of the square root at a distance of zero is infinite.",
    words=r"sqrt|square root",
)
def distance_of_equal_embeddings(record: Record) -> None:
    model = nn.Linear(4, 4)
    with record(model):
        x = torch.randn(8, 4)
        anchor, positive, negative = model(x), model(x), model(torch.randn(8, 4))
        near = torch.sqrt((anchor - positive).square().sum(1))  # cause
        far = torch.sqrt((anchor - negative).square().sum(1))
        F.relu(near - far + 5).mean().backward()


@reported(
    GITHUB + "pytorch/pytorch/issues/8069",
    cause="The slope of acos at 1 is infinite.",
    words=r"acos",
)
def angle_of_equal_vectors(record: Record) -> None:
    model = nn.Linear(3, 2, bias=False)
    with record(model):
        out = F.pad(model(torch.randn(4, 3)) * 0, (0, 1), value=1.0)
        cosine = (out * torch.tensor([0.0, 0.0, 1.0])).sum(1)
        angle = torch.acos(cosine)  # cause
        angle.mean().backward()


@reported(
    GITHUB + "skorch-dev/skorch/issues/481",
    cause="The softmax underflows to 0, whose logarithm is -inf.",
    words=r"\blog\b|LogBackward",
)
def log_of_softmax(record: Record) -> None:
    model = nn.Linear(4, 3)
    optimizer = Adam(model.parameters())
    with record(model):
        y_pred = torch.softmax(model(1000 * torch.randn(16, 4)), dim=-1)
        y_log = torch.log(y_pred)  # cause
        loss = F.nll_loss(y_log, torch.randint(3, (16,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@reported(
    GITHUB + "Zhen-Dong/Magic-Me/issues/14",
    cause="One mask is empty, and its loss is 0 / 0.",
    words=r"\bdiv|/ 0|by zero",
)
def divided_by_an_empty_mask(record: Record) -> None:
    model = nn.Conv2d(1, 1, 3, padding=1)
    with record(model):
        masks = torch.zeros(2, 1, 8, 8)
        masks[0, :, 2:5, 2:5] = 1
        loss = F.mse_loss(model(torch.randn(2, 1, 8, 8)), torch.randn(2, 1, 8, 8), reduction="none")
        loss = (loss * masks).sum([1, 2, 3]) / masks.sum([1, 2, 3])  # cause
        loss.mean().backward()


@reported(
    GITHUB + "pytorch/pytorch/issues/26098",
    cause="A row of scores is masked as a whole, and its softmax is NaN.",
    words=r"softmax",
)
def all_keys_masked(record: Record) -> None:
    query, value = nn.Linear(8, 8), nn.Linear(8, 8)
    with record(nn.ModuleList([query, value])):
        src = torch.randn(2, 5, 8)
        padding = torch.tensor([[False, False, False, True, True], [True] * 5])
        scores = query(src) @ src.transpose(1, 2)
        scores = scores.masked_fill(padding[:, None, :], float("-inf"))
        weights = torch.softmax(scores, dim=-1)  # cause
        (weights @ value(src)).mean().backward()


# --- backward fails ------------------------------------------------------------------------------


@reported(
    GITHUB + "lyongo/NWPU-MOC/issues/4",
    cause="+= changes in place what the ReLU kept for backward.",
    words=r"in place|in-place|\+=",
    raises=IN_PLACE,
)
def laterals_added_in_place(record: Record) -> None:
    convs = nn.ModuleList([nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)])
    with record(convs):
        inputs = [torch.randn(1, 3, 8, 8), torch.randn(1, 3, 4, 4)]
        laterals = [F.relu(conv(x)) for conv, x in zip(convs, inputs, strict=True)]
        laterals[0] += F.interpolate(laterals[1], size=(8, 8), mode="nearest")  # cause
        laterals[0].mean().backward()


@reported(
    GITHUB + "pytorch/pytorch/issues/9391",
    cause="An element of the sigmoid's result is overwritten, and sigmoid kept it for backward.",
    words=r"in place|in-place",
    raises=IN_PLACE,
)
def element_of_a_sigmoid_overwritten(record: Record) -> None:
    a = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    with record():
        b = a.sigmoid()
        b[1] = 2  # cause
        b.sum().backward()


@reported(
    GITHUB + "pytorch/pytorch/issues/39141",
    cause="The discriminator's step changes weights that the generator's backward needs.",
    words=r"step",
    raises=IN_PLACE,
)
def step_between_two_backwards(record: Record) -> None:
    g = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8))
    d = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())
    opt_d, opt_g = Adam(d.parameters()), Adam(g.parameters())
    with record(nn.ModuleDict({"G": g, "D": d})):
        prob_real, prob_fake = d(torch.randn(16, 8)), d(g(torch.randn(16, 5)))
        d_loss = -torch.mean(torch.log(prob_real) + torch.log(1 - prob_fake))
        g_loss = torch.mean(torch.log(1 - prob_fake))
        opt_d.zero_grad()
        d_loss.backward(retain_graph=True)
        opt_d.step()  # cause
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()


@reported(
    GITHUB + "MorvanZhou/PyTorch-Tutorial/issues/57",
    cause="The hidden state is carried into the next step with its history.",
    words=r"h_state|hidden|history|earlier|had run|detach",
    raises="backward through the graph a second time",
)
def hidden_state_not_detached(record: Record) -> None:
    rnn, out = nn.RNN(1, 8, batch_first=True), nn.Linear(8, 1)
    model = nn.ModuleList([rnn, out])
    optimizer = Adam(model.parameters())
    with record(model):
        h_state = None
        for _ in range(3):
            r_out, h_state = rnn(torch.randn(1, 5, 1), h_state)  # cause
            loss = F.mse_loss(out(r_out), torch.randn(1, 5, 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@reported(
    GITHUB + "huggingface/transformers/issues/21381",
    cause="A reentrant checkpoint whose input requires no grad gives its layer no gradient.",
    words=r"checkpoint",
)
def checkpoint_after_frozen_embeddings(record: Record) -> None:
    embeddings, layer, head = nn.Embedding(10, 8), nn.Linear(8, 8), nn.Linear(8, 2)
    embeddings.requires_grad_(False)
    model = nn.ModuleDict({"embeddings": embeddings, "layer": layer, "head": head})
    with record(model):
        hidden = embeddings(torch.randint(10, (4, 5)))
        hidden = checkpoint(layer, hidden, use_reentrant=True)  # cause
        head(hidden.relu().mean(1)).square().mean().backward()


# --- memory and devices --------------------------------------------------------------------------


@reported(
    GITHUB + "BatsResearch/labelmodels/issues/4",
    cause="running_loss adds up losses with their history, so every graph stays alive.",
    words=r"running_loss|history|kept",
)
def running_loss_with_history(record: Record) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = Adam(model.parameters())
    with record(model):
        running_loss = 0.0
        for _ in range(4):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(torch.randn(8, 6)), torch.randint(2, (8,)))
            loss.backward()
            optimizer.step()
            running_loss += loss  # cause


@reported(
    GITHUB + "wingedsheep/transformer/issues/4",
    cause="The positional encoding is not a buffer, so .to(device) leaves it on the CPU.",
    words=r"\bpe\b|register_buffer",
    raises="same device|devices",
)
def positional_encoding_left_behind(record: Record) -> None:
    class Encoding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pe = torch.sin(torch.arange(10.0)[:, None] / torch.arange(1.0, 9.0))  # cause
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x + self.pe[: x.shape[1]])  # cause

    model = Encoding()
    with simulate_accelerator() as (device,), record(model):
        model.to(device)
        model(torch.randn(2, 5, 8).to(device)).sum().backward()


@reported(
    GITHUB + "huggingface/accelerate/issues/2251",
    cause="weights.to(device) is not assigned: the weights stay on the CPU.",
    words=r"\bweights\b",
    raises="same device|devices",
)
def move_without_assignment(record: Record) -> None:
    model = nn.Linear(4, 1)
    with simulate_accelerator() as (device,), record(model):
        model.to(device)
        batch = torch.randn(8, 4).to(device)
        weights = torch.rand(8)
        weights.to(batch.device)  # cause
        (model(batch).square().squeeze(1) * weights).mean().backward()


@reported(
    GITHUB + "konstmish/prodigy/issues/38",
    cause="The optimizer reads a number of every parameter with item() and waits for the device.",
    words=r"item\(\)",
)
def item_for_every_parameter(record: Record) -> None:
    with simulate_accelerator() as (device,):
        model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(6)]).to(device)
        start = [p.detach().clone() for p in model.parameters()]
        with record(model):
            for _ in range(2):
                model(torch.randn(4, 8).to(device)).square().mean().backward()
                numerator = 0.0
                with torch.no_grad():
                    for p, p0 in zip(model.parameters(), start, strict=True):
                        numerator += torch.dot(p.grad.flatten(), (p0 - p).flatten()).item()  # cause
                        p -= 0.1 * p.grad
                model.zero_grad()
