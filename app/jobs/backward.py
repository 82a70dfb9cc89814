"""What runs in a job's process: the forward and the backward of what a visitor chose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from graphviz_torch import Graph, find, record, trace
from graphviz_torch.export import view_payload
from graphviz_torch.tracing import iter_grad_fns

from ..expression.evaluation import evaluate, measure, parse_inputs
from ..expression.grammar import ExpressionError, parse, unused
from ..expression.script import Script, expression_script, model_script
from ..models import gallery
from . import devices
from .values import Choice, Opened, Run


def warm_up() -> None:
    """Load what torch loads at its first operations (a second), so that no later job must.

    Forward only: backward starts threads on a CUDA build, and those don't fork.
    """
    play(Choice("expression", "sim1", program="x", inputs="x = 1"), backward=False)
    measure(parse("x ** 2"), parse_inputs("x = 1"))


def opened(graph: Graph, hidden: frozenset[int] = frozenset()) -> Opened:
    """The graph, judged and ready to be drawn.

    Args:
        graph: any graph.
        hidden: nodes of copies that the app made: a finding about them alone is left out.
    """
    findings = tuple(
        finding
        for finding in find(graph)
        if not (finding.transfers and finding.nodes and hidden.issuperset(finding.nodes))
    )
    return Opened(graph, findings, view_payload(graph, findings))


def recorded_here(graph: Graph) -> Opened:
    """A graph that a job recorded, without the lines of the app's own files."""
    files = {path.name for path in Path(__file__).parent.glob("*.py")}
    return opened(
        _with_places(graph, lambda place: "" if place.rpartition(":")[0] in files else place)
    )


def build(
    name: str, found: Sequence[torch.device], seed: int
) -> tuple[nn.Module, Callable[[], Tensor]]:
    """A model of the gallery, and a function that computes its loss."""
    torch.manual_seed(seed)
    made: tuple[nn.Module, Callable[[], Tensor]] = gallery.module(name).build(found)
    return made


def play(choice: Choice, backward: bool) -> Run:
    """Forward, and backward if asked, of one choice, recorded."""
    with devices.use(choice.device) as found:
        if choice.source == "model":
            return _play_model(choice, found, backward)
        try:
            return _play_expression(choice, found[0], backward)
        except ExpressionError as error:
            return Run(None, str(error))


def _play_model(choice: Choice, found: list[torch.device], backward: bool) -> Run:
    chosen = gallery.model(choice.model)
    script = model_script(chosen.code, choice.device, choice.seed)
    model, loss = build(choice.model, found, choice.seed)
    error, graph = "", None
    recording = record(model)
    try:
        with recording:
            output = loss()
            if backward:
                torch.autograd.backward(output)
            else:
                graph = recording.graph  # while the output is alive
    # The model's own failure, to be shown in place, with the graph up to it.
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    try:
        graph = graph or recording.graph
    except ValueError as nothing:
        error = error or str(nothing)
    if graph is not None:
        graph = with_lines(graph, backward_line(chosen, choice))
    return Run(None if graph is None else opened(graph), error, "", script.shown, script.text)


def backward_line(model: gallery.Model, choice: Choice) -> str:
    """The line of a model's script that calls backward: "mlp.py:41"."""
    script = model_script(model.code, choice.device, choice.seed)
    return f"{model.name}.py:{script.lines['output.backward()']}"


def with_lines(graph: Graph, line: str) -> Graph:
    """The graph with this line where the recording saw one of the jobs' files."""
    files = {path.name for path in Path(__file__).parent.glob("*.py")}
    return _with_places(graph, lambda place: line if place.rpartition(":")[0] in files else place)


def _with_places(graph: Graph, place: Callable[[str], str]) -> Graph:
    """The graph with other lines: the visitor's, where the recording saw this file's."""
    transfers = tuple(replace(copy, where=place(copy.where)) for copy in graph.transfers)
    sources = {node.id: place(node.where) for node in graph.nodes}
    sent = tuple(replace(each, where=place(each.where)) for each in graph.collectives)
    cuts = tuple(replace(cut, where=place(cut.where)) for cut in graph.cuts)
    events = tuple(replace(event, where=place(event.where)) for event in graph.events)
    graph = replace(graph.annotate(where=sources), transfers=transfers, collectives=sent)
    return replace(graph, cuts=cuts, events=events)


def _play_expression(choice: Choice, device: torch.device, backward: bool) -> Run:
    program = parse(choice.program)
    inputs = parse_inputs(choice.inputs, choice.seed)
    idle = unused(program, inputs)
    notes = [f"The input {name} is not used." for name in idle]
    copies: dict[str, str] = {}
    if choice.device != "cpu" and not program.moves:
        program, copies = program.with_copies([name for name in inputs if name not in idle])
    lines = expression_script(program, choice.inputs, choice.device, choice.seed, True).lines
    with record() as recording:
        made = evaluate(program, inputs, device, lines=lines)
        output = made[program.output]
        scalar = output.numel() == 1
        script = expression_script(program, choice.inputs, choice.device, choice.seed, scalar)
        if not output.requires_grad:
            error = f"No gradient can flow from {program.output} to {', '.join(inputs)}."
            return Run(None, error, " ".join(notes), script.shown, script.text)
        named = {**inputs, **made}
        before = trace(output, names=named)
        places = _places(script, named, output)
        if backward:
            torch.autograd.backward(output, None if scalar else torch.ones_like(output))
        graph = recording.graph
    # The recording saw the names of this function: a reader wants those of the script.
    ids = dict(zip(sorted(graph.reached()), (node.id for node in before.nodes), strict=True))
    own = {node.id: _own(node.label) for node in graph.nodes}
    labels = own | {node: before.nodes[same].label for node, same in ids.items()}
    where = {node: script.place(label) for node, label in labels.items()}
    where |= {node: places[same] for node, same in ids.items() if same in places}
    calls = {node.id: node.call.rpartition("/")[2] for node in graph.nodes}  # none of the app's own
    graph = graph.annotate(label=labels, where=where, call=calls)
    transfers = tuple(
        replace(
            copy,
            where="" if copy.node is None else where[copy.node],
            label=copy.label if copy.label in inputs else "",
        )
        for copy in graph.transfers
    )
    parameters = tuple(replace(each, name=_own(each.name)) for each in graph.parameters)
    graph = replace(graph, transfers=transfers, parameters=parameters)
    graph = _with_places(graph, lambda place: place if place.startswith("script.py:") else "")
    if not scalar:
        shape = list(output.shape)
        notes.append(f"{program.output} has shape {shape}: backward starts from ones.")
    ours = {node for node, label in labels.items() if label in copies}
    judged = opened(graph, frozenset(ours))
    return Run(judged, "", " ".join(notes), script.shown, script.text)


def _own(label: str) -> str:
    """A name as the visitor wrote it."""
    return label.removeprefix("inputs.").removeprefix("made.").removeprefix("named.")


def _places(script: Script, named: dict[str, Tensor], output: Tensor) -> dict[int, str]:
    """For each node of the graph of `output`, the script's line that made it."""
    ids = {fn: position for position, fn in enumerate(iter_grad_fns(output))}
    places: dict[int, str] = {}
    for name, tensor in named.items():
        for fn in iter_grad_fns(tensor) if tensor.requires_grad else []:
            if fn in ids:
                places.setdefault(ids[fn], script.place(name))
    return places
