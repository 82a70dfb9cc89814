"""List functions and classes of PyTorch that have no public name.

A program may replace methods of `torch.Tensor`. This package calls methods that are implemented in
C++ on `TensorBase`, where a program cannot replace them.

All names used here are private (2.13).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._tensor
from torch import Tensor
from torch._C import TensorBase as TensorBase
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

# The first function called by `GradScaler.unscale_` and `GradScaler.step`.
UNSCALE: Any = torch._amp_foreach_non_finite_check_and_unscale_
# `GradScaler.update` calls this function, unless the program passes a new scale.
UPDATE_SCALE: Any = torch._amp_update_scale_
# A function mode sees a read or a write of an attribute as a call of one of these functions.
_grad: Any = Tensor.grad
_requires_grad: Any = Tensor.requires_grad
_data: Any = Tensor.data
READ_GRAD, SET_GRAD = _grad.__get__, _grad.__set__
SET_REQUIRES_GRAD, SET_DATA = _requires_grad.__set__, _data.__set__
# `foreach_norm` and `foreach_max` compute the norm and the maximum of each of many tensors.
foreach_norm: Any = torch._foreach_norm
FOREACH_CLAMP_MIN: Any = torch._foreach_clamp_min_  # the first function called by clip_grad_value_
foreach_max: Any = torch._foreach_max
PAD_SEQUENCE: Any = torch._C._nn.pad_sequence
PAD_SEQUENCES: Any = torch._C._VariableFunctions._pad_packed_sequence
# Modules that behave differently in training and in evaluation.
BATCH_NORM: type[Any] = _BatchNorm
DROPOUT: type[Any] = _DropoutNd

_VALUES = {"data", "T", "mT", "H", "mH", "real", "imag"}  # properties that return a tensor


def _metadata_calls() -> frozenset[Callable[..., Any]]:
    names = "size dim ndimension numel nelement stride storage_offset element_size is_contiguous"
    names += (
        " is_floating_point is_complex is_pinned is_shared get_device register_hook retain_grad"
    )
    names += (
        " requires_grad_ untyped_storage data_ptr __len__ __repr__ __format__ __hash__ backward"
    )
    methods = [
        getattr(space, name)
        for space in (Tensor, TensorBase)
        for name in names.split()
        if hasattr(space, name)
    ]
    properties = {k: v for k, v in vars(Tensor.__base__).items() if hasattr(v, "__set__")}
    reads = [value.__get__ for name, value in properties.items() if name not in _VALUES]
    writes = [value.__set__ for value in properties.values()]
    return frozenset(methods + reads + writes)


# Calls that read metadata of a tensor, not its values.
METADATA_CALLS = _metadata_calls()

# The code that copies the values of a state dict into a module's parameters (2.13).
LOAD_STATE_CODE = torch.nn.Module._load_from_state_dict.__code__


def functions_named(names: str, *spaces: Any) -> set[Any]:
    """Return the functions with these names, separated by spaces.

    Args:
        names: the names, such as "add __add__".
        spaces: the classes and modules that have the functions, by default tensors and torch.
    """
    return {
        getattr(space, name)
        for space in spaces or (Tensor, TensorBase, torch)
        for name in names.split()
        if hasattr(space, name)
    }
