"""Build a small model of every architecture in transformers, offline and with random weights.

Sizes in the configuration, and in configurations inside it, are reduced by their names. In the
table of sizes, those with a "w" are widths, which can be multiplied. The class is the first one of
the architecture in the order of `_TASKS`. Models that take labels get labels, so that the library
computes the loss.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from .sources import Entry, Forward

_TASKS = """CAUSAL_LM SEQ_TO_SEQ_CAUSAL_LM MASKED_LM CTC SPEECH_SEQ_2_SEQ IMAGE_CLASSIFICATION
    OBJECT_DETECTION SEMANTIC_SEGMENTATION UNIVERSAL_SEGMENTATION DEPTH_ESTIMATION
    VIDEO_CLASSIFICATION AUDIO_CLASSIFICATION TIME_SERIES_PREDICTION IMAGE_TEXT_TO_TEXT
    ZERO_SHOT_IMAGE_CLASSIFICATION MULTIMODAL_LM SEQUENCE_CLASSIFICATION PRETRAINING
    MASKED_IMAGE_MODELING QUESTION_ANSWERING IMAGE_TO_IMAGE KEYPOINT_DETECTION TEXT_TO_WAVEFORM
    TEXT_TO_SPECTROGRAM MASK_GENERATION BACKBONE"""
_BATCH, _TOKENS, _VOCABULARY, _IMAGE, _WIDTH = 2, 8, 99, 32, 32
_SIZE_TABLE = """
    99: vocab_size text_vocab_size
    64: codebook_size
    32w: hidden_size d_model n_embd dim embed_dim encoder_hidden_dim d_embed embedding_size
    32w: encoder_hidden_size decoder_hidden_size projection_dim hidden_dim word_embed_proj_dim
    32w: embedding_dim pooler_hidden_size rnn_hidden_size conv_dim mask_feature_size output_dim
    32w: shared_projection_dim projection_hidden_size out_hidden_size fpn_hidden_size emb_dim
    32w: bottleneck_size lru_width text_embed_dim vision_embed_dim classifier_proj_size
    32w: backbone_hidden_size cross_attention_hidden_size prompt_embed_dim feature_size
    32w: mask_embed_dim cls_embed_dim encoder_embed_dim decoder_embed_dim neck_hidden_size
    32w: fusion_hidden_size
    64w: intermediate_size encoder_ffn_dim decoder_ffn_dim d_ff ffn_dim n_inner inner_dim mlp_dim
    64w: dim_feedforward moe_intermediate_size shared_expert_intermediate_size block_ff_dim
    64w: intermediate_size_mlp feed_forward_size d_inner ffn_hidden_size shared_intermediate_size
    64w: encoder_intermediate_size expert_intermediate_size encoder_ffn_hidden_size mamba_d_ssm
    64w: ffn_hidden_dim
    2: num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers depth layers
    2: num_encoder_layers num_decoder_layers e_layers num_hidden_layers_encoder num_block_layers
    2: decoder_num_hidden_layers encoder_num_hidden_layers num_blocks attention_layers
    2: vision_layers text_layers predictor_num_hidden_layers encoder_num_layers n_blocks
    2: decoder_num_layers num_conv_layers num_local_layers block_layers l_layers r_layers
    2: x_layers dec_layers num_global_layers num_nextn_predict_layers
    4: num_attention_heads n_head n_heads num_heads encoder_attention_heads nhead
    4: decoder_attention_heads attention_heads decoder_num_attention_heads
    4: encoder_num_attention_heads predictor_num_attention_heads
    8w: head_dim attention_head_dim d_kv kv_channels global_head_dim
    8w: qk_nope_head_dim qk_rope_head_dim v_head_dim qk_head_dim
    16w: q_lora_rank kv_lora_rank o_lora_rank state_size mamba_d_state num_mel_bins
    4: num_experts num_local_experts n_routed_experts moe_num_experts num_routed_experts
    2: num_experts_per_tok num_experts_per_token moe_topk top_k_experts moe_k num_codebooks
    1: n_group topk_group n_shared_experts tubelet_size
    64: max_position_embeddings n_positions max_source_positions max_target_positions
    64: max_seq_len n_ctx max_sequence_length
    32: image_size crop_size img_size spectrogram_length
    8: patch_size vision_patch_size mamba_num_heads mamba_head_dim mamba_n_heads mamba_d_head
    6: num_queries num_latents query_length
    3: num_labels
    2: num_frames
    16: frequency_length
"""
_ROWS = [line.partition(": ") for line in _SIZE_TABLE.split("\n") if line]
_SIZES = {name: int(size.rstrip("w")) for size, _, names in _ROWS for name in names.split()}
_WIDTHS = {name for size, _, names in _ROWS if size.endswith("w") for name in names.split()}
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")


def entries(scale: int = 1) -> Iterator[Entry]:
    """Yield one entry for each architecture that has a PyTorch model.

    Args:
        scale: factor of all widths, and of the batch size and number of tokens.
    """
    tables = [getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {}) for task in _tasks()]
    for kind in CONFIG_MAPPING:
        names = [
            table[kind] for table in (*tables, modeling_auto.MODEL_MAPPING_NAMES) if kind in table
        ]
        if names:
            name = names[0] if isinstance(names[0], str) else names[0][0]
            yield Entry("transformers", kind, partial(build, kind, name, scale))


def _tasks() -> list[str]:
    return _TASKS.split()


def build(kind: str, name: str, scale: int = 1) -> tuple[nn.Module, Forward]:
    """Build the small model of a class, with an input for each required argument."""
    config = small(CONFIG_MAPPING[kind], scale)
    model = getattr(transformers, name)(config)
    inputs = example(model, config)
    for key, each in inputs.items():
        if isinstance(each, Tensor) and scale > 1:
            inputs[key] = each.repeat(scale, *[1] * (each.ndim - 1))
            if key in ("input_ids", "labels", "decoder_input_ids") and each.ndim == 2:
                inputs[key] = inputs[key].repeat(1, 4)
    return model, lambda: model(**inputs)


def small(kind: type[PreTrainedConfig], scale: int = 1) -> PreTrainedConfig:
    """Return a configuration with small sizes, whose widths are multiplied by `scale`."""
    default = kind()
    sizes: dict[str, Any] = {}
    for key, value in vars(default).items():
        if isinstance(value, PreTrainedConfig):
            sizes[key] = small(type(value), scale)
        elif key in _SIZES and isinstance(value, int) and not isinstance(value, bool):
            sizes[key] = min(value, _size(key, scale))
        elif key in _SIZES and isinstance(value, (list, tuple)) and value and key != "hidden_size":
            sizes[key] = type(value)(min(each, _size(key, scale)) for each in value)
        elif key in _KV_HEADS and isinstance(value, int):
            heads = getattr(default, "num_attention_heads", None) or getattr(default, "n_head", 4)
            sizes[key] = 4 if value == heads else min(value, 2)
        elif key.endswith("_token_id") and isinstance(value, int) and value >= _VOCABULARY:
            sizes[key] = 5 + len(sizes) % 60
        elif key == "depths" and isinstance(value, (list, tuple)):
            sizes[key] = [1] * len(value)
        elif key in ("hidden_sizes", "embed_dims", "neck_hidden_sizes") and value:
            sizes[key] = [8 * scale * 2**i for i in range(len(value))]
    known = inspect.signature(kind.__init__).parameters
    any_name = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values())
    try:
        return kind(**{key: each for key, each in sizes.items() if any_name or key in known})
    except Exception:
        for key, each in sizes.items():
            setattr(default, key, each)
        return default


def _size(name: str, scale: int) -> int:
    return _SIZES[name] * (scale if name in _WIDTHS else 1)


def example(model: nn.Module, config: PreTrainedConfig) -> dict[str, Any]:
    """Return an input for each argument of `model.forward` that is required or gives a loss."""
    parameters = inspect.signature(model.forward).parameters
    text = _inner(config, "text_config")
    ids = torch.randint(
        6, min(getattr(text, "vocab_size", _VOCABULARY) or 99, 90), (_BATCH, _TOKENS)
    )
    wanted = {
        name
        for name, each in parameters.items()
        if each.default is inspect.Parameter.empty
        and each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    }
    wanted |= {model.main_input_name, "decoder_input_ids", "bbox"} & set(parameters)
    contrastive = {"pixel_values", "input_ids", "return_loss"} <= set(parameters)
    if contrastive:
        wanted |= {"pixel_values", "input_ids"}
    inputs: dict[str, Any] = {}
    for name in wanted:
        value = _input(name, config, ids)
        if value is not None:
            inputs[name] = value
    if contrastive:
        inputs["return_loss"] = True
    labels = _labels(type(model).__name__, ids) if "labels" in parameters else None
    if labels is not None:
        inputs["labels"] = labels
    return inputs


def _inner(config: PreTrainedConfig, name: str) -> PreTrainedConfig:
    return getattr(config, name, None) or config


def _input(name: str, config: PreTrainedConfig, ids: Tensor) -> Any:
    vision = _inner(config, "vision_config")
    size = getattr(vision, "image_size", None) or _IMAGE
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    channels = getattr(vision, "num_channels", None) or 3
    mel = getattr(_inner(config, "audio_config"), "num_mel_bins", None) or 16
    if name in ("input_ids", "decoder_input_ids"):
        return ids
    if name in ("pixel_values", "images"):
        return torch.randn(_BATCH, channels, height, width)
    if name == "pixel_values_videos":
        frames = getattr(vision, "num_frames", None) or getattr(vision, "frames_per_clip", 2)
        return torch.randn(_BATCH, frames, channels, height, width)
    if name == "input_values":
        return torch.randn(_BATCH, 2000)
    if name in ("input_features", "audio_values"):
        length = 2 * (getattr(config, "max_source_positions", None) or 32)
        return torch.randn(_BATCH, mel, length)
    if name == "bbox":
        corner = torch.randint(0, 30, (_BATCH, _TOKENS, 2))
        return torch.cat([corner, corner + 10], -1)
    if name == "past_values":
        length = getattr(config, "context_length", None) or 32
        lags = max(getattr(config, "lags_sequence", None) or [0])
        count = getattr(config, "num_input_channels", 1)
        many = getattr(config, "input_size", count) != 1 or count != 1
        shape = (_BATCH, length + lags, max(count, getattr(config, "input_size", 1)))
        return torch.rand(shape if many else shape[:2])
    return None


def _labels(name: str, ids: Tensor) -> Tensor | None:
    if name.endswith(
        ("ForImageClassification", "ForSequenceClassification", "ForVideoClassification")
    ):
        return torch.tensor([0, 1])
    if name.endswith("ForAudioClassification"):
        return torch.tensor([0, 1])
    if name.endswith(
        ("LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration", "ForCTC")
    ):
        return ids
    return None
