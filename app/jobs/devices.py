"""Jobs of the Devices page: what there is, what it is worth, what moves, how a batch is divided."""

from __future__ import annotations

import os
import platform

import torch
from torch import nn

from app.jobs import choices as devices
from graphviz_torch import (
    Bandwidth,
    DeviceComparison,
    Graph,
    Moves,
    available_devices,
    batch_division,
    compare_devices,
    measure_bandwidth,
    record,
    simulate_accelerator,
    to_device,
)

SAMPLES = 100  # in the tutorial that this table comes from
SIZES = {"matmul": (64, 128, 256, 512, 1024), "elementwise": (64, 256, 1024, 2048)}
SMALL = (16, 32, 64, 128, 256)


def present() -> list[dict[str, str]]:
    """A row for each device of this machine."""
    rows = []
    for device in available_devices():
        if device.type == "cuda":
            facts = torch.cuda.get_device_properties(device)
            memory = f"{facts.total_memory / 2**30:.0f} GiB"
            rows.append({"device": str(device), "what it is": facts.name, "memory": memory})
        else:
            what = platform.processor() or platform.machine()
            what += f", {os.cpu_count()} cores"
            rows.append({"device": str(device), "what it is": what, "memory": _main_memory()})
    return rows


def _main_memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (ValueError, OSError):  # not every system says it
        return ""


def compare(work: str) -> DeviceComparison:
    """The same work on the CPU and on every GPU."""
    torch.set_num_threads(os.cpu_count() or 1)  # a job has one; here the whole CPU competes
    found = [str(device) for device in available_devices()]
    if found == ["cpu"]:
        found.append("cuda")  # so that the answer names what is absent
    return compare_devices(work, devices=found, sizes=SIZES.get(work, SMALL), seconds=0.05)


def bandwidth() -> Bandwidth:
    """Copies to the first GPU and back, by size."""
    return measure_bandwidth(seconds=0.05)


MOVING = """\
shared = torch.randn(64, 64)
model = nn.Linear(64, 64)
names = {
    "x": torch.randn(128, 64),
    "weights": [shared, shared.T],    # two names of one memory
    "model": model,
    "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    "epochs": 3,
}
names = to_device(names, device, report=print)
"""


def move(choice: str) -> tuple[Moves, Graph]:
    """What `MOVING` moves, and the recording of it."""
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
        told: list[Moves] = []
        with record() as recording:
            there = to_device(names, found[0], report=told.append)
            torch.autograd.backward(there["model"](there["x"]).sum())
        return told[0], recording.graph


def divide(count: int, batch: int) -> tuple[list[list[tuple[str, int]]], Graph]:
    """For each batch of `SAMPLES` samples the parts that `count` devices got, read from its graph.

    The graph is that of the first batch.
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
            parts.append(batch_division(recording.graph) if count > 1 else alone)
    return parts, graphs[0]
