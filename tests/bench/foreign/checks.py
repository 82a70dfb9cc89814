"""Run one training step, bare and recorded, and check the recording.

The expected values do not come from the package: the walk, the norms and the bits are taken from
autograd, in processes that do not record.
"""

from __future__ import annotations

import gc
import hashlib
import math
import re
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from docs.sixteen import SMALLEST, size_and_text
from graphviz_torch import (
    Graph,
    Recording,
    draw_graph,
    explain,
    find,
    load,
    record,
    save,
    summary,
    to_html,
    to_tensorboard,
    to_text,
    trace,
)
from graphviz_torch.graph.json import to_json
from graphviz_torch.render.dot.layout import layout

from .sources import Forward, loss_of

_CLOSE = 1e-4  # relative difference of two norms of the same float32 gradient
_MOST_SHOWN = 3
_REFUSED_BY_COUNTER = ("_will_engine_execute_node", "Expected gradient function to be set")

Facts = dict[str, Any]
Shape = tuple[list[str], list[tuple[int, int, int, int]]]  # names of nodes, and edges


class Training:
    """A model, its example and an optimizer, which run one step at a time."""

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        self.model, self.forward = model.train(), forward
        self.parameters = [each for each in model.parameters() if each.requires_grad]
        self.optimizer = torch.optim.SGD(self.parameters, lr=1e-4)

    def freeze_statistics(self) -> None:
        """Set batch norms to evaluation mode. In training mode, they refuse a single value."""
        for module in self.model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()

    def loss(self) -> Tensor:
        self.optimizer.zero_grad()
        return loss_of(self.forward())

    def step(self, seen: Callable[[Tensor], object] = lambda loss: None) -> Tensor:
        loss = self.loss()
        seen(loss)
        loss.backward()
        self.optimizer.step()
        return loss

    def bits(self, loss: Tensor) -> str:
        """Return a hash of the loss, all gradients, parameters, buffers and the random state."""
        gradients = {name: each.grad for name, each in self.model.named_parameters()}
        state = {"loss": loss, **gradients, "random": torch.get_rng_state()}
        state |= {f"state.{name}": each for name, each in self.model.state_dict().items()}
        digest = hashlib.sha1()
        for name, value in state.items():
            digest.update(name.encode())
            digest.update(_bytes(value) if isinstance(value, Tensor) else repr(value).encode())
        return digest.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    if tensor.layout is not torch.strided:
        return repr(tensor.to_dense().tolist()).encode()
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def walk(loss: Tensor) -> tuple[list[Any], list[tuple[int, int, int, int]]]:
    """Return the live nodes behind a loss in breadth-first order, and their edges by position."""
    nodes = [get_gradient_edge(loss).node]
    places = {nodes[0]: 0}
    edges = []
    waiting = deque(nodes)
    while waiting:
        node = waiting.popleft()
        for input_nr, (source, output_nr) in enumerate(node.next_functions):
            if source is None:
                continue
            if source not in places:
                places[source] = len(nodes)
                nodes.append(source)
                waiting.append(source)
            edges.append((places[source], places[node], output_nr, input_nr))
    return nodes, edges


def name_of(node: Any) -> str:
    """Return autograd's name of a node; for a C++ Function, it differs from the type's name."""
    kind = type(node).__name__
    return node.name().rpartition("::")[2] if kind == "CppFunction" else kind


def shape_of(graph: Graph) -> tuple[list[int], list[tuple[int, int, int, int]]]:
    """Return the nodes behind the first output, as ids, and the edges, in the order of `walk`."""
    inputs = graph.inputs()
    ids = [graph.outputs[0][0]]
    places = {ids[0]: 0}
    edges = []
    for node in ids:  # the list grows in the loop
        for edge in sorted(inputs[node], key=lambda edge: edge.input_nr):
            if edge.source not in places:
                places[edge.source] = len(ids)
                ids.append(edge.source)
            edges.append((places[edge.source], places[node], edge.output_nr, edge.input_nr))
    return ids, edges


def peak_memory(run: Callable[[], object]) -> int:
    """Return the largest growth of the process's memory during `run`, in bytes."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    run()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def fastest(run: Callable[[], object]) -> float:
    """Return the least CPU seconds of this thread in two to six runs.

    The clock of the process is coarse while a limit of CPU time is set.
    """
    seconds: list[float] = []
    gc.collect()
    while len(seconds) < 2 or (len(seconds) < 6 and sum(seconds) < 0.3):
        start = time.thread_time()
        run()
        seconds.append(time.thread_time() - start)
    return min(seconds)


def bare(training: Training) -> Facts:
    """Run the step without recording."""
    facts: Facts = {}

    def first() -> None:
        facts["bits"] = training.bits(training.step())

    facts["memory"] = peak_memory(first)
    facts["seconds"] = fastest(training.step)
    return facts


def hooked(training: Training) -> Facts:
    """Run the step with a hook at each node; return names, edges, and norms of gradients."""
    facts: Facts = {}
    norms: dict[int, list[float | None]] = {}

    def hook(place: int, gradients: tuple[Tensor | None, ...]) -> None:
        norms[place] = [None if each is None else _norm(each) for each in gradients]

    def seen(loss: Tensor) -> None:
        nodes, edges = walk(loss)
        facts["names"], facts["edges"] = list(map(name_of, nodes)), edges
        for place, node in enumerate(nodes):
            node.register_prehook(lambda gradients, place=place: hook(place, gradients))

    facts["bits"] = training.bits(training.step(seen))
    facts["norms"] = norms
    return facts


def _norm(gradient: Tensor) -> float:
    dense = gradient.detach()
    dense = dense.to_dense() if dense.layout is not torch.strided else dense
    wide = torch.complex128 if dense.is_complex() else torch.float64
    return torch.linalg.vector_norm(dense.to(wide)).item()


class Checked:
    """The checks of one recorded step; `faults` has a line for each failed check."""

    def __init__(self) -> None:
        self.faults: dict[str, str] = {}
        self.seconds: dict[str, float] = {}

    @contextmanager
    def check(self, name: str) -> Iterator[None]:
        start = time.process_time()
        try:
            yield
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(last.filename).name}:{last.lineno}"
            self.faults[name] = f"{type(error).__name__} at {place}: {error}"[:600]
        self.seconds[name] = round(time.process_time() - start, 4)


def recorded(training: Training, bare: Facts, walked: Facts, picture: Path | None) -> Facts:
    """Run the step in a recording, and compare it with `bare` and `hooked`."""
    found = Checked()
    facts: Facts = {"deterministic": bare["bits"] == walked["bits"]}
    recording, random = record(training.model), torch.get_rng_state()

    def first() -> None:
        with recording:
            facts["loss"] = training.step()

    memory = peak_memory(first)
    with found.check("bits"):
        bits = training.bits(facts.pop("loss"))
        assert not facts["deterministic"] or bits == bare["bits"], "not the bits of the bare step"
    graph = recording.graph
    with found.check("graph"):
        _compare(graph, walked)
    with found.check("norms"):
        _compare_norms(graph, walked)
    with found.check("parameters"):
        facts["without_gradient"] = _account(training.model, graph)
    with found.check("findings"):
        facts["findings"] = [
            [each.severity, each.rule, each.where, each.message, each.advice]
            for each in find(recording)
        ]
    facts |= shown(recording, found, picture)
    with found.check("trace"):
        loss = training.loss()
        nodes, edges = walk(loss)
        names = list(map(name_of, nodes))
        _compare(trace(loss, names=training.model), {"names": names, "edges": edges})
        del loss, nodes
    with found.check("flops"):
        torch.set_rng_state(random)  # the random state decides which layers a layer drop leaves out
        counted = counted_flops(training)
        if counted is not None:
            facts["flops"].append(counted)
            ours, unknown, _ = facts["flops"]
            assert unknown or ours <= counted, f"{ours} FLOPs, PyTorch counts {counted}"

    def timed() -> None:
        with record(training.model) as recording:
            training.step()
        assert recording.graph.nodes

    seconds = fastest(timed)
    return facts | {
        "nodes": len(graph.nodes),
        "parameters": sum(each.numel() for each in training.model.parameters()),
        "seconds": [bare["seconds"], seconds],
        "memory": [bare["memory"], memory],
        "check_seconds": found.seconds,
        "faults": found.faults,
    }


def counted_flops(training: Training) -> int | None:
    """Return the FLOPs of one forward, counted by PyTorch.

    Return None if PyTorch's counter does not allow the forward, for example because it calls
    `torch.autograd.grad`.
    """
    mapping = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}
    try:
        with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
            training.forward()
    except (AssertionError, RuntimeError) as error:
        if any(text in str(error) for text in _REFUSED_BY_COUNTER):
            return None
        raise
    return counter.get_total_flops()


def _attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Return the FLOPs of the CPU's attention kernel, which PyTorch does not count."""
    count: int = sdpa_flop_count(query, key, value)
    return count


def without_backward(training: Training) -> None:
    """Do all the work of the checks except the backward."""
    with record(training.model) as recording:
        walk(training.loss())
    training.optimizer.step()
    find(recording)
    shown(recording, Checked(), picture=None)
    counted_flops(training)


def shown(recording: Recording, found: Checked, picture: Path | None) -> Facts:
    """Save and load a recording, and show it with all functions."""
    facts: Facts = {}
    graph = recording.graph
    with found.check("saved"), tempfile.TemporaryDirectory() as folder:
        again = load(save(graph, Path(folder) / "a.json.gz"))
        assert isinstance(again, Graph)
        assert to_json(again) == to_json(graph), "not the same"
    with found.check("still"):
        facts["still"] = _still(draw_graph(recording).source, picture)
    with found.check("view"):
        assert "<html" in to_html(recording), "no page"
    with found.check("tensorboard"), tempfile.TemporaryDirectory() as folder:
        to_tensorboard(recording, folder)
        assert list(Path(folder).glob("events*")), "no file of events"
    with found.check("text"):
        assert str(to_text(recording)), "no text"
    with found.check("summary"):
        total = summary(recording).total
        facts["flops"] = [total.flops_forward, total.flops_unknown]
    return facts


def _compare(graph: Graph, walked: Facts) -> None:
    ids, edges = shape_of(graph)
    names = [graph.nodes[node].name for node in ids]
    assert names == walked["names"], f"{len(names)} nodes, walked {len(walked['names'])}"
    assert edges == [tuple(each) for each in walked["edges"]], "other edges"


def _compare_norms(graph: Graph, walked: Facts) -> None:
    wrong = []
    ids, _ = shape_of(graph)
    for place, norms in walked["norms"].items():
        node = graph.nodes[ids[int(place)]]
        for output, norm in enumerate(norms):
            if norm is None:
                continue
            stats = node.grad_outputs[output] if output < len(node.grad_outputs) else None
            ours = None if stats is None else stats.whole_norm
            if ours is None or not _near(ours, norm):
                wrong.append(f"{node.id} {node.name} output {output}: {ours}, hooks {norm}")
    assert not wrong, f"{len(wrong)} norms: {'; '.join(wrong[:_MOST_SHOWN])}"


def _near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_CLOSE) or (math.isnan(one) and math.isnan(other))


def _account(model: nn.Module, graph: Graph) -> dict[str, str]:
    """Return the reason for each parameter without a gradient.

    Raises:
        AssertionError: if a parameter is missing from the list, has a wrong entry, or no reason.
    """
    listed = {each.name: each for each in graph.parameters}
    wrappers = [path for path, each in model.named_modules() if isinstance(each, nn.DataParallel)]
    reasons = {}
    for name, parameter in model.named_parameters():
        for path in reversed(wrappers):  # a recording has the names of the model without wrappers
            start = f"{path}." if path else ""
            if name.startswith(f"{start}module."):
                name = start + name.removeprefix(f"{start}module.")
        assert name in listed, f"{name} is not listed"
        if not parameter.requires_grad:
            continue
        got = parameter.grad is not None
        assert listed[name].got_gradient is got, f"{name}: {listed[name]}, gradient: {got}"
        if not got:
            reasons[name] = explain(graph, name).end
            assert reasons[name], f"{name} has no reason"
    return reasons


def _still(dot: str, picture: Path | None) -> Facts:
    svg = layout(dot, "svg", timeout=60).decode()
    width, height, text = size_and_text(svg)
    if picture is not None:
        picture.with_name(picture.name + ".svg").write_text(svg)
        picture.with_name(picture.name + ".gv").write_text(dot)
    return {"width": width, "height": height, "text": text, "fits": text >= SMALLEST}
