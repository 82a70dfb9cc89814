"""Functions and classes of PyTorch that have no public name, and what each is.

Private (2.13): all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

# What `GradScaler.unscale_` and `GradScaler.step` call first.
UNSCALE: Any = torch._amp_foreach_non_finite_check_and_unscale_
# The class that has the methods that Python's operators call.
TENSOR_BASE: Any = torch._C.TensorBase
# Norms of many tensors in one call.
foreach_norm: Any = torch._foreach_norm
# What behaves otherwise in training than in evaluation.
BATCH_NORM: type[Any] = _BatchNorm
DROPOUT: type[Any] = _DropoutNd
