"""Contexts in which a computation of ours is nobody else's, cheap enough for every gradient.

Private: PyTorch's own guards (2.13). They are C++ objects, entered in a tenth of a microsecond.
"""

from __future__ import annotations

from typing import Any

import torch

no_functions: Any = torch._C.DisableTorchFunction  # no function mode and no subclass sees it
no_operators: Any = torch._C._DisableTorchDispatch  # nor a dispatch mode
watched_operators: Any = torch._C._len_torch_dispatch_stack  # how many such modes there are
no_autograd: Any = torch._C._AutoDispatchBelowAutograd  # nor a graph: no number is counted up

no_autocast: Any = torch._C._DisableAutocast  # nor does autocast change a dtype

# As `torch.set_grad_enabled`, which function modes see.
set_grad_enabled: Any = torch._C._set_grad_enabled
