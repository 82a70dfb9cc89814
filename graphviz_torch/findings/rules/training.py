"""The life of a gradient: cleared, clipped and stepped with at the right time."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Event, Finding
from ...graph.text import listing
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at, times


@rule()
def uncleared_gradient(reading: Reading) -> Iterator[Finding]:
    """An optimizer stepped again with gradients that it had stepped with before: nothing cleared
    them in between."""
    line = reading.graph.step.stale_gradients
    if line:
        yield finding(
            "warning",
            f"The optimizer's step at {line} used the gradients of an earlier step again: they "
            "were not cleared in between.",
            cause="gradients not cleared",
            advice="Call optimizer.zero_grad() before backward() runs for the next step.",
            where=line,
        )


@rule(reads="end")
def lost_gradient(reading: Reading) -> Iterator[Finding]:
    """Gradients were cleared before any optimizer had stepped with them."""
    steps = sum(event.times for event in reading.events("step"))
    cleared = reading.events("clear")
    whole = any(event.operation != "backward" for event in cleared)
    for event in cleared:
        if event.operation == "backward":
            if steps and not whole:
                yield finding(
                    "warning",
                    f"What backward{at(event.where)} adds to the gradients is cleared before any "
                    f"step uses it{times(event)}.",
                    cause="gradients cleared before the step",
                    advice="Run this backward before the optimizer's step, or add its loss to the "
                    "other one.",
                    where=event.where,
                )
            continue
        # Without a step at all, an optimizer's zero_grad() tells that there should be one.
        few = event.times < steps if steps else event.times < 2 or not event.operation
        if few and not (steps and event.operation):
            continue
        call = f"{event.operation}.zero_grad()" if event.operation else "zero_grad()"
        yield finding(
            "info" if few else "warning",  # what an epoch leaves over may be dropped on purpose
            f"{call}{at(event.where)} cleared gradients that no step had used{times(event)}"
            f"{'' if steps else ', and no optimizer ever stepped'}.",
            cause="gradients cleared before the step",
            advice="To add up the gradients of several batches, call zero_grad() once for each "
            "step(), right after it."
            if steps
            else "Call optimizer.step() after backward().",
            where=event.where,
        )


@rule(reads="end")
def clipped_in_vain(reading: Reading) -> Iterator[Finding]:
    """Gradients were clipped after the step that used them, before backward made them, or while
    they were still multiplied by the loss scale."""
    in_time = {event.where for event in reading.events("clip") if event.detail == "in time"}
    early = {event.where for event in reading.events("clip") if event.detail == "nothing"}
    for event in reading.events("clip"):
        found = _CLIPPED.get(event.detail)
        if found is None or (event.detail == "nothing" and event.where in in_time):
            continue
        if event.detail == "after the step" and event.where in early:
            continue  # in the next round what is too early comes after a step
        yield finding(
            "warning",
            f"{event.operation}(){at(event.where)} {found[0]}.",
            cause=f"clipped {event.detail}" if event.detail != "nothing" else "clipped too early",
            advice=found[1],
            where=event.where,
        )


_CLIPPED = {
    "after the step": (
        "clips gradients after the step that used them, and so changes nothing",
        "Clip between backward() and optimizer.step().",
    ),
    "while scaled": (
        "clips gradients while they are multiplied by the loss scale, and so clips far too much",
        "Call scaler.unscale_(optimizer) before clipping.",
    ),
    "nothing": (
        "found no gradient to clip: backward runs later",
        "Clip between backward() and optimizer.step().",
    ),
}


@rule()
def optimizer_never_stepped(reading: Reading) -> Iterator[Finding]:
    """A backward gives gradients to the parameters of an optimizer that never steps, while another
    one does."""
    for event in reading.events("backward"):
        yield finding(
            "warning",
            f"backward{at(event.where)} gives {_names(event)} a gradient, but the optimizer that "
            "holds them never stepped.",
            cause="an optimizer never steps",
            advice="Call step() of that optimizer after this backward.",
            where=event.where,
            nodes=event.nodes,
        )


@rule(reads="end")
def scheduler_stepped_first(reading: Reading) -> Iterator[Finding]:
    """A learning rate scheduler stepped before its optimizer had stepped once."""
    for event in reading.events("schedule"):
        yield finding(
            "warning",
            f"{event.label}.step(){at(event.where)} ran before {event.detail} had stepped once: "
            "the first learning rate of the schedule is never used.",
            cause="scheduler stepped first",
            advice=f"Call {event.label}.step() after the optimizer's step().",
            where=event.where,
        )


def _names(event: Event) -> str:
    return listing(event.label.split(", "), last=", ")
