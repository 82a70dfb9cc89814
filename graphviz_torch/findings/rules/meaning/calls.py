"""Calls that do not do what they are for."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Finding
from ....graph.events import IdleCall, IdleKind
from ....graph.units import bytes_text
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at


def _idle(reading: Reading, what: IdleKind) -> list[IdleCall]:
    return [event for event in reading.events(IdleCall) if event.what == what]


@rule(reads="end", of=(IdleCall,))
def dropout_in_evaluation(reading: Reading) -> Iterator[Finding]:
    """A function drops values while the model is in eval mode, as it does in train mode."""
    for event in _idle(reading, "dropout"):
        attention = event.name == "scaled_dot_product_attention"
        passed = "dropout_p=p if self.training else 0.0" if attention else "training=self.training"
        yield finding(
            "warning",
            f"{event.name}(){at(event.where)} drops values in eval mode, too: its dropout does not "
            "go by the mode of the model.",
            cause="dropout in eval mode",
            advice=f"Pass {passed}"
            + ("." if attention else ", or make an nn.Dropout in __init__."),
            where=event.where,
        )


@rule(reads="end", of=(IdleCall,))
def graph_kept_for_nothing(reading: Reading) -> Iterator[Finding]:
    """A backward keeps its graph with retain_graph or create_graph, and no other one runs through
    it."""
    kept = sum(saved.nbytes for node in reading.graph.nodes for saved in node.saved)
    for event in _idle(reading, "graph"):
        memory = f": {bytes_text(kept)} are kept until the next one" if kept else ""
        yield finding(
            "info",
            f"backward{at(event.where)} keeps its graph (retain_graph or create_graph) "
            f"{event.count} times, and nothing runs through it again{memory}.",
            cause="a graph kept for nothing",
            advice="Leave out retain_graph=True.",
            where=event.where,
        )


@rule(reads="end", of=(IdleCall,))
def scheduler_steps(reading: Reading) -> Iterator[Finding]:
    """A scheduler steps more often than its optimizer, or goes on past its end, where the rate of a
    cosine rises again."""
    for event in _idle(reading, "scheduler"):
        yield finding(
            "warning",
            f"{event.name} stepped {event.count} times{at(event.where)}, while "
            f"{event.optimizer} stepped {event.among} times: the rate changes faster than the "
            "schedule was made for.",
            cause="a scheduler steps more often than its optimizer",
            advice=f"Call {event.name}.step() once for each step of the optimizer, or once for "
            "each epoch.",
            where=event.where,
        )
    for event in _idle(reading, "past the end"):
        yield finding(
            "info",
            f"{event.name}{at(event.where)} is past its end: T_max is {event.among}, "
            f"and after {event.count} steps the rate of {event.optimizer} rises again.",
            cause="a scheduler past its end",
            advice="Make T_max the number of steps that the scheduler will take.",
            where=event.where,
        )


@rule(reads="end", of=(IdleCall,))
def optimizer_made_anew(reading: Reading) -> Iterator[Finding]:
    """An optimizer that keeps moments is made anew for each step, and loses them."""
    for event in _idle(reading, "optimizer"):
        yield finding(
            "warning",
            f"{event.name}, which steps{at(event.where)}, was made anew for each of {event.count} "
            "steps: its moments begin at zero each time.",
            cause="an optimizer made anew",
            advice="Make the optimizer once, before the loop.",
            where=event.where,
        )


@rule(reads="end", of=(IdleCall,))
def empty_group(reading: Reading) -> Iterator[Finding]:
    """A group of an optimizer has no parameters: its options apply to nothing."""
    for event in _idle(reading, "group"):
        yield finding(
            "info",
            f"Group {event.count} of the {event.among} groups of {event.name}, which steps"
            f"{at(event.where)}, is empty: no parameter fitted it, and its options apply to "
            "nothing.",
            cause="an empty group",
            advice="Compare the names by which parameters are picked with "
            "dict(model.named_parameters()).",
            where=event.where,
        )
