"""Find the key-value store through which the ranks of a process group found each other.

Uses a private function of PyTorch (2.8 to 2.15). From 2.9 on, a group has a method for this, too.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


def group_store(group: Any) -> Any:
    """Return the store of a process group that this rank belongs to."""
    distributed: Any = dist
    return distributed.distributed_c10d._get_process_group_store(group)
