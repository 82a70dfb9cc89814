"""Jobs of the page Devices: list and time devices, move a namespace, divide a batch."""

from __future__ import annotations

import os
import platform
import statistics
import time

import torch
from torch import nn

from graphviz_torch import record, simulate_accelerator, to_device
from graphviz_torch.devices import (
    Bandwidth,
    Moves,
    available_devices,
    batch_division,
    compare_devices,
    measure_bandwidth,
)

from . import devices
from .backward import open_own_recording
from .server import report
from .values import SAMPLES, BatchDivision, Measurements, MedianTiming, MoveResult

SIZES = {"matmul": (64, 128, 256, 512, 1024), "elementwise": (64, 256, 1024, 2048)}
DEFAULT_SIZES = (16, 32, 64, 128, 256)
MAX_SPREAD = 0.1  # measurements are repeated while interquartile range / median is larger
_ROUNDS = (5, 40)  # smallest and largest number of measurements for each median
_SECONDS = 8.0  # time limit for all medians together


def device_rows() -> list[dict[str, str]]:
    """Return a row of a table for each device of this machine."""
    rows = []
    for device in available_devices():
        if device.type == "cuda":
            free, total = torch.cuda.mem_get_info(device)
            rows.append(
                {
                    "device": str(device),
                    "model": torch.cuda.get_device_properties(device).name,
                    "memory": f"{total / 2**30:.0f} GiB",
                    "in use by all programs": f"{(total - free) / 2**30:.1f} GiB",
                }
            )
        else:
            what = platform.processor() or platform.machine()
            what += f", {os.cpu_count()} cores"
            rows.append({"device": str(device), "model": what, "memory": _main_memory()})
    return rows


def cuda_memory() -> list[dict[str, str]]:
    """Return the allocated, reserved and peak memory of an MLP's training step on each GPU.

    The numbers are PyTorch's own counts. `nvidia-smi` shows a larger number: reserved memory plus
    the CUDA context.
    """
    rows = []
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        torch.cuda.reset_peak_memory_stats(device)
        model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).to(device)
        torch.autograd.backward(model(torch.randn(512, 1024, device=device)).square().mean())
        torch.cuda.synchronize(device)
        numbers = {
            "allocated": torch.cuda.memory_allocated(device),
            "reserved": torch.cuda.memory_reserved(device),
            "peak": torch.cuda.max_memory_allocated(device),
        }
        row = {name: f"{nbytes / 2**20:.1f} MiB" for name, nbytes in numbers.items()}
        rows.append({"device": str(device), **row})
    return rows


def _main_memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (ValueError, OSError):  # not available on every system
        return ""


def compare(work: str) -> Measurements:
    """Time the same work on one CPU thread, on all CPU threads, and on every GPU.

    Each time is measured repeatedly, until the interquartile range is below `MAX_SPREAD` times the
    median or the time limit is reached. The progress is reported as a fraction.
    """
    count = os.cpu_count() or 1
    candidates = [("cpu, 1 thread", "cpu", 1)]
    if count > 1:
        candidates.append((f"cpu, {count} threads", "cpu", count))
    found = [str(device) for device in available_devices()]
    candidates += [(device, device, count) for device in found if device != "cpu"]
    sizes = SIZES.get(work, DEFAULT_SIZES)
    timings: list[MedianTiming] = []
    numbers = [(size, candidate) for size in sizes for candidate in candidates]
    for done, (size, (name, device, threads)) in enumerate(numbers):
        torch.set_num_threads(threads)
        timings.append(_measure(work, size, name, device, _SECONDS / len(numbers)))
        report((done + 1) / len(numbers))
    first = candidates[0][0]
    pays = tuple((name, _pays(timings, name, first)) for name, _, _ in candidates[1:])
    absent = () if "cuda:0" in found else (("cuda", "PyTorch sees none on this machine"),)
    return Measurements(tuple(timings), pays, absent)


def _measure(work: str, size: int, name: str, device: str, seconds: float) -> MedianTiming:
    """Return the median and quartiles of repeated measurements on one device at one size."""
    end = time.monotonic() + seconds
    rounds: list[float] = []
    parts = ""
    while len(rounds) < _ROUNDS[1]:
        compared = compare_devices(work, devices=[device], sizes=[size], seconds=0.01)
        [timing] = compared.timings
        rounds.append(timing.total)
        copies = [
            ("copy to it", timing.to_device),
            ("work", timing.work),
            ("copy back", timing.to_cpu),
        ]
        parts = ", ".join(f"{what} {1000 * took:.3g} ms" for what, took in copies if took)
        if len(rounds) >= _ROUNDS[0]:
            low, middle, high = statistics.quantiles(rounds, n=4)
            if high - low < MAX_SPREAD * middle or time.monotonic() > end:
                break
    low, middle, high = statistics.quantiles(rounds, n=4)
    return MedianTiming(name, size, middle, low, high, parts)


def _pays(timings: list[MedianTiming], name: str, base: str) -> int | None:
    """Return the smallest size from which a device is always clearly faster; None if there is none.

    Args:
        timings: all timings.
        name: the device that may be faster.
        base: the device to compare with.
    """
    known = {(timing.device, timing.size): timing for timing in timings}
    pays: int | None = None
    for size in sorted({timing.size for timing in timings}, reverse=True):
        if known[name, size].high >= known[base, size].low:
            break
        pays = size
    return pays


def bandwidth() -> str:
    """Measure copies of several sizes to the first GPU and back, and return a table as text."""
    measured: Bandwidth = measure_bandwidth(seconds=0.05)
    return measured.table()


def move(choice: str) -> MoveResult:
    """Move the objects of `values.MOVING` to a device, and record the copies."""
    with devices.use(choice) as found:
        shared = torch.randn(64, 64)
        model = nn.Linear(64, 64)
        names = {
            "x": torch.randn(128, 64),
            "weights": [shared, shared.T],
            "model": model,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
            "epochs": 3,
        }
        reports: list[Moves] = []
        with record() as recording:
            on_device = to_device(names, found[0], report=reports.append)
            torch.autograd.backward(on_device["model"](on_device["x"]).sum())
        moves = reports[0]
        moved = tuple(move.name for move in moves.moved)
        return MoveResult(str(moves), moves.nbytes, moved, open_own_recording(recording.graph))


def divide(count: int, batch: int) -> BatchDivision:
    """Return how DataParallel divides batches over simulated devices, and the first batch's graph.

    Args:
        count: number of simulated devices.
        batch: number of samples in a batch.
    """
    parts, graphs = [], []
    with simulate_accelerator(count) as found:
        model = nn.Linear(5, 2).to(found[0])
        parallel = nn.DataParallel(model, device_ids=found) if count > 1 else model
        for samples in torch.split(torch.randn(SAMPLES, 5), batch):
            with record(parallel) as recording:
                torch.autograd.backward(parallel(samples.to(found[0])).sum())
            graphs.append(recording.graph)
            alone = [("sim:0", len(samples))]
            parts.append(tuple(batch_division(recording.graph) if count > 1 else alone))
    return BatchDivision(tuple(parts), open_own_recording(graphs[0]))
