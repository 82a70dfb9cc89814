"""Move models and data to a device, simulate GPUs, and measure the speed of devices and copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.lazy import lazy_names

if TYPE_CHECKING:
    from .bandwidth import Bandwidth as Bandwidth
    from .bandwidth import measure_bandwidth as measure_bandwidth
    from .compare import DeviceComparison as DeviceComparison
    from .compare import compare_devices as compare_devices
    from .mover import Move as Move
    from .mover import Moves as Moves
    from .moving import (
        available_devices as available_devices,
    )
    from .moving import batch_division as batch_division
    from .moving import (
        move_locals as move_locals,
    )
    from .moving import (
        to_device as to_device,
    )
    from .simulated.accelerator import simulate_accelerator as simulate_accelerator
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".moving": "to_device available_devices move_locals batch_division",
            ".simulated.accelerator": "simulate_accelerator",
            ".compare": "compare_devices DeviceComparison",
            ".bandwidth": "measure_bandwidth Bandwidth",
            ".mover": "Move Moves",
        },
    )
