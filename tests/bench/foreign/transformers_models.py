"""Build a small model of every architecture in transformers, offline and with random weights.

Sizes in the configuration, and in configurations inside it, are reduced by their names. In the
table of sizes, those with a "w" are widths, which can be multiplied. The class is the first one of
the architecture in the order of `_TASKS`. Models that take labels get labels, so that the library
computes the loss.

Sizes and inputs depend on each other in ways that differ between architectures. Therefore several
configurations are tried, the smallest first, and several examples for each of them, until a forward
gives a loss.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from .sources import Entry, Forward, loss_of

_TASKS = """CAUSAL_LM SEQ_TO_SEQ_CAUSAL_LM MASKED_LM CTC SPEECH_SEQ_2_SEQ IMAGE_CLASSIFICATION
    OBJECT_DETECTION SEMANTIC_SEGMENTATION UNIVERSAL_SEGMENTATION DEPTH_ESTIMATION
    VIDEO_CLASSIFICATION AUDIO_CLASSIFICATION TIME_SERIES_PREDICTION IMAGE_TEXT_TO_TEXT
    ZERO_SHOT_IMAGE_CLASSIFICATION MULTIMODAL_LM SEQUENCE_CLASSIFICATION PRETRAINING
    MASKED_IMAGE_MODELING QUESTION_ANSWERING IMAGE_TO_IMAGE KEYPOINT_DETECTION TEXT_TO_WAVEFORM
    TEXT_TO_SPECTROGRAM MASK_GENERATION BACKBONE"""
_BATCH, _TOKENS, _VOCABULARY, _IMAGE, _WIDTH = 2, 8, 99, 32, 32
_MOST_PARAMETERS = 80_000_000
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
    2: num_frames mask_time_length
    8: rotary_dim
    16: frequency_length
"""
_ROWS = [line.partition(": ") for line in _SIZE_TABLE.split("\n") if line]
_SIZES = {name: int(size.rstrip("w")) for size, _, names in _ROWS for name in names.split()}
_WIDTHS = {name for size, _, names in _ROWS if size.endswith("w") for name in names.split()}
_COUNTS = {name for size, _, names in _ROWS if int(size.rstrip("w")) < 3 for name in names.split()}
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
            yield Entry("transformers", kind, partial(build, kind, names, scale))


def _tasks() -> list[str]:
    return _TASKS.split()


def build(kind: str, names: list[Any], scale: int = 1) -> tuple[nn.Module, Forward]:
    """Build a model that is as small as possible, with an example that its forward takes.

    Raises:
        Exception: the first error, if the forward of no configuration takes any of the examples.
    """
    first: Exception | None = None
    model_type = _model_type(CONFIG_MAPPING[kind], names)
    for attempt in _attempts(CONFIG_MAPPING[kind], scale):
        try:
            config = attempt()
            with torch.device("meta"):
                parameters = sum(each.numel() for each in model_type(config).parameters())
            if scale == 1 and parameters > _MOST_PARAMETERS:
                raise ValueError(f"{parameters} parameters are too many")
            model = model_type(config).train()
            choices = list(examples(model, config))
        except TimeoutError:
            raise
        except Exception as error:
            first = first or error
            continue
        for inputs in choices:
            try:
                repeated = _repeated(inputs, scale)
                loss_of(model(**repeated))
            except TimeoutError:
                raise
            except Exception as error:
                first = first or error
            else:
                return model, lambda model=model, inputs=repeated: model(**inputs)  # type: ignore[misc]
    raise first or ValueError("no configuration")


def _model_type(kind: type[PreTrainedConfig], names: list[Any]) -> Any:
    """Return the first class whose configuration is `kind`, or else the first class."""
    flat = [name if isinstance(name, str) else name[0] for name in names]
    types = [getattr(transformers, name) for name in flat]
    return next((each for each in types if each.config_class is kind), types[0])


def _attempts(kind: type[PreTrainedConfig], scale: int) -> Iterator[Callable[[], PreTrainedConfig]]:
    """Yield functions that return a configuration, from the smallest to the default one."""
    yield lambda: small(kind, scale)
    yield lambda: small(kind, scale, complete=True)
    if scale == 1:
        yield lambda: small(kind, names=_COUNTS, complete=True)
        yield kind


def _repeated(inputs: dict[str, Any], scale: int) -> dict[str, Any]:
    if scale == 1:
        return inputs
    repeated = dict(inputs)
    for key, each in inputs.items():
        if isinstance(each, Tensor):
            repeated[key] = each.repeat(scale, *[1] * (each.ndim - 1))
            if key in ("input_ids", "labels", "decoder_input_ids") and each.ndim == 2:
                repeated[key] = repeated[key].repeat(1, 4)
    return repeated


def small(
    kind: type[PreTrainedConfig],
    scale: int = 1,
    names: Collection[str] = _SIZES,
    complete: bool = False,
) -> PreTrainedConfig:
    """Return a configuration with small sizes.

    Args:
        kind: the class of the configuration.
        scale: factor of the widths.
        names: the sizes that are reduced.
        complete: whether sizes that are None are set too, one layer of each type is made, and
            the model keeps no cache.
    """
    default = kind()
    sizes: dict[str, Any] = {}
    for key, value in vars(default).items():
        if isinstance(value, PreTrainedConfig):
            sizes[key] = small(type(value), scale, names, complete)
        elif key in names and (
            (complete and value is None) or (isinstance(value, int) and not isinstance(value, bool))
        ):
            sizes[key] = min(value or _size(key, scale), _size(key, scale))
        elif key in names and isinstance(value, (list, tuple)) and value and key != "hidden_size":
            if all(isinstance(each, int) for each in value):
                sizes[key] = type(value)(min(each, _size(key, scale)) for each in value)
        elif key in _KV_HEADS and isinstance(value, int) and names is _SIZES:
            heads = getattr(default, "num_attention_heads", None) or getattr(default, "n_head", 4)
            sizes[key] = 4 if value == heads else min(value, 2)
        elif key.endswith("_token_id") and isinstance(value, int) and value >= _VOCABULARY:
            sizes[key] = 5 + len(sizes) % 60
        elif key == "depths" and isinstance(value, (list, tuple)):
            sizes[key] = [1] * len(value)
        elif key in ("hidden_sizes", "embed_dims", "neck_hidden_sizes") and value:
            if names is _SIZES:
                sizes[key] = [8 * scale * 2**i for i in range(len(value))]
        elif key == "layer_types" and complete and value:
            sizes[key] = list(dict.fromkeys(value))
            sizes["num_hidden_layers"] = len(sizes[key])
        elif key == "use_cache" and complete:
            sizes[key] = False
    known = inspect.signature(kind.__init__).parameters
    any_name = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values())
    try:
        made = kind(**{key: each for key, each in sizes.items() if any_name or key in known})
    except Exception:
        made = kind()
        for key, each in sizes.items():
            setattr(made, key, each)
    _fit_rotary_sections(made)
    return made


def _fit_rotary_sections(config: PreTrainedConfig) -> None:
    """Divide the angles of a rotary embedding among time, height and width."""
    rope = getattr(config, "rope_parameters", None)
    if "mrope_section" in getattr(config, "ignore_keys_at_rope_validation", ()) and rope:
        width = getattr(config, "head_dim", None)
        width = width or config.hidden_size // config.num_attention_heads
        angles = int(width * rope.get("partial_rotary_factor", 1.0)) // 2
        rope["mrope_section"] = [angles - 2 * (angles // 3), angles // 3, angles // 3]


def _size(name: str, scale: int) -> int:
    return _SIZES[name] * (scale if name in _WIDTHS else 1)


def examples(model: nn.Module, config: PreTrainedConfig) -> Iterator[dict[str, Any]]:
    """Yield inputs of `model.forward`, those with the fewest arguments first.

    The first ones have the required arguments, and labels that give a loss. The others have all
    arguments that a value is known for, or no labels. Each of them occurs with every layout.
    """
    parameters = inspect.signature(model.forward).parameters
    text = _inner(config, "text_config")
    vocabulary = min(getattr(text, "vocab_size", _VOCABULARY) or _VOCABULARY, 90)
    ids = torch.randint(min(6, vocabulary // 2), vocabulary, (_BATCH, _TOKENS))
    required = {
        name
        for name, each in parameters.items()
        if each.default is inspect.Parameter.empty
        and each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    }
    required |= {model.main_input_name, "decoder_input_ids", "bbox"} & set(parameters)
    contrastive = {"pixel_values", "input_ids", "return_loss"} <= set(parameters)
    if contrastive:
        required |= {"pixel_values", "input_ids"}
    labels = _labels(type(model).__name__, ids) if "labels" in parameters else None
    layouts = {name: _layouts(name, config, ids) for name in parameters}
    layouts = {name: each for name, each in layouts.items() if each}
    for labelled in (True, False) if labels is not None else (False,):
        for names in (required, set(parameters) - {"labels"}):
            given = [name for name in layouts if name in names]
            for layout in range(max((len(layouts[name]) for name in given), default=1)):
                inputs = {name: layouts[name][: layout + 1][-1] for name in given}
                if contrastive:
                    inputs["return_loss"] = True
                if labelled:
                    inputs["labels"] = labels
                yield inputs


def _inner(config: PreTrainedConfig, name: str) -> PreTrainedConfig:
    return getattr(config, name, None) or config


def _layouts(name: str, config: PreTrainedConfig, ids: Tensor) -> list[Any]:
    """Return the values that an argument may have, or an empty list if its meaning is not known."""
    if name.endswith(("input_ids", "question_ids")):
        return [ids]
    if name == "bbox":
        corner = torch.randint(0, 30, (_BATCH, _TOKENS, 2))
        return [torch.cat([corner, corner + 10], -1)]
    if name == "past_values":
        return [_series(config)]
    if name == "mm_token_type_ids":
        return [torch.zeros_like(ids)]
    if name.endswith(("pixel_values", "pixel_values_videos", "images", "masks", "grid_thw")) or (
        name in ("hidden_states", "merge_sizes", "spatial_shapes")
    ):
        return _images(name, config)
    if name in ("input_values", "input_features", "audio_values", "input_features_mask"):
        return _sounds(name, config)
    width = getattr(_inner(config, "text_config"), "hidden_size", None)
    if name.endswith("_embeds") and name != "inputs_embeds" and width:
        return [torch.randn(_BATCH, _TOKENS, width)]
    return []


def _images(name: str, config: PreTrainedConfig) -> list[Any]:
    vision = _inner(config, "vision_config")
    size = getattr(vision, "image_size", None) or _IMAGE
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    channels = getattr(vision, "num_channels", None) or getattr(vision, "in_channels", None) or 3
    frames = getattr(vision, "num_frames", None) or getattr(vision, "frames_per_clip", 2)
    patch = getattr(vision, "patch_size", None)
    values = channels * patch**2 if isinstance(patch, int) else 0
    rows = 4 * _BATCH  # a grid of patches, whose sides are multiples of the merged patches
    if name.endswith("grid_thw"):
        return [torch.tensor([[1, rows, rows]] * _BATCH)]
    if name == "merge_sizes":
        return [torch.tensor([1] * _BATCH)]
    if name == "spatial_shapes":
        return [torch.tensor([[4, 4]] * _BATCH)]
    if name == "hidden_states":
        values *= getattr(vision, "temporal_patch_size", None) or 1
        wide = getattr(vision, "hidden_size", None) or 1
        return [torch.randn(_BATCH * rows**2, values), torch.randn(_BATCH, wide, _TOKENS)]
    if name == "pixel_values_videos":
        return [torch.randn(_BATCH, frames, channels, height, width)]
    layouts = [
        torch.randn(_BATCH, channels, height, width),
        torch.randn(_BATCH, 2, channels, height, width),
        torch.randn(_BATCH, channels, 4 * _IMAGE, 4 * _IMAGE),
    ]
    if values:
        layouts.append(torch.randn(_BATCH, 16, values))
    return layouts


def _sounds(name: str, config: PreTrainedConfig) -> list[Any]:
    audio = _inner(config, "audio_config")
    audio = _inner(audio, "encoder_config")
    mel = getattr(audio, "num_mel_bins", None) or 16
    length = 2 * (getattr(config, "max_source_positions", None) or 32)
    if name == "input_features_mask":
        return [torch.ones(_BATCH, length, dtype=torch.long)]
    if name == "input_values":
        longest = getattr(config, "max_length", None) or length
        waves = [torch.randn(_BATCH, 2000), torch.randn(_BATCH, 1, 2000)]
        return [*waves, torch.randn(_BATCH, longest, mel), torch.randn(_BATCH, 16000)]
    return [torch.randn(_BATCH, mel, length), torch.randn(_BATCH, length, mel)]


def _series(config: PreTrainedConfig) -> Tensor:
    length = getattr(config, "context_length", None) or 32
    lags = max(getattr(config, "lags_sequence", None) or [0])
    count = getattr(config, "num_input_channels", 1)
    many = getattr(config, "input_size", count) != 1 or count != 1
    shape = (_BATCH, length + lags, max(count, getattr(config, "input_size", 1)))
    return torch.rand(shape if many else shape[:2])


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
