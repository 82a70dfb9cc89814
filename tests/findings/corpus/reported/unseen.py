"""Bugs reported since 2023 that no author of rules had seen before they were scored.

Of these 17, `find` and `run` named the cause of 6, gave a hint on 2, and reported nothing on 9.
Neither reported a wrong cause.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from tests.findings.corpus.cases import Record, reported, step
from tests.findings.corpus.models import mlp

GITHUB = "https://github.com/"


@reported(
    GITHUB + "huggingface/lerobot/issues/3668",
    cause="The evaluation calls eval() and never train(), so dropout and batch norm stay off.",
    words=r"eval\b|eval\(\)|train\(\)",
)
def evaluation_that_leaves_eval_mode(record: Record, repaired: bool = False) -> None:
    policy = nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2)
    )
    optimizer = Adam(policy.parameters(), lr=1e-3)

    def evaluate(policy: nn.Module) -> float:
        policy.eval()  # cause
        with torch.no_grad():
            returned = policy(torch.randn(4, 8)).sum().item()
        if repaired:
            policy.train()
        return returned

    with record(policy):
        for number in range(4):
            observation, action = torch.randn(16, 8), torch.randn(16, 2)
            step(optimizer, F.mse_loss(policy(observation), action))
            if number == 1:
                evaluate(policy)


@reported(
    GITHUB + "NVIDIA/Megatron-LM/pull/411",
    cause="forward sets dropout_p to 0 in eval mode, and it stays 0 in the training afterwards.",
    words=r"dropout",
)
def dropout_probability_overwritten_in_eval_mode(record: Record, repaired: bool = False) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
            self.dropout_p = 0.1

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            dropout_p = self.dropout_p
            if not self.training:
                dropout_p = 0.0
                if not repaired:
                    self.dropout_p = 0.0  # cause
            h = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p)
            return x + self.out(h)

    model = nn.Sequential(Attention(), nn.LayerNorm(16), nn.Linear(16, 4))
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        for number in range(4):
            x, target = torch.randn(4, 6, 16), torch.randint(4, (4, 6))
            step(optimizer, F.cross_entropy(model(x).flatten(0, 1), target.flatten()))
            if number == 1:
                model.eval()
                with torch.no_grad():
                    model(x)
                model.train()


@reported(
    GITHUB + "pytorch/pytorch/issues/187297",
    cause="where() hides sqrt of negative numbers in forward; their gradient is NaN all the same.",
    words=r"sqrt|where",
)
def root_in_the_branch_that_is_not_chosen(record: Record, repaired: bool = False) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 1))
    optimizer = SGD(model.parameters(), lr=1e-2)
    with record(model):
        for _ in range(3):
            x, target = torch.randn(16, 6), torch.rand(16, 1)
            h = model(x)
            inner = h.clamp(min=1e-6) if repaired else h
            y = torch.where(h > 0, torch.sqrt(inner), h)  # cause
            step(optimizer, F.mse_loss(y, target))


@reported(
    GITHUB + "Ciela-Institute/caustics/pull/83",
    cause="Both branches of where() are computed, and the one outside its domain gives NaN.",
    words=r"where|arctanh|atanh|sqrt",
)
def lens_profile_with_two_domains(record: Record, repaired: bool = False) -> None:
    scale = nn.Parameter(torch.tensor(1.0))
    mass = nn.Parameter(torch.tensor(0.5))
    optimizer = SGD([scale, mass], lr=1e-3)
    radius = torch.linspace(0.3, 3.0, 12)
    observed = 1 / radius

    def profile(x: Tensor) -> Tensor:
        inside, outside = x, x
        if repaired:
            inside = torch.where(x < 1, x, torch.full_like(x, 0.5))
            outside = torch.where(x < 1, torch.full_like(x, 2.0), x)
        return torch.where(  # cause
            x < 1,
            torch.arctanh(torch.sqrt(1 - inside**2)),  # cause
            torch.arctan(torch.sqrt(outside**2 - 1)),  # cause
        )

    with record():
        for _ in range(3):
            deflection = mass * profile(radius / scale) / radius
            step(optimizer, F.mse_loss(deflection, observed))


@reported(
    GITHUB + "karpathy/nanoGPT/issues/206",
    cause="The loss of each of eight micro-batches is a mean, and their sum is not divided by 8.",
    words=r"accumulat|divid|micro",
)
def accumulated_loss_that_is_not_divided(record: Record, repaired: bool = False) -> None:
    model = nn.Sequential(nn.Embedding(30, 16), nn.LayerNorm(16), nn.Linear(16, 30))
    optimizer = Adam(model.parameters(), lr=1e-3)
    micro_steps = 8
    with record(model):
        for _ in range(2):
            for _ in range(micro_steps):
                tokens = torch.randint(30, (2, 9))
                logits = model(tokens[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
                if repaired:
                    loss = loss / micro_steps
                loss.backward()  # cause
            optimizer.step()
            optimizer.zero_grad()


@reported(
    GITHUB + "meta-pytorch/torchtune/pull/1875",
    cause="Micro-batches with few unmasked tokens weigh as much as those with many.",
    words=r"token|targets|ignored|weigh",
)
def mean_of_means_over_unequal_tokens(record: Record, repaired: bool = False) -> None:
    model = nn.Sequential(nn.Embedding(30, 16), nn.LayerNorm(16), nn.Linear(16, 30))
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        for _ in range(2):
            batches = []
            for length in (2, 24, 3, 16):
                tokens = torch.randint(30, (2, 25))
                labels = tokens[:, 1:].clone()
                labels[:, length:] = -100
                batches.append((tokens[:, :-1], labels))
            total = sum(int((labels != -100).sum()) for _, labels in batches)
            for tokens, labels in batches:
                logits = model(tokens).flatten(0, 1)
                if repaired:
                    loss = F.cross_entropy(logits, labels.flatten(), reduction="sum") / total
                else:
                    loss = F.cross_entropy(logits, labels.flatten()) / len(batches)  # cause
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()


@reported(
    GITHUB + "huggingface/trl/pull/1625",
    cause="labels are a copy of input_ids, so the loss also counts the padding.",
    words=r"pad",
)
def padding_in_copied_labels(record: Record, repaired: bool = False) -> None:
    pad = 0
    model = nn.ModuleDict(
        {"embed": nn.Embedding(30, 16, padding_idx=pad), "head": nn.Linear(16, 30)}
    )
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        for _ in range(3):
            input_ids = torch.randint(1, 30, (4, 12))
            input_ids[:, 5:] = pad
            attention_mask = input_ids != pad
            labels = input_ids.clone()  # cause
            if repaired:
                labels = torch.where(attention_mask, labels, -100)
            logits = model["head"](model["embed"](input_ids))
            shifted = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
            step(optimizer, F.cross_entropy(*shifted))  # cause


@reported(
    GITHUB + "huggingface/diffusers/issues/2321",
    cause="For each evaluation the averaged weights are copied into the model that is trained.",
    words=r"copied|copy_|overwr|undone|weights",
)
def averaged_weights_copied_into_the_trained_model(record: Record, repaired: bool = False) -> None:
    unet = mlp(8, 8)
    averaged = copy.deepcopy(unet).requires_grad_(False)
    optimizer = Adam(unet.parameters(), lr=1e-2)

    def sample(model: nn.Module) -> Tensor:
        with torch.no_grad():
            return model(torch.randn(4, 8))

    with record(unet):
        for number in range(6):
            clean, noise = torch.randn(16, 8), torch.randn(16, 8)
            step(optimizer, F.mse_loss(unet(clean + noise), noise))
            with torch.no_grad():
                for slow, fast in zip(averaged.parameters(), unet.parameters(), strict=True):
                    slow.lerp_(fast, 0.01)
            if number % 2:
                shown = copy.deepcopy(unet) if repaired else unet
                with torch.no_grad():
                    for slow, fast in zip(averaged.parameters(), shown.parameters(), strict=True):
                        fast.copy_(slow)  # cause
                sample(shown)


@reported(
    GITHUB + "huggingface/transformers/issues/26861",
    cause="The embedding is frozen, then replaced by a larger one, which is trained.",
    words=r"embed.*(train|replac|learn|gradient|requires)|frozen",
)
def resized_embedding_is_no_longer_frozen(record: Record, repaired: bool = False) -> None:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(20, 16), nn.Linear(16, 24)

        def resize_token_embeddings(self, count: int) -> None:
            old = self.embed
            self.embed = nn.Embedding(count, 16)  # cause
            with torch.no_grad():
                self.embed.weight[: old.num_embeddings] = old.weight
            if repaired:
                self.embed.weight.requires_grad_(old.weight.requires_grad)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.embed(tokens))

    model = Language()
    model.embed.weight.requires_grad_(False)
    model.resize_token_embeddings(24)
    optimizer = Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    with record(model):
        for _ in range(3):
            tokens = torch.randint(24, (4, 9))
            logits = model(tokens[:, :-1])
            step(optimizer, F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))


@reported(
    GITHUB + "ModelTC/MQBench/issues/259",
    cause="The optimizer was made before the quantizers, so it does not hold their scales.",
    words=r"optimizer",
)
def learnable_scales_made_after_the_optimizer(record: Record, repaired: bool = False) -> None:
    class LearnableFakeQuantize(nn.Module):
        def __init__(self, layer: nn.Linear) -> None:
            super().__init__()
            self.layer = layer
            self.scale = nn.Parameter(layer.weight.detach().abs().max() / 7)

        def forward(self, x: Tensor) -> Tensor:
            scaled = (self.layer.weight / self.scale).clamp(-8, 7)
            rounded = scaled + (scaled.round() - scaled).detach()
            return F.linear(x, rounded * self.scale, self.layer.bias)

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = Adam(model.parameters(), lr=1e-3)  # cause
    model[0], model[2] = LearnableFakeQuantize(model[0]), LearnableFakeQuantize(model[2])
    if repaired:
        optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        for _ in range(3):
            x, target = torch.randn(16, 8), torch.randint(4, (16,))
            step(optimizer, F.cross_entropy(model(x), target))


@reported(
    GITHUB + "jpata/particleflow/pull/290",
    cause="The validation runs without no_grad, so each of its forwards keeps a graph.",
    words=r"no_grad|backward|graph",
)
def validation_with_gradients(record: Record, repaired: bool = False) -> None:
    model = mlp(8, 4)
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        for _ in range(2):
            for _ in range(2):
                x, target = torch.randn(16, 8), torch.randint(4, (16,))
                step(optimizer, F.cross_entropy(model(x), target))
            model.eval()
            with torch.set_grad_enabled(not repaired):
                for _ in range(3):
                    x, target = torch.randn(64, 8), torch.randint(4, (64,))
                    output = model(x)  # cause
                    F.cross_entropy(output, target).item()
            model.train()


@reported(
    GITHUB + "rtqichen/torchdiffeq/issues/226",
    cause="torch.tensor([...]) in the equation copies the values out of the graph.",
    words=r"torch\.tensor|tensor\(",
)
def state_wrapped_again_in_the_equation(record: Record, repaired: bool = False) -> None:
    class Storage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.evaporation = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
            self.discharge = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

        def forward(self, t: float, state: Tensor) -> Tensor:
            snow, water = state
            if repaired:
                inputs = torch.stack([snow, water])
            else:
                inputs = torch.tensor([snow.item(), water.item()])  # cause
            out = self.discharge(inputs)[0]
            return torch.stack([-self.evaporation(inputs)[0], out])

    model = Storage()
    start = nn.Parameter(torch.tensor([1.0, 0.5]))
    optimizer = Adam([*model.parameters(), start], lr=1e-3)
    with record(model):
        for _ in range(2):
            state = start
            rates = []
            for number in range(4):
                rate = model(0.1 * number, state)
                rates.append(rate)
                state = state + 0.1 * rate.detach() if not repaired else state + 0.1 * rate
            step(optimizer, torch.stack(rates).square().mean())


@reported(
    GITHUB + "huggingface/transformers/pull/23774",
    cause="forward returns two tensors, and backward takes the gradient of one.",
    words=r"backward",
    raises=r"takes 2 positional arguments but 3 were given",
)
def backward_for_one_of_two_outputs(record: Record, repaired: bool = False) -> None:
    class LinearAttention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
            ctx.save_for_backward(key, value)
            return key * value, (key + value).sum(1)

        @staticmethod
        def backward(ctx: Any, g_output: Tensor, *g_state: Tensor) -> Any:
            key, value = ctx.saved_tensors
            return g_output * value, g_output * key

    class Older(LinearAttention):
        @staticmethod
        def backward(ctx: Any, g_output: Tensor) -> Any:  # cause
            key, value = ctx.saved_tensors
            return g_output * value, g_output * key

    function = LinearAttention if repaired else Older
    key, value = nn.Linear(8, 8), nn.Linear(8, 8)
    model = nn.ModuleDict({"key": key, "value": value})
    optimizer = Adam(model.parameters())
    with record(model):
        x, target = torch.randn(4, 8), torch.randn(4, 8)
        output, _ = function.apply(key(x), value(x))  # cause
        F.mse_loss(output, target).backward()
        optimizer.step()


@reported(
    GITHUB + "huggingface/trl/issues/454",
    cause="Dropout is active for the old and the new log-probabilities, so the ratio is noise.",
    words=r"dropout|train mode|eval",
)
def ratio_of_two_dropout_masks(record: Record, repaired: bool = False) -> None:
    dropout = nn.Dropout(0.0 if repaired else 0.2)
    policy = nn.Sequential(nn.Embedding(20, 16), dropout, nn.Linear(16, 20))
    optimizer = Adam(policy.parameters(), lr=1e-3)

    def log_probability(tokens: Tensor) -> Tensor:
        return policy(tokens[:, :-1]).log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)

    with record(policy):
        for _ in range(2):
            tokens, advantage = torch.randint(20, (4, 9)), torch.randn(4, 1)
            with torch.no_grad():
                old = log_probability(tokens)  # cause
            for _ in range(2):
                ratio = (log_probability(tokens) - old).exp()  # cause
                clipped = ratio.clamp(0.8, 1.2)
                loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
                step(optimizer, loss)


@reported(
    GITHUB + "XueZeyue/DanceGRPO/pull/101",
    cause="The latents of the rollout are stored with their graphs.",
    words=r"detach|graph|keeps|no_grad|grow",
)
def rollout_stored_with_its_graph(record: Record, repaired: bool = False) -> None:
    model = mlp(8, 8)
    optimizer = Adam(model.parameters(), lr=1e-3)
    stored: list[Tensor] = []
    with record(model):
        for _ in range(4):
            latents = torch.randn(4, 8)
            for _ in range(3):
                latents = latents - 0.1 * model(latents)
                stored.append(latents.detach() if repaired else latents)  # cause
            reward = -stored[-1].detach().square().mean(1)
            advantage = (reward - reward.mean()) / (reward.std() + 1e-4)
            step(optimizer, -(advantage * -model(stored[-1].detach()).square().mean(1)).mean())


@reported(
    GITHUB + "Goekdeniz-Guelmez/mlx-lm-lora/issues/50",
    cause="The rewards of a group are equal, so their deviation is 0 and the advantage 0/0.",
    words=r"NaN|std|divi|0/0|deviation",
)
def advantage_of_equal_rewards(record: Record, repaired: bool = False) -> None:
    policy = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))
    optimizer = Adam(policy.parameters(), lr=1e-3)
    with record(policy):
        for number in range(3):
            tokens = torch.randint(20, (2, 9))
            rewards = torch.tensor([1.0, 0.0]) if number == 0 else torch.ones(2)
            deviation = rewards.std() + (1e-4 if repaired else 0.0)
            advantage = (rewards - rewards.mean()) / deviation  # cause
            logits = policy(tokens[:, :-1]).log_softmax(-1)
            chosen = logits.gather(-1, tokens[:, 1:, None]).squeeze(-1).sum(-1)
            step(optimizer, -(advantage * chosen).mean())


@reported(
    GITHUB + "open-edge-platform/physical-ai-studio/pull/877",
    cause="loss.item() in the compiled method ends the graph in each step.",
    words=r"graph break|item",
)
def item_in_a_compiled_loss(record: Record, repaired: bool = False) -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 2)

        def forward(self, x: Tensor, action: Tensor) -> tuple[Tensor, Any]:
            h = self.body(x).relu()
            loss = F.mse_loss(self.head(h), action)
            logged = loss.detach() if repaired else loss.item()  # cause
            return loss + 1e-4 * h.square().mean(), logged

    policy = Policy()
    compiled = torch.compile(policy, backend="aot_eager")
    optimizer = Adam(policy.parameters())
    with record(policy):
        for _ in range(2):
            loss, _ = compiled(torch.randn(16, 8), torch.randn(16, 2))
            step(optimizer, loss)
