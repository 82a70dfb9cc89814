"""What a recording notes beside modules and lines."""

from __future__ import annotations

from typing import Literal, NamedTuple

Compiled = Literal["open", "closed", "eager"]  # how a recording takes compiled code


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
    def light(self) -> bool:
        """Is only what is not finite looked for: as little as can be asked of each call."""
        return self.gradients == "finite"
