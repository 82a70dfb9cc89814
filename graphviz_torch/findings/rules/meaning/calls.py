"""Calls that do not do what they are for, and groups of an optimizer that do not."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Finding
from ....graph.events import IdleCall, IdleKind, RepeatedBatch
from ....graph.text import listing
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


@rule(reads="end", of=(IdleCall,))
def decayed_norms(reading: Reading) -> Iterator[Finding]:
    """A group decays biases and weights of norms, while another group is there to not decay."""
    for event in _idle(reading, "decay"):
        names = listing(reading.call(node) for node in event.nodes)
        if event.nodes:
            yield finding(
                "info",
                f"Group {event.count} of the {event.among} groups of {event.name}, which steps"
                f"{at(event.where)}, decays {names} by {event.number:g}, while another group is "
                "there for biases and norms that are not to decay.",
                cause="biases and norms that decay",
                advice="Pick by the number of dimensions, p.ndim < 2, rather than by names.",
                where=event.where,
                nodes=event.nodes,
            )


@rule(reads="end", of=(IdleCall,))
def shared_by_optimizers(reading: Reading) -> Iterator[Finding]:
    """Two optimizers that step hold the same parameter: each of them changes it, by its own
    moments and rate."""
    for event in _idle(reading, "overlap"):
        # Under one name, as in a function that steps several, they cannot be told apart.
        if event.nodes and event.name != event.optimizer:
            yield finding(
                "info",
                f"{event.name}, which steps{at(event.where)}, and {event.optimizer} both hold "
                f"{listing(reading.call(node) for node in event.nodes)}: each of them changes it.",
                cause="a parameter of two optimizers",
                where=event.where,
                nodes=event.nodes,
            )


@rule(reads="end", of=(IdleCall,))
def rate_of_zero(reading: Reading) -> Iterator[Finding]:
    """All steps of an optimizer had a learning rate of 0: they change nothing."""
    for event in _idle(reading, "rate"):
        yield finding(
            "warning",
            f"{event.name} stepped{at(event.where)} with a learning rate of 0, in each of "
            f"{event.count} steps: they change nothing.",
            cause="a learning rate of 0",
            advice=f"Look at what sets the lr of {event.name}: a schedule that is past its end, or "
            "counts epochs where it is stepped by batches.",
            where=event.where,
        )


@rule(reads="end", of=(IdleCall,))
def optimizer_epsilon(reading: Reading) -> Iterator[Finding]:
    """The eps of an optimizer is 0 in float16: where a gradient was 0, its step divides by 0."""
    for event in _idle(reading, "epsilon"):
        yield finding(
            "warning",
            f"The eps of {event.name}, which steps{at(event.where)}, is {event.number:g}: in "
            "float16 that is 0, and a step divides by 0 where the gradients were 0.",
            cause="a number that float16 does not have",
            advice="Keep the parameters in float32 and compute under torch.autocast; or pass "
            "eps=1e-4.",
            where=event.where,
            nodes=event.nodes,
        )


@rule(reads="end", of=(IdleCall,))
def scheduler_without_steps(reading: Reading) -> Iterator[Finding]:
    """A scheduler steps, and the optimizer that it was made for never does."""
    for event in _idle(reading, "lone scheduler"):
        yield finding(
            "warning",
            f"{event.name} stepped {event.count} times{at(event.where)}, and the optimizer that it "
            "was made for never: its rates are used by nothing.",
            cause="a scheduler of an optimizer that never steps",
            advice="Make the scheduler after the optimizer that steps, and for that one.",
            where=event.where,
        )


@rule(reads="end", of=(IdleCall,))
def clip_bound(reading: Reading) -> Iterator[Finding]:
    """Clipping shortens each gradient to a small part of it, so that its length says nothing any
    more; or its bound is far above all of them."""
    for event in _idle(reading, "low bound"):
        yield finding(
            "info",
            f"{event.name}(){at(event.where)} shortened each of {event.count} gradients, to "
            f"{event.number:.2g} of their norm in the median: each then has the norm of the bound.",
            cause="a bound that is always reached",
            advice="Raise max_norm to about the norm that most gradients have, if it is to stop "
            "those alone that are far larger.",
            where=event.where,
        )
    for event in _idle(reading, "high bound"):
        yield finding(
            "info",
            f"{event.name}(){at(event.where)} shortened none of {event.count} gradients: its bound "
            f"is {event.number:.2g} times their norm in the median.",
            cause="a bound that is never reached",
            where=event.where,
        )


@rule(reads="end", of=(IdleCall,))
def called_for_each_sample(reading: Reading) -> Iterator[Finding]:
    """A module is called once for each sample of a batch, on one slice of a tensor after the
    other."""
    for event in _idle(reading, "samples"):
        yield finding(
            "info",
            f"{event.name} ran {event.count} times{at(event.where)}, on one slice after the other "
            "of the same tensor: one call for all of them does the same work in less time.",
            cause="a call for each sample",
            advice="Call it once, on the whole tensor: dimension 0 is the batch.",
            where=event.where,
        )


@rule(reads="end", of=(RepeatedBatch,))
def repeated_batch(reading: Reading) -> Iterator[Finding]:
    """A DataLoader gives batches that were there before: its workers make the same ones, or each
    step takes the first of a new pass."""
    for event in reading.events(RepeatedBatch):
        if event.what == "first":
            text = (
                f"Each step begins a new pass through the DataLoader{at(event.where)} and takes "
                f"the first batch, which was the same in {event.count} steps: the other samples "
                "are never seen."
            )
            cause = "a new pass for each step"
            advice = "Loop over it, for batch in loader; or keep one iter(loader), and make a new "
            advice += "one at its end."
        else:
            text = (
                f"{event.count} of {event.among} batches of the DataLoader{at(event.where)} are "
                f"equal to one that another of its {event.workers} workers had just given."
            )
            cause, advice = _WORKERS[event.what]
        yield finding("warning", text, cause=cause, advice=advice, where=event.where)


_WORKERS = {
    "stream": (
        "workers that each go through all of the data",
        "Let each worker yield a part of it, by torch.utils.data.get_worker_info() in __iter__.",
    ),
    "workers": (
        "workers that draw the same numbers",
        "Draw by torch, which each worker seeds for itself; or seed what draws in worker_init_fn, "
        "by torch.initial_seed().",
    ),
}
