"""More bugs like those of `after`: values, losses and shapes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, RMSprop

from graphviz_torch import simulate_accelerator
from tests.findings.corpus.cases import Record, reported

GITHUB = "https://github.com/"
NO_GRAD = "does not require grad"
IN_PLACE = "modified by an inplace operation"


# --- shapes and losses ---------------------------------------------------------------------------


@reported(
    GITHUB + "RLinf/RLinf/issues/1568",
    cause="Values of shape (B,) are subtracted from returns of shape (B, 1): B x B.",
    words=r"broadcast|16, 16",
)
def returns_minus_values(record: Record) -> None:
    critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = Adam(critic.parameters())
    with record(critic):
        states, returns, previous = torch.randn(16, 4), torch.randn(16, 1), torch.randn(16, 1)
        values = critic(states).squeeze(-1)
        clipped = previous + (values - previous).clamp(-0.2, 0.2)  # cause
        unclipped_loss = (returns - values) ** 2  # cause
        loss = torch.max(unclipped_loss, (returns - clipped) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@reported(
    GITHUB + "LAMDA-Tabular/TALENT/pull/92",
    cause="mse_loss compares (n, 1) with (n,): each target with each prediction.",
    words=r"broadcast|24, 24",
)
def mse_of_all_pairs(record: Record) -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
    with record(model):
        y_true = torch.randn(24, 1)
        y_pred = model(torch.randn(24, 5)).reshape(-1)
        F.mse_loss(y_true, y_pred).backward()  # cause


@reported(
    GITHUB + "Lightning-Universe/lightning-bolts/issues/654",
    cause="The loss applies log_softmax to what softmax gave.",
    words=r"softmax|probabilit",
)
def log_softmax_of_softmax(record: Record) -> None:
    linear = nn.Linear(6, 4)
    with record(linear):
        y_hat = F.softmax(linear(torch.randn(8, 6)), dim=-1)
        loss = F.nll_loss(F.log_softmax(y_hat, dim=-1), torch.randint(4, (8,)))  # cause
        loss.backward()


@reported(
    GITHUB + "yudi-mars/daisyRec/pull/15",
    cause="The prediction is a sigmoid's, and BCEWithLogitsLoss applies another.",
    words=r"sigmoid|probabilit",
)
def sigmoid_in_the_recommender(record: Record) -> None:
    users, items = nn.Embedding(10, 4), nn.Embedding(20, 4)
    criterion = nn.BCEWithLogitsLoss(reduction="sum")
    with record(nn.ModuleList([users, items])):
        user, item = torch.randint(10, (16,)), torch.randint(20, (16,))
        prediction = (users(user) * items(item)).sum(-1).sigmoid()
        criterion(prediction, torch.randint(2, (16,)).float()).backward()  # cause


@reported(
    GITHUB + "yanx27/Pointnet_Pointnet2_pytorch/issues/30",
    cause="nll_loss takes log-probabilities and is given raw scores.",
    words=r"nll_loss",
)
def nll_of_raw_scores(record: Record) -> None:
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 5))
    with record(model):
        labels_pred = model(torch.randn(32, 3))
        F.nll_loss(labels_pred, torch.randint(5, (32,))).backward()  # cause


@reported(
    GITHUB + "sebastian-hofstaetter/matchmaker/issues/18",
    cause="KLDivLoss takes log-probabilities and is given probabilities.",
    words=r"kl_div",
)
def kl_div_loss_of_softmax(record: Record) -> None:
    ranker = nn.Linear(6, 1)
    kl = nn.KLDivLoss(reduction="batchmean")
    with record(ranker):
        scores, labels = ranker(torch.randn(4, 5, 6)).squeeze(-1), torch.randn(4, 5)
        loss = kl(scores.softmax(-1), labels.softmax(-1))  # cause
        loss.backward()


@reported(
    GITHUB + "speedinghzl/Pytorch-Deeplab/issues/2",
    cause="cross_entropy is given log-probabilities and takes log_softmax of them again.",
    words=r"log_softmax|log-probabilit",
)
def log_probabilities_into_cross_entropy(record: Record) -> None:
    model = nn.Conv2d(3, 5, 1)
    with record(model):
        pred = F.log_softmax(model(torch.randn(2, 3, 8, 8)), dim=1)
        loss = F.cross_entropy(pred, torch.randint(5, (2, 8, 8)))  # cause
        loss.backward()


# --- NaN and Inf ---------------------------------------------------------------------------------


@reported(
    GITHUB + "pytorch/pytorch/issues/108618",
    cause="where() hides a logarithm of zero, but not its gradient.",
    words=r"log2",
)
def logarithm_hidden_by_where(record: Record) -> None:
    layer = nn.Linear(3, 3, bias=False)
    with record(layer):
        x = F.relu(layer(torch.tensor([[0.0, 0.0, 0.0], [2.0, 1.0, 3.0]])))
        y = torch.where(x > 2, torch.log2(x), 2 * x)  # cause
        y.sum().backward()


@reported(
    GITHUB + "vanderschaarlab/synthcity/issues/331",
    cause="The log-variance is unbounded, and its exponential overflows.",
    words=r"\bexp",
)
def variance_overflows(record: Record) -> None:
    encoder, decoder = nn.Linear(4, 4), nn.Linear(2, 4)
    optimizer = Adam([*encoder.parameters(), *decoder.parameters()])
    with record(nn.ModuleList([encoder, decoder])):
        x = torch.randn(8, 4) * 1000
        mu, logvar = encoder(x).chunk(2, dim=1)
        std = torch.exp(0.5 * logvar)  # cause
        z = mu + std * torch.randn_like(std)
        variance = logvar.exp()  # cause
        kld = -0.5 * (1 + logvar - mu.square() - variance).sum(1).mean()
        loss = F.mse_loss(decoder(z), x) + kld
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@reported(
    GITHUB + "HobbitLong/SupContrast/issues/50",
    cause="A sample has no other of its class: its mean of positives is 0 / 0.",
    words=r"\bdiv|/ 0|by zero",
)
def sample_without_positives(record: Record) -> None:
    encoder = nn.Linear(6, 4)
    with record(encoder):
        features = F.normalize(encoder(torch.randn(4, 6)), dim=1)
        labels = torch.tensor([0, 0, 1, 2])
        mask = (labels[:, None] == labels[None, :]).float().fill_diagonal_(0)
        log_prob = F.log_softmax(features @ features.T / 0.07, dim=1)
        mean_log_prob_pos = (mask * log_prob).sum(1) / mask.sum(1)  # cause
        loss = -mean_log_prob_pos.mean()
        loss.backward()


@reported(
    GITHUB + "RL-Align/RL-Kernel/pull/188",
    cause="Causal mask and padding together leave a row no key, and its softmax is NaN.",
    words=r"softmax",
)
def padding_on_the_left_of_a_causal_mask(record: Record) -> None:
    projection = nn.Linear(8, 24)
    with record(projection):
        q, k, v = projection(torch.randn(2, 4, 8)).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / 8**0.5
        causal = torch.ones(4, 4, dtype=torch.bool).triu(1)
        pad = torch.tensor([[True, True, False, False], [False] * 4])
        scores = scores.masked_fill(causal, float("-inf"))
        scores = scores.masked_fill(pad[:, None, :], float("-inf"))
        probs = torch.softmax(scores, dim=-1)  # cause
        torch.matmul(probs, v).square().mean().backward()


@reported(
    GITHUB + "summerlvsong/Aggregation-Cross-Entropy/issues/2",
    cause="A class with a score of 0 in all time steps has the logarithm -inf.",
    words=r"\blog\b|LogBackward",
)
def logarithm_of_an_unused_class(record: Record) -> None:
    model = nn.Linear(4, 6)
    with record(model):
        scores = model(torch.randn(5, 3, 4) * 2000).softmax(2)
        aggregated = scores.mean(0)
        counts = torch.rand(3, 6)
        loss = -(torch.log(aggregated) * counts).sum(1).mean()  # cause
        loss.backward()


@reported(
    GITHUB + "WongKinYiu/yolov9/pull/662",
    cause="No target is positive, and the mean of nothing is NaN.",
    words=r"\bmean",
)
def mean_of_no_targets(record: Record) -> None:
    head = nn.Linear(6, 5)
    with record(head):
        predictions, positive = head(torch.randn(8, 6)), torch.zeros(8, dtype=torch.bool)
        objectness = F.binary_cross_entropy_with_logits(predictions[:, 4], positive.float())
        box = F.smooth_l1_loss(predictions[:, :4], torch.rand(8, 4), reduction="none").sum(1)
        box_loss = box[positive].mean()  # cause
        (box_loss + objectness).backward()


@reported(
    GITHUB + "pytorch/pytorch/issues/10729",
    cause="exp overflows; clamp hides it from the result, but not from the gradient.",
    words=r"\bexp",
)
def exp_hidden_by_clamp(record: Record) -> None:
    gain = nn.Parameter(torch.ones(4))
    with record():
        x = gain * torch.tensor([-10.0, 5.0, 60.0, 100.0])
        y = torch.exp(x)  # cause
        y.clamp(max=1).sum().backward()


@reported(
    GITHUB + "TFboys-lzz/MPSCL/issues/2",
    cause="The sine of equal vectors is the square root of 0, with an infinite slope.",
    words=r"sqrt|square root",
)
def sine_of_equal_vectors(record: Record) -> None:
    projection = nn.Linear(4, 4)
    with record(projection):
        features = projection(torch.randn(6, 4))
        cosine = (features / features)[:, 0]
        sine = torch.sqrt(1.0 - torch.pow(cosine, 2))  # cause
        (cosine * 0.9 - sine * 0.1).mean().backward()


# --- backward fails ------------------------------------------------------------------------------


@reported(
    GITHUB + "AggMan96/RK-Net/issues/9",
    cause="The borders of the attention map are set to zero in place, after a ReLU.",
    words=r"in place|in-place",
    raises=IN_PLACE,
)
def borders_set_to_zero(record: Record) -> None:
    conv = nn.Conv2d(3, 1, 3, padding=1)
    with record(conv):
        att = F.relu(conv(torch.randn(2, 3, 6, 6)))
        att[:, :, 0, :] = 0  # cause
        att.mean().backward()


@reported(
    GITHUB + "pytorch/pytorch/issues/114505",
    cause="A column is overwritten with a result that was computed of another column of it.",
    words=r"in place|in-place",
    raises=IN_PLACE,
)
def column_overwritten(record: Record) -> None:
    linear = nn.Linear(4, 2)
    with record(linear):
        b = linear(torch.randn(8, 4))
        b[:, 1] = F.softplus(b[:, 0])  # cause
        b.sum().backward()


@reported(
    GITHUB + "rail-berkeley/rlkit/pull/109",
    cause="The critic's step changes weights that the actor's backward needs.",
    words=r"step",
    raises=IN_PLACE,
)
def critic_steps_before_the_actors_backward(record: Record) -> None:
    actor = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2), nn.Tanh())
    critic = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    actor_opt, critic_opt = Adam(actor.parameters()), Adam(critic.parameters())
    with record(nn.ModuleDict({"actor": actor, "critic": critic})):
        state, action, target = torch.randn(8, 4), torch.randn(8, 2), torch.randn(8, 1)
        policy_loss = -critic(torch.cat([state, actor(state)], 1)).mean()
        q_loss = F.mse_loss(critic(torch.cat([state, action], 1)), target)
        critic_opt.zero_grad()
        q_loss.backward()
        critic_opt.step()  # cause
        actor_opt.zero_grad()
        policy_loss.backward()
        actor_opt.step()


@reported(
    GITHUB + "quark0/darts/issues/56",
    cause="The hidden state is handed on without detach, to a graph that was freed.",
    words=r"hidden|history|earlier|had run|detach",
    raises="backward through the graph a second time",
)
def repackaged_without_detach(record: Record) -> None:
    cell, decoder = nn.LSTMCell(4, 8), nn.Linear(8, 4)
    optimizer = SGD([*cell.parameters(), *decoder.parameters()], lr=0.1)
    with record(nn.ModuleList([cell, decoder])):
        hidden = (torch.zeros(2, 8), torch.zeros(2, 8))
        for batch in torch.randn(3, 5, 2, 4):
            loss = torch.zeros(())
            for step in batch:
                hidden = cell(step, hidden)  # cause
                loss = loss + F.mse_loss(decoder(hidden[0]), step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


# --- memory and devices --------------------------------------------------------------------------


@reported(
    GITHUB + "rballester/tntorch/pull/19",
    cause="The history of losses keeps each loss with its graph.",
    words=r"history|kept|alive",
)
def list_of_losses(record: Record) -> None:
    cores = [torch.randn(4, 4, requires_grad=True) for _ in range(3)]
    optimizer, target = Adam(cores), torch.randn(4, 4)
    with record():
        loss_history = []
        for _ in range(4):
            loss = (torch.linalg.multi_dot(cores) - target).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_history.append(loss)  # cause


@reported(
    GITHUB + "jmclong/random-fourier-features-pytorch/issues/2",
    cause="The random matrix is made on the CPU and is not a buffer.",
    words=r"self\.b\b|buffer",
    raises="same device|devices",
)
def random_features_on_the_cpu(record: Record) -> None:
    class GaussianEncoding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.b = torch.randn(8, 2) * 10  # cause
            self.out = nn.Linear(16, 1)

        def forward(self, v: Tensor) -> Tensor:
            projected = 2 * torch.pi * v @ self.b.T  # cause
            return self.out(torch.cat([projected.cos(), projected.sin()], dim=-1))

    with simulate_accelerator() as (device,):
        model = GaussianEncoding().to(device)
        with record(model):
            model(torch.rand(4, 2).to(device)).sum().backward()


@reported(
    GITHUB + "pytorch/pytorch/issues/1053",
    cause="Layers in a plain list stay on the CPU when the model moves.",
    words=r"ModuleList|plain list|not registered|conv1d",
    raises="same device|devices",
)
def list_of_layers_left_on_the_cpu(record: Record) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.conv1d = [nn.Conv1d(4, 1, 2), nn.Conv1d(4, 1, 3)]  # cause

        def forward(self, words: Tensor) -> Tensor:
            x = self.embed(words).transpose(1, 2)
            return torch.stack([conv(x).amax((1, 2)) for conv in self.conv1d])  # cause

    model = Net()
    with simulate_accelerator() as (device,), record(model):
        model.to(device)
        model(torch.randint(10, (2, 6)).to(device)).sum().backward()


@reported(
    GITHUB + "kitzeslab/opensoundscape/pull/201",
    cause="X.to(device) is not assigned, and X stays where it was.",
    words=r"\bX\b",
    raises="same device|devices",
)
def batch_moved_without_assignment(record: Record) -> None:
    with simulate_accelerator() as (device,):
        model = nn.Linear(6, 2).to(device)
        with record(model):
            X, y = torch.randn(8, 6), torch.randint(2, (8,)).to(device)
            X.to(device)  # cause
            F.cross_entropy(model(X), y).backward()


@reported(
    GITHUB + "pytorch/pytorch/pull/17363",
    cause="DataParallel wants the model on its first device, and the model is on the CPU.",
    words=r"DataParallel|module must have its parameters|first device",
    raises="device",
)
def data_parallel_of_a_model_on_the_cpu(record: Record) -> None:
    with simulate_accelerator(2) as devices:
        model = nn.DataParallel(nn.Linear(4, 2), device_ids=list(devices))
        with record(model):
            model(torch.randn(8, 4).to(devices[0])).sum().backward()  # cause


@reported(
    GITHUB + "meta-pytorch/torchtune/pull/522",
    cause="The loss is read with item() in every step, and the program waits for the device.",
    words=r"item\(\)",
)
def loss_read_in_every_step(record: Record) -> None:
    with simulate_accelerator() as (device,):
        model = nn.Linear(6, 2).to(device)
        optimizer, log = Adam(model.parameters()), []
        with record(model):
            for _ in range(6):
                loss = model(torch.randn(8, 6).to(device)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                log.append(loss.item())  # cause


@reported(
    GITHUB + "Nerogar/OneTrainer/pull/1608",
    cause="The statistics are copied to the device in every step.",
    words=r"mean|std|statistics",
)
def statistics_copied_in_every_step(record: Record) -> None:
    mean, std = torch.randn(6), torch.rand(6) + 1
    with simulate_accelerator() as (device,):
        model = nn.Linear(6, 6).to(device)
        optimizer, latents = RMSprop(model.parameters()), torch.randn(5, 8, 6).to(device)
        with record(model):
            for latent in latents:
                scaled = (latent - mean.to(device)) / std.to(device)  # cause
                optimizer.zero_grad()
                F.mse_loss(model(scaled), scaled).backward()
                optimizer.step()
