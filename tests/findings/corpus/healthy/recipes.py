"""Healthy trainings as recipes and libraries write them.

They were written before their authors saw the findings of `find`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import LBFGS, SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset

from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import batches, layers


def autocast_on_the_cpu_with_a_loader(record: Record) -> None:
    data = TensorDataset(torch.randn(64, 6), torch.randint(3, (64,)))
    model = nn.Sequential(nn.Linear(6, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 3))
    optimizer = AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    running, right = 0.0, 0
    with record(model):
        for x, y in DataLoader(data, batch_size=16, shuffle=True):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(x)
                loss = F.cross_entropy(logits, y)
            loss.backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            running += loss.item() * len(x)
            right += int((logits.argmax(1) == y).sum())


def averaged_model_evaluated_at_the_end(record: Record) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99), use_buffers=True)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    with record(model):
        for x, y in batches(3):
            step(optimizer, F.cross_entropy(model(x), y))
            ema.update_parameters(model)
        ema.eval()
        with torch.inference_mode():
            (ema(torch.randn(8, 6)).argmax(1) == 1).float().mean().item()


def data_parallel_of_one_process(record: Record) -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(str(Path(folder) / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            model = DistributedDataParallel(layers(6, 16, 3))
            optimizer = SGD(model.parameters(), lr=0.1)
            with record(model):
                for i, (x, y) in enumerate(batches(4)):
                    loss = F.cross_entropy(model(x), y) / 2
                    if i % 2 == 0:
                        with model.no_sync():
                            loss.backward()
                        continue
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
        finally:
            dist.destroy_process_group()


def accumulation_with_a_warmup_schedule(record: Record) -> None:
    model = layers(6, 16, 16, 3)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    with record(model):
        optimizer.zero_grad()
        for step, (x, y) in enumerate(batches(8), start=1):
            (F.cross_entropy(model(x), y) / 4).backward()
            if step % 4 == 0:
                clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def recurrent_state_repackaged(record: Record) -> None:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.drop = nn.Embedding(30, 16), nn.Dropout(0.2)
            self.rnn, self.decoder = nn.GRU(16, 16, 2, dropout=0.2), nn.Linear(16, 30)
            self.decoder.weight = self.embedding.weight

        def forward(self, x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
            output, hidden = self.rnn(self.drop(self.embedding(x)), hidden)
            return self.decoder(self.drop(output)), hidden

    model = Language()
    text, hidden, total = torch.randint(30, (41, 4)), torch.zeros(2, 4, 16), 0.0
    with record(model):
        for i in range(0, 40, 10):
            hidden = hidden.detach()
            model.zero_grad()
            logits, hidden = model(text[i : i + 10], hidden)
            loss = F.cross_entropy(logits.flatten(0, 1), text[i + 1 : i + 11].flatten())
            loss.backward()
            clip_grad_norm_(model.parameters(), 0.25)
            for p in model.parameters():
                assert p.grad is not None
                p.data.add_(p.grad, alpha=-0.5)
            total += loss.item()


def embedding_with_a_padding_row(record: Record) -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(40, 12, padding_idx=0)
            self.lstm = nn.LSTM(12, 10, bidirectional=True, batch_first=True)
            self.out = nn.Linear(20, 5)

        def forward(self, tokens: Tensor) -> Tensor:
            lengths = (tokens != 0).sum(1)
            packed = nn.utils.rnn.pack_padded_sequence(
                self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False
            )
            output, _ = nn.utils.rnn.pad_packed_sequence(
                self.lstm(packed)[0], batch_first=True, total_length=tokens.shape[1]
            )
            return self.out(output)  # type: ignore[no-any-return]

    model = Tagger()
    optimizer = Adam(model.parameters())
    with record(model, gradients=True):
        for _ in range(2):
            tokens = torch.randint(1, 40, (6, 9))
            tokens[1, 5:] = tokens[2, 3:] = 0
            tags = torch.randint(5, (6, 9)).masked_fill(tokens == 0, -100)
            loss = F.cross_entropy(model(tokens).transpose(1, 2), tags, ignore_index=-100)
            model.zero_grad()
            loss.backward()
            optimizer.step()


def tiny_transformer_in_a_trainer(record: Record) -> None:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16, num_labels=2,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    rows = [
        {"input_ids": torch.randint(50, (8,)), "labels": torch.tensor(i % 2)} for i in range(16)
    ]
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            folder, per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=2,
            report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", logging_steps=1,
        )  # fmt: skip
        trainer = Trainer(model, options, train_dataset=rows)  # type: ignore[arg-type]
        with record(model):
            trainer.train()


def tiny_causal_model_with_a_padding_mask(record: Record) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=16)
    )
    optimizer = AdamW(model.parameters(), lr=5e-5)
    scheduler = get_linear_schedule_with_warmup(optimizer, 1, 4)
    with record(model):
        model.train()
        for _ in range(3):
            ids, mask = torch.randint(50, (4, 10)), torch.ones(4, 10, dtype=torch.long)
            mask[0, 7:] = 0
            labels = ids.masked_fill(mask == 0, -100)
            loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()


def second_order_fit_with_a_line_search(record: Record) -> None:
    weight, bias = torch.zeros(5, requires_grad=True), torch.zeros(1, requires_grad=True)
    optimizer = LBFGS([weight, bias], max_iter=6, line_search_fn="strong_wolfe")
    x = torch.randn(50, 5)
    y = (x @ torch.tensor([1.0, -1, 2, 0, 0.5]) > 0).float()

    def closure() -> float:
        optimizer.zero_grad()
        loss = (
            F.binary_cross_entropy_with_logits(x @ weight + bias, y) + 0.01 * weight.square().sum()
        )
        loss.backward()
        return loss.item()

    with record():
        for _ in range(2):
            optimizer.step(closure)


def averaged_weights_from_the_middle_on(record: Record) -> None:
    loader = DataLoader(TensorDataset(torch.randn(48, 6), torch.randint(3, (48,))), batch_size=16)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = SGD(model.parameters(), lr=0.1)
    averaged, swa = AveragedModel(model), SWALR(optimizer, swa_lr=0.05)
    cosine = CosineAnnealingLR(optimizer, T_max=2)
    with record(model):
        for epoch in range(3):
            for x, y in loader:
                step(optimizer, F.cross_entropy(model(x), y))
            if epoch > 0:
                averaged.update_parameters(model)
                swa.step()
            else:
                cosine.step()
        update_bn(loader, averaged)


def smooth_labels_mixed_up(record: Record) -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(), nn.Linear(32, 4)
    )
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    with record(model):
        for _ in range(2):
            x, y = torch.randn(16, 1, 8, 8), torch.randint(4, (16,))
            share, order = float(torch.rand(())), torch.randperm(16)
            logits = model(share * x + (1 - share) * x[order])
            step(
                optimizer, share * criterion(logits, y) + (1 - share) * criterion(logits, y[order])
            )


def student_of_logits_and_features(record: Record) -> None:
    class Net(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.body, self.head = (
                nn.Sequential(nn.Linear(6, width), nn.ReLU()),
                nn.Linear(width, 3),
            )

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.body(x)
            return h, self.head(h)

    teacher, student, adapt = Net(32).eval(), Net(8), nn.Linear(8, 32)
    optimizer = Adam([*student.parameters(), *adapt.parameters()], lr=1e-3)
    with record(nn.ModuleDict({"teacher": teacher, "student": student, "adapt": adapt})):
        for x, y in batches(2):
            with torch.no_grad():
                t_features, t_logits = teacher(x)
            features, logits = student(x)
            soft = F.kl_div(
                (logits / 4).log_softmax(-1), (t_logits / 4).softmax(-1), reduction="batchmean"
            )
            step(
                optimizer,
                F.cross_entropy(logits, y) + 16 * soft + F.mse_loss(adapt(features), t_features),
            )


def tasks_weighted_by_their_uncertainty(record: Record) -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = layers(6, 16, 16)
            self.depth, self.label = nn.Linear(16, 1), nn.Linear(16, 3)
            self.log_vars = nn.Parameter(torch.zeros(2))

        def forward(self, x: Tensor, depth: Tensor, label: Tensor) -> tuple[Tensor, list[float]]:
            h = self.body(x).relu()
            losses = torch.stack(
                [F.l1_loss(self.depth(h).squeeze(1), depth), F.cross_entropy(self.label(h), label)]
            )
            total = (torch.exp(-self.log_vars) * losses + self.log_vars).sum()
            return total, losses.detach().tolist()

    model = Weighted()
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        for x, y in batches(3):
            loss, _logged = model(x, torch.rand(16), y)
            step(optimizer, loss)


def ensemble_of_one_architecture(record: Record) -> None:
    base = layers(6, 16, 3)
    members = [layers(6, 16, 3) for _ in range(4)]
    weights, buffers = stack_module_state(members)  # type: ignore[arg-type]
    base = base.to("meta")
    optimizer = SGD(weights.values(), lr=0.1)

    def logits(weights: Any, buffers: Any, x: Tensor) -> Any:
        return functional_call(base, (weights, buffers), (x,))

    with record():
        for x, y in batches(3):
            out = vmap(logits, (0, 0, None))(weights, buffers, x)
            step(optimizer, F.cross_entropy(out.flatten(0, 1), y.repeat(4)))
