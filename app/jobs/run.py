"""What runs in a job's process: the forward and the backward of what a visitor chose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from app import gallery
from app.expression.expression import ExpressionError, evaluate, parse, parse_inputs, unused
from app.expression.script import Script, expression_script, model_script
from app.jobs import choices as devices
from graphviz_torch import Graph, record, trace, walk

Source = Literal["expression", "model"]


@dataclass(frozen=True)
class Choice:
    """What a visitor chose to run: plain values, compared to see whether anything changed."""

    source: Source
    device: str  # one of app.devices.choices()
    seed: int = 0
    program: str = ""
    inputs: str = ""
    model: str = ""  # one of app.gallery.NAMES


@dataclass(frozen=True)
class Run:
    """What came of it. After a failure `graph` goes as far as the run did."""

    graph: Graph | None
    error: str = ""  # "RuntimeError: ...", "" where all went well
    note: str = ""  # what a reader must know
    script: str = ""  # the same as a script to copy


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
    model, loss = chosen.build(found, choice.seed)
    error = ""
    recording = record(model)
    try:
        with recording:
            output = loss()
            if backward:
                torch.autograd.backward(output)
    # The model's own failure, to be shown in place, with the graph up to it.
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    try:
        graph = recording.graph
    except ValueError as nothing:
        graph, error = None, error or str(nothing)
    return Run(graph, error, script=model_script(chosen.code, choice.device, choice.seed))


def _play_expression(choice: Choice, device: torch.device, backward: bool) -> Run:
    program = parse(choice.program)
    inputs = parse_inputs(choice.inputs, choice.seed)
    notes = [f"The input {name} is not used." for name in unused(program, inputs)]
    with record() as recording:
        moved = dict(inputs)
        if choice.device != "cpu":
            moved = {name: tensor.to(device) for name, tensor in inputs.items()}
        made = evaluate(program, moved)
        output = made[program.output]
        scalar = output.numel() == 1
        script = expression_script(program, choice.inputs, choice.device, choice.seed, scalar)
        if not output.requires_grad:
            error = f"No gradient can flow from {program.output} to {', '.join(inputs)}."
            return Run(None, error, " ".join(notes), script.text)
        before = trace(output, names={**inputs, **made})
        there = {f"{name}_there": tensor for name, tensor in moved.items()}
        places = _places(script, {**inputs, **there, **made}, output)
        if backward:
            torch.autograd.backward(output, None if scalar else torch.ones_like(output))
    graph = recording.graph if backward else before
    # The recording saw this file's names and lines; a reader wants those of the script.
    graph = graph.annotate(label={node.id: node.label for node in before.nodes}, source=places)
    # Each copy belongs to the node of `x_there = x.to(device)`, so that line gives its name.
    sources = {script.place(f"{name}_there"): name for name in inputs}
    transfers = tuple(
        replace(transfer, where=place, label=sources.get(place, ""))
        for transfer in graph.transfers
        for place in ["" if transfer.node is None else places.get(transfer.node, "")]
    )
    if not scalar:
        shape = list(output.shape)
        notes.append(f"{program.output} has shape {shape}: backward starts from ones.")
    return Run(replace(graph, transfers=transfers), note=" ".join(notes), script=script.text)


def _places(script: Script, named: dict[str, Tensor], output: Tensor) -> dict[int, str]:
    """For each node of the graph of `output`, the script's line that made it."""
    ids = {fn: position for position, fn in enumerate(walk(output))}
    places: dict[int, str] = {}
    for name, tensor in named.items():
        for fn in walk(tensor) if tensor.requires_grad else []:
            if fn in ids:
                places.setdefault(ids[fn], script.place(name))
    return places
