"""The shapes of real models, from transformers' configurations with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from graphviz_torch import trace
from tests.support import models
from tests.support.autograd_reference import check

SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
WORDS = {"vocab_size": 32, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


def bert() -> Any:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(**SMALL, **WORDS, intermediate_size=16))(models.tokens())


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=32, d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2)
    model = T5ForConditionalGeneration(config)
    return model(input_ids=models.tokens(), decoder_input_ids=models.tokens(4))


def vit() -> Any:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(**SMALL, intermediate_size=16, image_size=8, patch_size=4)
    return ViTModel(config)(torch.ones(1, 3, 8, 8))


def resnet() -> Any:
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(embedding_size=4, hidden_sizes=[8, 8], depths=[1, 1])
    return ResNetModel(config)(torch.ones(2, 3, 32, 32))


def mamba() -> Any:
    from transformers import MambaConfig, MambaModel

    config = MambaConfig(vocab_size=32, hidden_size=8, num_hidden_layers=2, state_size=4)
    return MambaModel(config)(models.tokens())


def mixtral() -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        **SMALL, **WORDS, num_key_value_heads=1, intermediate_size=16, num_local_experts=4
    )
    return MixtralForCausalLM(config)(models.tokens(), output_router_logits=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make",
    [
        lambda: models.gpt2(2)(models.tokens(), labels=models.tokens()),
        lambda: models.llama(2)(models.tokens()),
        lambda: models.llama(2, attention="eager")(models.tokens()),
        *(bert, t5, vit, resnet, mamba, mixtral),
    ],
    ids=["gpt2", "llama", "llama eager", "bert", "t5", "vit", "resnet", "mamba", "mixtral"],
)
def test_a_model_of_transformers_is_traced_as_a_breadth_first_walk_finds_it(
    make: Callable[[], Any],
) -> None:
    output = make()
    tensors: list[Tensor] = [
        t for t in output.values() if isinstance(t, Tensor) and t.requires_grad
    ]
    graph = trace(tensors)
    check(graph, *tensors)
    assert len(graph.nodes) > 20
