"""Gradient paths: parameters that a gradient does not reach, or that nothing updates, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..graph import Cut, Finding, Parameter, Severity
from .rule import Reading, at, finding, grouped, listing, names_of, nodes_of, rule

_MODES = ("no_grad", "inference_mode")
_NUMBERS = ("item", "float", "int", "bool", "complex", "index")
_READS = (*_NUMBERS, "tolist", "numpy", "array", "tensor")
_INDICES = ("topk", "max", "min", "sort", "kthvalue", "median", "mode", "msort", "cummax", "cummin")
_WORDS = {
    "data": ".data",
    "no_grad": "torch.no_grad()",
    "inference_mode": "torch.inference_mode()",
    "tensor": "torch.tensor()",
    "grad": "autograd.grad",
    **dict.fromkeys(("to", "type", "long", "short", "char", "byte"), "an integer cast"),
    **dict.fromkeys(("gt", "ge", "lt", "le", "eq", "ne"), "a comparison"),
}
_ADVICE = {
    "detach": "Remove the detach(){at}; if it is meant, freeze {names} with requires_grad_(False).",
    "detach_": "Remove the detach_(){at}: it is for good, for all who have that tensor.",
    "data": "Use the tensor itself instead of .data{at}.",
    "no_grad": "Move the computation{at} out of torch.no_grad().",
    "inference_mode": "Move the computation{at} out of torch.inference_mode().",
    "item": "Keep the tensor instead of the number that item() gives{at}; if that is only logged, "
    "the loss does not use what it was read of.",
    "tolist": "Keep the tensor instead of the list that tolist() gives{at}.",
    "float": "Keep the tensor instead of the number that float() gives{at}.",
    "tensor": "Use the tensor itself: torch.tensor() copies its values{at}.",
    "grad": "Pass create_graph=True to autograd.grad{at}: else what it gives has no history.",
    **{
        how: f"Only the indices of {how}() are used{{at}}, which have no gradient: use its values."
        for how in _INDICES
    },
    **dict.fromkeys(("numpy", "array"), "Compute with torch instead of NumPy{at}."),
}
_DISCRETE = (
    "Replace {how}{at} with something differentiable (softmax, a soft mask): it has no gradient."
)


@rule()
def never_called(reading: Reading) -> Iterator[Finding]:
    """A parameter got no gradient because the forward of its module never ran."""
    lost = [p for p in _without_gradient(reading) if p.module_called is False and p.node is None]
    alive = _around_all(p for p in reading.graph.parameters if p.module_called is not False)
    choices = _choices(reading)
    passed_over: list[tuple[str, tuple[str, list[Parameter]]]] = []
    for module, parameters in grouped((_outermost(_module(p), alive), p) for p in lost):
        if module in choices:
            passed_over.append((choices[module], (module, parameters)))
            continue
        name = module or "the model"
        yield finding(
            _severity(parameters),
            f"{names_of(parameters)} got no gradient: {name} was never called.",
            cause="never called",
            advice=f"Call {name} in forward, or remove it.",
        )
    for one_called, group in grouped(passed_over):
        modules = listing(module for module, _ in group)
        yield finding(
            "info",
            f"{names_of([p for _, parameters in group for p in parameters])} got no gradient: "
            f"{modules} {'was' if len(group) == 1 else 'were'} not called, while {one_called} was.",
            cause="not called this time",
            advice="Nothing, if forward chooses among them (experts, dropped layers); else call "
            f"{modules} too.",
        )


@rule()
def cut_gradient(reading: Reading) -> Iterator[Finding]:
    """A parameter got no gradient because its way to the loss was cut: by detach, .data, no_grad,
    item, numpy, an integer cast, argmax and the like."""
    places = {p.name: place for place, p in enumerate(reading.graph.parameters)}
    for cut, found in grouped(_explained(reading)):
        parameters = sorted(found, key=lambda p: places[p.name])
        how = _WORDS.get(cut.how, f"{cut.how}()")
        names, line = names_of(parameters), at(cut.where)
        what = cut.label or (f"a result in {cut.module}" if cut.module else "a result")
        happened = f"{what} was cut by"
        if _ran_inside(cut, {p.node for p in parameters}):
            happened = f"{_around(parameters)} ran under"
        before = [] if cut.before is None else [cut.before]
        severity = _severity(parameters, "error" if reading.blocked else _meant(cut, parameters))
        why = ", probably because" if cut.before is None else ":"
        yield finding(
            severity,
            f"{names} got no gradient{why} {happened} {how}{line}.",
            cause=f"cut by {how}",
            advice=_advice(cut, severity).format(at=line, names=names, how=how),
            where=cut.where,
            nodes=tuple(dict.fromkeys((*nodes_of(parameters), *before, *cut.after))),
        )


@rule()
def unused_result(reading: Reading) -> Iterator[Finding]:
    """A parameter got no gradient although its module ran, and nothing cut the way: its result was
    not part of what backward ran on."""
    if reading.graph.failure is not None:
        return  # there was no loss to be part of
    explained = {p.name for _, p in _explained(reading)}
    ran = [
        p for p in _without_gradient(reading) if p.module_called is not False or p.node is not None
    ]
    lost = [p for p in ran if p.name not in explained and p.node not in reading.dropped]
    alive = _around_all(p for p in reading.graph.parameters if p.name in reading.received)
    for module, parameters in grouped((_outermost(_module(p), alive), p) for p in lost):
        names, name = names_of(parameters), module or "the model"
        why = f"{name} ran, but backward did not come by it"
        advice = (
            f"Use what {name} returns in the loss, as a tensor (an array or a number has no "
            "gradient), or do not call it."
        )
        if any(p.module_called is None and p.node is None for p in parameters):
            why = "what torch.compile made of the model does not use it, or cuts its gradient"
            advice = "Record the model uncompiled: inside a compiled region nothing is seen."
        elif not module and module in alive:
            them = "it" if len(parameters) == 1 else "them"
            why = f"what backward ran on does not depend on {them}"
            advice = (
                f"Use {names} in forward, or what is computed with it in the loss; else remove it."
            )
        elif module in alive:
            why = f"the rest of {name} did, but what backward ran on does not depend on this"
            advice = f"Use {names} in the forward of {name}, or remove what is not used."
        yield finding(
            _severity(parameters),
            f"{names} got no gradient: {why}.",
            cause="result not used",
            advice=advice,
            nodes=nodes_of(parameters),
        )


@rule()
def frozen(reading: Reading) -> Iterator[Finding]:
    """Parameters get no gradient because requires_grad is False."""
    still = [p for p in reading.graph.parameters if not p.requires_grad]
    if still:
        yield finding(
            "info",
            f"{names_of(still)} {'is' if len(still) == 1 else 'are'} frozen: requires_grad is "
            "False.",
            cause="frozen",
            advice="Call requires_grad_(True) on what should learn.",
            nodes=nodes_of(still),
        )


@rule()
def not_in_optimizer(reading: Reading) -> Iterator[Finding]:
    """A parameter gets a gradient, but no optimizer holds it."""
    idle = [
        p
        for p in reading.graph.parameters
        if p.requires_grad
        and p.stepped is False
        and p.name in reading.received
        and not p.in_optimizer
    ]
    if idle and reading.graph.failure is None:
        names = names_of(idle)
        yield finding(
            "warning",
            f"{names} got a gradient, but no optimizer holds {'it' if len(idle) == 1 else 'them'}.",
            cause="not in the optimizer",
            advice="Pass model.parameters() to the optimizer after the model is complete, or "
            f"freeze {names} with requires_grad_(False) to save the work.",
            nodes=nodes_of(idle),
        )


def _without_gradient(reading: Reading) -> list[Parameter]:
    if not reading.backward_ran:
        return []
    known = reading.received | reading.unasked
    return [
        p
        for p in reading.graph.parameters
        if p.requires_grad
        and p.name not in known
        and not (reading.stopped and (p.module_called is not False or p.node is not None))
    ]


def _explained(reading: Reading) -> Iterator[tuple[Cut, Parameter]]:
    """Each parameter whose way was cut, with the cut."""
    lost = [
        p
        for p in _without_gradient(reading)
        if (p.module_called is not False or p.node is not None) and p.node not in reading.dropped
    ]
    owned = {p.node for p in lost}
    firsts: dict[tuple[str, str], Cut] = {}
    seen: set[int] = set()
    for cut in _by_likelihood(reading):
        if not lost:
            return
        behind = _upstream(reading, cut.before, seen)
        whole = _ran_inside(cut, owned)
        explained = [
            p
            for p in lost
            if p.node in behind
            or (p.node is None and whole and _module(p) == cut.module)
            or (cut.before is None and _may_concern(cut, p))
        ]
        lost = [p for p in lost if p not in explained]
        # A network that ran in one such block, or a loop over one line, is one finding.
        first = firsts.setdefault((cut.how, "" if whole else cut.where or str(id(cut))), cut)
        yield from ((first, parameter) for parameter in explained)


def _by_likelihood(reading: Reading) -> list[Cut]:
    """The cuts that may be a cause, the likeliest first.

    What is known to be on the way comes before what may be. A gradient that comes from the loss
    meets the last cut first. A number is mostly read to be logged, and what has no gradient by its
    nature (an index, a draw, a comparison) mostly stands beside the way.
    """
    nodes = reading.graph.nodes

    def unlikely(place: int, cut: Cut) -> tuple[bool, bool, bool, bool, int]:
        came_back = any(not reading.ran or nodes[i].order is not None for i in cut.after)
        by_nature = cut.how not in _ADVICE
        return cut.before is None, not came_back, cut.how in _NUMBERS, by_nature, -place

    known = enumerate(_that_matter(reading))
    return [cut for _, cut in sorted(known, key=lambda each: unlikely(*each))]


def _that_matter(reading: Reading) -> list[Cut]:
    """The cuts whose result came to the loss, or may have come there as a number.

    An accuracy that was computed with argmax cut nothing, whatever else it was computed from.
    """
    cuts = reading.graph.cuts
    if not reading.ran or reading.graph.failure is not None:
        return list(cuts)
    alive = {node.id for node in reading.graph.nodes if node.order is not None}
    found: set[int] = set()  # positions in `cuts`
    before = -1
    while len(found) > before:
        before = len(found)
        for i, cut in enumerate(cuts):
            escaped = cut.how in _READS or cut.before is None
            if i not in found and (escaped or not alive.isdisjoint(cut.after)):
                found.add(i)
                _upstream(reading, cut.before, alive)
    return [cuts[i] for i in sorted(found)]


def _meant(cut: Cut, parameters: list[Parameter]) -> Severity:
    """How bad a cut is by itself: people write some on purpose."""
    # A block around a whole module is a target network or a fixed encoder, unless it should learn.
    whole = _ran_inside(cut, {p.node for p in parameters})
    if whole and not any(p.stepped for p in parameters):
        return "info"
    # So is what is written out for a leaf of no module.
    plain = all(p.module_called is None and p.node is not None for p in parameters)
    if plain and cut.how in ("detach", "detach_", *_MODES):
        return "info"
    unsure = cut.before is None
    mild = ("detach", "detach_", "data", *_MODES, *_INDICES, *_NUMBERS)
    return "warning" if unsure or cut.how in mild else "error"


def _advice(cut: Cut, severity: Severity) -> str:
    if severity == "info" and cut.how in _MODES:
        return "Nothing, if it is meant: requires_grad_(False) says so."
    return _ADVICE.get(cut.how, _DISCRETE)


def _severity(parameters: list[Parameter], severity: Severity = "warning") -> Severity:
    # What the optimizer of this step does not hold is not to learn in it: a target network, or the
    # generator while the discriminator is trained.
    return "info" if all(p.stepped is False for p in parameters) else severity


def _ran_inside(cut: Cut, parameters: set[int | None]) -> bool:
    """Did the module of a parameter run in a block without gradients, itself being the operand."""
    inside = cut.how in _MODES and cut.in_forward is not False
    return inside and cut.before is not None and cut.before in parameters


def _around(parameters: list[Parameter]) -> str:
    """The innermost module that holds all of them."""
    first, *rest = (_module(p).split(".") for p in parameters)
    while any(parts[: len(first)] != first for parts in rest):
        first = first[:-1]
    return ".".join(first) or "the model"


def _may_concern(cut: Cut, parameter: Parameter) -> bool:
    """Was the cut in the parameter's module or around it: all that is left without nodes."""
    return not cut.module or f"{_module(parameter)}.".startswith(f"{cut.module}.")


def _upstream(reading: Reading, node: int | None, seen: set[int]) -> set[int]:
    """A node and all that it was computed from, without what was seen before."""
    found: set[int] = set()
    stack = [] if node is None else [node]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            found.add(node)
            stack.extend(edge.source for edge in reading.inputs[node])
    return found


def _around_all(parameters: Iterable[Parameter]) -> set[str]:
    """Their modules, and every module around these."""
    return {outer for p in parameters for outer in _outwards(_module(p))}


def _outwards(module: str) -> list[str]:
    """ "a.b" -> "", "a" and "a.b"."""
    parts = module.split(".") if module else []
    return [".".join(parts[:end]) for end in range(len(parts) + 1)]


def _outermost(module: str, alive: set[str]) -> str:
    """The outermost module around `module` that is not among those that are `alive`."""
    return next((outer for outer in _outwards(module) if outer not in alive), module)


def _choices(reading: Reading) -> dict[str, str]:
    """For each numbered module (an entry of a list) one that is just like it and was called."""
    parts: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    called: set[str] = set()
    for parameter in reading.graph.parameters:
        path = parameter.name.split(".")
        for end, segment in enumerate(path, 1):
            if segment.isdigit():
                module, rest = ".".join(path[:end]), ".".join(path[end:])
                parts.setdefault(module, []).append((rest, parameter.tensor.shape))
                if parameter.module_called is not False:
                    called.add(module)
    kinds = {module: (module.rpartition(".")[0], *inside) for module, inside in parts.items()}
    running = {kinds[module]: module for module in reversed(parts) if module in called}
    return {module: running[kind] for module, kind in kinds.items() if kind in running}


def _module(parameter: Parameter) -> str:
    return parameter.name.rpartition(".")[0]
