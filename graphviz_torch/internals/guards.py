"""Context managers that hide our own tensor operations from modes, autograd and autocast.

They are PyTorch's private guards (2.13): C++ objects that are entered in 0.1 µs, fast enough to be
used for every gradient.
"""

from __future__ import annotations

from typing import Any

import torch

no_functions: Any = torch._C.DisableTorchFunction  # hides calls from function modes and subclasses
no_operators: Any = torch._C._DisableTorchDispatch  # hides operators from dispatch modes, too
# Returns the number of active dispatch modes.
watched_operators: Any = torch._C._len_torch_dispatch_stack
# Creates no graph and advances no sequence number.
no_autograd: Any = torch._C._AutoDispatchBelowAutograd

no_autocast: Any = torch._C._DisableAutocast  # leaves dtypes as they are

# As `torch.set_grad_enabled`; function modes see calls of it under this name.
set_grad_enabled: Any = torch._C._set_grad_enabled
