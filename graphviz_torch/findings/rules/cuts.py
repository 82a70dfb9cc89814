"""Cuts: parameters whose way to the loss was cut.

What to do is said where it was seen to help. What people cut on purpose stands as a fact alone: a
straight-through estimator, a target, a weight or a drawn action that goes to the loss as it is, a
network that ran without gradients.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Cut, Finding, Parameter, Severity
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at, grouped, names_of, nodes_of

_MODES = ("no_grad", "inference_mode", "set_grad_enabled", "switched_off")
PLAIN = ("detach", "detach_", "data", *_MODES)
_DRAWS = ("multinomial", "bernoulli", "poisson", "normal", "sample", "randint")
# They hand on a weight as it is, in another shape.
_VIEWS = ("t", "transpose", "permute", "view", "expand", "to_copy", "unsqueeze", "slice", "select")
_NUMBERS = ("item", "float", "int", "bool", "complex", "index")
_READS = (*_NUMBERS, "tolist", "numpy", "array", "tensor")
_INDICES = ("topk", "max", "min", "sort", "kthvalue", "median", "mode", "msort", "cummax", "cummin")
_WORDS = {
    "data": ".data",
    "no_grad": "torch.no_grad()",
    "inference_mode": "torch.inference_mode()",
    **dict.fromkeys(("set_grad_enabled", "switched_off"), "torch.set_grad_enabled(False)"),
    "tensor": "torch.tensor()",
    "grad": "autograd.grad without create_graph=True",
    "checkpoint": "a reentrant checkpoint whose inputs need no gradient",
    **dict.fromkeys(("to", "type", "long", "short", "char", "byte"), "an integer cast"),
    **dict.fromkeys(("gt", "ge", "lt", "le", "eq", "ne"), "a comparison"),
}
_ADVICE = {
    "detach": "Remove the detach(){at}; if it is meant, freeze {names} with requires_grad_(False).",
    "detach_": "Remove the detach_(){at}: it cuts the tensor itself, for everyone who uses it.",
    "data": "Use the tensor itself instead of .data{at}.",
    "no_grad": "Move the computation{at} out of torch.no_grad().",
    "inference_mode": "Move the computation{at} out of torch.inference_mode().",
    "set_grad_enabled": "Move the computation{at} out of torch.set_grad_enabled(False).",
    "switched_off": "Write with torch.no_grad():{at}, which ends with its block: "
    "set_grad_enabled(False) switches gradients off until it is called with True.",
    "checkpoint": "Pass use_reentrant=False to checkpoint{at}.",
    "sample": "Call rsample() in place of sample(){at}: it lets the gradient through.",
    "item": "Keep the tensor instead of the number that item() gives{at}; if the number is only "
    "logged, the loss does not use the tensor that it was read from.",
    "tolist": "Keep the tensor instead of the list that tolist() gives{at}.",
    "float": "Keep the tensor instead of the number that float() gives{at}.",
    "tensor": "Use the tensor itself, or torch.stack for several: torch.tensor() copies their "
    "values{at}.",
    "nested_tensor": "Use torch.nested.as_nested_tensor(){at}: nested_tensor() copies values, and "
    "leaves their history behind.",
    **{
        how: f"Use torch.stack{{at}}, which keeps the gradient: {how}() of a list copies numbers."
        for how in ("as_tensor", "asarray")
    },
    "grad": "Pass create_graph=True to autograd.grad{at}: without it the result has no history.",
    **{
        how: f"Only the indices of {how}() are used{{at}}. They have no gradient: use its values."
        for how in _INDICES
    },
    **dict.fromkeys(("numpy", "array"), "Compute with torch instead of NumPy{at}."),
}
_DISCRETE = (
    "Replace {how}{at} with something differentiable (softmax, a soft mask): it has no gradient."
)


@rule("error", of=(Cut,))
def cut_gradient(reading: Reading) -> Iterator[Finding]:
    """A parameter got no gradient because its way to the loss was cut: by detach, .data, no_grad,
    item, numpy, an integer cast, argmax and the like.

    ## Why it matters

    Everything before the cut keeps its first values, while the rest of the model is trained: the
    loss still falls, and the model is worse than it could be. Nothing raises an error, because the
    loss has a `grad_fn` through the other parameters.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.ModuleDict({"body": nn.Linear(4, 4), "head": nn.Linear(4, 1)})
    with record(model) as recording:
        h = model["body"](torch.randn(8, 4)).detach()  # <- reported
        model["head"](h).mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.ModuleDict({"body": nn.Linear(4, 4), "head": nn.Linear(4, 1)})
    with record(model) as recording:
        h = model["body"](torch.randn(8, 4))
        model["head"](h).mean().backward()
    ```

    ## When it is intended

    A frozen encoder, a target network, a teacher or a straight-through estimator is detached on
    purpose. Freeze the parameters with `requires_grad_(False)`, or leave them out of the optimizer:
    the cut is then a note.

    ## Not detected

    A value that leaves PyTorch and comes back through a library that is not known, such as a C
    extension. A cut before which no parameter of a module is: what was computed there may be data.

    ## See also

    - [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html)
    - [torch.Tensor.detach](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html)
    - [torch.no_grad](https://docs.pytorch.org/docs/stable/generated/torch.no_grad.html)
    """
    places = {p.name: place for place, p in enumerate(reading.graph.parameters)}
    for cut, found in grouped(explained(reading)):
        parameters = sorted(found, key=lambda p: places[p.name])
        how = word_of(cut)
        names, line = names_of(parameters), at(cut.where)
        what = cut.label or (f"a result in {cut.module}" if cut.module else "a result")
        happened = f"{what} was cut by"
        if _ran_inside(cut, {p.node for p in parameters}):
            happened = f"{_around(parameters)} ran under"
        before = [] if cut.before is None else [cut.before]
        severity = "error" if reading.blocked else _meant(reading, cut, parameters)
        unheld = all(p.stepped is False for p in parameters) and not reading.blocked
        if unheld:
            severity = "info"  # the step is not to train these parameters
        why = ", probably because" if cut.before is None else ":"
        yield finding(
            severity,
            f"{names} got no gradient{why} {happened} {how}{line}"
            f"{', and no optimizer holds them' if unheld else ''}.",
            cause=f"cut by {how}",
            advice=_advice(reading, cut, parameters, severity).format(
                at=line, names=names, how=how
            ),
            where=cut.where,
            nodes=tuple(dict.fromkeys((*nodes_of(parameters), *before, *cut.after))),
        )


def word_of(cut: Cut) -> str:
    """What a cut was done by: "detach()", "torch.no_grad()", "an integer cast"."""
    return _WORDS.get(cut.how, f"{cut.how}()")


def to_learn(reading: Reading) -> list[Parameter]:
    """Those without a gradient, less what this step's optimizer does not hold: that is not to learn
    in it, such as a target network, or the generator while the discriminator is trained.
    """
    return [p for p in reading.lost if p.stepped is not False or reading.blocked]


def explained(reading: Reading) -> Iterator[tuple[Cut, Parameter]]:
    """Each parameter whose way was cut, with the cut."""
    lost = [
        p
        for p in reading.lost
        if (p.module_called is not False or p.node is not None) and p.node not in reading.receivers
    ]
    owned = {p.node for p in lost}
    firsts: dict[tuple[str, str], Cut] = {}
    seen: set[int] = set()
    for cut in _by_likelihood(reading):
        if not lost:
            return
        behind = upstream(reading, cut.before, seen)
        whole = _ran_inside(cut, owned)
        found = [
            p
            for p in lost
            if p.node in behind
            or (p.node is None and whole and module_of(p) == cut.module)
            or (cut.before is None and _may_concern(cut, p))
        ]
        lost = [p for p in lost if p not in found]
        # A network that ran in one such block, or a loop over one line, is one finding.
        first = firsts.setdefault((cut.how, "" if whole else cut.where or str(id(cut))), cut)
        yield from ((first, parameter) for parameter in found)


def is_fixed_behind(reading: Reading, cut: Cut) -> bool:
    """Was what was cut computed from parameters that no optimizer of this step holds, as of a
    teacher.
    """
    behind = _behind(reading, cut)
    return bool(behind) and all(p.stepped is False for p in behind)


def _behind(reading: Reading, cut: Cut) -> list[Parameter]:
    """The parameters that what was cut was computed from."""
    nodes = upstream(reading, cut.before, set())
    return [p for p in reading.graph.parameters if p.node in nodes]


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
    if not cuts or not reading.ran or reading.graph.failure is not None:
        return list(cuts)
    losses = {node for node, _ in reading.graph.outputs}  # a number read of one is to be printed
    cuts = tuple(c for c in cuts if c.how not in _READS or c.before not in losses)
    alive = {node.id for node in reading.graph.nodes if node.order is not None}
    found: set[int] = set()  # positions in `cuts`
    before = -1
    while len(found) > before:
        before = len(found)
        for i, cut in enumerate(cuts):
            escaped = cut.how in _READS or cut.before is None
            if i not in found and (escaped or not alive.isdisjoint(cut.after)):
                found.add(i)
                upstream(reading, cut.before, alive)
    return [cuts[i] for i in sorted(found)]


def _meant(reading: Reading, cut: Cut, parameters: list[Parameter]) -> Severity:
    """How bad a cut is by itself: people write some on purpose."""
    # A block around a whole module is a target network or a fixed encoder, unless it should learn.
    whole = _ran_inside(cut, {p.node for p in parameters})
    if whole and not any(p.stepped for p in parameters):
        return "info"
    # So is a copy of what learns, and a teacher, though an optimizer holds it: its result is a
    # target of the loss.
    if (whole or _is_copy(reading, parameters)) and _is_used_as_it_is(reading, cut):
        return "info"
    # So is what is written out for a leaf of no module.
    plain = all(p.module_called is None and p.node is not None for p in parameters)
    if plain and cut.how in ("detach", "detach_", *_MODES):
        return "info"
    unsure = cut.before is None
    mild = ("detach", "detach_", "data", *_MODES, *_INDICES, *_NUMBERS)
    return "warning" if unsure or cut.how in mild else "error"


def _is_copy(reading: Reading, parameters: list[Parameter]) -> bool:
    """Is another part of the model, which learns, made of the same parameters as these."""
    around = f"{_around(parameters)}."
    parts = {p.name.removeprefix(around): p.tensor.shape for p in parameters}
    first = next(iter(parts))
    shapes = {p.name: p.tensor.shape for p in reading.graph.parameters}
    twins = [n.removesuffix(first) for n in reading.received if n.endswith(f".{first}")]
    return any(
        all(f"{twin}{part}" in reading.received for part in parts)
        and all(shapes[f"{twin}{part}"] == shape for part, shape in parts.items())
        for twin in twins
        if twin != around
    )


def _advice(reading: Reading, cut: Cut, parameters: list[Parameter], severity: Severity) -> str:
    """What to do; "" where the cut may be meant."""
    if not reading.blocked and (
        severity == "info" or passes_straight(reading, cut) or _is_used_as_it_is(reading, cut)
    ):
        return ""
    if cut.how == "switched_off":
        return advice_on(cut.how)
    if not reading.blocked and _ran_inside(cut, {p.node for p in parameters}):
        return (
            f"Call {_around(parameters)} outside of {{how}}; if it is to stay as it is, freeze "
            "it with requires_grad_(False)."
        )
    return advice_on(cut.how)


def passes_straight(reading: Reading, cut: Cut) -> bool:
    """Is it `a + (b - a).detach()`, or `b - a.detach() + a`, which passes the gradient to a."""
    nodes = reading.graph.nodes
    if cut.before is None:
        return False
    given = {cut.before}
    if nodes[cut.before].operation in ("sub", "add"):
        given |= {edge.source for edge in reading.inputs[cut.before]}
    return any(
        nodes[i].operation in ("add", "sub") and any(e.source in given for e in reading.inputs[i])
        for i in cut.after
    )


def _is_used_as_it_is(reading: Reading, cut: Cut) -> bool:
    """Does the result go to the loss beside what has a gradient, and into no layer: a target of a
    teacher or of another network, an advantage, a drawn action.
    """
    if cut.how not in (*PLAIN, *_DRAWS) or not cut.after:
        return False
    nodes, found = reading.graph.nodes, set(cut.after)
    term = cut.tensor is not None and all(size == 1 for size in cut.tensor.shape)
    if term and all(nodes[i].operation in ("add", "sub") for i in found):
        return False  # a term of the loss by itself
    stack = list(found)
    while stack:
        node = stack.pop()
        if any(is_weight(reading, edge.source) for edge in reading.inputs[node]):
            return False
        following = {edge.target for edge in reading.users[node]} - found
        found |= following
        stack.extend(following)
    return True


def is_weight(reading: Reading, node: int) -> bool:
    """Is it a parameter, or a view of one."""
    nodes = reading.graph.nodes
    while nodes[node].operation in _VIEWS and reading.inputs[node]:
        node = reading.inputs[node][0].source
    return nodes[node].leaf == "parameter"


def advice_on(how: str) -> str:
    """What to do about a cut, with {at}, {names} and {how} to fill in."""
    return _ADVICE.get(how, _DISCRETE)


def _ran_inside(cut: Cut, parameters: set[int | None]) -> bool:
    """Did the module of a parameter run in a block without gradients, itself being the operand."""
    inside = cut.how in _MODES and cut.in_forward is not False
    return inside and cut.before is not None and cut.before in parameters


def _around(parameters: list[Parameter]) -> str:
    """The innermost module that holds all of them."""
    first, *rest = (module_of(p).split(".") for p in parameters)
    while any(parts[: len(first)] != first for parts in rest):
        first = first[:-1]
    return ".".join(first) or "the model"


def _may_concern(cut: Cut, parameter: Parameter) -> bool:
    """Was the cut in the parameter's module or around it: all that is left without nodes."""
    return not cut.module or f"{module_of(parameter)}.".startswith(f"{cut.module}.")


def upstream(reading: Reading, node: int | None, seen: set[int]) -> set[int]:
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


def module_of(parameter: Parameter) -> str:
    """Return the path of the module that owns a parameter."""
    return parameter.name.rpartition(".")[0]
