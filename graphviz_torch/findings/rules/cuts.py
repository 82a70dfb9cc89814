"""Rules about cuts: calls such as `detach()` that cut a parameter's path to the loss.

A cut that is probably made on purpose has severity info and no advice. Examples are a
straight-through estimator; a target, a weight or a sampled action that the loss uses without a
layer in between; and a network that ran without gradients.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from ...graph import Cut, Finding, Parameter, Severity
from ...graph.text import listing
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at, group_by_key, names_of, nodes_of

_MODES = ("no_grad", "inference_mode", "set_grad_enabled", "switched_off")
PLAIN = ("detach", "detach_", "data", *_MODES)
_DRAWS = ("multinomial", "bernoulli", "poisson", "normal", "sample", "randint")
_NUMBERS = ("item", "float", "int", "bool", "complex", "index")
_READS = (*_NUMBERS, "tolist", "numpy", "array", "tensor")
_INDICES = ("topk", "max", "min", "sort", "kthvalue", "median", "mode", "msort", "cummax", "cummin")
_CAUSE_TEXT = {
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
    "detach": "Remove the detach(){at}. If the cut is intended, freeze {names} with "
    "requires_grad_(False).",
    "detach_": "Remove the detach_(){at}: it detaches the tensor itself, for all its users.",
    "data": "Use the tensor itself instead of .data{at}.",
    "no_grad": "Move the computation{at} out of torch.no_grad().",
    "inference_mode": "Move the computation{at} out of torch.inference_mode().",
    "set_grad_enabled": "Move the computation{at} out of torch.set_grad_enabled(False).",
    "switched_off": "Write with torch.no_grad():{at}. set_grad_enabled(False) disables "
    "gradients until it is called with True; no_grad() ends with its block.",
    "checkpoint": "Pass use_reentrant=False to checkpoint{at}.",
    "sample": "Call rsample() in place of sample(){at}: it lets the gradient through.",
    "item": "Use the tensor instead of the number that item() returns{at}. If the number is "
    "only logged, the loss does not use the tensor that the number was read from.",
    "tolist": "Use the tensor instead of the list that tolist() returns{at}.",
    "float": "Use the tensor instead of the number that float() returns{at}.",
    "tensor": "Use the tensor itself, or torch.stack for several tensors: torch.tensor() copies "
    "only values{at}.",
    "nested_tensor": "Use torch.nested.as_nested_tensor(){at}: nested_tensor() copies values "
    "without their history.",
    **{
        how: f"Use torch.stack{{at}}, which keeps the history: {how}() of a list copies only "
        "numbers."
        for how in ("as_tensor", "asarray")
    },
    "grad": "Pass create_graph=True to autograd.grad{at}: without it the result has no history.",
    **{
        how: f"Use the values of {how}(){{at}}, too: only its indices are used, and indices have "
        "no gradient."
        for how in _INDICES
    },
    **dict.fromkeys(("numpy", "array"), "Compute with torch instead of NumPy{at}."),
}
_DISCRETE = (
    "Replace {how}{at}, which has no gradient, with a differentiable operation (softmax, a soft "
    "mask)."
)


@rule("error", of=(Cut,))
def cut_gradient(reading: Reading) -> Iterator[Finding]:
    """A parameter got no gradient because its path to the loss was cut: by detach, .data, no_grad,
    item, NumPy, an integer cast, argmax or a similar call.

    ## Why it matters

    The parameters upstream of the cut keep their initial values, while the rest of the model is
    trained. The loss still falls, but the model is worse than it could be. No error is raised,
    because the loss has a `grad_fn` through the other parameters.

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
    the finding then has severity info.

    ## Not detected

    Values that pass through another library, such as a C extension, are not followed. A cut of a
    tensor that was computed without parameters is not reported, because the tensor may be data.

    ## See also

    - [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html)
    - [torch.Tensor.detach](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html)
    - [torch.no_grad](https://docs.pytorch.org/docs/stable/generated/torch.no_grad.html)
    """
    positions = {p.name: i for i, p in enumerate(reading.graph.parameters)}
    failure = reading.graph.failure
    if failure is not None and any(cause.operation == "vmap" for cause in failure.causes):
        return  # inside vmap no result requires a gradient
    for cut, found in group_by_key(match_cuts(reading)):
        parameters = sorted(found, key=lambda p: positions[p.name])
        how = cause_text(cut)
        names, line = names_of(parameters), at(cut.where)
        what = cut.label or (f"a result in {cut.module}" if cut.module else "a result")
        happened = f"{what} was cut by"
        if _ran_inside(cut, {p.node for p in parameters}):
            happened = f"{listing(_modules_without_gradient(reading, parameters))} ran under"
        before = [] if cut.before is None else [cut.before]
        severity = "error" if reading.loss_has_no_grad else _severity(reading, cut, parameters)
        unheld = all(p.stepped is False for p in parameters) and not reading.loss_has_no_grad
        if unheld:
            severity = "info"  # this step is not meant to train these parameters
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


def cause_text(cut: Cut) -> str:
    """Return a phrase for the call that made a cut: "detach()", "an integer cast"."""
    return _CAUSE_TEXT.get(cut.how, f"{cut.how}()")


def to_learn(reading: Reading) -> list[Parameter]:
    """Return the parameters without a gradient that this step is meant to train.

    Parameters that are not in the step's optimizer are left out, such as the parameters of a target
    network, or of the generator while the discriminator is trained.
    """
    return [
        p for p in reading.without_gradient if p.stepped is not False or reading.loss_has_no_grad
    ]


def match_cuts(reading: Reading) -> Iterator[tuple[Cut, Parameter]]:
    """Yield each parameter without a gradient, with the cut (such as detach) that explains it."""
    missing = [
        p
        for p in reading.without_gradient
        if (p.module_called is not False or p.node is not None)
        and p.node not in reading.dropping_nodes
    ]
    owned = {p.node for p in missing}
    names = reading.parameters_with_gradient
    learning = {module_of(p) for p in reading.graph.parameters if p.name in names}
    firsts: dict[tuple[str, str], Cut] = {}
    seen: set[int] = set()
    for cut in _by_likelihood(reading):
        if not missing:
            return
        sources = upstream(reading, cut.before, seen)
        whole = _ran_inside(cut, owned)
        found = [
            p
            for p in missing
            if p.node in sources
            or (p.node is None and whole and module_of(p) == cut.module)
            or (cut.before is None and _may_concern(cut, p, learning))
        ]
        missing = [p for p in missing if p not in found]
        # All cuts in a network that ran without gradients become one finding, and so do all cuts at
        # one line.
        first = firsts.setdefault((cut.how, "" if whole else cut.where or str(id(cut))), cut)
        yield from ((first, parameter) for parameter in found)


def is_from_fixed(reading: Reading, cut: Cut) -> bool:
    """Return True if a detached tensor depends only on untrained parameters (a teacher's)."""
    sources = _source_parameters(reading, cut)
    return bool(sources) and all(p.stepped is False for p in sources)


def _source_parameters(reading: Reading, cut: Cut) -> list[Parameter]:
    """Return the parameters from which the tensor that a cut detached was computed."""
    nodes = upstream(reading, cut.before, set())
    return [p for p in reading.graph.parameters if p.node in nodes]


def _by_likelihood(reading: Reading) -> list[Cut]:
    """Return the cuts that may explain a missing gradient, the most likely first.

    Cuts of a known tensor come first. Later cuts come before earlier ones, because a gradient from
    the loss reaches them first. Reads of Python numbers come late, because most of them are for a
    log. Operations without a derivative (an index, a sample, a comparison) also come late, because
    most of them are not between a parameter and the loss.
    """
    nodes = reading.graph.nodes

    def sort_key(position: int, cut: Cut) -> tuple[bool, bool, bool, bool, int]:
        came_back = any(not reading.ran or nodes[i].order is not None for i in cut.after)
        by_nature = cut.how not in _ADVICE
        return cut.before is None, not came_back, cut.how in _NUMBERS, by_nature, -position

    known = enumerate(_used_by_loss(reading))
    return [cut for _, cut in sorted(known, key=lambda each: sort_key(*each))]


def _used_by_loss(reading: Reading) -> list[Cut]:
    """Return the cuts (tensors detached from the graph) whose result the loss uses or may use.

    The argmax for an accuracy is left out, because the loss does not use it.
    """
    cuts = reading.graph.cuts
    if not cuts or not reading.ran or reading.graph.failure is not None:
        return list(cuts)
    # An item() of the loss itself is a read for a log, not a cut.
    losses = {node for node, _ in reading.graph.outputs}
    cuts = tuple(c for c in cuts if c.how not in _READS or c.before not in losses)
    alive = {node.id for node in reading.graph.nodes if node.order is not None}
    found: set[int] = set()  # indices in `cuts`
    before = -1
    while len(found) > before:
        before = len(found)
        for i, cut in enumerate(cuts):
            escaped = cut.how in _READS or cut.before is None
            if i not in found and (escaped or not alive.isdisjoint(cut.after)):
                found.add(i)
                upstream(reading, cut.before, alive)
    return [cuts[i] for i in sorted(found)]


def _severity(reading: Reading, cut: Cut, parameters: list[Parameter]) -> Severity:
    """Return the severity of a finding about a cut; "info" if the cut looks intended."""
    # A module that runs under no_grad, and that no optimizer updates, is a target network or a
    # fixed encoder.
    whole = _ran_inside(cut, {p.node for p in parameters})
    if whole and not any(p.stepped for p in parameters):
        return "info"
    # The cut is also intended if the loss uses the result of the module as a target, and the module
    # is a copy of a trained one or ran under no_grad, even if an optimizer holds its parameters.
    if (whole or _is_copy(reading, parameters)) and _goes_straight_to_loss(reading, cut):
        return "info"
    # A leaf outside of all modules is probably detached on purpose.
    plain = all(p.module_called is None and p.node is not None for p in parameters)
    if plain and cut.how in ("detach", "detach_", *_MODES):
        return "info"
    unsure = cut.before is None
    mild = ("detach", "detach_", "data", *_MODES, *_INDICES, *_NUMBERS)
    return "warning" if unsure or cut.how in mild else "error"


def _is_copy(reading: Reading, parameters: list[Parameter]) -> bool:
    """Return True if another, trained submodule has parameters of the same names and shapes."""
    prefix = f"{_common_module(parameters)}."
    parts = {p.name.removeprefix(prefix): p.tensor.shape for p in parameters}
    first = next(iter(parts))
    shapes = {p.name: p.tensor.shape for p in reading.graph.parameters}
    twins = [
        n.removesuffix(first) for n in reading.parameters_with_gradient if n.endswith(f".{first}")
    ]
    return any(
        all(f"{twin}{part}" in reading.parameters_with_gradient for part in parts)
        and all(shapes[f"{twin}{part}"] == shape for part, shape in parts.items())
        for twin in twins
        if twin != prefix
    )


def _advice(reading: Reading, cut: Cut, parameters: list[Parameter], severity: Severity) -> str:
    """Return the advice on a cut (such as detach); "" if the cut may be intended."""
    if not reading.loss_has_no_grad and (
        severity == "info" or passes_straight(reading, cut) or _goes_straight_to_loss(reading, cut)
    ):
        return ""
    if cut.how == "switched_off":
        return advice_on(cut.how)
    if not reading.loss_has_no_grad and _ran_inside(cut, {p.node for p in parameters}):
        modules = listing(_modules_without_gradient(reading, parameters))
        return (
            f"Call {modules} outside of {{how}}; or, if it should not learn, freeze it with "
            "requires_grad_(False)."
        )
    return advice_on(cut.how)


def passes_straight(reading: Reading, cut: Cut) -> bool:
    """Return True for straight-through code, such as `a + (b - a).detach()`."""
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


def _goes_straight_to_loss(reading: Reading, cut: Cut) -> bool:
    """Return True if no layer is between a cut (such as detach) and the loss.

    The cut tensor is then a target, such as a teacher's output, an advantage or a sampled action.
    """
    if cut.how not in (*PLAIN, *_DRAWS) or not cut.after:
        return False
    nodes, found = reading.graph.nodes, set(cut.after)
    term = cut.tensor is not None and all(size == 1 for size in cut.tensor.shape)
    if term and all(nodes[i].operation in ("add", "sub") for i in found):
        return False  # the cut tensor is a whole term of the loss
    stack = list(found)
    while stack:
        node = stack.pop()
        if any(edge.source in reading.weights for edge in reading.inputs[node]):
            return False
        following = {edge.target for edge in reading.users[node]} - found
        found |= following
        stack.extend(following)
    return True


def advice_on(how: str) -> str:
    """Return the advice on a kind of cut, with the placeholders {at}, {names} and {how}."""
    return _ADVICE.get(how, _DISCRETE)


def _ran_inside(cut: Cut, parameters: set[int | None]) -> bool:
    """Return True if a whole module ran in a block without gradients, such as no_grad.

    Args:
        cut: a result without a gradient.
        parameters: nodes of the parameters from which the result was computed.
    """
    inside = cut.how in _MODES and cut.in_forward is not False
    return inside and cut.before is not None and cut.before in parameters


def _common_module(parameters: list[Parameter]) -> str:
    """Return the path of the innermost module that contains all parameters.

    Return "the model" for the root.
    """
    first, *rest = (module_of(p).split(".") for p in parameters)
    while any(parts[: len(first)] != first for parts in rest):
        first = first[:-1]
    return ".".join(first) or "the model"


def _modules_without_gradient(reading: Reading, parameters: list[Parameter]) -> list[str]:
    """Return the paths of modules around these parameters in which none got a gradient.

    If no parameter got a gradient in the innermost module that contains all these parameters, only
    its path is returned. Otherwise, the path of the outermost module without a gradient around each
    parameter is returned.
    """
    paths = [_common_module(parameters)]
    inside = "" if paths == ["the model"] else f"{paths[0]}."
    if any(name.startswith(inside) for name in reading.parameters_with_gradient):
        paths = []
        for parameter in parameters:
            path = module_of(parameter)
            while (outer := path.rpartition(".")[0]) and not any(
                name.startswith(f"{outer}.") for name in reading.parameters_with_gradient
            ):
                path = outer
            paths.append(path)
    return list(dict.fromkeys(path or "the model" for path in paths))


def _may_concern(cut: Cut, parameter: Parameter, learning: Container[str]) -> bool:
    """Return True if a cut of an unknown tensor may be the reason for a missing gradient.

    The cut has to be in the parameter's module, or in a module around this module. In the second
    case, no other parameter of the parameter's module has a gradient, because the cut tensor is a
    result of the module.

    Args:
        learning: paths of the modules with a parameter that has a gradient.
    """
    module = module_of(parameter)
    if cut.module != module and module in learning:
        return False
    return not cut.module or f"{module}.".startswith(f"{cut.module}.")


def upstream(reading: Reading, node: int | None, seen: set[int]) -> set[int]:
    """Return a node and all nodes upstream of it, except those in `seen`.

    Args:
        seen: nodes to leave out. The returned nodes are added to this set.
    """
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
