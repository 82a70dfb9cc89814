"""The rule about operations that failed because their tensors are on different devices."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...graph import Failure, Finding, Operand
from ...graph.text import listing
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at, in_code

_ITEM = re.compile(r"[^\W\d]\w*(\[('[^']*'|\d+)\])?")  # "x", "batch['y']", "batch[1]"


@rule("error", of=(Failure,))
def mixed_devices(reading: Reading) -> Iterator[Finding]:
    """An operation failed because its tensors are on different devices.

    ## Why it matters

    All tensors of an operation must be on one device. PyTorch's message names two devices, but
    neither the argument that is on each device, nor the line that created it.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record, simulate_accelerator

    with simulate_accelerator() as (gpu,):
        model = nn.Linear(4, 2).to(gpu)
        with record(model) as recording:
            x = torch.randn(8, 4)
            model(x).sum().backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record, simulate_accelerator

    with simulate_accelerator() as (gpu,):
        model = nn.Linear(4, 2).to(gpu)
        with record(model) as recording:
            x = torch.randn(8, 4).to(gpu)
            model(x).sum().backward()
    ```

    ## When it is intended

    It is never intended: the operation has failed.

    ## Not detected

    Operations inside a compiled region are not detected, because only the region as a whole is
    recorded.

    ## See also

    - [torch.Tensor.to](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.to.html)
    - [CUDA semantics](https://docs.pytorch.org/docs/stable/notes/cuda.html)
    """
    failure = reading.graph.failure
    if failure is None or not is_mixed(failure):
        return
    moves = [o for o in failure.operands if o.tensor.device != _target(failure)]
    target = in_code(_target(failure))
    attributes = [o.label[5:] for o in moves if re.fullmatch(r"self\.\w+", o.label)]
    steps = [f'{o.label} = {o.label}.to("{target}")' for o in moves if _ITEM.fullmatch(o.label)] + [
        f'self.register_buffer("{name}", ...), which moves with the module' for name in attributes
    ]
    advice = "; ".join(steps)
    owned = [o.label for o in moves if o.label in reading.parameter_names]
    if owned:
        advice = f'the model, with model.to("{target}"): {listing(owned)} {_is(owned)} on the CPU'
    got = listing((_operand(o) for o in failure.operands), most=8)
    yield finding(
        "error",
        f"{failure.operation or 'An operation'}{at(failure.where)} got "
        f"{got or 'tensors on different devices'}.",
        cause="tensors on different devices",
        advice=f"Move all tensors to one device: {advice}."
        if advice
        else f'Move all tensors to "{target}" first.',
        where=failure.where,
        nodes=tuple(o.node for o in failure.operands if o.node is not None),
    )


def is_mixed(failure: Failure) -> bool:
    """Return True if an operation failed because its tensors are on different devices."""
    if failure.node is not None:
        return False
    # PyTorch copies a 0-dimensional tensor from the CPU by itself.
    devices = {o.tensor.device for o in failure.operands if o.tensor.shape}
    return len(devices) > 1 or "same device" in failure.message


def _target(failure: Failure) -> str:
    """Return the device to move the operands to: an operand's accelerator, else "cpu"."""
    devices = [operand.tensor.device for operand in failure.operands]
    return next((device for device in reversed(devices) if device != "cpu"), "cpu")


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _operand(operand: Operand) -> str:
    made = f" (made{at(operand.where)})" if operand.where else ""
    meta = str(operand.tensor._replace(device=""))
    unnamed = f"{'an' if meta[0] in 'aeiou' else 'a'} {meta}"
    return f"{operand.label or unnamed} on {operand.tensor.device}{made}"
