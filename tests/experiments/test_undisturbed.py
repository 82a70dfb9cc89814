"""Test that an experiment leaves the program as it was, for the models of the tests."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from graphviz_torch import record, simulate_accelerator
from graphviz_torch.experiments import experiment, influence
from tests.support import models, zoo
from tests.support.tensors import parallel, programs, subclasses


class Checkpointed(nn.Module):
    """A model of two blocks that run again in backward."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.drop, self.reentrant = nn.Dropout(0.5), reentrant

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(self.of, block, x, use_reentrant=self.reentrant)
        return x

    def of(self, block: nn.Module, x: Tensor) -> Tensor:
        return self.drop(block(x)).relu()


class Cast(nn.Module):
    """A forward under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.net = models.MLP()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.net(x)


def rows() -> Tensor:
    return torch.randn(4, 4)


def images() -> Tensor:
    return torch.randn(2, 3, 32, 32)


def compiled() -> nn.Module:
    torch._dynamo.reset()
    return torch.compile(models.MLP(), backend="aot_eager")


def named() -> nn.Module:
    """Return a model whose parameters and results are of a subclass of Tensor."""
    model = models.MLP()
    for layer in (model.fc1, model.fc2):
        layer.weight = nn.Parameter(layer.weight.detach().as_subclass(subclasses.Named))
    return model


def with_labels(model: nn.Module) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    tokens = models.tokens(8, 2)
    return model.train(), (tokens,), {"labels": tokens}


def pairs() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return two texts and their images."""
    named = {"input_ids": models.tokens(8, 2), "pixel_values": images(), "return_loss": True}
    return zoo.clip(1), (), named


def classes(model: nn.Module) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    return model, (models.tokens(8, 2),), {"labels": torch.tensor([1, 0])}


# What is called with what: the models of tests/support with few layers, and what runs a forward
# in its own way.
CALLS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]] = {
    "mlp": lambda: (models.MLP(), (rows(),), {}),
    "tied": lambda: (models.TiedMLP(), (rows(),), {}),
    "conv": lambda: (models.ConvNet(), (torch.randn(4, 3, 8, 8),), {}),
    "unrolled": lambda: (models.UnrolledRNN(3), (rows(),), {}),
    "block": lambda: (models.TransformerBlock(), (torch.randn(4, 5, 8),), {}),
    "transformer": lambda: (models.Transformer(), (models.tokens(8, 4),), {}),
    "resnet-50": lambda: (models.ResNet(50, 2), (images(),), {}),
    "resnet-18": lambda: (zoo.ResNet18(2), (images(),), {}),
    "densenet": lambda: (zoo.DenseNet121(layers=(2, 2, 2)), (images(),), {}),
    "u-net": lambda: (zoo.UNet(), (images(),), {}),
    "tagger": lambda: (zoo.Tagger(), (models.tokens(8, 2),), {}),
    "char-rnn": lambda: (zoo.CharRNN(5), (torch.randn(2, 4),), {}),
    "gpt-2": lambda: with_labels(models.gpt2(2)),
    "llama": lambda: with_labels(models.llama(2)),
    "bert": lambda: classes(zoo.bert(1)),
    "t5": lambda: with_labels(zoo.t5(1)),
    "vit": lambda: (zoo.vit(1), (images(),), {}),
    "clip": pairs,
    "checkpoint": lambda: (Checkpointed(reentrant=False), (rows(),), {}),
    "reentrant checkpoint": lambda: (
        Checkpointed(reentrant=True),
        (rows().requires_grad_(),),
        {},
    ),
    "compiled": lambda: (compiled(), (rows(),), {}),
    "autocast": lambda: (Cast(), (rows(),), {}),
    "subclass with memory": lambda: (named(), (rows(),), {}),
    "tensor parallel": lambda: (parallel.tensor_parallel()[0], (torch.randn(4, 8),), {}),
    "sequence parallel": lambda: (parallel.sequence_parallel()[0], (torch.randn(2, 2, 8),), {}),
}


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Leave the process group, if a test joined one."""
    yield
    parallel.leave()


def values(tensor: Any) -> Any:
    """Return the elements of a tensor; the local elements of a DTensor."""
    return getattr(tensor, "_local_tensor", tensor).tolist()


def compiles(model: nn.Module) -> bool:
    return any(type(module).__name__ == "OptimizedModule" for module in model.modules())


def state(model: nn.Module, *args: Any) -> dict[str, Any]:
    """Return all that a program can read of a model, its arguments and the random state."""
    counters = sys.modules["torch._dynamo.utils"].counters if compiles(model) else {}
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "values": {name: (values(tensor), tensor._version) for name, tensor in tensors.items()},
        "gradients": {
            name: (id(p.grad), None if p.grad is None else (values(p.grad), p.grad._version))
            for name, p in model.named_parameters()
        },
        "compilations": {name: dict(counted) for name, counted in counters.items()},
        "modes": [module.training for module in model.modules()],
        "attributes": [
            {name: id(value) for name, value in vars(module).items()} for module in model.modules()
        ],
        "hooks": [len(module._forward_hooks) for module in model.modules()],
        "arguments": [
            (a.tolist(), a._version, a.requires_grad) for a in args if isinstance(a, Tensor)
        ],
        "random": (
            torch.get_rng_state().tolist(),
            random.getstate(),
            np.random.get_state()[1].tolist(),
        ),
        "dtype": torch.get_default_dtype(),
        "autocast": torch.is_autocast_enabled("cpu"),
    }


@pytest.mark.parametrize("name", CALLS)
def test_nothing_of_the_program_differs_afterwards(name: str) -> None:
    torch.manual_seed(0)
    model, args, kwargs = CALLS[name]()
    with record(model, experiments=True) as recording:
        output = model(*args, **kwargs)
        loss = getattr(output, "loss", None)
        if loss is None:
            loss = getattr(output, "logits", output).mean()
        loss.backward()
    before = state(model, *args, *kwargs.values())
    found = experiment(recording)
    assert state(model, *args, *kwargs.values()) == before
    if name == "compiled":
        assert [each.holds for each in found if each.name == "eager"] == [True]
    assert not found.findings, str(found)
    assert not [each for each in found if "cannot be run" in each.message], str(found)
    if name in ("compiled", "reentrant checkpoint"):  # their nodes hold a forward each
        return
    shares = [node.influence for node in influence(recording, sample=0).nodes]
    assert state(model, *args, *kwargs.values()) == before
    assert [share for share in shares if share is not None]


class Counting(nn.Module):
    """A model whose forward changes everything that it can reach."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.calls = 0
        self.features: list[Tensor] = []
        self.register_buffer("mean", torch.zeros(4))
        self.outside = torch.zeros(4)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.features.append(x.detach())
        self.mean.mul_(0.9).add_(x.detach().mean(0))
        self.outside += 1
        with torch.no_grad():
            self.fc.weight.mul_(0.5)
        self.last = x
        random.random()
        np.random.rand()
        torch.rand(3)
        print("forward")
        return self.fc(x.mul_(1.0))


def test_what_a_forward_changes_is_put_back(capsys: pytest.CaptureFixture[str]) -> None:
    model, x = Counting(), torch.randn(4, 4)
    with record(model, experiments=True) as recording:
        model(x).sum().backward()
    capsys.readouterr()
    before = state(model, x, model.outside)
    found = experiment(recording)
    assert state(model, x, model.outside) == before
    assert (model.calls, len(model.features)) == (1, 1)
    assert capsys.readouterr().out == ""
    assert found[0].holds is True, str(found)


def test_a_forward_that_raises_leaves_all_as_it_was() -> None:
    class Once(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.norm(self.fc(x))
            if ready:
                raise ValueError("no second time")
            return h

    ready: list[int] = []
    model, x = Once(), torch.randn(4, 4)
    with record(model, experiments=True) as recording:
        model(x).sum().backward()
    ready.append(1)
    before = state(model, x)
    [found] = experiment(recording, "sample")
    assert state(model, x) == before
    assert found.holds is None
    assert "ValueError: no second time" in found.message


def test_what_was_recorded_under_autocast_runs_under_it_again() -> None:
    model, x = models.MLP(), torch.randn(4, 4)
    with record(model, experiments=True) as recording:
        with torch.autocast("cpu", torch.bfloat16):
            output = model(x)
        output.float().sum().backward()
    seen: list[torch.dtype] = []
    handle = model.register_forward_hook(lambda *given: seen.append(given[2].dtype))
    experiment(recording, "sample", "memory_order")
    handle.remove()
    assert set(seen) == {torch.bfloat16}
    assert not torch.is_autocast_enabled("cpu")


def test_a_simulated_device_is_run_again_on_it() -> None:
    with simulate_accelerator() as [device]:
        model, x = models.MLP().to(device), torch.randn(4, 4).to(device)
        with record(model, experiments=True) as recording:
            model(x).sum().backward()
        before = state(model, x)
        found = experiment(recording)
        assert state(model, x) == before
        assert not [each for each in found if "cannot be run" in each.message], str(found)
        known = {each.name: each.holds for each in found if each.holds is not None}
        assert known == dict.fromkeys(
            ("sample", "seed", "inputs", "float64", "memory_order"), True
        ), str(found)


def test_without_being_asked_a_recording_keeps_no_call() -> None:
    model = models.MLP()
    with record(model) as recording:
        model(torch.randn(4, 4)).sum().backward()
    assert recording.first_call is None
    with pytest.raises(ValueError, match="experiments=True"):
        experiment(recording)
    with pytest.raises(TypeError, match=r"pass the recording that record\(\) returned"):
        experiment(3)
    with pytest.raises(ValueError, match="not an experiment"):
        experiment(recording, "samples")


@pytest.mark.parametrize(
    "name", ["meta", "fake", "batched", "sharded", "tensor parallel and sharded"]
)
def test_what_cannot_be_run_again_is_not_kept(name: str) -> None:
    model, step = programs.PROGRAMS[name]()
    with record(model, experiments=True) as recording:
        step()
    assert recording.first_call is None
    with pytest.raises(ValueError, match="no call to run again"):
        experiment(recording)


def test_what_has_lost_its_memory_is_not_run_again() -> None:
    model, step = programs.PROGRAMS["freed"]()
    with record(model, experiments=True) as recording:
        step()
    with pytest.raises(ValueError, match="spare has no values any more"):
        experiment(recording)
