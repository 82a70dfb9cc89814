"""What goes to a job and what comes back: plain values, which need no torch to be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from graphviz_torch import Finding, Graph

if TYPE_CHECKING:  # the first page does not need it
    from graphviz_torch.experiments import Experiment

Source = Literal["expression", "model"]
# Steps of a training that are judged: a file that grows is judged again and again.
FIRST_JUDGED, LAST_JUDGED = 4, 8


@dataclass(frozen=True)
class Choice:
    """What a visitor chose to run; compared to see whether anything changed."""

    source: Source
    device: str  # as `devices.use` takes it
    seed: int = 0
    program: str = ""
    inputs: str = ""
    model: str = ""  # one of `gallery.NAMES`


@dataclass(frozen=True)
class Opened:
    """A graph, what is wrong with it, and what the interactive view needs to draw it."""

    graph: Graph
    findings: tuple[Finding, ...]
    payload: str
    steps: tuple[int, ...] = ()  # numbers of the recorded steps of a training; the graph's is last


@dataclass(frozen=True)
class Run:
    """What came of a choice. After a failure the graph goes as far as the run did."""

    opened: Opened | None
    error: str = ""  # "RuntimeError: ...", "" where all went well
    note: str = ""  # what a reader must know
    program: tuple[tuple[int, str], ...] = ()  # the lines to show, with their numbers
    script: str = ""  # the same as a script to copy


@dataclass(frozen=True)
class Answers:
    """What experiments on a model said, and how far each sample, position and input goes."""

    experiments: tuple[Experiment, ...]  # those with a finding first
    lanes: tuple[str, ...]  # whose influence is known: "sample 0", "input x"
    payload: str  # of all of them, for the interactive view; "" for none


@dataclass(frozen=True)
class Compared:
    """Two graphs: how many nodes differ, the drawing of both in one, and the list."""

    added: int
    removed: int
    changed: int
    payload: str  # of the union, marked, for the interactive view
    text: str  # "" where nothing differs


@dataclass(frozen=True)
class Way:
    """How the gradient came from the loss to one node."""

    steps: tuple[tuple[int, str, float | None, float | None], ...]  # node, module, norm, factor
    says: tuple[str, ...]  # where it shrank, grew and ended


@dataclass(frozen=True)
class Settings:
    """What a visitor set for a training."""

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
    """What one step of a training gave."""

    step: int
    loss: float
    norms: tuple[float, ...]  # of each layer's gradient, first layer first


@dataclass(frozen=True)
class Trained:
    """The end of a training: its last step as a graph, and everything as a TensorBoard run."""

    opened: Opened
    archive: bytes


@dataclass(frozen=True)
class Timing:
    """One device at one size: the median, and the range of what repeated measurements gave."""

    device: str
    size: int
    seconds: float
    low: float
    high: float
    parts: str  # "copy there 1.2 ms, work 3 ms, copy back 0.8 ms"


@dataclass(frozen=True)
class Measured:
    """How long the same work takes on each device."""

    timings: tuple[Timing, ...]
    pays: tuple[tuple[str, int | None], ...]  # from which size on moving to a device pays
    absent: tuple[tuple[str, str], ...]  # device, reason


SAMPLES = 100  # that are divided into batches, as in the tutorial that the table comes from
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


@dataclass(frozen=True)
class Moved:
    """What `to_device` reported, and the recording of it."""

    report: str
    nbytes: int
    names: tuple[str, ...]
    opened: Opened


@dataclass(frozen=True)
class Divided:
    """For each batch the parts that devices got, read from its graph; the first batch's graph."""

    batches: tuple[tuple[tuple[str, int], ...], ...]
    opened: Opened


@dataclass(frozen=True)
class Saved:
    """A checkpoint as bytes, and the graph that lies beside it."""

    name: str
    data: bytes
    graph: bytes
    tensors: tuple[tuple[str, str], ...]  # name, and shape, dtype and device


@dataclass(frozen=True)
class Loaded:
    """How a file fits a model, and whether the model then does the same as before."""

    error: str = ""
    fits: bool = False
    differences: str = ""  # "" where there is none
    same: bool | None = None  # None: not verified
    verification: str = ""
    first: int | None = None  # the node at which both part first
    opened: Opened | None = None


@dataclass(frozen=True)
class Ranks:
    """What differs across ranks and must not, and a row for each communication."""

    findings: tuple[Finding, ...]
    collectives: tuple[tuple[tuple[str, str], ...], ...]  # (column, text)
    chart: str  # an SVG of when each rank stood in a collective; "" where no times are known
    apart: tuple[int | None, ...]  # by rank: the first node where its graph is not as rank 0's


@dataclass(frozen=True)
class Fit:
    """What one rank of a rehearsed training takes."""

    ranks: int
    rank: int
    parts: tuple[tuple[str, int], ...]  # "parameters", "gradients", ..., and their bytes
    peak_bytes: int
    peak_at: str
    flops: int
    collectives: tuple[tuple[str, str, int, int, str, str], ...]  # those with most bytes first
    chart: str  # an SVG of its memory over the step; "" where it came from a file
