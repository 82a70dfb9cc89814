"""Is this process one of several, and the key-value server at which their ranks met.

Private: a function of PyTorch's (2.8 to 2.15); from 2.9 on a group has a method for it, too.
"""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist


def group_store(group: Any) -> Any:
    """The store of a process group that this rank is in."""
    distributed: Any = dist
    return distributed.distributed_c10d._get_process_group_store(group)


def is_rank() -> bool:
    """Is this process a rank, or started to be one: its process group may come later."""
    started = os.environ.get("WORLD_SIZE", "1") not in ("", "1")
    return dist.is_available() and (dist.is_initialized() or started)
