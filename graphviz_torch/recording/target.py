"""Build the graph of a tensor, module or exported program, for `draw_graph` and `trace`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..graph import Graph
from ..internals.functions import TensorBase
from ..internals.tensors.memory import has_memory
from ..internals.tensors.pytree import flatten
from ..tracing.programs import Program, program_graph
from ..tracing.tracer import roots, trace
from .program.source_lines import short_names
from .recording import record


def read(target: Any, inputs: tuple[Any, ...], names: Any) -> Graph | None:
    """Return the graph of a tensor, nested tensors, a module or a program.

    The graph of tensors is traced. A module runs one forward with `inputs`. The module's buffers
    and train/eval modes, and the random state, are restored afterwards. A program of `torch.export`
    or `torch.fx` is converted without running it, unless inputs are given. The result is None for
    objects of other types.

    Args:
        target: the object.
        inputs: arguments of the forward.
        names: names of tensors, as for `trace`.

    Raises:
        TypeError: if the module's forward needs other inputs.
        ValueError: if no tensor has an autograd graph.
    """
    if isinstance(target, Program) and not inputs:
        return program_graph(target, short_names)
    if isinstance(target, torch.nn.Module):
        return _of_module(target, inputs, names)
    if not inputs and flatten(target):
        return trace(target, names=names)
    return None


def _of_module(model: torch.nn.Module, inputs: tuple[Any, ...], names: Any) -> Graph:
    _expect_inputs(model, inputs)
    # With `names`, compiled regions are not opened, so that the recorded nodes are the traced ones.
    recording = record(model, gradients=False, compiled="open" if names is None else "closed")
    with _restore_on_exit(model), torch.enable_grad(), recording:
        outputs = model(*inputs)
        roots(outputs)  # raises ValueError if there is no graph
        graph = recording.graph
        if names is not None:
            labels = {node.id: node.label for node in trace(outputs, names=names).nodes}
            graph = graph.annotate(label=labels)
    return graph


def _expect_inputs(model: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
    """Raise TypeError, before forward runs, if forward requires inputs and none are given."""
    if inputs:
        return
    try:
        inspect.signature(model.forward).bind()
    except TypeError:
        kind = type(model).__name__
        raise TypeError(
            f"{kind} is a module whose forward needs inputs. Pass the inputs, as in "
            "draw_graph(model, x), or pass the result, as in draw_graph(model(x))."
        ) from None
    except ValueError:  # the forward has no signature
        return


@contextmanager
def _restore_on_exit(model: torch.nn.Module) -> Iterator[None]:
    """Restore the model's buffers and modes, and torch's random state, on exit."""
    modes = [(m, m.training) for m in model.modules() if hasattr(m, "training")]
    buffers = [
        (module, name, buffer, _copy(buffer))
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if started else ()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        for module, training in modes:
            module.training = training
        for module, name, buffer, value in buffers:
            module._buffers[name] = buffer
            if buffer is not None and value is not None and not torch.equal(buffer, value):
                TensorBase.copy_(buffer.data, value)


def _copy(buffer: torch.Tensor | None) -> torch.Tensor | None:
    """Return a copy of a buffer; None without a buffer, or if the values cannot be compared.

    This is the case for buffers that are sparse, nested, masked or on the meta device.
    """
    if buffer is None or not has_memory(buffer):
        return None
    return torch.clone(TensorBase.detach(buffer))
