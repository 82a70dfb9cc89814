"""Jobs that run and record forward and backward of a model or program that a visitor chose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from graphviz_torch import Graph, find, record, trace
from graphviz_torch.export import view_payload
from graphviz_torch.tracing import iter_grad_fns

from ..expression.evaluation import check_shapes, evaluate, parse_inputs
from ..expression.grammar import ExpressionError, parse, unread_names
from ..expression.script import ScriptText, expression_script, model_script
from ..models import gallery
from . import devices
from .values import Choice, OpenedGraph, Run


def warm_up() -> None:
    """Run a small forward, so that torch's lazy imports do not delay each later job.

    Backward does not run, because on a CUDA build it starts threads, which do not survive a fork.
    """
    play(Choice("expression", "sim1", program="x", inputs="x = 1"), backward=False)


def import_compiler() -> None:
    """Import PyTorch's compiler, which optimizers and programs with large results need.

    The import takes a second.
    """
    check_shapes(parse("x ** 2"), parse_inputs("x = 1"))


def open_graph(graph: Graph, hidden: frozenset[int] = frozenset()) -> OpenedGraph:
    """Return the graph with its findings and the data of the interactive view.

    Args:
        graph: a graph.
        hidden: nodes of copies that the app has added. Findings that are only about these nodes are
            left out.
    """
    findings = tuple(
        finding
        for finding in find(graph)
        if not (finding.transfers and finding.nodes and hidden.issuperset(finding.nodes))
    )
    return OpenedGraph(graph, findings, view_payload(graph, findings))


def open_own_recording(graph: Graph) -> OpenedGraph:
    """Open a graph that a job recorded, without source lines in the app's own files."""
    files = {path.name for path in Path(__file__).parent.glob("*.py")}
    return open_graph(
        _with_places(graph, lambda place: "" if place.rpartition(":")[0] in files else place)
    )


def build(
    name: str, found: Sequence[torch.device], seed: int
) -> tuple[nn.Module, Callable[[], Tensor]]:
    """Return a model of the gallery on the given devices, and a function that computes its loss."""
    torch.manual_seed(seed)
    made: tuple[nn.Module, Callable[[], Tensor]] = gallery.module(name).build(found)
    return made


def play(choice: Choice, backward: bool) -> Run:
    """Run and record the forward of a choice, and its backward if requested."""
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
                graph = recording.graph  # read before the output is freed
    # If the model raises an error, the page shows the error, and the graph up to it.
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    try:
        graph = graph or recording.graph
    except ValueError as nothing:
        error = error or str(nothing)
    if graph is not None:
        graph = with_lines(graph, backward_line(chosen, choice))
    made = None if graph is None else open_graph(graph)
    return Run(made, error, "", script.page_lines, script.text)


def backward_line(model: gallery.Model, choice: Choice) -> str:
    """Return the line that calls backward in a model's script, such as "mlp.py:41"."""
    script = model_script(model.code, choice.device, choice.seed)
    return f"{model.name}.py:{script.lines['output.backward()']}"


def with_lines(graph: Graph, line: str) -> Graph:
    """Return the graph with `line` instead of source lines in the app's own files."""
    files = {path.name for path in Path(__file__).parent.glob("*.py")}
    return _with_places(graph, lambda place: line if place.rpartition(":")[0] in files else place)


def _with_places(graph: Graph, place: Callable[[str], str]) -> Graph:
    """Return the graph with `place(line)` instead of each source line."""
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
    idle = unread_names(program, inputs)
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
            return Run(None, error, " ".join(notes), script.page_lines, script.text)
        named = {**inputs, **made}
        before = trace(output, names=named)
        places = _places(script, named, output)
        if backward:
            torch.autograd.backward(output, None if scalar else torch.ones_like(output))
        graph = recording.graph
    # Replace the names of this function's variables with the names in the script.
    ids = dict(zip(sorted(graph.reached()), (node.id for node in before.nodes), strict=True))
    own = {node.id: _visitor_name(node.label) for node in graph.nodes}
    labels = own | {node: before.nodes[same].label for node, same in ids.items()}
    where = {node: script.place(label) for node, label in labels.items()}
    where |= {node: places[same] for node, same in ids.items() if same in places}
    # Drop the app's own frames from the call stacks.
    calls = {node.id: node.call.rpartition("/")[2] for node in graph.nodes}
    graph = graph.annotate(label=labels, where=where, call=calls)
    transfers = tuple(
        replace(
            copy,
            where="" if copy.node is None else where[copy.node],
            label=copy.label if copy.label in inputs else "",
        )
        for copy in graph.transfers
    )
    parameters = tuple(replace(each, name=_visitor_name(each.name)) for each in graph.parameters)
    graph = replace(graph, transfers=transfers, parameters=parameters)
    graph = _with_places(graph, lambda place: place if place.startswith("script.py:") else "")
    if not scalar:
        shape = list(output.shape)
        notes.append(f"{program.output} has shape {shape}: backward starts from ones.")
    added = {node for node, label in labels.items() if label in copies}
    shown = open_graph(graph, frozenset(added))
    return Run(shown, "", " ".join(notes), script.page_lines, script.text)


def _visitor_name(label: str) -> str:
    """Return a variable's name as the visitor wrote it: "x" for the label "inputs.x"."""
    return label.removeprefix("inputs.").removeprefix("made.").removeprefix("named.")


def _places(script: ScriptText, named: dict[str, Tensor], output: Tensor) -> dict[int, str]:
    """Return the line of the script that created each node of the graph of `output`.

    Args:
        script: the script of the program.
        named: the tensors that the program assigns, by name.
        output: the output of the program.
    """
    ids = {fn: position for position, fn in enumerate(iter_grad_fns(output))}
    places: dict[int, str] = {}
    for name, tensor in named.items():
        for fn in iter_grad_fns(tensor) if tensor.requires_grad else []:
            if fn in ids:
                places.setdefault(ids[fn], script.place(name))
    return places
