"""Arguments and results of jobs: plain values, which can be read without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from graphviz_torch import Finding, Graph

if TYPE_CHECKING:  # not imported by the first page
    from graphviz_torch.experiments import Experiment

Source = Literal["expression", "model"]
# Number of steps that are checked for findings: a growing file is checked repeatedly.
FIRST_CHECKED, LAST_CHECKED = 4, 8


@dataclass(frozen=True)
class Choice:
    """The visitor's choice of a run; compared to detect changes."""

    source: Source
    device: str  # argument of `devices.use`
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
    steps: tuple[int, ...] = ()  # numbers of a training's recorded steps; the graph's is the last


@dataclass(frozen=True)
class Run:
    """The result of a choice. After an error, the graph ends where the run did."""

    opened: OpenedGraph | None
    error: str = ""  # "RuntimeError: ...", or "" after success
    note: str = ""  # a remark for the visitor, such as an unused input
    program: tuple[tuple[int, str], ...] = ()  # numbers and texts of the lines to show
    script: str = ""  # the run as a script to copy


@dataclass(frozen=True)
class ExperimentResults:
    """Experiments on a model, and influence maps of its samples, positions and inputs."""

    experiments: tuple[Experiment, ...]  # those with a finding first
    lanes: tuple[str, ...]  # names of the influence maps: "sample 0", "input x"
    payload: str  # of all maps, for the interactive view; "" if there is none


@dataclass(frozen=True)
class GraphComparison:
    """Two graphs compared: numbers of nodes that differ, one drawing of both, and a list."""

    added: int
    removed: int
    changed: int
    payload: str  # of the union of both, for the interactive view
    text: str  # "" if nothing differs


@dataclass(frozen=True)
class GradientSteps:
    """The gradient's path from the loss to one node."""

    steps: tuple[tuple[int, str, float | None, float | None], ...]  # node, module, norm, factor
    sentences: tuple[str, ...]  # where the gradient shrank, grew and ended


@dataclass(frozen=True)
class Settings:
    """The visitor's settings of a training."""

    depth: int = 12
    activation: str = "Sigmoid"
    gain: float = 1.0  # the weights' standard deviation is gain / sqrt(width)
    residual: bool = False
    rate: float = 0.05
    steps: int = 60
    device: str = "cpu"
    seed: int = 0


@dataclass(frozen=True)
class Step:
    """One step of a training: its loss and gradient norms."""

    step: int
    loss: float
    norms: tuple[float, ...]  # of each layer's gradient, first layer first


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training: the graph of its last step, and a zipped TensorBoard run."""

    opened: OpenedGraph
    archive: bytes


@dataclass(frozen=True)
class MedianTiming:
    """Repeated measurements of one device at one size: median and quartiles, in seconds."""

    device: str
    size: int
    seconds: float  # the median
    low: float  # the first quartile
    high: float  # the third quartile
    parts: str  # "copy to it 1.2 ms, work 3 ms, copy back 0.8 ms"


@dataclass(frozen=True)
class Measurements:
    """Timings of the same work on each device."""

    timings: tuple[MedianTiming, ...]
    pays: tuple[tuple[str, int | None], ...]  # device, and the size from which it is faster
    absent: tuple[tuple[str, str], ...]  # device, reason


SAMPLES = 100  # that are divided into batches, as in PyTorch's tutorial on DataParallel
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
    """The division of each batch over devices, read from its graph, and the first batch's graph."""

    batches: tuple[tuple[tuple[str, int], ...], ...]  # per batch: (device, number of samples)
    opened: OpenedGraph


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint and its graph, as bytes."""

    name: str
    data: bytes
    graph: bytes
    tensors: tuple[tuple[str, str], ...]  # name, and shape, dtype and device


@dataclass(frozen=True)
class LoadedCheckpoint:
    """The result of loading a file: whether it fits the model, and whether both models agree."""

    error: str = ""
    fits: bool = False
    differences: str = ""  # "" if there is none
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
    first_differences: tuple[int | None, ...]  # by rank: the first node that differs from rank 0


@dataclass(frozen=True)
class FitReport:
    """Memory, operations and collectives of one rank of a rehearsed training."""

    ranks: int
    rank: int
    parts: tuple[tuple[str, int], ...]  # "parameters", "gradients", ..., and their bytes
    peak_bytes: int
    peak_at: str
    flops: int
    collectives: tuple[tuple[str, str, int, int, str, str], ...]  # those with most bytes first
    chart: str  # an SVG of memory over the step; "" for a rehearsal from a file
