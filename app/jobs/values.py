"""Arguments and results of jobs: plain values, which the app reads without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from graphviz_torch import Finding, Graph

if TYPE_CHECKING:  # importing this would delay the first page
    from graphviz_torch.experiments import Experiment

Source = Literal["expression", "model"]
# Number of steps at the start, and at the end, of a file in which the app looks for findings. It
# skips the steps between, because it searches a growing file repeatedly.
FIRST_CHECKED, LAST_CHECKED = 4, 8


@dataclass(frozen=True)
class Choice:
    """The visitor's choice of a program, a device and a seed."""

    source: Source
    device: str  # the argument of `devices.use`
    seed: int = 0
    program: str = ""
    inputs: str = ""
    model: str = ""  # one of `gallery.NAMES`


@dataclass(frozen=True)
class OpenedGraph:
    """A graph, its findings, and the data of the interactive view."""

    graph: Graph
    findings: tuple[Finding, ...]
    payload: str
    steps: tuple[int, ...] = ()  # numbers of the recorded steps; `graph` is the last step


@dataclass(frozen=True)
class Run:
    """The result of running a program. After an error, the graph ends at the error."""

    opened: OpenedGraph | None
    error: str = ""  # "RuntimeError: ...", or "" after success
    note: str = ""  # a message for the visitor, such as that an input is unused
    program: tuple[tuple[int, str], ...] = ()  # numbers and texts of the lines to show
    script: str = ""  # the program as a script to copy


@dataclass(frozen=True)
class ExperimentResults:
    """Experiments on a model, and influence maps of its samples, positions and inputs."""

    experiments: tuple[Experiment, ...]  # experiments with a finding come first
    lanes: tuple[str, ...]  # names of the influence maps: "sample 0", "input x"
    payload: str  # data of the interactive view for all maps; "" if there are none


@dataclass(frozen=True)
class GraphComparison:
    """A comparison of two graphs: counts of nodes that differ, a view of both, and a text."""

    added: int
    removed: int
    changed: int
    payload: str  # data of the interactive view, for both graphs in one
    text: str  # "" if nothing differs


@dataclass(frozen=True)
class GradientSteps:
    """The gradient's path from the loss to one node."""

    # (node, module, gradient norm, norm divided by the previous node's norm)
    steps: tuple[tuple[int, str, float | None, float | None], ...]
    sentences: tuple[str, ...]  # texts that say where the gradient shrank, grew and ended


@dataclass(frozen=True)
class TrainingSettings:
    """The visitor's settings for a training run."""

    depth: int = 12
    activation: str = "Sigmoid"
    gain: float = 1.0  # the weights' standard deviation is gain / sqrt(width)
    residual: bool = False
    rate: float = 0.05
    steps: int = 60
    device: str = "cpu"
    seed: int = 0


@dataclass(frozen=True)
class LoggedStep:
    """One training step: its loss and gradient norms."""

    step: int
    loss: float
    norms: tuple[float, ...]  # gradient norm of each layer, first layer first


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training run: the graph of the last step, and a zipped TensorBoard run."""

    opened: OpenedGraph
    archive: bytes


@dataclass(frozen=True)
class MedianTiming:
    """Median and quartiles, in seconds, of repeated measurements on one device at one size."""

    device: str
    size: int
    seconds: float  # the median
    low: float  # the first quartile
    high: float  # the third quartile
    parts: str  # "copy to it 1.2 ms, work 3 ms, copy back 0.8 ms"


@dataclass(frozen=True)
class Measurements:
    """Times of the same work on several devices."""

    timings: tuple[MedianTiming, ...]
    pays: tuple[
        tuple[str, int | None], ...
    ]  # (device, smallest size from which the device is faster)
    absent: tuple[tuple[str, str], ...]  # (device, reason why it was not timed)


SAMPLES = 100  # number of samples, as in PyTorch's tutorial on DataParallel
MOVING = """\
shared = torch.randn(64, 64)
model = nn.Linear(64, 64)
names = {
    "x": torch.randn(128, 64),
    "weights": [shared, shared.T],    # two tensors that share memory
    "model": model,
    "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    "epochs": 3,
}
names = to_device(names, device, report=print)
"""


@dataclass(frozen=True)
class MoveResult:
    """The report of `to_device`, and a recording of its copies."""

    report: str
    nbytes: int
    names: tuple[str, ...]
    opened: OpenedGraph


@dataclass(frozen=True)
class BatchDivision:
    """How each batch was divided over devices, and the graph of the first batch."""

    batches: tuple[tuple[tuple[str, int], ...], ...]  # for each batch: (device, number of samples)
    opened: OpenedGraph


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint file and its graph, as bytes."""

    name: str
    data: bytes
    graph: bytes
    tensors: tuple[tuple[str, str], ...]  # (name; shape, dtype and device)


@dataclass(frozen=True)
class LoadedCheckpoint:
    """The result of loading a file: whether it fits the model, and whether the models agree."""

    error: str = ""
    fits: bool = False
    differences: str = ""  # "" if nothing differs
    same: bool | None = None  # None if the models were not compared
    verification: str = ""
    first: int | None = None  # the first node that differs
    opened: OpenedGraph | None = None


@dataclass(frozen=True)
class RankComparison:
    """Findings that compare ranks, and a table of their collectives."""

    findings: tuple[Finding, ...]
    collectives: tuple[tuple[tuple[str, str], ...], ...]  # (column, text)
    chart: str  # an SVG of the collectives over time; "" if no times were recorded
    first_differences: tuple[int | None, ...]  # each rank's first node that differs from rank 0


@dataclass(frozen=True)
class FitReport:
    """Memory, operations and collectives of one rank, from a rehearsal of its training step."""

    ranks: int
    rank: int
    parts: tuple[tuple[str, int], ...]  # (kind of memory, such as "gradients"; bytes)
    peak_bytes: int
    peak_at: str
    flops: int
    # (kind, group, count, bytes, module, line), most bytes first
    collectives: tuple[tuple[str, str, int, int, str, str], ...]
    chart: str  # an SVG of memory over the step; "" for a rehearsal from a file
