"""Parameters that lose the values of a checkpoint or of a copy, and programs that keep them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.optim import SGD

from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import mlp
from tests.findings.mistakes.rows import says, silent


def train(record: Record, model: nn.Module, prepare: Callable[[], object]) -> None:
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        prepare()
        for _ in range(2):
            step(optimizer, model(torch.randn(8, 6)).square().mean())


def loaded(record: Record, rename: Callable[[str], str]) -> None:
    model, state = mlp(), mlp().state_dict()
    renamed = {rename(key): value for key, value in state.items()}
    train(record, model, lambda: model.load_state_dict(renamed, strict=False))


@says("ignored-keys", "no values for 0.weight", "_orig_mod.0.weight")
def state_of_a_compiled_model(record: Record) -> None:
    loaded(record, lambda key: f"_orig_mod.{key}")


@silent("ignored-keys")
def keys_that_fit(record: Record) -> None:
    loaded(record, lambda key: key)


@silent("ignored-keys")
def a_state_without_the_head(record: Record) -> None:
    model, state = mlp(), mlp().state_dict()
    body = {key: value for key, value in state.items() if key.startswith("0.")}
    train(record, model, lambda: model.load_state_dict(body, strict=False))


@silent("ignored-keys")
def a_state_with_the_head_of_another_task(record: Record) -> None:
    model, state = mlp(), mlp().state_dict()
    state = {key.replace("2.", "old_head."): value for key, value in state.items()}
    state["old_head.weight"] = torch.zeros(10, 8)
    state["old_head.bias"] = torch.zeros(10)
    train(record, model, lambda: model.load_state_dict(state, strict=False))


def initialize(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)


@says("reinitialized-weights", "all 2 weight matrices", "model.0.weight")
def state_loaded_before_the_initialization(record: Record) -> None:
    model, state = mlp(), mlp().state_dict()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        model.load_state_dict(state)
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)  # cause
        step(optimizer, model(torch.randn(8, 6)).square().mean())


@silent("reinitialized-weights")
def a_head_that_is_initialized_again(record: Record) -> None:
    model, state = mlp(), mlp().state_dict()

    def prepare() -> None:
        model.load_state_dict(state)
        nn.init.normal_(model[2].weight, std=0.01)

    train(record, model, prepare)


@silent("reinitialized-weights")
def a_state_loaded_after_the_initialization(record: Record) -> None:
    model, state = mlp(), mlp().state_dict()

    def prepare() -> None:
        initialize(model)
        initialize(model)
        model.load_state_dict(state)

    train(record, model, prepare)


@says("reinitialized-weights", "model.2.weight", "the program has written values")
def resized_head_that_is_initialized_last(record: Record) -> None:
    model = mlp()
    with record(model):
        old = model[2].weight.detach()
        model[2] = nn.Linear(old.shape[1], 5)
        with torch.no_grad():
            model[2].weight[:3] = old
        nn.init.normal_(model[2].weight)  # cause
        model(torch.randn(8, 6)).square().mean().backward()


@silent("reinitialized-weights")
def a_resized_head_that_is_copied_last(record: Record) -> None:
    model = mlp()
    with record(model):
        old = model[2].weight.detach()
        model[2] = nn.Linear(old.shape[1], 5)
        nn.init.normal_(model[2].weight)
        with torch.no_grad():
            model[2].weight[:3] = old
        model(torch.randn(8, 6)).square().mean().backward()


@silent("reinitialized-weights")
def an_embedding_with_padding(record: Record) -> None:
    with record():
        model = nn.Sequential(nn.Embedding(5, 6, padding_idx=0), *mlp())
        nn.init.normal_(model[0].weight, std=0.02)
        step(SGD(model.parameters(), lr=0.1), model(torch.arange(5)).square().mean())


@silent("reinitialized-weights")
def a_trained_layer_that_is_reset(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            nn.init.normal_(model[2].weight, std=0.1)
            step(optimizer, model(torch.randn(8, 6)).square().mean())


@silent("reinitialized-weights")
def initializations_that_draw_several_times(record: Record) -> None:
    model = mlp()
    with record(model):
        for draw in (nn.init.trunc_normal_, nn.init.orthogonal_, nn.init.eye_, nn.init.normal_):
            draw(model[0].weight)
            draw(model[0].weight)
        nn.init.sparse_(model[0].weight, 0.1)
        nn.init.xavier_normal_(model[0].weight)
        nn.init.constant_(model[0].weight, 0.1)
        nn.init.kaiming_normal_(model[0].weight)
        model(torch.randn(8, 6)).square().mean().backward()
