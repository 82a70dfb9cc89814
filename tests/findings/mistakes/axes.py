"""Mistakes with axes in views, shifts and softmaxes, and similar programs without a mistake."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.findings.corpus.cases import Record
from tests.findings.mistakes.rows import says, silent

AXES = ("view-across-axes", "normalization-axis", "batch-taken-for-time")


@says(
    "view-across-axes", "turns [3, 5, 2, 4] into [3, 2, 5, 4]", advice="with permute or transpose"
)
def positions_for_heads(record: Record) -> None:
    project = nn.Linear(6, 8)
    with record(project):
        q = project(torch.randn(3, 5, 6)).view(3, 5, 2, 4)
        q.reshape(3, 2, 5, 4).square().mean().backward()  # cause


@says("view-across-axes", "view at {cause} turns [40, 4] into [5, 8, 4]")
def steps_before_samples_where_they_were_joined_behind_them(record: Record) -> None:
    body = nn.Linear(6, 4)
    with record(body):
        rows = body(torch.randn(8, 5, 6)).flatten(0, 1)
        rows.view(5, 8, 4).mean(0).square().mean().backward()  # cause


@says("view-across-axes", "view at {cause} turns [4, 8, 8, 3] into [4, 3, 8, 8]")
def images_with_the_channels_last(record: Record) -> None:
    body = nn.Conv2d(3, 4, 3)
    with record(body):
        images = torch.randn(4, 8, 8, 3)
        body(images.view(4, 3, 8, 8)).square().mean().backward()  # cause


@silent("view-across-axes")
def views_of_data_that_keep_what_they_are_for(record: Record) -> None:
    """Heads, rows, axes of size 1, a relative shift, and a permute before a copy."""
    body = nn.Linear(6, 4)
    with record(body):
        x = torch.randn(4, 8, 6)
        rows = x.view(32, 6)
        heads = x.view(4, 8, 2, 3).transpose(1, 2).reshape(4, 2, 8, 3)
        single = x.view(4, 1, 8, 6).view(4, 8, 1, 6)
        shifted = F.pad(torch.randn(4, 7, 7), (1, 0)).view(4, 8, 7)
        moved = x.permute(2, 0, 1).contiguous().permute(1, 2, 0).reshape(4, 8, 6)
        parts = (heads.mean(), single.mean(), shifted.mean(), moved.mean())
        (body(rows).square().mean() + sum(parts)).backward()


def pooled(record: Record, dim: int) -> None:
    """A weighted sum over positions, by weights that a layer computes."""
    body, score, head = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 3)
    with record(nn.ModuleList([body, score, head])):
        h = body(torch.randn(4, 5, 6)).tanh()
        weights = score(h).softmax(dim)
        out = head((weights * h).sum(1))
        F.cross_entropy(out, torch.arange(4) % 3).backward()


@says("normalization-axis", "runs over dimension 0 of [4, 5, 1], the samples")
def pool_that_is_normalised_over_the_samples(record: Record) -> None:
    pooled(record, 0)


@silent("normalization-axis")
def pool_that_is_normalised_over_positions(record: Record) -> None:
    pooled(record, 1)


@says("normalization-axis", "runs over dimension 0 of [4, 8], the samples")
def gate_that_is_normalised_over_the_samples(record: Record) -> None:
    body, gate, head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
    with record(nn.ModuleList([body, gate, head])):
        h = body(torch.randn(4, 6)).tanh()
        h = gate(h).softmax(0) * h  # cause
        F.cross_entropy(head(h), torch.arange(4) % 3).backward()


@says("normalization-axis", "runs over dimension 0 of [4, 1, 8], the samples")
def gate_of_means_that_is_normalised_over_the_samples(record: Record) -> None:
    body, gate, head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
    with record(nn.ModuleList([body, gate, head])):
        h = body(torch.randn(4, 5, 6)).tanh()
        h = gate(h.mean(1, keepdim=True)).softmax(0) * h  # cause
        F.cross_entropy(head(h.mean(1)), torch.arange(4) % 3).backward()


@silent("normalization-axis")
def samples_that_are_weighted_in_the_loss(record: Record) -> None:
    """Hard samples count more; experts' gates, and classes, are normalised over themselves."""
    body, gate, head = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)
    with record(nn.ModuleList([body, gate, head])):
        x = torch.randn(4, 6)
        logits = head(gate(x).softmax(1) * body(x))
        losses = F.cross_entropy(logits, torch.arange(4) % 3, reduction="none")
        shares = (logits.softmax(0) * F.one_hot(torch.arange(4) % 3, 3)).sum()
        ((losses.detach() / 2).softmax(0) * losses).sum().add(shares).backward()


class Encoder(nn.Module):
    """Two blocks of attention, and a class for each sample."""

    def __init__(self, batch_first: bool, dropout: float = 0.1) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=batch_first) for _ in range(2)
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.head(x.mean(1))
        return result


def classify(record: Record, model: nn.Module, x: Tensor) -> None:
    with record(model):
        F.cross_entropy(model(x), torch.arange(len(x)) % 3).backward()


@says(
    "batch-taken-for-time",
    "blocks.0.self_attn and blocks.1.self_attn at {cause} mix along dimension 0",
    advice="Construct them with batch_first=True",
)
def attention_along_the_batch(record: Record) -> None:
    class Along(Encoder):
        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)  # cause
            result: Tensor = self.head(x.mean(1))
            return result

    classify(record, Along(batch_first=False), torch.randn(6, 5, 8))


@says("batch-taken-for-time", "blocks.0.self_attn and blocks.1.self_attn at axes.py:", "mix along")
def fused_attention_along_the_batch(record: Record) -> None:
    classify(record, Encoder(batch_first=False, dropout=0.0), torch.randn(6, 5, 8))


@says(
    "batch-taken-for-time",
    "blocks.0.self_attn and blocks.1.self_attn at axes.py:",
    "mix along dimension 1",
    advice="Construct them without batch_first=True, or pass (batch, time, features) to them.",
)
def attention_made_for_the_batch_first_that_is_given_the_time_first(record: Record) -> None:
    model, x = Encoder(batch_first=True), torch.randn(5, 6, 8)
    with record(model):
        for block in model.blocks:
            x = block(x)
        F.cross_entropy(model.head(x.mean(0)), torch.arange(6) % 3).backward()


class OwnAttention(nn.Module):
    """The positions first inside, as in fairseq; without a `batch_first`."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        weights = (self.q(x) @ self.k(x).transpose(1, 2)).softmax(-1)
        result: Tensor = self.o(weights @ self.v(x)).transpose(0, 1)
        return result


@says(
    "batch-taken-for-time",
    "attention at axes.py:",
    "mixes across the samples of the loss",
    advice="Swap the first two axes of the input, and the first two axes of the output.",
)
def attention_of_ones_own_that_is_given_the_batch_first(record: Record) -> None:
    kind = type("MultiheadAttention", (OwnAttention,), {})  # as PyTorch's is called
    model = nn.ModuleDict({"attention": kind(), "head": nn.Linear(8, 3)})
    with record(model):
        y = model["attention"](torch.randn(6, 5, 8))
        F.cross_entropy(model["head"](y.mean(1)), torch.arange(6) % 3).backward()


@silent(*AXES)
def attention_of_ones_own_that_is_given_the_time_first(record: Record) -> None:
    model = nn.ModuleDict({"attention": OwnAttention(), "head": nn.Linear(8, 3)})
    with record(model):
        y = model["attention"](torch.randn(5, 6, 8))
        F.cross_entropy(model["head"](y.mean(0)), torch.arange(6) % 3).backward()


@silent(*AXES)
def fused_attention_along_the_positions(record: Record) -> None:
    classify(record, Encoder(batch_first=True, dropout=0.0), torch.randn(6, 5, 8))


@silent(*AXES)
def attention_along_the_positions(record: Record) -> None:
    classify(record, Encoder(batch_first=True), torch.randn(6, 5, 8))


@silent(*AXES)
def attention_that_is_given_the_time_first(record: Record) -> None:
    class Turned(Encoder):
        def forward(self, x: Tensor) -> Tensor:
            x = x.transpose(0, 1)
            for block in self.blocks:
                x = block(x)
            result: Tensor = self.head(x.mean(0))
            return result

    classify(record, Turned(batch_first=False), torch.randn(6, 5, 8))


@silent(*AXES)
def attention_to_other_positions(record: Record) -> None:
    """Queries of a decoder along one axis, keys and values of an encoder's."""

    class Crossed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            mixed = self.attention(x[:, :2], x, x, need_weights=False)[0]
            result: Tensor = self.head(mixed.mean(1))
            return result

    classify(record, Crossed(), torch.randn(6, 5, 8))


@silent(*AXES)
def heads_split_and_merged(record: Record) -> None:
    project, out = nn.Linear(6, 24), nn.Linear(8, 6)
    with record(nn.ModuleList([project, out])):
        q, k, v = project(torch.randn(3, 5, 6)).view(3, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        out(mixed.transpose(1, 2).reshape(3, 5, 8)).square().mean().backward()


@silent(*AXES)
def heads_mixed_after_the_softmax(record: Record) -> None:
    """As in DeepViT and CaiT: a product over heads comes before that with the values."""
    project, mix = nn.Linear(6, 24), nn.Parameter(torch.randn(2, 2))
    with record(project):
        q, k, v = project(torch.randn(3, 5, 6)).view(3, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        weights = torch.einsum("bhij,hg->bgij", (q @ k.transpose(-1, -2)).softmax(-1), mix)
        torch.einsum("bhij,bhjd->bhid", weights, v).square().mean().backward()


@silent(*AXES)
def relative_shift(record: Record) -> None:
    project = nn.Linear(6, 10)
    with record(project):
        scores: Tensor = project(torch.randn(3, 5, 6))  # for each query, of 10 distances
        padded = F.pad(scores, (1, 0)).view(3, 11, 5)[:, 1:]
        padded.reshape(3, 5, 10).square().mean().backward()


@silent(*AXES)
def pixels_shuffled_by_hand(record: Record) -> None:
    conv = nn.Conv2d(3, 8, 3)
    with record(conv):
        h = conv(torch.randn(2, 3, 8, 8)).view(2, 2, 2, 2, 6, 6)
        h.permute(0, 1, 4, 2, 5, 3).reshape(2, 2, 12, 12).square().mean().backward()


@silent(*AXES)
def windows_of_an_image(record: Record) -> None:
    embed = nn.Linear(3, 4)
    with record(embed):
        h = embed(torch.randn(2, 8, 6, 3)).view(2, 2, 4, 2, 3, 4)
        h.permute(0, 1, 3, 2, 4, 5).reshape(-1, 12, 4).square().mean().backward()


@silent(*AXES)
def frames_stacked_in_pairs(record: Record) -> None:
    embed, out = nn.Linear(3, 7), nn.Linear(14, 2)
    with record(nn.ModuleList([embed, out])):
        h = embed(torch.randn(4, 10, 3))
        out(h.reshape(4, 5, 14)).square().mean().backward()


@silent(*AXES)
def clusters_that_pool_nodes(record: Record) -> None:
    assign, embed = nn.Linear(6, 3), nn.Linear(6, 5)
    with record(nn.ModuleList([assign, embed])):
        x = torch.randn(2, 9, 6)
        soft = assign(x).softmax(-1)  # each node over the clusters, as in DiffPool
        (soft.transpose(1, 2) @ embed(x)).square().mean().backward()


@silent(*AXES)
def linear_attention(record: Record) -> None:
    project = nn.Linear(6, 24)
    with record(project):
        q, k, v = project(torch.randn(3, 5, 6)).chunk(3, -1)
        context = k.softmax(1).transpose(1, 2) @ v
        (q.softmax(-1) @ context).square().mean().backward()


@silent(*AXES)
def steps_of_one_sequence_are_the_samples(record: Record) -> None:
    rnn, out = nn.GRU(4, 6), nn.Linear(6, 3)
    with record(nn.ModuleList([rnn, out])):
        h, _ = rnn(torch.randn(9, 1, 4))
        F.cross_entropy(out(h.squeeze(1)), torch.arange(9) % 3).backward()


@says("batch-taken-for-time", "gru at {cause} mixes along dimension 0", advice="batch_first=True")
def states_of_a_gru_that_is_given_the_batch_first(record: Record) -> None:
    model = nn.ModuleDict({"gru": nn.GRU(4, 6), "head": nn.Linear(6, 3)})
    with record(model):
        states, _ = model["gru"](torch.randn(5, 7, 4))  # cause
        F.cross_entropy(model["head"](states[:, -1]), torch.arange(5) % 3).backward()


@says("batch-taken-for-time", "mixes along dimension 1", advice="without batch_first=True")
def states_of_a_gru_made_for_the_batch_first_that_is_given_the_time_first(record: Record) -> None:
    model = nn.ModuleDict({"gru": nn.GRU(4, 6, batch_first=True), "head": nn.Linear(6, 3)})
    with record(model):
        states, _ = model["gru"](torch.randn(7, 5, 4))  # cause
        F.cross_entropy(model["head"](states[-1]), torch.arange(5) % 3).backward()


@says("batch-taken-for-time", "mixes along dimension 1", advice="without batch_first=True")
def whole_lstm_made_for_the_batch_first_that_is_given_the_time_first(record: Record) -> None:
    model = parts(batch_first=True)
    with record(model):
        given = whole(model["lstm"], torch.randn(7, 5, 4, device="meta"))
        states, *_ = torch._cudnn_rnn(*given)  # cause
        told_apart(model["head"], states[-1])


@silent(*AXES)
def states_of_a_gru_that_is_given_the_time_first(record: Record) -> None:
    model = nn.ModuleDict({"gru": nn.GRU(4, 6), "head": nn.Linear(6, 3)})
    with record(model):
        states, _ = model["gru"](torch.randn(7, 5, 4))
        F.cross_entropy(model["head"](states[-1]), torch.arange(5) % 3).backward()


def whole(lstm: nn.LSTM, x: Tensor, lengths: tuple[int, ...] = ()) -> tuple[Any, ...]:
    """What CUDA's LSTM is given, which has all layers in one node. On the meta device it gives
    results without values, and its backward does not run: so only a head gets a gradient.

    Args:
        lengths: how many samples each step of a packed sequence has.
    """
    batch = lengths[0] if lengths else x.shape[0 if lstm.batch_first else 1]
    first = x.new_zeros(lstm.num_layers * (1 + lstm.bidirectional), batch, lstm.hidden_size)
    weights: list[Any] = lstm._flat_weights
    joined = x.new_zeros(sum(weight.numel() for weight in weights))
    sizes = (2, lstm.hidden_size, 0, lstm.num_layers, lstm.batch_first, 0.0, True)
    return (x, weights, 4, joined, first, first.clone(), *sizes, lstm.bidirectional, lengths, None)


def parts(layers: int = 1, *, batch_first: bool = False, both: bool = False) -> nn.ModuleDict:
    lstm = nn.LSTM(4, 6, layers, batch_first=batch_first, bidirectional=both)
    head = nn.Linear(6 * layers * (1 + both), 3)
    return nn.ModuleDict({"lstm": lstm, "head": head}).to("meta")


def told_apart(head: nn.Module, states: Tensor) -> None:
    """The step of a classifier of five samples."""
    loss = F.cross_entropy(head(states), torch.zeros(5, dtype=torch.long, device="meta"))
    loss.backward(inputs=[*head.parameters()])


@says("batch-taken-for-time", "at {cause} mixes along dimension 0", advice="batch_first=True")
def whole_lstm_that_is_given_the_batch_first(record: Record) -> None:
    model = parts()
    with record(model):
        given = whole(model["lstm"], torch.randn(5, 7, 4, device="meta"))
        states, *_ = torch._cudnn_rnn(*given)  # cause
        told_apart(model["head"], states[:, -1])


@silent(*AXES)
def whole_lstm_that_is_made_for_the_batch_first(record: Record) -> None:
    model = parts(batch_first=True)
    with record(model):
        states, *_ = torch._cudnn_rnn(*whole(model["lstm"], torch.randn(5, 7, 4, device="meta")))
        told_apart(model["head"], states[:, -1])


@silent(*AXES)
def whole_lstm_that_is_given_the_time_first(record: Record) -> None:
    model = parts()
    with record(model):
        states, *_ = torch._cudnn_rnn(*whole(model["lstm"], torch.randn(7, 5, 4, device="meta")))
        told_apart(model["head"], states[-1])


@says("view-across-axes", "view at {cause} turns [2, 5, 6] into [5, 12]")
def last_states_of_a_whole_lstm_that_are_viewed(record: Record) -> None:
    model = parts(2, batch_first=True)
    with record(model):
        given = whole(model["lstm"], torch.randn(5, 7, 4, device="meta"))
        _, last, *_ = torch._cudnn_rnn(*given)
        told_apart(model["head"], last.view(5, 12))  # cause


@silent(*AXES)
def last_states_of_a_whole_lstm_over_packed_sequences(record: Record) -> None:
    """They have layers, directions, samples and features; its result has rows and features."""
    model = parts(2, both=True)
    with record(model):
        rows = torch.randn(14, 4, device="meta")
        _, last, *_ = torch._cudnn_rnn(*whole(model["lstm"], rows, (5, 5, 4)))
        joined = last.view(2, 2, 5, 6).permute(2, 0, 1, 3).reshape(5, 24)
        told_apart(model["head"], joined.view(5, 4, 6).flatten(1))


@silent(*AXES)
def decoder_that_is_given_the_last_states_of_a_whole_encoder(record: Record) -> None:
    model = parts(5, batch_first=True)
    model["decoder"] = nn.LSTM(6, 6).to("meta")
    with record(model):
        given = whole(model["lstm"], torch.randn(5, 5, 4, device="meta"))
        _, last, *_ = torch._cudnn_rnn(*given)
        states, *_ = torch._cudnn_rnn(*whole(model["decoder"], last))
        told_apart(model["head"], states.transpose(0, 1).reshape(5, 30))


@silent(*AXES)
def last_states_of_a_whole_lstm_that_are_moved_first(record: Record) -> None:
    model = parts(2)
    with record(model):
        given = whole(model["lstm"], torch.randn(7, 5, 4, device="meta"))
        _, last, *_ = torch._cudnn_rnn(*given)
        told_apart(model["head"], last.transpose(0, 1).reshape(5, 12))


@says("loss-input", "at {cause} normalizes over dimension 0", advice="dim=1")
def distribution_over_the_samples(record: Record) -> None:
    layer, target = nn.Linear(4, 3), torch.rand(5, 3).softmax(1)
    with record(layer):
        log_probs = layer(torch.randn(5, 4)).log_softmax(0)  # cause
        F.kl_div(log_probs, target, reduction="batchmean").backward()


@silent("loss-input")
def matches_in_both_directions(record: Record) -> None:
    """As of images and texts: each has a distribution over the others."""
    one, other = nn.Linear(4, 6), nn.Linear(3, 6)
    with record(nn.ModuleList([one, other])):
        scores = one(torch.randn(5, 4)) @ other(torch.randn(5, 3)).t()
        target = torch.eye(5)
        loss = F.mse_loss(scores.softmax(0), target) + F.mse_loss(scores.softmax(1), target)
        loss.backward()


@says("normalization-axis", "runs over dimension 0 of [5, 6]", advice="dim=-1")
def embeddings_normalised_over_the_batch(record: Record) -> None:
    one, other = nn.Linear(4, 6), nn.Linear(3, 6)
    with record(nn.ModuleList([one, other])):
        texts = F.normalize(other(torch.randn(5, 3)))
        scores = F.normalize(one(torch.randn(5, 4)), dim=0) @ texts.t()  # cause
        F.cross_entropy(scores, torch.arange(5)).backward()


@silent("normalization-axis")
def normalized_features_of_neighbors(record: Record) -> None:
    """As in GraphSAGE: the mean over the neighbors is no cosine similarity."""
    layer, attend = nn.Linear(4, 6), nn.Linear(4, 5)
    x, adjacency = torch.randn(5, 4), torch.rand(5, 5)
    with record(nn.ModuleList([layer, attend])):
        h = F.normalize(layer(x))
        (adjacency @ h + attend(x).softmax(1) @ h).square().sum().backward()


@silent(*AXES)
def features_correlated_over_the_batch(record: Record) -> None:
    """As of Barlow Twins: normalised over the samples that the product sums over."""
    layer = nn.Linear(4, 6)
    with record(layer):
        one, other = (F.normalize(layer(torch.randn(5, 4)), dim=0) for _ in range(2))
        (one.t() @ other - torch.eye(6)).square().sum().backward()
