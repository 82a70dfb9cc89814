"""Compare trainings on the simulated accelerator with the same trainings on the CPU."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from graphviz_torch import record, simulate_accelerator

transformers = pytest.importorskip("transformers", reason="the models are its")


def words(device: Any) -> Tensor:
    return torch.randint(3, 64, (2, 8)).to(device)


def picture(device: Any) -> Tensor:
    return torch.randn(2, 3, 32, 32).to(device)


def padded(device: Any) -> Tensor:
    return torch.tensor([[1] * 8, [1] * 5 + [0] * 3]).to(device)


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}
WIDE = {**SMALL, "intermediate_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SEES = {"image_size": 32, "patch_size": 8}
Inputs = Callable[[Any], dict[str, Any]]
MODELS: dict[str, tuple[str, str, dict[str, Any], Inputs]] = {
    "GPT-2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 64, "n_positions": 32}
        | {"bos_token_id": 1, "eos_token_id": 2, "loss_type": "ForCausalLM"},
        lambda d: {"input_ids": words(d), "labels": words(d)},
    ),
    "BERT, padded": (
        "BertForSequenceClassification",
        "BertConfig",
        WIDE,
        lambda d: {
            "input_ids": words(d),
            "attention_mask": padded(d),
            "labels": torch.tensor([0, 1]).to(d),
        },
    ),
    "Llama, padded": (
        "LlamaForCausalLM",
        "LlamaConfig",
        WIDE | {"num_key_value_heads": 1},
        lambda d: {"input_ids": words(d), "attention_mask": padded(d), "labels": words(d)},
    ),
    "T5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": 64}
        | {"decoder_start_token_id": 0},
        lambda d: {"input_ids": words(d), "labels": words(d)},
    ),
    "ViT": (
        "ViTForImageClassification",
        "ViTConfig",
        {k: v for k, v in WIDE.items() if not k.endswith(("id", "vocab_size"))} | SEES,
        lambda d: {"pixel_values": picture(d), "labels": torch.tensor([0, 1]).to(d)},
    ),
    "Mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        WIDE | {"num_key_value_heads": 1, "num_local_experts": 4},
        lambda d: {"input_ids": words(d), "labels": words(d)},
    ),
    "ResNet": (
        "ResNetForImageClassification",
        "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
        lambda d: {"pixel_values": picture(d), "labels": torch.tensor([0, 1]).to(d)},
    ),
}
ROUNDED = {"Mixtral"}  # its experts' products are grouped by the kind of device


def train(name: str, device: Any) -> list[Tensor]:
    """Return the losses and parameters after two recorded steps of AdamW."""
    kind, config, settings, inputs = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**settings)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(2):
        random.seed(step), np.random.seed(step), torch.manual_seed(step)
        with record(model) as recording:
            loss = model(**inputs(device)).loss
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        assert {parameter.module_called for parameter in recording.graph.parameters} == {True}
        losses.append(loss.detach().cpu())
    return losses + [parameter.detach().cpu() for parameter in model.parameters()]


@pytest.mark.parametrize("name", MODELS)
def test_a_known_model_trains_there_as_on_the_cpu(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = train(name, "cpu")
        with simulate_accelerator() as [device]:
            simulated = train(name, device)
    for a, b in zip(simulated, expected, strict=True):
        if name in ROUNDED:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        else:
            assert torch.equal(a, b)


@pytest.mark.parametrize("mask", ["none", "bool", "float", "causal"])
def test_fused_attention_with_a_mask_is_the_cpus_to_the_bit(mask: str) -> None:
    def run(device: Any) -> list[Tensor]:
        torch.manual_seed(0)
        q, k, v = (torch.randn(2, 3, 8, 4).to(device).requires_grad_() for _ in range(3))
        allowed = torch.rand(2, 1, 8, 8) > 0.3
        masks = {"bool": allowed.to(device), "float": torch.randn(8, 8).to(device)}
        out = scaled_dot_product_attention(q, k, v, masks.get(mask), is_causal=mask == "causal")
        out.square().sum().backward()
        return [t.detach().cpu() for t in (out, q.grad, k.grad, v.grad)]

    with simulate_accelerator() as [device]:
        simulated = run(device)
    assert all(torch.equal(a, b) for a, b in zip(simulated, run("cpu"), strict=True))


def test_a_mask_that_was_left_on_the_cpu_is_an_error() -> None:
    with simulate_accelerator() as [device]:
        q = torch.ones(1, 1, 2, 4, device=device)
        with pytest.raises(RuntimeError, match="sim:0 and cpu!"):
            scaled_dot_product_attention(q, q, q, attn_mask=torch.zeros(2, 2))


def test_integers_are_counted_as_a_gpu_counts_them() -> None:
    with simulate_accelerator() as [device]:
        values = torch.tensor([0, 2, 2, 3], dtype=torch.int32, device=device)
        counts = torch.histc(values, bins=4, min=0, max=3)
    assert (counts.dtype, counts.tolist()) == (torch.int32, [1, 0, 2, 1])


def test_an_index_that_is_python_data_is_found_where_no_method_of_ours_is_asked() -> None:
    with simulate_accelerator() as [device]:
        x = torch.arange(4.0, device=device)
        assert torch.Tensor.__getitem__(x, [3, 1]).tolist() == [3, 1]
        torch.Tensor.__setitem__(x, [0, 2], 9.0)
        assert x.tolist() == [9, 1, 9, 3]
        rows, columns = torch.unravel_index(torch.tensor([1, 5], device=device), (2, 3))
        assert (rows.tolist(), columns.tolist()) == ([0, 1], [1, 2])
