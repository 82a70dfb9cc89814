"""Test recording on CUDA without a GPU: PyTorch's engine runs on a simulated CUDA runtime.

`cuda_stand_in.c` simulates two devices and logs all calls, which the tests compare with the
recording. Its kernels compute nothing, so no values are compared. The tests need a CUDA build of
torch and a C compiler, but no GPU. Each test starts a child process that loads the library:
`python tests/recording/transfers/test_cuda_stand_in.py NAME`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

_ROOT = Path(__file__).parents[3]
_TRITON = importlib.util.find_spec("triton")
_HEADERS = Path((_TRITON and _TRITON.origin) or "x").parent / "backends" / "nvidia" / "include"
_COMPILER = shutil.which("cc")


def _has_headers() -> bool:
    """Are CUDA's headers there, of the version that torch was built with."""
    file = _HEADERS / "cuda_runtime_api.h"
    found = re.search(r"CUDART_VERSION +(\d+)", file.read_text()) if file.exists() else None
    wanted = str(torch.version.cuda).partition(".")[0]
    return found is not None and str(int(found[1]) // 1000) == wanted


pytestmark = pytest.mark.skipif(
    torch.version.cuda is None or _COMPILER is None or not _has_headers(),
    reason="no CUDA build of torch with its headers, or no C compiler",
)


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in, compiled."""
    if torch.cuda.is_available():
        pytest.skip("a GPU is here: the other tests use it")
    library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    source = _ROOT / "tests" / "support" / "cuda_stand_in.c"
    command = [str(_COMPILER), "-shared", "-fPIC", "-w", f"-I{_HEADERS}", "-o", library, source]
    subprocess.run(command, check=True)
    return library


def child(stand_in: Path, name: str, *arguments: object) -> Any:
    """What a function of this file returns where the stand-in is loaded."""
    folder = str(stand_in.parent)
    loaded = {"LD_LIBRARY_PATH": folder, "LD_PRELOAD": str(stand_in), "PYTHONPATH": str(_ROOT)}
    done = subprocess.run(
        [sys.executable, __file__, name, *map(str, arguments)],
        env=os.environ | loaded,
        capture_output=True,
        text=True,
        timeout=300,
    )
    # Not by the exit status: CUDA's libraries may fail to take themselves down.
    assert done.stdout, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


# What runs in the child.


def runtime() -> Any:
    """The stand-in, to be told how long a kernel takes, and when to fail."""
    found = ctypes.CDLL("libcuda.so.1")
    found.stand_in_duration.argtypes = [ctypes.c_double]
    return found


@contextmanager
def logged() -> Iterator[list[tuple[str, int, int, int]]]:
    """What the stand-in is asked for meanwhile: kind, bytes, device, and number of the stream."""
    found: list[tuple[str, int, int, int]] = []
    with tempfile.TemporaryFile() as file:
        runtime().stand_in_log(file.fileno())
        try:
            yield found
        finally:
            runtime().stand_in_log(0)
            file.seek(0)
            for line in file.read().decode().splitlines():
                kind, nbytes, device, stream = line.split()
                found.append((kind, int(nbytes), int(device), int(stream)))


def moved(run: Callable[[], object]) -> list[list[list[Any]]]:
    """The copies of a program: as recorded, and as the stand-in was asked for them."""
    from graphviz_torch import record

    with record(gradients=False) as recording:
        with logged() as asked:
            run()
        torch.ones(1, requires_grad=True).sum().backward()  # a graph to hang the copies on
    ours = sorted([c.kind, c.nbytes] for c in recording.graph.transfers if c.nbytes)
    kinds = ("HtoD", "DtoH", "DtoD")
    return [
        ours,
        sorted([kind, nbytes] for kind, nbytes, _, _ in asked if kind in kinds and nbytes),
    ]


def copies(device: str) -> dict[str, list[list[list[Any]]]]:
    """For each way to move a tensor, its copies."""
    from tests.recording.transfers import test_cuda_copies

    test_cuda_copies.GPU = torch.device("cuda", int(device))
    ways = dict(test_cuda_copies.WAYS)
    for name in ("a step", "a scaled step"):  # a matrix product needs more than a runtime
        del ways[name]
    found = {}
    for name, way in ways.items():
        way(*test_cuda_copies.inputs())  # what is set up the first time
        x, d = test_cuda_copies.inputs()
        found[name] = moved(lambda way=way, x=x, d=d: way(x, d))  # type: ignore[misc]
    return found


def between() -> dict[str, list[list[list[Any]]]]:
    """The copies between two cards."""
    from torch.nn.parallel import scatter

    a, b = (torch.ones(10, 4, device=f"cuda:{i}") for i in range(2))
    ways: dict[str, Callable[[], object]] = {
        "to": lambda: a.to("cuda:1"),
        "copy_": lambda: b.copy_(a),
        "gradient of to": lambda: a.requires_grad_().to("cuda:1").sum().backward(),
        "scatter": lambda: scatter(a.detach(), [0, 1]),
        "item": lambda: b[0, 0].item(),
        "module": lambda: torch.nn.Linear(4, 5).to("cuda:0").to("cuda:1"),
    }
    return {name: moved(way) for name, way in ways.items()}


def durations(name: str) -> list[list[Any]]:
    """Title, device and seconds of each node; a kernel takes a millisecond."""
    from graphviz_torch import record

    def there_and_back() -> None:
        x = torch.ones(50, device="cuda:0", requires_grad=True)
        y = x.exp().to("cuda:1")
        for _ in range(20):
            y = y.sin()
        y.to("cuda:0").exp().sum().backward()

    def through_the_cpu() -> None:
        x = torch.ones(50, device="cuda:0", requires_grad=True)
        x.exp().cpu().sin().to("cuda:0").exp().sum().backward()

    def asked_for() -> None:
        xs = [torch.ones(1 << 18, device="cuda:0", requires_grad=True) for _ in range(20)]
        torch.autograd.grad(torch.stack([x.exp() for x in xs]).sum(), xs)

    def in_one_thread() -> None:
        x = torch.ones(50, device="cuda:0", requires_grad=True)
        y = x.exp().to("cuda:1").exp().sum()
        with torch.autograd.set_multithreading_enabled(False):
            y.backward()

    def in_two_outputs() -> None:
        both = Both.apply(torch.ones(50, requires_grad=True))
        (both[0].sum() + both[1].sum().to("cuda:0")).backward()

    runtime().stand_in_duration(1.0)
    program = {f.__name__: f for f in (there_and_back, through_the_cpu, asked_for, in_one_thread)}
    program["in_two_outputs"] = in_two_outputs
    with record() as recording:
        program[name]()
    return [[node.title, node.device, node.seconds] for node in recording.graph.nodes]


class Both(torch.autograd.Function):
    """A tensor on both cards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.to("cuda:0"), x.to("cuda:1")

    @staticmethod
    def backward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        return a.cpu() + b.cpu()


def streams() -> list[list[int]]:
    """The streams that the program's own kernels use, and all that ran in a recorded backward."""
    from graphviz_torch import record

    x = torch.ones(50, device="cuda:0", requires_grad=True)
    side = torch.cuda.Stream()
    with record():
        with logged() as own:
            y = x.exp()
            with torch.cuda.stream(side):
                z = y.sin()
        with logged() as asked:
            (z + y).sum().backward()
    return [sorted({stream for _, _, _, stream in log}) for log in (own, asked)]


def failed() -> list[str]:
    """A program that reads from a device that has failed: its error, and what is recorded of it."""
    from graphviz_torch import record

    x = torch.ones(50, device="cuda:0", requires_grad=True)
    recording = record()
    try:
        with recording:
            loss = x.exp().sum()
            loss.backward()
            runtime().stand_in_fail(1)
            loss.item()
    except RuntimeError as error:
        said = str(error)
    failure = recording.graph.failure
    assert failure is not None
    return [said, failure.operation, failure.message]


# The tests.


@pytest.mark.parametrize("device", [0, 1])
def test_what_is_recorded_is_what_the_runtime_was_asked_for(stand_in: Path, device: int) -> None:
    found = child(stand_in, "copies", device)
    assert len(found) > 50
    assert {way: ours for way, (ours, _) in found.items()} == {
        way: theirs for way, (_, theirs) in found.items()
    }
    assert sum(len(ours) for ours, _ in found.values()) > 60


def test_copies_between_two_cards(stand_in: Path) -> None:
    found = child(stand_in, "between")
    assert {way: ours for way, (ours, _) in found.items()} == {
        way: theirs for way, (_, theirs) in found.items()
    }
    assert found["to"][0] == [["DtoD", 160]]
    assert found["gradient of to"][0] == [["DtoD", 160]] * 2


@pytest.mark.parametrize(
    "name", ["there_and_back", "through_the_cpu", "asked_for", "in_one_thread", "in_two_outputs"]
)
def test_a_node_takes_its_own_time_and_not_that_of_others(stand_in: Path, name: str) -> None:
    found = child(stand_in, "durations", name)
    # All that ran on a card; autograd.grad runs no leaf.
    on_card = [(title, seconds) for title, device, seconds in found if device != "cpu"]
    timed = [(t, s) for t, s in on_card if not (t == "AccumulateGrad" and name == "asked_for")]
    assert None not in [seconds for _, seconds in timed]
    # A kernel or a copy takes a millisecond, and what the host does no time at all.
    # Both waits in its own backward, for two cards.
    work = {"exp": 1, "sin": 2, "to_copy": 1}
    off = [(t, s) for t, s in timed if t != "Both" and round(s * 1000, 6) != work.get(t, 0)]
    assert not off


def test_nothing_runs_on_a_stream_that_the_program_does_not_use(stand_in: Path) -> None:
    own, asked = child(stand_in, "streams")
    assert len(own) == 2
    assert set(asked) <= set(own)


def test_the_error_of_a_device_that_failed_is_the_users(stand_in: Path) -> None:
    said, operation, message = child(stand_in, "failed")
    assert operation == "item"
    assert said == message


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])), flush=True)
    os._exit(0)  # the libraries would ask for what the stand-in does not have
