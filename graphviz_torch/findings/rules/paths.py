"""Rules about parameters that no gradient reaches, or that no optimizer updates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ...graph import Finding, Parameter, Severity
from ...graph.events import Event, OptimizerStep
from ...graph.immutable import immutable
from ...graph.text import listing
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at, group_by_key, names_of, nodes_of
from .custom_functions import CheckpointDiffers
from .cuts import match_cuts, module_of, to_learn, upstream
from .freezing import AttributeAssignment
from .leaves import DataAssignment, UnregisteredParameters
from .lost import is_custom
from .meaning.roles import untrained_targets


@rule("warning", of=(Parameter,))
def never_called(reading: Reading) -> Iterator[Finding]:
    """A parameter got no gradient because the forward of its module never ran.

    ## Why it matters

    The module's parameters are saved with the model and moved to its device, but they never change.
    Usually a layer was added in `__init__` and forgotten in `forward`, or another module was called
    instead.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.ModuleDict({"body": nn.Linear(4, 4), "head": nn.Linear(4, 1)})
    with record(model) as recording:
        model["body"](torch.randn(8, 4)).mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.ModuleDict({"body": nn.Linear(4, 4), "head": nn.Linear(4, 1)})
    with record(model) as recording:
        model["head"](model["body"](torch.randn(8, 4))).mean().backward()
    ```

    ## When it is intended

    With stochastic depth or several tasks, some steps do not call a layer. If several steps are
    recorded and one of them calls the layer, the finding has severity info. So has a parameter of a
    module whose other parameters the program uses without a call, such as the bias of a Linear
    whose weight is tied to an embedding.

    ## Not detected

    A module that is called, but whose result is not used, is reported as `output-not-in-loss`.
    Modules that were passed neither to `record` nor, through their parameters, to an optimizer are
    not checked.

    ## See also

    - [torch.nn.Module](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html)
    """
    uncalled = [p for p in to_learn(reading) if p.module_called is False and p.node is None]
    if not uncalled:
        return
    called = _modules_around(p for p in reading.graph.parameters if p.module_called is not False)
    called.update(row.path for row in reading.graph.modules)  # includes modules without parameters
    twins = _called_twins(reading)
    passed_over: list[tuple[str, tuple[str, list[Parameter]]]] = []
    for module, parameters in group_by_key((_outermost(module_of(p), called), p) for p in uncalled):
        if module in twins:
            passed_over.append((twins[module], (module, parameters)))
            continue
        name = module or "the model"
        siblings = [p for p in reading.graph.parameters if p.node is not None]
        siblings = [p for p in siblings if module_of(p) == module]
        if siblings and all(module_of(p) == module for p in parameters):
            yield _unused_items(reading, name, parameters, siblings)
            continue
        yield finding(
            "warning",
            f"{names_of(parameters)} got no gradient: {name} was never called.",
            cause="never called",
            advice=f"Call {name} in forward, or remove it.",
        )
    for one_called, group in group_by_key(passed_over):
        modules = listing(module for module, _ in group)
        yield finding(
            "info",
            f"{names_of([p for _, parameters in group for p in parameters])} got no gradient: "
            f"{modules} {'was' if len(group) == 1 else 'were'} not called, but the similar "
            f"{one_called} was.",
            cause="not called this time",
            advice="Do nothing if forward selects some of these modules (experts, dropped "
            f"layers); otherwise call {modules}, too.",
        )


def _unused_items(
    reading: Reading, name: str, unused: list[Parameter], siblings: list[Parameter]
) -> Finding:
    """Return the finding about parameters that no operation used, unlike others of their module.

    The module's forward did not run: the program read the parameters of the module, for instance
    the items of an nn.ParameterList, or only the weight of a Linear.
    """
    counts = {p.name: len(reading.users[p.node]) for p in siblings if p.node is not None}
    again = [p for p in siblings if counts[p.name] > min(counts.values())]
    text = f"{names_of(unused)} got no gradient: no operation used {_pronoun(unused)}"
    if again:
        text += f", while {names_of(again)} {'was' if len(again) == 1 else 'were'} used repeatedly"
    users = [reading.users[p.node] for p in again or siblings if p.node is not None]
    where = reading.graph.nodes[users[0][0].target].where if users[0] else ""
    are_items = all(p.name.rpartition(".")[2].isdigit() for p in unused)
    advice = f"Check the index with which {name} is read."
    if not are_items:
        advice = f"Remove {_pronoun(unused)} if only {names_of(siblings)} "
        advice += f"{'is' if len(siblings) == 1 else 'are'} needed; otherwise call {name} itself."
    return finding(
        "warning" if are_items else "info",
        f"{text}{at(where)}.",
        cause="never used",
        advice=advice,
        where=where,
    )


def _pronoun(parameters: list[Parameter]) -> str:
    return "it" if len(parameters) == 1 else "them"


@immutable
class UnusedModule(Event):
    """A module that ran, and whose parameters no backward reached.

    `where` is the line that calls the module.
    """

    module: str = ""  # path of the module


@rule("warning", of=(Parameter,))
def output_not_in_loss(reading: Reading) -> Iterator[Finding]:
    """A parameter got no gradient although its module ran, because the loss does not depend on the
    module's result.

    ## Why it matters

    The module costs time and memory but learns nothing. Often the wrong variable is passed to the
    loss, or a term of the loss was removed by mistake.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.ModuleDict({"body": nn.Linear(4, 4), "head": nn.Linear(4, 1)})
    with record(model) as recording:
        h = model["body"](torch.randn(8, 4))
        score = model["head"](h)
        h.square().mean().backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.ModuleDict({"body": nn.Linear(4, 4), "head": nn.Linear(4, 1)})
    with record(model) as recording:
        h = model["body"](torch.randn(8, 4))
        score = model["head"](h)
        (h.square().mean() + score.square().mean()).backward()
    ```

    ## When it is intended

    A head may be trained only in other steps, or only evaluated. In steps that do not train it,
    call it under `torch.no_grad()`, which also saves memory.

    ## Not detected

    A result that the loss multiplies by zero is not reported by this rule, because its gradient
    exists and is zero.

    ## See also

    - [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html)
    """
    if reading.graph.failure is not None or reading.leaf_losses:
        return  # the loss has no graph
    known = {p.name for _, p in match_cuts(reading)} | _names_before_data(reading)
    skipped = {path for event in reading.events(CheckpointDiffers) for path in event.skipped}
    known |= {p.name for p in reading.graph.parameters if module_of(p) in skipped}
    ran = [p for p in to_learn(reading) if p.module_called is not False or p.node is not None]
    unused = [p for p in ran if p.name not in known and p.node not in reading.dropping_nodes]
    if any(e.value is not None and e.value.node is None for e in reading.events(DataAssignment)):
        # The rule data-assignment may explain the parameters without a node.
        unused = [p for p in unused if p.node is not None]
    if not unused or reading.copied_parameters is not None:
        return  # step-without-gradients reports that copies have the gradients
    learning = _modules_around(
        p for p in reading.graph.parameters if p.name in reading.parameters_with_gradient
    )
    called = {event.module: event.where for event in reading.events(UnusedModule)}
    ran_modules = {row.path for row in reading.graph.modules}
    custom = next((node for node in reading.graph.nodes if is_custom(node)), None)
    for module, parameters in group_by_key((_outermost(module_of(p), learning), p) for p in unused):
        names, name = names_of(parameters), module or "the model"
        severity: Severity = "warning"
        why = f"{name} ran{at(called.get(module, ''))}, but the loss does not depend on its result"
        advice = (
            f"Use the result of {name} in the loss, as a tensor (arrays and numbers have no "
            f"gradient), or do not call {name}."
        )
        if module and ran_modules and module not in ran_modules:  # such as an nn.ModuleList
            why = f"modules in {name} ran, but the loss does not depend on their results"
            advice = (
                f"Use the results of the modules in {name} in the loss, as tensors, or do not "
                "call the modules."
            )
        if reading.has_derivatives:
            severity = "info"
            why = (
                f"{name} ran, but the loss, which is computed from gradients, does not depend on it"
            )
        if any(p.module_called is None and p.node is None for p in parameters):
            why = "the compiled model does not use it, or cuts its gradient"
            advice = 'Record the step with record(compiled="eager") to see which, and where.'
        elif not module and (
            module in learning or all(p.module_called is None for p in parameters)
        ):
            them = "it" if len(parameters) == 1 else "them"
            why = f"the loss does not depend on {them}"
            advice = f"Use {names} in forward and its result in the loss, or remove it."
            if custom is not None and module not in learning:
                advice = f"{custom.title}{at(custom.where)} is a custom Function, which returns "
                advice += f"gradients only for the arguments of apply(). Pass {names} to apply(). "
                advice += "In a module, register them as attributes or in an nn.ParameterList."
        elif module in learning:
            why = (
                f"the loss depends on the rest of {name}, but not on "
                f"{'it' if len(parameters) == 1 else 'them'}"
            )
            advice = (
                f"Use {names} in the forward of {name}, or remove "
                f"{'it' if len(parameters) == 1 else 'them'}."
            )
            if reading.has_derivatives:  # a derivative may not depend on a bias
                severity = "info"
                advice = "Do nothing if the loss is computed from gradients only."
        yield finding(
            severity,
            f"{names} got no gradient: {why}.",
            cause="result not used",
            advice=advice,
            where=called.get(module, ""),
            nodes=nodes_of(parameters),
        )


def _names_before_data(reading: Reading) -> set[str]:
    """Return the names of parameters from which the value of a `.data` assignment was computed.

    The rule `data-assignment` reports them.
    """
    sources: set[int] = set()
    for event in reading.events(DataAssignment):
        if event.value is not None:
            upstream(reading, event.value.node, sources)
    return {p.name for p in reading.graph.parameters if p.node in sources} if sources else set()


@rule("warning", of=(Parameter,))
def not_in_optimizer(reading: Reading) -> Iterator[Finding]:
    """A parameter gets a gradient, but no optimizer updates it.

    ## Why it matters

    Backward computes a gradient that no step uses, and the parameter keeps its initial values.
    Usually the optimizer was constructed before the layer was added, or with a part of the model
    only.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    body, head = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
    with record(nn.Sequential(body, head)) as recording:
        head(body(torch.randn(8, 4))).mean().backward()
        optimizer.step()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    body, head = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    with record(nn.Sequential(body, head)) as recording:
        head(body(torch.randn(8, 4))).mean().backward()
        optimizer.step()
    ```

    ## When it is intended

    A program may train only a part of the model. Freeze the rest with `requires_grad_(False)`:
    backward then also does less work.

    ## Not detected

    Parameters that are updated by hand, through `.data` or under `torch.no_grad()`, are not
    reported.

    ## See also

    - [torch.optim](https://docs.pytorch.org/docs/stable/optim.html)
    - [torch.nn.Module.named_parameters](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.named_parameters)
    """
    meant_frozen = {event.owner for event in reading.events(AttributeAssignment)}
    unregistered = [e for e in reading.events(UnregisteredParameters) if e.holder != "outside"]
    reported = {node for event in unregistered for node in event.nodes}
    recreated = tuple(f"{event.name}." for event in unregistered if event.holder == "forward")
    # The rule data-assignment reports these updates.
    assigned = {event.label for event in reading.events(DataAssignment)}
    idle = [
        p
        for p in reading.graph.parameters
        if p.requires_grad
        and p.stepped is False
        and p.name in reading.parameters_with_gradient
        and not (p.name in meant_frozen or p.node in reported or p.name.startswith(recreated))
        and not (p.in_optimizer or p.name in assigned)
    ]
    if idle:
        targets = untrained_targets(reading)  # the rule target-not-detached reports these targets
        idle = [p for p in idle if p.node not in targets]
    if not idle or reading.graph.failure is not None:
        return
    names, them = names_of(idle), "it" if len(idle) == 1 else "them"
    steps = reading.events(OptimizerStep)
    step = steps[0] if steps else None
    # A recording without a model knows only the modules that ran.
    modules = reading.graph.modules
    whole = not modules or any(not row.path for row in modules)
    others = [event for event in steps if event.foreign and whole]
    advice = "Construct the optimizer with model.parameters() after the model is complete, or "
    advice += f"freeze {names} with requires_grad_(False)."
    if _is_copy(idle, reading.graph.parameters):
        advice = f"If {'it is' if len(idle) == 1 else 'they are'} part of a copy, such as a "
        advice += "target network or a teacher, run the copy under torch.no_grad(). Otherwise pass "
        advice += f"{them} to an optimizer."
    nodes = reading.graph.nodes
    uses = (nodes[e.target].where for i in nodes_of(idle) for e in reading.users[i])
    message = f"No optimizer updates {names}, which got a gradient"
    message += f"{at(next(filter(None, uses), ''))}."
    if step is not None:
        message += f" {step.optimizer}, stepped{at(step.where)}, was not given {them}."
    if others and any(p.stepped for p in reading.graph.parameters):
        message = f"{message[:-1]}, and holds {others[0].foreign} that the model does not have: "
        message += "was a layer replaced after the optimizer was constructed?"
        advice = "Construct the optimizer after the model is complete, with model.parameters()."
    elif others and not _has_other_parameters(reading):
        step = others[0]
        message = f"No optimizer updates {names}. {step.optimizer}, stepped{at(step.where)}, holds "
        message += (
            f"{step.foreign} other parameters: was the model replaced after the optimizer was "
            "constructed?"
        )
        advice = "Construct the optimizer after the model is complete, with model.parameters()."
    yield finding(
        "warning",
        message,
        cause="not in the optimizer",
        advice=advice,
        where="" if step is None else step.where,
        nodes=nodes_of(idle),
    )


def _is_copy(idle: Sequence[Parameter], parameters: Iterable[Parameter]) -> bool:
    """Return True if another module has trained parameters with the same names and shapes.

    Args:
        idle: the parameters that no optimizer updates.
        parameters: all parameters of the model.
    """
    stepped = {(p.name.partition(".")[2], p.tensor.shape) for p in parameters if p.stepped}
    keys = [(p.name.partition(".")[2], p.tensor.shape) for p in idle]
    return all(name and (name, shape) in stepped for name, shape in keys)


def _has_other_parameters(reading: Reading) -> bool:
    """Return True if backward reached a parameter that does not belong to the model."""
    own = {p.node for p in reading.graph.parameters}
    leaves = (n for n in reading.graph.nodes if n.leaf == "parameter" and n.order is not None)
    return any(node.id not in own for node in leaves)


def _modules_around(parameters: Iterable[Parameter]) -> set[str]:
    """Return the paths of the parameters' modules, and of all modules around them."""
    return {outer for p in parameters for outer in _outwards(module_of(p))}


def _outwards(module: str) -> list[str]:
    """Return a module's path and the paths around it: "", "a" and "a.b" for "a.b"."""
    parts = module.split(".") if module else []
    return [".".join(parts[:end]) for end in range(len(parts) + 1)]


def _outermost(module: str, excluded: set[str]) -> str:
    """Return the outermost module around `module` that is not in `excluded`, or `module`."""
    return next((outer for outer in _outwards(module) if outer not in excluded), module)


def _called_twins(reading: Reading) -> dict[str, str]:
    """Return item of a module list -> called item with parameters of the same names and shapes."""
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
