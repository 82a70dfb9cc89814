"""Test that nested recordings leave nothing in the process, and change no value."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from graphviz_torch import record
from tests.support.observable import changes, observable
from tests.support.programs import in_threads

Block = Callable[..., Any]  # record, or a context that does nothing


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.3), nn.Linear(4, 1))


def values(model: nn.Module, *others: Tensor | None) -> list[Tensor]:
    found = [*others, *(p.grad for p in model.parameters()), torch.get_rng_state()]
    return [tensor.detach() for tensor in found if tensor is not None]


def nested(block: Block) -> list[Tensor]:
    model = net()
    with block(model):
        model(torch.ones(2, 3)).sum().backward()
        with block():
            model(torch.ones(2, 3)).sum().backward()
        model(torch.ones(2, 3)).sum().backward()
    return values(model)


def autocast(block: Block) -> list[Tensor]:
    model = net()
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torch.autocast("cpu", torch.bfloat16), block(model):
        loss = model(torch.ones(2, 3)).float().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return values(model, loss)


def hooks_of_others(block: Block) -> list[Tensor]:
    model = net()
    model[0].register_forward_hook(lambda module, args, out: out * 2)
    model[0].register_full_backward_hook(lambda module, given, got: (None,))
    model[1].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model[3].weight.register_hook(lambda gradient: gradient + 1)
    model[3].bias.register_post_accumulate_grad_hook(lambda p: p.grad.add_(1) and None)
    x = torch.ones(2, 3, requires_grad=True)
    kept = torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t)
    with kept, block(model), torch.autograd.set_detect_anomaly(True):
        loss = checkpoint(model, x, use_reentrant=False).sum()
        loss = loss + checkpoint(model, x * 2, use_reentrant=True).sum()
        loss.backward()
    return values(model, loss, x.grad)


def transforms(block: Block) -> list[Tensor]:
    model = net().eval()

    def recorded(x: Tensor) -> Tensor:
        with block(model):
            y = model(x).sin().sum()
            (gradient,) = torch.autograd.grad(y, x, create_graph=True)
            return y + gradient.sum()

    func = torch.func
    found = [func.grad(recorded)(torch.ones(3)), func.vmap(func.grad(recorded))(torch.ones(2, 3))]
    with block(model):
        found += [func.jacrev(model)(torch.ones(3)), func.hessian(model)(torch.ones(3))]
    return found


def generators(block: Block) -> list[Tensor]:
    model = net().eval()

    def losses() -> Iterator[Tensor]:
        with block(model):
            while True:
                yield model(torch.ones(2, 3)).sum()

    first, second = losses(), losses()
    next(first).backward()
    next(second).backward()
    around: list[Any] = [first]
    around.append(around)  # so that the collector alone can end it
    del first, around
    gc.collect()
    next(second).backward()
    second.close()  # type: ignore[attr-defined]
    return values(model)


def threads(block: Block) -> list[Tensor]:
    models = [net().eval() for _ in range(3)]
    together = threading.Barrier(3)

    def run(model: nn.Module) -> None:
        for _ in range(5):
            together.wait(60)
            with block(model):
                together.wait(60)
                model(torch.ones(2, 3)).sum().backward()

    in_threads(*(partial(run, model) for model in models))
    return [tensor for model in models for tensor in values(model)]


def tasks(block: Block) -> list[Tensor]:
    models = [net().eval() for _ in range(3)]

    async def run(model: nn.Module, turns: int) -> None:
        with block(model):
            loss = model(torch.ones(2, 3)).sum()
            for _ in range(turns):
                await asyncio.sleep(0)  # the others' turn: the first to begin ends first
            loss.backward()

    async def main() -> None:
        await asyncio.gather(*(run(model, turns) for turns, model in enumerate(models)))

    asyncio.run(main())
    return [tensor for model in models for tensor in values(model)]


def backward_elsewhere(block: Block) -> list[Tensor]:
    model = net()
    with block(model):
        in_threads(model(torch.ones(2, 3)).sum().backward)
    return values(model)


def failures(block: Block) -> list[Tensor]:
    model = net().eval()

    def twice() -> None:
        loss = model(torch.ones(2, 3)).sum()
        loss.backward()
        loss.backward()

    def refused() -> None:
        y = model(torch.ones(2, 3))
        y.register_hook(lambda gradient: 1 / 0)
        y.sum().backward()

    for program in (lambda: model(torch.ones(2, 7)), twice, refused):
        with pytest.raises((RuntimeError, ZeroDivisionError)), block(model):
            program()
    return values(model)


def an_interrupt_in_a_forward(block: Block) -> list[Tensor]:
    model = net()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    model[1].register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt), block(model):
        model(torch.ones(2, 3))
    return values(model)


def a_signal_in_a_backward(block: Block) -> list[Tensor]:
    model = net()

    def step() -> None:
        y = model(torch.ones(2, 3))
        y.register_hook(lambda gradient: signal.raise_signal(signal.SIGINT))
        y.sum().backward()
        pytest.fail("the signal was lost")

    # A process that runs tests for another one may have been told to ignore it.
    known = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), block(model):
            step()
    finally:
        signal.signal(signal.SIGINT, known)
    return values(model)


PROGRAMS = [
    *(nested, autocast, hooks_of_others, transforms, generators, threads, tasks),
    *(backward_elsewhere, failures, an_interrupt_in_a_forward, a_signal_in_a_backward),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_recording_leaves_nothing_and_changes_nothing(program: Any) -> None:
    with record():  # what stays after the first recording is there
        net()(torch.ones(2, 3)).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = program(lambda *_: nullcontext())
        before = observable()
        found = program(record)
        assert changes(before, observable()) == {}
    assert len(found) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
