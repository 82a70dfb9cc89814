"""The seam of checkpoints: the inputs that `torch.utils.checkpoint` saves beside the graph.

Private: `_CheckpointFrame.save_inputs` (2.13). The other kind of checkpoint, `use_reentrant=True`,
is a node of the graph and needs no seam.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch.utils import checkpoint

_frame: Any = checkpoint._CheckpointFrame


class CheckpointWatch:
    """A context that tells of the tensors that each checkpointed region begins with.

    Args:
        saved: takes them.
    """

    def __init__(self, saved: Callable[[list[Tensor]], object]) -> None:
        self._saved = saved
        self._patch: Any = None

    def __enter__(self) -> CheckpointWatch:
        save, saved = getattr(_frame, "save_inputs", None), self._saved
        if save is not None:

            def save_inputs(this: Any, *args: Any) -> None:
                save(this, *args)
                saved([each for each in args if isinstance(each, Tensor)])

            self._patch = patch.object(_frame, "save_inputs", save_inputs)
            self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._patch is not None:
            self._patch.stop()
            self._patch = None
