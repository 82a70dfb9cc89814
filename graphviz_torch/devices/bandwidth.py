"""Measure the bandwidth of copies between the CPU and a GPU, with pageable and pinned memory.

Each time is the median of `torch.utils.benchmark` runs of one copy into memory that is already
allocated. A run lasts from the call until the device has finished. For a small copy, most of this
time is the cost of the call.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch

from ..graph import TransferKind
from ..graph.immutable import NamedTuple, immutable
from ..graph.text import print_text
from ..internals.tensors.metadata import device_label
from ..render.chart import line_chart
from ..render.dot.picture import Picture
from .compare import median_seconds, present_devices

SIZES = tuple(4**k for k in range(5, 15))  # 1 KiB to 256 MiB


class Rate(NamedTuple):
    """The measured time of one copy, in seconds."""

    device: str
    kind: TransferKind
    pinned: bool
    nbytes: int
    seconds: float

    @property
    def gigabytes(self) -> float:
        """Bandwidth in 1e9 bytes per second."""
        return self.nbytes / self.seconds / 1e9


@immutable
class Bandwidth:
    """Measured bandwidth of copies between the CPU and a GPU, for several sizes.

    >>> from graphviz_torch.devices import measure_bandwidth
    >>> print(measure_bandwidth("cpu").table())
            bytes  (GB/s)
    cpu was not measured: bandwidth is measured for CUDA devices only
    """

    rates: tuple[Rate, ...]
    absent: tuple[tuple[str, str], ...] = ()  # (device, reason why it was not measured)

    _repr_pretty_ = print_text

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """Return a table of the bandwidths in GB/s, with a row for each size."""
        columns = list(dict.fromkeys(map(_name, self.rates)))
        cells = {(rate.nbytes, _name(rate)): f"{rate.gigabytes:.2f}" for rate in self.rates}
        lines = [f"{'bytes':>13}" + "".join(f"{name:>24}" for name in columns) + "  (GB/s)"]
        for size in sorted({rate.nbytes for rate in self.rates}):
            row = "".join(f"{cells.get((size, name), ''):>24}" for name in columns)
            lines.append(f"{size:>13,}{row}")
        lines += [f"{device} was not measured: {why}" for device, why in self.absent]
        return "\n".join(lines)

    def rows(self) -> list[dict[str, str | int | float | bool]]:
        """Return the measurements as dicts, one for each row of a data frame."""
        return [{**rate._asdict(), "GB/s": rate.gigabytes} for rate in self.rates]

    def plot(self) -> Picture:
        """Return a chart of the bandwidth in GB/s over the size of a copy."""
        lines: dict[str, list[tuple[float, float]]] = {}
        for rate in self.rates:
            lines.setdefault(_name(rate), []).append((float(rate.nbytes), rate.gigabytes))
        return line_chart(
            lines, title="Copies by size", x="bytes", y="GB/s", x_text=lambda v: f"{v:,.0f}"
        )


def measure_bandwidth(
    device: torch.device | str = "cuda",
    *,
    sizes: Iterable[int] = SIZES,
    seconds: float = 0.1,
) -> Bandwidth:
    """Measure copies of several sizes to a GPU and back, with pageable and with pinned memory.

    Only CUDA devices are measured. If the device is absent, simulated or of another type, the
    result lists it in `absent`.

    Args:
        device: a CUDA device.
        sizes: sizes of the copies in bytes, each 1 or more.
        seconds: minimum time in seconds for each measurement.

    >>> measure_bandwidth("cpu").absent
    (('cpu', 'bandwidth is measured for CUDA devices only'),)
    """
    present, absent = present_devices([device])
    rates = []
    for found in present:
        if found.type != "cuda":
            absent.append((device_label(found), "bandwidth is measured for CUDA devices only"))
            continue
        for size in sorted(set(sizes)):
            on_device = torch.empty(size, dtype=torch.uint8, device=found)
            for pinned in (False, True):
                on_host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
                pairs: tuple[tuple[TransferKind, torch.Tensor, torch.Tensor], ...]
                pairs = (("HtoD", on_device, on_host), ("DtoH", on_host, on_device))
                for kind, target, source in pairs:
                    copy = partial(target.copy_, source, non_blocking=pinned)
                    taken = median_seconds(copy, seconds)
                    rates.append(Rate(device_label(found), kind, pinned, size, taken))
    return Bandwidth(tuple(rates), tuple(absent))


def _name(rate: Rate) -> str:
    return f"{rate.kind} {'pinned' if rate.pinned else 'pageable'}"
