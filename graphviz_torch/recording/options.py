"""What a recording notes beside modules and lines."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ..internals.process_groups import is_rank

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
        return is_rank()
