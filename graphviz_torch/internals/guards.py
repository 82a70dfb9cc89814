"""Context managers that hide our own tensor operations from modes, autograd and autocast.

They are PyTorch's private guards (2.13), which are C++ objects. Entering one takes 0.1 µs, which is
fast enough for every gradient.
"""

from __future__ import annotations

from typing import Any

import torch

no_functions: Any = torch._C.DisableTorchFunction  # hides calls from function modes and subclasses
no_operators: Any = torch._C._DisableTorchDispatch  # hides operators from dispatch modes, too
# Returns the number of active dispatch modes.
dispatch_mode_count: Any = torch._C._len_torch_dispatch_stack
# In this context no autograd nodes are created, and no sequence number advances.
no_autograd: Any = torch._C._AutoDispatchBelowAutograd

no_autocast: Any = torch._C._DisableAutocast  # autocast changes no dtype in this context

# `torch.set_grad_enabled` calls this function, which a function mode therefore receives as `func`.
set_grad_enabled: Any = torch._C._set_grad_enabled
