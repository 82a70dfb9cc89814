"""Test the comparison of devices: the break-even size, what is timed, and what is not."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
import torch

from graphviz_torch import simulate_accelerator
from graphviz_torch.devices import Bandwidth, DeviceComparison, compare_devices, measure_bandwidth
from graphviz_torch.devices.bandwidth import Rate
from graphviz_torch.devices.compare import WORKS, Timing

SVG = "{http://www.w3.org/2000/svg}"
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def made_up() -> DeviceComparison:
    """Return a device that takes 3 s for copies, and a tenth of the CPU's time."""
    cpu = [Timing("cpu", n, 0.0, float(n), 0.0) for n in (1, 2, 4, 8)]
    gpu = [Timing("cuda:0", n, 2.0, n / 10, 1.0) for n in (8, 4, 2, 1)]
    return DeviceComparison("square", (*cpu, *gpu), (("cuda:1", "not there"),), 2)


def test_break_even_is_the_size_from_which_on_every_larger_one_pays() -> None:
    assert made_up().break_even("cuda:0") == 4  # 3.4 s against 4 s
    assert made_up().break_even("cuda:0", copies=False) == 1
    relapse = DeviceComparison("x", (*made_up().timings, Timing("cuda:0", 16, 0, 17.0, 0)))
    assert relapse.break_even("cuda:0") == 4  # 16 was not measured on the CPU
    relapse = DeviceComparison("x", (*relapse.timings, Timing("cpu", 16, 0, 16.0, 0)))
    assert relapse.break_even("cuda:0") is None
    with pytest.raises(ValueError, match=r"mps was not timed\. Timed devices: cpu, cuda:0"):
        made_up().break_even("mps")


def test_the_table_says_times_ratios_break_even_and_who_is_absent() -> None:
    table = made_up().table()
    assert "square, 2 CPU threads" in table
    assert "         8  cuda:0          2 s     800 ms        1 s      3.8 s        2.11x" in table
    assert "cuda:0 is faster from size 4 on with the copies, from size 1 on without" in table
    assert table.endswith("cuda:1 was not timed: not there")


def test_the_plot_is_an_svg_with_a_line_for_each_device_and_one_for_its_work_alone() -> None:
    plot = ElementTree.fromstring(made_up().plot().source)
    texts = [text.text for text in plot.iter(f"{SVG}text")]
    assert {"cpu", "cuda:0", "cuda:0, work alone"} <= set(texts)
    assert "cpu, work alone" not in texts
    assert len(list(plot.iter(f"{SVG}circle"))) == 12
    empty = ElementTree.fromstring(DeviceComparison("<x>", ()).plot().source)
    assert "nothing was measured" in [text.text for text in empty.iter(f"{SVG}text")]


@pytest.mark.parametrize("work", WORKS)
def test_every_work_is_timed_on_the_cpu_and_has_no_copies_there(work: str) -> None:
    result = compare_devices(work, devices=["cpu"], sizes=[8, 4], seconds=1e-4)
    timed = [(t.device, t.size, t.to_device, t.to_cpu) for t in result.timings]
    assert timed == [("cpu", 4, 0.0, 0.0), ("cpu", 8, 0.0, 0.0)]
    assert all(timing.work > 0 for timing in result.timings)
    assert result.rows()[0]["total"] == result.timings[0].total


def test_a_function_of_ones_own_gets_its_inputs_on_the_device() -> None:
    seen = set()

    def own(a: torch.Tensor, b: torch.Tensor) -> dict[str, Any]:
        seen.add((a.shape, b.shape, a.device.type))
        return {"sum": a.sum() + b.sum()}

    options: dict[str, Any] = {"devices": ["cpu"], "sizes": [3], "seconds": 1e-4}
    result = compare_devices(own, **options, inputs=lambda n: (torch.ones(n), torch.ones(2)))
    assert seen == {((3,), (2,), "cpu")}
    assert result.work == "own"


def test_a_simulated_device_is_named_and_never_timed() -> None:
    with simulate_accelerator() as [device]:
        result = compare_devices(
            "matmul", devices=["cpu", device, "sim:0"], sizes=[2], seconds=1e-4
        )
        assert measure_bandwidth(device).absent == (("sim:0", "it is simulated, and has no clock"),)
        with pytest.raises(ValueError, match="sim:0: it is simulated, and has no clock"):
            compare_devices("matmul", devices=[device])
    assert result.devices() == ["cpu"]
    assert result.absent == (("sim:0", "it is simulated, and has no clock"),) * 2


@NO_GPU
def test_an_absent_gpu_is_left_out_and_named() -> None:
    result = compare_devices("matmul", sizes=[2], seconds=1e-4)
    assert result.devices() == ["cpu"]
    assert [device for device, _ in result.absent] == ["cuda"]
    assert "cuda was not timed: " in result.table()
    assert measure_bandwidth().absent[0][0] == "cuda"
    assert "for CUDA devices only" in measure_bandwidth("cpu").table()


def test_an_unknown_work_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"compare_devices\('fft'\): unknown work\. Pass 'matmul', 'pinv'"
    ):
        compare_devices("fft")


def test_bandwidth_is_bytes_over_seconds_by_kind_and_memory() -> None:
    rates = tuple(
        Rate("cuda:0", kind, pinned, 2**20, 2**20 / (1e9 * rate))
        for kind, pinned, rate in (("HtoD", False, 5.0), ("HtoD", True, 20.0))
    )
    bandwidth = Bandwidth(rates)
    assert [round(rate.gigabytes, 6) for rate in rates] == [5.0, 20.0]
    header, row = bandwidth.table().splitlines()
    assert header.split()[:5] == ["bytes", "HtoD", "pageable", "HtoD", "pinned"]
    assert row.split() == ["1,048,576", "5.00", "20.00"]
    assert bandwidth.rows()[1]["GB/s"] == pytest.approx(20)
    assert len(list(ElementTree.fromstring(bandwidth.plot().source).iter(f"{SVG}polyline"))) == 2


@GPU
def test_on_a_gpu_copies_are_counted_apart_from_the_work() -> None:
    result = compare_devices("matmul", sizes=[64, 256], seconds=1e-3)
    gpu = result.timings_of("cuda:0")
    assert len(gpu) == 2
    assert all(t.to_device > 0 and t.work > 0 and t.to_cpu > 0 for t in gpu)


@GPU
def test_on_a_gpu_bandwidth_is_measured_both_ways_from_both_memories() -> None:
    rates = measure_bandwidth(sizes=[2**12, 2**20], seconds=1e-3).rates
    assert {(r.kind, r.pinned) for r in rates} == {
        (kind, pinned) for kind in ("HtoD", "DtoH") for pinned in (False, True)
    }
