"""Does the program run for somebody else: a tracer, a compiler's trial, a transform.

Private: whether torch.jit.trace is at work, how deep in torch.func's transforms a call is, and the
context that torch.compile runs its trial in (2.13).
"""

from __future__ import annotations

from typing import Any

import torch
from torch._guards import TracingContext

# Is torch.jit.trace at work. It would note what we read, and our names for it.
is_jit_tracing: Any = torch._C._is_tracing


def is_trial() -> bool:
    """Is a backward torch.compile's trial of the program, or a part of a torch.func transform."""
    transformed = torch._C._functorch.maybe_current_level() is not None
    return transformed or TracingContext.try_get() is not None
