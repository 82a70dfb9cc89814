"""The key-value server at which the ranks of a process group met.

Private: a function of PyTorch's (2.8 to 2.15); from 2.9 on a group has a method for it, too.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


def group_store(group: Any) -> Any:
    """The store of a process group that this rank is in."""
    distributed: Any = dist
    return distributed.distributed_c10d._get_process_group_store(group)
