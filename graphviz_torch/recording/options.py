"""What a recording notes beside modules and lines."""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

import torch.distributed as dist

Compiled = Literal["open", "closed", "eager", "gradients"]  # how a recording takes compiled code


class Options(NamedTuple):
    """As `record` is given them."""

    gradients: bool | Literal["finite"]
    transfers: bool
    memory: bool
    notes: bool
    compiled: Compiled = "open"
    values: bool = False
    experiments: bool = False

    @property
    def with_gradients(self) -> bool:
        """Is anything noted of gradients."""
        return self.gradients is not False

    @property
    def light(self) -> bool:
        """Is only what is not finite looked for: as little as can be asked of each call."""
        return self.gradients == "finite"

    @property
    def every_call(self) -> bool:
        """May something be asked of each call."""
        return not self.light

    @property
    def inside_regions(self) -> bool:
        """Are the gradients inside compiled regions looked for."""
        return self.compiled == "gradients" and self.gradients is True

    @property
    def distributed(self) -> bool:
        """Is this process a rank: else there is no DTensor and no wrapper for ranks."""
        started = os.environ.get("WORLD_SIZE", "1") not in ("", "1")  # its group may come later
        return dist.is_available() and (dist.is_initialized() or started)
