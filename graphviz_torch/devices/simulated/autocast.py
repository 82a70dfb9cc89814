"""Implement the casts of `torch.autocast("cuda")` for simulated devices.

PyTorch's C++ code casts only arguments that are CUDA tensors, and does not recognize simulated
tensors. Simulated tensors therefore have the dispatch key of CUDA's autocast. While CUDA is
simulated, the functions below replace the kernels of this key. They cast like PyTorch's kernels,
but recognize simulated tensors.

The lists of operators are from `ATen/autocast_mode.h` of PyTorch 2.8 to 2.14. Only operators that
the installed PyTorch casts are replaced. After the cast, the CPU's kernel runs. If the CPU has no
kernel for float16, PyTorch raises an error.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ...internals.guards import no_autocast
from .tensor import AUTOCAST, SimulatedTensor

# Operators that run on tensor cores. Their arguments are cast to the autocast dtype.
LOWER = (
    "_convolution _convolution.deprecated convolution conv1d conv2d conv3d conv_tbc "
    "conv_transpose1d conv_transpose2d.input conv_transpose3d.input cudnn_convolution "
    "cudnn_convolution_transpose linear matmul mm mv bmm addmm addmv addr addbmm baddbmm "
    "chain_matmul einsum linalg_multi_dot linalg_vecdot prelu lstm_cell gru_cell rnn_tanh_cell "
    "rnn_relu_cell _thnn_fused_lstm_cell _thnn_fused_gru_cell scaled_dot_product_attention "
    "_scaled_dot_product_flash_attention"
)
# Recurrent operators that cuDNN computes. Their arguments are cast to the autocast dtype, too.
RECURRENT = (
    "lstm.input lstm.data gru.input gru.data rnn_tanh.input rnn_tanh.data rnn_relu.input "
    "rnn_relu.data"
)
# Operators that overflow or lose digits in float16. Their arguments are cast to float32.
FLOAT = (
    "acos asin cosh sinh tan erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt softplus "
    "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar logsumexp renorm dist pdist cdist "
    "layer_norm native_layer_norm group_norm rms_norm frobenius_norm.dim nuclear_norm "
    "nuclear_norm.dim cosine_similarity l1_loss smooth_l1_loss huber_loss mse_loss kl_div "
    "nll_loss nll_loss2d poisson_nll_loss cosine_embedding_loss hinge_embedding_loss "
    "margin_ranking_loss multilabel_margin_loss multi_margin_loss soft_margin_loss "
    "triplet_margin_loss binary_cross_entropy_with_logits upsample_nearest1d upsample_nearest2d "
    "upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa "
    "upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa"
)
# Operators that get dtype=float32, unless the call already has a dtype.
FLOAT_RESULT = (
    "sum sum.dim_IntList prod prod.dim_int cumsum cumprod softmax.int log_softmax.int "
    "linalg_vector_norm linalg_matrix_norm linalg_matrix_norm.str_ord"
)
# Operators without a dtype argument -> the overload to call instead, with dtype=float32.
FLOAT_OVERLOAD = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}
# Operators whose arguments are all cast to the widest dtype among them.
WIDEST = (
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
)
REFUSED = "binary_cross_entropy"

# id of a weight -> (the weight, the cast weight)
_cast_weights: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
_libraries: list[torch.library.Library] = []


def install() -> None:
    """Replace CUDA's autocast kernels with those of this module. A second call does nothing."""
    if _libraries:
        return
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    _libraries.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that kernels are replaced
        for name, cast in policies().items():
            known = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", AUTOCAST)
            if known or name in RECURRENT.split():
                kernel = partial(_call, _overload(name), cast)
                library.impl(name, kernel, AUTOCAST)  # type: ignore[no-untyped-call]


def remove() -> None:
    """Restore PyTorch's autocast kernels of CUDA."""
    while _libraries:
        _libraries.pop()._destroy()  # type: ignore[no-untyped-call]
    _cast_weights.clear()


def rows() -> list[tuple[Any, str, Callable[..., Any]]]:
    """Return the row of the table in `patches.py` that replaces `torch.clear_autocast_cache`."""
    return [(torch, "clear_autocast_cache", _clear_cache)]


def policies() -> dict[str, Callable[..., Any]]:
    """Return operator name -> function that casts the arguments and calls the operator."""
    lists = {
        LOWER: _lower,
        RECURRENT: _lower,
        FLOAT: _float,
        FLOAT_RESULT: _float_result,
        WIDEST: _widest,
    }
    casts = {name: cast for names, cast in lists.items() for name in names.split()}
    return {**casts, **dict.fromkeys(FLOAT_OVERLOAD, _float_overload), REFUSED: _refuse}


def to_lower_precision(*values: Any) -> Any:
    """Return the arguments of an operator, cast to the dtype of the current autocast block."""
    return tree_map(partial(_cast, dtype=torch.get_autocast_dtype("cuda")), values)


def _call(operator: Any, cast: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with no_autocast():
        return cast(operator, args, kwargs)


def _lower(operator: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs = to_lower_precision(args, kwargs)
    return operator(*args, **kwargs)


def _float(operator: Any, args: Any, kwargs: Any) -> Any:
    to = partial(_cast, dtype=torch.float32)
    return operator(*tree_map(to, args), **tree_map(to, kwargs))


def _float_result(operator: Any, args: Any, kwargs: Any) -> Any:
    at = [argument.name for argument in operator._schema.arguments].index("dtype")
    given = args[at] if at < len(args) else kwargs.get("dtype")
    if given is not None or not _casts(args[0]):
        return operator(*args, **kwargs)
    if at < len(args):
        return operator(*args[:at], torch.float32, *args[at + 1 :], **kwargs)
    return operator(*args, **{**kwargs, "dtype": torch.float32})


def _float_overload(operator: Any, args: Any, kwargs: Any) -> Any:
    if not _casts(args[0]):
        return operator(*args, **kwargs)
    name = FLOAT_OVERLOAD[f"norm.{operator._overloadname}"]
    if name == "ScalarOpt_dim_dtype" and len(args) == 3:
        args = (*args, False)  # in this overload, keepdim has no default
    return getattr(torch.ops.aten.norm, name)(*args, **{**kwargs, "dtype": torch.float32})


def _widest(operator: Any, args: Any, kwargs: Any) -> Any:
    dtypes = [each.dtype for each in tree_leaves((args, kwargs)) if _casts(each)]
    widest = torch.float32 if torch.float32 in dtypes else torch.get_autocast_dtype("cuda")
    to = partial(_cast, dtype=widest)
    return operator(*tree_map(to, args), **tree_map(to, kwargs))


def _refuse(operator: Any, args: Any, kwargs: Any) -> Any:
    if _casts(args[0]):
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: "
            "use binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss."
        )
    return operator(*args, **kwargs)


def _casts(value: Any) -> bool:
    """Return True if autocast casts a value: a floating-point CUDA tensor that is not float64."""
    if not isinstance(value, SimulatedTensor) or not value.is_cuda:
        return False
    return value.is_floating_point() and value.dtype != torch.float64


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if not _casts(value) or value.dtype == dtype:
        return value
    lower = dtype == torch.get_autocast_dtype("cuda") and value.dtype == torch.float32
    keeps = lower and value.is_leaf and value.requires_grad and not value._is_view()
    if not keeps or not torch.is_autocast_cache_enabled():
        return value.to(dtype)
    if id(value) not in _cast_weights:  # like PyTorch, cache a cast weight until the block ends
        _cast_weights[id(value)] = value, value.to(dtype)
    return _cast_weights[id(value)][1]


def _clear_cache(original: Callable[[], None]) -> Callable[[], None]:
    def clear() -> None:
        _cast_weights.clear()
        original()

    return clear


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")
