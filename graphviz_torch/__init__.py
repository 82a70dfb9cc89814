"""Autograd's graph, its gradients, its transfers: the public names.

A name is loaded when it is first used. So a saved graph is read, judged, compared, printed and
drawn without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "1.0.0"

if TYPE_CHECKING:  # what _ROOMS says, for type checkers and editors
    from .checkpoint.checkpoint import (
        CheckpointDiff,
        compare_checkpoint,
        graph_beside,
        load_checkpoint,
        save_checkpoint,
    )
    from .checkpoint.verify import NodeDifference, Verification, verify
    from .comparison.diff import GraphDiff, diff
    from .comparison.first_difference import FirstDifference, first_difference
    from .devices.bandwidth import Bandwidth, measure_bandwidth
    from .devices.batch import batch_division
    from .devices.compare import DeviceComparison, compare_devices
    from .devices.mover import Move, Moves
    from .devices.simulated.accelerator import simulate_accelerator
    from .devices.to_device import available_devices, move_locals, to_device
    from .experiments.experiment import Experiments, experiment
    from .experiments.influence import influence, influences
    from .findings import find, find_across
    from .findings.explanation.explain import explain
    from .findings.explanation.gradient_way import GradientWay
    from .findings.rule import rules
    from .graph import (
        Collective,
        Cut,
        Edge,
        Experiment,
        Failure,
        Finding,
        Fingerprint,
        GradientStats,
        Graph,
        Node,
        Parameter,
        SavedTensor,
        TensorMeta,
        Training,
        TrainingStep,
        Transfer,
    )
    from .graph.json import load, save
    from .integrations.chrome_trace import to_chrome_trace
    from .integrations.model_explorer import to_model_explorer
    from .integrations.networkx import to_networkx
    from .integrations.rows import to_dict
    from .recording.collectives.counter import CollectiveCounter
    from .recording.recording import Recording, record
    from .recording.steps.step_ends import StepEnds
    from .rehearsal.difference import RehearsalDiff, compare_rehearsals
    from .rehearsal.order import Asked, Disagreement, compare_order, kinds_of_rank
    from .rehearsal.picture import draw_memory
    from .rehearsal.plans import plans
    from .rehearsal.rehearsal import Rehearsal
    from .rehearsal.rehearse import rehearse
    from .rehearsal.search import try_plans
    from .rehearsal.trials import Trial, trial_table
    from .rehearsal.trials_picture import draw_trials
    from .render.annotation import annotate_source
    from .render.dot.dot import to_dot
    from .render.dot.picture import Picture
    from .render.draw import draw_graph, make_dot
    from .render.html import to_html, view_graph
    from .render.mermaid import to_mermaid
    from .render.modules.summary import Summary, summary
    from .render.ranks.collectives import collectives
    from .render.ranks.rank_chart import rank_chart
    from .render.river.flow import draw_flow
    from .render.text import to_text
    from .render.view import view_script
    from .render.view.payload import view_payload
    from .tensorboard.add_graph import add_autograd_graph
    from .tensorboard.scalars import add_distribution, add_gradients, add_transfers
    from .tensorboard.watch import watch
    from .tensorboard.writer import to_pbtxt, to_tensorboard
    from .tracing.distributed import gather, local_shapes
    from .tracing.tracer import trace, walk

__all__ = [  # noqa: RUF022 - the core first, then room by room
    # the core
    "trace",
    "record",
    "Recording",
    "Graph",
    "Node",
    "find",
    "Finding",
    "explain",
    "GradientWay",
    "summary",
    "Summary",
    "diff",
    "GraphDiff",
    "draw_graph",
    "Picture",
    "view_graph",
    "to_html",
    "to_text",
    "to_dot",
    "to_tensorboard",
    "save",
    "load",
    "watch",
    "to_device",
    "verify",
    # graph
    "Collective",
    "Cut",
    "Edge",
    "Failure",
    "Fingerprint",
    "GradientStats",
    "Parameter",
    "SavedTensor",
    "TensorMeta",
    "Training",
    "TrainingStep",
    "Transfer",
    # recording
    "CollectiveCounter",
    "StepEnds",
    # comparison
    "FirstDifference",
    "first_difference",
    # experiments
    "Experiment",
    "Experiments",
    "experiment",
    "influence",
    "influences",
    # rehearsal
    "Asked",
    "Disagreement",
    "Rehearsal",
    "RehearsalDiff",
    "Trial",
    "compare_order",
    "compare_rehearsals",
    "draw_memory",
    "draw_trials",
    "kinds_of_rank",
    "plans",
    "rehearse",
    "trial_table",
    "try_plans",
    # tracing
    "gather",
    "local_shapes",
    "walk",
    # findings
    "find_across",
    "rules",
    # render
    "annotate_source",
    "collectives",
    "draw_flow",
    "make_dot",
    "rank_chart",
    "to_mermaid",
    "view_payload",
    "view_script",
    # files for other tools
    "to_chrome_trace",
    "to_dict",
    "to_model_explorer",
    "to_networkx",
    # tensorboard
    "add_autograd_graph",
    "add_distribution",
    "add_gradients",
    "add_transfers",
    "to_pbtxt",
    # devices
    "Bandwidth",
    "DeviceComparison",
    "Move",
    "Moves",
    "available_devices",
    "batch_division",
    "compare_devices",
    "measure_bandwidth",
    "move_locals",
    "simulate_accelerator",
    # checkpoint
    "CheckpointDiff",
    "NodeDifference",
    "Verification",
    "compare_checkpoint",
    "graph_beside",
    "load_checkpoint",
    "save_checkpoint",
]

# The file that has each name.
_ROOMS = {
    "checkpoint.checkpoint": (
        "CheckpointDiff compare_checkpoint graph_beside load_checkpoint save_checkpoint"
    ),
    "checkpoint.verify": "NodeDifference Verification verify",
    "comparison.diff": "GraphDiff diff",
    "comparison.first_difference": "FirstDifference first_difference",
    "devices.bandwidth": "Bandwidth measure_bandwidth",
    "devices.batch": "batch_division",
    "devices.compare": "DeviceComparison compare_devices",
    "devices.mover": "Move Moves",
    "devices.simulated.accelerator": "simulate_accelerator",
    "devices.to_device": "available_devices move_locals to_device",
    "experiments.experiment": "Experiments experiment",
    "experiments.influence": "influence influences",
    "findings": "find find_across",
    "findings.explanation.explain": "explain",
    "findings.explanation.gradient_way": "GradientWay",
    "findings.rule": "rules",
    "graph": (
        "Collective Cut Edge Experiment Failure Finding Fingerprint GradientStats Graph Node "
        "Parameter SavedTensor TensorMeta Training TrainingStep Transfer"
    ),
    "graph.json": "load save",
    "integrations.chrome_trace": "to_chrome_trace",
    "integrations.model_explorer": "to_model_explorer",
    "integrations.networkx": "to_networkx",
    "integrations.rows": "to_dict",
    "recording.collectives.counter": "CollectiveCounter",
    "recording.recording": "Recording record",
    "recording.steps.step_ends": "StepEnds",
    "rehearsal.order": "Asked Disagreement compare_order kinds_of_rank",
    "rehearsal.picture": "draw_memory",
    "rehearsal.plans": "plans",
    "rehearsal.rehearsal": "Rehearsal",
    "rehearsal.rehearse": "rehearse",
    "rehearsal.difference": "RehearsalDiff compare_rehearsals",
    "rehearsal.search": "try_plans",
    "rehearsal.trials": "Trial trial_table",
    "rehearsal.trials_picture": "draw_trials",
    "render.annotation": "annotate_source",
    "render.ranks.collectives": "collectives",
    "render.dot.dot": "to_dot",
    "render.dot.picture": "Picture",
    "render.draw": "draw_graph make_dot",
    "render.html": "to_html view_graph",
    "render.modules.summary": "Summary summary",
    "render.mermaid": "to_mermaid",
    "render.ranks.rank_chart": "rank_chart",
    "render.river.flow": "draw_flow",
    "render.text": "to_text",
    "render.view": "view_script",
    "render.view.payload": "view_payload",
    "tensorboard.add_graph": "add_autograd_graph",
    "tensorboard.scalars": "add_distribution add_gradients add_transfers",
    "tensorboard.watch": "watch",
    "tensorboard.writer": "to_pbtxt to_tensorboard",
    "tracing.distributed": "gather local_shapes",
    "tracing.tracer": "trace walk",
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names.split()}

if not TYPE_CHECKING:  # a type checker shall refuse a name that is not there

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
        return value


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext graphviz_torch` adds the cell magic `%%record`."""
    import_module(".integrations.notebook", __name__).load(shell)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
