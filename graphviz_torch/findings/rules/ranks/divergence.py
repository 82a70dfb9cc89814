"""Find parameters and buffers whose replicas differ between ranks, and the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....graph import Graph, Replica, Severity
from ....graph.events import GradientClip, OptimizerStep
from ....graph.immutable import NamedTuple, immutable
from ....graph.text import listing
from ...graph_reading import REDUCING, averages
from ...words import at
from .averages import DdpUnusedParameter, WrapperBypass


@immutable(slots=False)
class DivergedReplica:
    """A parameter or buffer that differs between ranks when the last step ends."""

    name: str
    # Class that keeps the copies equal, such as "DistributedDataParallel"; "" if there is none.
    wrapper: str
    since: str  # "step 2"; "" if the ranks never had equal values
    # True if the ranks' values also differed in an earlier step, and were equal in between.
    diverged_before: bool


def find_diverged(graphs: Sequence[Graph], kind: str) -> Iterator[DivergedReplica]:
    """Yield the parameters or buffers that differ between ranks at the end of the recording.

    Copies on a group of ranks are compared if the graphs of all these ranks are given. If the
    graphs have checksums of different steps, nothing is compared.

    Args:
        graphs: one for each rank, rank 0 first.
        kind: "parameter" or "buffer".
    """
    steps = {graph.step.checksum_steps for graph in graphs}
    if len(graphs) < 2 or len(steps) > 1:
        return
    [summed] = steps
    groups: dict[tuple[str, tuple[int, ...]], list[Replica]] = {}
    for rank, graph in enumerate(graphs):
        for each in graph.step.replicas:
            if each.kind == kind and rank in each.ranks:
                groups.setdefault((each.name, each.ranks), []).append(each)
    reported: set[str] = set()
    for (name, ranks), copies in groups.items():
        if len(copies) < len(ranks) or name in reported:
            continue
        rows = zip(*(each.checksums for each in copies), strict=True)
        differ = [None not in row and len(set(row)) > 1 for row in rows]
        if differ and differ[-1]:
            reported.add(name)
            first = len(differ) - differ[::-1].index(False) if False in differ else 0
            since = _step(summed, first) if first else ""
            yield DivergedReplica(name, copies[0].wrapper, since, any(differ[:first]))


def _step(summed: Sequence[int], at: int) -> str:
    """Return a phrase that names the step at whose end the checksums differed first.

    Args:
        summed: steps that have checksums.
        at: index in `summed` of the first step with different checksums.
    """
    before, step = summed[at - 1], summed[at]
    if at > 1 and step > before + 1:
        return f"a step after step {before}, at the latest step {step}"
    return f"step {step}"


_DDP = "DistributedDataParallel"


class DivergenceReason(NamedTuple):
    """The likely reason why a parameter differs between ranks, with texts of the finding."""

    severity: Severity
    text: str  # follows "differ between the ranks since step 2"
    advice: str
    where: str
    cause: str


def own_modules(graphs: Sequence[Graph], different: Sequence[str]) -> set[str]:
    """Return the paths of modules that probably differ between ranks on purpose, such as experts.

    In such a module, some parameters differ from the start, and no gradient is averaged. Other
    parameters, such as biases of zeros and norms of ones, are equal only at the start.

    Args:
        graphs: one for each rank.
        different: names of parameters whose values were never equal on all ranks, or, if the ranks
            exchange tokens, of all parameters whose values differ.
    """
    averaged = {
        path for each in map(averages, graphs) for name in each for path in modules_around(name)
    }
    return {path for name in different for path in modules_around(name)} - averaged


def modules_around(name: str) -> list[str]:
    """Return the paths of the modules around a parameter: "a" and "a.b" for "a.b.weight"."""
    parts = name.split(".")[:-1]
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def has_other_reason(graph: Graph) -> bool:
    """Return True if another rule reports why the ranks of this graph diverged."""
    ends = WrapperBypass, DdpUnusedParameter
    return graph.failure is not None or any(isinstance(event, ends) for event in graph.events)


def reason_for_divergence(
    graphs: Sequence[Graph], found: DivergedReplica
) -> DivergenceReason | None:
    """Return the reason for which a parameter's replicas differ; None if it is meant."""
    reduced = [averages(graph) for graph in graphs]
    own = [each[found.name].where for each in reduced if found.name in each]
    if all(found.name in each for each in reduced):
        return _reason_after_average(graphs, f", although their gradients are averaged{at(own[0])}")
    if found.wrapper == "DTensor":
        return _reason_after_average(
            graphs, ", although these ranks have the same shard of a DTensor"
        )
    if any(found.name in each for each in reduced):
        return None  # reported as mismatched-collectives
    used = _first_use(graphs, found.name)
    if found.wrapper:
        return DivergenceReason(
            "error",
            f": {found.wrapper} wraps the model, but the gradients are not averaged",
            f"{_DDP} averages gradients only after its own forward and outside of no_sync(): "
            "call the wrapper, not its module, and run the last micro-batch outside of "
            "no_sync().",
            used,
            "not averaged",
        )
    if any(reduced):
        others = reduced[0] or next(filter(None, reduced))
        first = next(iter(others.values()))
        by_hand = first.phase != "backward"
        return DivergenceReason(
            "error",
            f": the gradients are not averaged, unlike those of {listing(others)}{at(first.where)}",
            "Average these gradients with the others."
            if by_hand
            else f"Wrap the model that contains the parameter in {_DDP}, too, or average the "
            "gradients by hand.",
            first.where if by_hand else used,
            "not averaged",
        )
    return _reason_without_average(graphs, found, used)


def _reason_without_average(
    graphs: Sequence[Graph], found: DivergedReplica, used: str
) -> DivergenceReason:
    """Return the likely reason for the divergence of a parameter whose gradient is not averaged.

    Args:
        graphs: one for each rank.
        found: the parameter.
        used: line at which the forward uses the parameter; "" if unknown.
    """
    sizes = {p.name: p.tensor.nbytes or 0 for p in graphs[0].parameters}
    sent = [c for c in graphs[0].collectives if c.kind in REDUCING and not c.parameters]
    by_hand = [c for c in sent if c.phase == "other"]
    if any(4 * each.nbytes >= sizes.get(found.name, 0) for each in by_hand):
        where = max(by_hand, key=lambda each: each.nbytes).where
        return DivergenceReason(
            "warning",
            f": the gradients are not averaged. The tensor that is reduced{at(where)} is not the "
            ".grad of a parameter, and is not written back to it",
            "Reduce parameter.grad itself, or copy the result into parameter.grad before the "
            "optimizer steps.",
            where,
            "not averaged",
        )
    others = [c.where for c in sent if c.phase == "backward"]
    if others:
        return DivergenceReason(
            "error",
            f": no {_DDP} wraps this model, although another {_DDP} averages "
            f"gradients{at(others[0])}",
            f"Wrap the model that contains the parameter in {_DDP}, too, or average the "
            "gradients by hand.",
            used,
            "not averaged",
        )
    return DivergenceReason(
        "info",
        ": they started with equal values, and no gradients are averaged",
        f"Wrap the model in {_DDP}, or average the gradients by hand. Do nothing if each rank "
        "should train its own model, or if weights are averaged now and then.",
        used,
        "not averaged",
    )


def _reason_after_average(graphs: Sequence[Graph], averaged: str) -> DivergenceReason:
    """Return the likely reason for the divergence of a parameter whose gradient is averaged."""
    steps = [[e for e in graph.events if isinstance(e, OptimizerStep)] for graph in graphs]
    lines = [step.where for row in steps for step in row]
    where = lines[0] if lines else ""
    rates = _different_rates([[step.learning_rates for step in row] for row in steps])
    if rates:
        return DivergenceReason(
            "error",
            f"{averaged}: the learning rate is {listing(rates)}",
            "Give the optimizer the same learning rate on every rank.",
            where,
            "different learning rates",
        )
    clips = [e.where for g in graphs for e in g.events if _clips_by_given_norm(e)]
    if clips:
        return DivergenceReason(
            "error",
            f"{averaged}: clip_grads_with_norm_(){at(clips[0])} clips by each rank's own norm",
            "Average the gradients first, and compute the norm of the average.",
            clips[0],
            "clipped by each rank's own norm",
        )
    return DivergenceReason(
        "error",
        averaged,
        "Look for code that only one rank runs between the average and the next step: loading "
        "weights or an optimizer state, skipping a step, or changing gradients.",
        where,
        "different weights on a rank",
    )


def _different_rates(rates: Sequence[Sequence[Sequence[float | None]]]) -> list[str]:
    """Return texts about the first two learning rates that differ between ranks; [] if none differ.

    Args:
        rates: `rates[i]` has the rates of rank i, by step and parameter group.
    """
    first, *others = [[rate for step in row for rate in step] for row in rates]
    for rank, row in enumerate(others, 1):
        for one, other in zip(first, row, strict=False):
            if one is not None and other is not None and one != other:
                return [f"{one:.6g} on rank 0", f"{other:.6g} on rank {rank}"]
    return []


def _clips_by_given_norm(event: object) -> bool:
    if not isinstance(event, GradientClip):
        return False
    return event.function == "clip_grads_with_norm_" and event.moment == "in time"


def _first_use(graphs: Sequence[Graph], name: str) -> str:
    """Return the line at which the forward uses a parameter; "" if unknown."""
    for graph in graphs:
        node = next((p.node for p in graph.parameters if p.name == name), None)
        for edge in graph.edges if node is not None else ():
            if edge.source == node and graph.nodes[edge.target].line:
                return graph.nodes[edge.target].line
    return ""
