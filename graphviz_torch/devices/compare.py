"""Find the problem size from which a GPU is faster, by timing work and copies on each device.

A time is the median of `torch.utils.benchmark` runs after a warm-up. It is measured on the CPU's
clock, and the device is synchronized before and after each run. A simulated device has no clock and
is never timed.

There are three times: `to_device` to copy the inputs from pageable memory, `work` to compute, and
`to_cpu` to copy the outputs back. Creating the inputs and moving a model are not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..graph.immutable import NamedTuple, immutable
from ..graph.text import print_text
from ..graph.units import seconds_text
from ..internals.tensors.metadata import device_label
from ..internals.tensors.pytree import map_tensors
from ..render.chart import line_chart
from ..render.dot.picture import Picture
from .moving import find_device
from .simulated.devices import is_simulated

Tensors = tuple[torch.Tensor, ...]


class Timing(NamedTuple):
    """Times in seconds for one size on one device: copy to it, work, and copy back."""

    device: str
    size: int
    to_device: float
    work: float
    to_cpu: float

    @property
    def total(self) -> float:
        """Sum of the three times, in seconds."""
        return self.to_device + self.work + self.to_cpu


@immutable
class DeviceComparison:
    """Times of the same work for several sizes and devices.

    >>> from graphviz_torch.devices import compare_devices
    >>> compared = compare_devices("matmul", devices=["cpu"], sizes=[8], seconds=0.001)
    >>> compared.work, compared.devices()
    ('matmul', ['cpu'])
    """

    work: str
    timings: tuple[Timing, ...]
    absent: tuple[tuple[str, str], ...] = ()  # (device, reason why it was not timed)
    threads: int = 1  # number of CPU threads

    _repr_pretty_ = print_text

    def __str__(self) -> str:
        return self.table()

    def timings_of(self, device: str) -> list[Timing]:
        """Return the timings of one device, in ascending order of sizes."""
        return sorted((t for t in self.timings if t.device == device), key=lambda t: t.size)

    def devices(self) -> list[str]:
        """Return the devices that were timed, in the order of the timings."""
        return list(dict.fromkeys(timing.device for timing in self.timings))

    def break_even(self, device: str, *, copies: bool = True) -> int | None:
        """Return the smallest size from which the device is always faster than the CPU, or None.

        Args:
            device: a device that was timed.
            copies: True to add the times of copies to and from the device.

        Raises:
            ValueError: if the device or the CPU was not timed.
        """
        for name in (device, "cpu"):
            if name not in self.devices():
                raise ValueError(
                    f"{name} was not timed. Timed devices: {', '.join(self.devices()) or 'none'}."
                )
        on_cpu = {timing.size: timing for timing in self.timings_of("cpu")}
        found = None
        for timing in reversed(self.timings_of(device)):
            if timing.size in on_cpu:
                cpu = on_cpu[timing.size]
                if (timing.total >= cpu.total) if copies else (timing.work >= cpu.work):
                    break
                found = timing.size
        return found

    def table(self) -> str:
        """Return a table of the times, with a row for each size and device."""
        lines = [
            f"{self.work}, {self.threads} CPU thread{'s' * (self.threads != 1)}",
            f"{'size':>10}  {'device':8}{'to device':>11}{'work':>11}{'to cpu':>11}{'total':>11}"
            f"{'against cpu':>13}",
        ]
        cpu = {timing.size: timing.total for timing in self.timings_of("cpu")}
        for timing in sorted(self.timings, key=lambda t: t.size):
            ratio = f"{cpu[timing.size] / timing.total:.2f}x" if timing.size in cpu else ""
            times = "".join(
                f"{seconds_text(s) if s else '-':>11}"
                for s in (timing.to_device, timing.work, timing.to_cpu, timing.total)
            )
            lines.append(f"{timing.size:>10,}  {timing.device:8}{times}{ratio:>13}")
        for device in self.devices():
            if device != "cpu" and "cpu" in self.devices():
                size = self.break_even(device)
                alone = self.break_even(device, copies=False)
                lines.append(
                    f"{device} is faster "
                    + ("at no measured size" if size is None else f"from size {size:,} on")
                    + " with the copies, "
                    + ("at no measured size" if alone is None else f"from size {alone:,} on")
                    + " without"
                )
        lines += [f"{device} was not timed: {why}" for device, why in self.absent]
        return "\n".join(lines)

    def rows(self) -> list[dict[str, str | int | float]]:
        """Return the times as dicts, one for each row of a data frame."""
        return [{**timing._asdict(), "total": timing.total} for timing in self.timings]

    def plot(self) -> Picture:
        """Return a chart of the times over the size, with and without copies."""
        lines = {}
        for device in self.devices():
            timings = self.timings_of(device)
            lines[device] = [(t.size, t.total) for t in timings]
            if any(t.to_device or t.to_cpu for t in timings):
                lines[f"{device}, work alone"] = [(t.size, t.work) for t in timings]
        return line_chart(
            {name: [(float(a), b) for a, b in points] for name, points in lines.items()},
            title=f"{self.work}: time by size",
            x="size",
            y="seconds",
            x_text=lambda value: f"{value:,.0f}",
            y_text=seconds_text,
        )


class _Work(NamedTuple):
    inputs: Callable[[int], Tensors]
    run: Callable[..., Any]


def square(size: int) -> Tensors:
    """Return one random matrix of size x size."""
    return (torch.rand(size, size),)


def compare_devices(
    work: str | Callable[..., Any],
    *,
    devices: Sequence[torch.device | str] = ("cpu", "cuda"),
    sizes: Iterable[int] = (64, 128, 256, 512, 1024),
    inputs: Callable[[int], Tensors] = square,
    seconds: float = 0.1,
) -> DeviceComparison:
    """Time work of several sizes on each device.

    Args:
        work: "matmul", "pinv" or "elementwise" of matrices with shape (size, size), "training step"
            of an MLP of width `size` with 64 samples, or a function of the tensors that `inputs`
            returns.
        devices: the devices to compare. Absent and simulated devices are not timed; the result
            lists them in `absent`.
        sizes: the sizes to time.
        inputs: function from a size to a tuple of CPU tensors, the arguments of `work` if this is a
            function. By default one square matrix.
        seconds: minimum time in seconds for each measurement.

    Raises:
        ValueError: if `work` is an unknown name, or no device can be timed.

    >>> compared = compare_devices("matmul", devices=["cpu"], sizes=[8, 16], seconds=0.001)
    >>> [timing.size for timing in compared.timings_of("cpu")]
    [8, 16]
    """
    if isinstance(work, str):
        if work not in WORKS:
            raise ValueError(
                f"compare_devices({work!r}): unknown work. Pass {', '.join(map(repr, WORKS))}, or "
                "a function of tensors."
            )
        name, chosen = work, WORKS[work]()
    else:
        name, chosen = getattr(work, "__name__", type(work).__name__), _Work(inputs, work)
    present, absent = present_devices(devices)
    if not present:
        reasons = "; ".join(f"{device}: {why}" for device, why in absent)
        raise ValueError(f"compare_devices: no device can be timed. {reasons}")
    timings = []
    for size in sorted(set(sizes)):
        made = chosen.inputs(size)
        for device in list(present):
            try:
                timings.append(_time(chosen.run, made, device, size, seconds))
            except torch.OutOfMemoryError:
                present.remove(device)
                absent.append((device_label(device), f"out of memory from size {size:,} on"))
    return DeviceComparison(name, tuple(timings), tuple(absent), torch.get_num_threads())


def present_devices(
    devices: Sequence[torch.device | str],
) -> tuple[list[torch.device], list[tuple[str, str]]]:
    """Return the devices that can be timed, and (device, reason) for each of the others."""
    present: list[torch.device] = []
    absent: list[tuple[str, str]] = []
    for device in devices:
        label = device_label(device) if isinstance(device, torch.device) else device
        if label.startswith("sim") or (isinstance(device, torch.device) and is_simulated(device)):
            absent.append((label, "it is simulated, and has no clock"))
            continue
        try:
            found = find_device(device)
            torch.empty(1, device=found)
        except (RuntimeError, AssertionError) as error:
            absent.append((label, str(error).splitlines()[0]))
            continue
        if found.type == "meta":
            absent.append((label, "it has no values to compute"))
        elif found not in present:
            present.append(found)
    return present, absent


def _time(
    run: Callable[..., Any], made: Tensors, device: torch.device, size: int, seconds: float
) -> Timing:
    placed = _move(made, device)
    for _ in range(2):  # the first two calls load and select kernels
        outputs = run(*placed)
    to_device = to_cpu = 0.0
    if device.type != "cpu":
        to_device = median_seconds(lambda: _move(made, device), seconds, device)
        to_cpu = median_seconds(lambda: _move(outputs, torch.device("cpu")), seconds, device)
    work = median_seconds(lambda: run(*placed), seconds, device)
    return Timing(device_label(device), size, to_device, work, to_cpu)


def median_seconds(
    function: Callable[[], Any], seconds: float, device: torch.device | None = None
) -> float:
    """Return the median time of a call in seconds, after a warm-up.

    Args:
        function: the function to call.
        seconds: minimum time in seconds for all calls together.
        device: the device of the work. An accelerator other than CUDA is synchronized after each
            call. CUDA devices are always synchronized.
    """

    def run_and_synchronize() -> None:
        function()
        torch.accelerator.synchronize()

    # `benchmark.Timer` synchronizes CUDA devices, but no other accelerator.
    synchronizes = device is None or device.type in ("cpu", "cuda")
    from torch.utils import benchmark  # slow to import

    timer = benchmark.Timer(
        "function()",
        globals={"function": function if synchronizes else run_and_synchronize},
        num_threads=torch.get_num_threads(),
    )
    return float(timer.blocked_autorange(min_run_time=seconds).median)


def _move(tree: Any, device: torch.device) -> Any:
    return map_tensors(lambda tensor: tensor.detach().to(device), tree)


def _two_squares(size: int) -> Tensors:
    return torch.rand(size, size), torch.rand(size, size)


def _training_step() -> _Work:
    """Return a training step of an MLP. Its first call, which is not timed, moves the model."""
    models: dict[tuple[torch.device, int], tuple[torch.nn.Module, torch.optim.Optimizer]] = {}

    def inputs(size: int) -> Tensors:
        return torch.rand(64, size), torch.randint(10, (64,))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        key = (x.device, x.shape[1])
        if key not in models:
            models.clear()
            torch.manual_seed(0)
            width = x.shape[1]
            made = torch.nn.Sequential(
                torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 10)
            ).to(x.device)
            models[key] = made, torch.optim.SGD(made.parameters(), lr=0.1)
        model, optimizer = models[key]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return _Work(inputs, step)


WORKS: dict[str, Callable[[], _Work]] = {
    "matmul": lambda: _Work(_two_squares, torch.matmul),
    "pinv": lambda: _Work(square, torch.linalg.pinv),
    "elementwise": lambda: _Work(_two_squares, lambda a, b: (a * b + 1).tanh()),
    "training step": _training_step,
}
