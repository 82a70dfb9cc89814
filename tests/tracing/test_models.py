"""Test the graphs of real models, from transformers' configurations with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from graphviz_torch import trace
from tests.support import models
from tests.support.autograd_reference import check
from tests.support.models import known

SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
WORDS = {"vocab_size": 32, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
T5 = {"vocab_size": 32, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 2}
MIXTRAL = {"num_key_value_heads": 1, "intermediate_size": 16, "num_local_experts": 4}
words = models.tokens()

MODELS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: models.gpt2(2)(words, labels=words),
    "llama": lambda: models.llama(2)(words),
    "llama eager": lambda: models.llama(2, attention="eager")(words),
    "bert": lambda: known("BertModel", "BertConfig", **SMALL, **WORDS, intermediate_size=16)(words),
    "t5": lambda: known("T5ForConditionalGeneration", "T5Config", **T5)(
        input_ids=words, decoder_input_ids=models.tokens(4)
    ),
    "vit": lambda: known(
        "ViTModel", "ViTConfig", **SMALL, intermediate_size=16, image_size=8, patch_size=4
    )(torch.ones(1, 3, 8, 8)),
    "resnet": lambda: known(
        "ResNetModel", "ResNetConfig", embedding_size=4, hidden_sizes=[8, 8], depths=[1, 1]
    )(torch.ones(2, 3, 32, 32)),
    "mamba": lambda: known(
        *("MambaModel", "MambaConfig"),
        **{"vocab_size": 32, "hidden_size": 8, "num_hidden_layers": 2, "state_size": 4},
    )(words),
    "mixtral": lambda: known("MixtralForCausalLM", "MixtralConfig", **SMALL, **WORDS, **MIXTRAL)(
        words, output_router_logits=True
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_transformers_is_traced_as_a_breadth_first_walk_finds_it(name: str) -> None:
    output = MODELS[name]().values()
    tensors = [t for t in output if isinstance(t, Tensor) and t.requires_grad]
    graph = trace(tensors)
    check(graph, *tensors)
    assert len(graph.nodes) > 20
