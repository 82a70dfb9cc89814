"""Write the gradient norms of modules and layers during training, to a logger or as summaries.

The cost of a step that is not measured is that of a counter.

The summaries are scalars, charts and a ridge plot. After a single step, the Scalars tab would show
a card with only one point for each layer. The scalars of the first step are therefore written
together with those of the second step. The ridge plot, which shows single steps, is written at
once.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Protocol
from weakref import WeakSet

import torch

from ..graph.tensors import total_norm
from ..internals.hooks.modes import unseen_calls
from ..internals.hooks.optimizers import Stepping
from ..internals.tensors.memory import elements


class Writer(Protocol):
    """A logger with the method `add_scalar`, such as TensorBoard's `SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Write `scalar_value` under `tag` at a step."""


def gradient_norms(model: torch.nn.Module) -> dict[str, float]:
    """Return each module's gradient norm: the Euclidean norm over the module's own parameters.

    Keys are paths of modules; "" is the model itself. Modules without a readable gradient are left
    out. For a DTensor, the norm is that of the local shard. The norms are copied from each device
    in one copy. A second copy follows if a sum of squares overflows or underflows.
    """
    owners: list[str] = []
    gradients: list[torch.Tensor] = []
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            with unseen_calls():
                readable = elements(parameter.grad).tensors
            owners += [name.rpartition(".")[0]] * len(readable)
            gradients += readable
    wide = [_norm_dtype(gradient.dtype) for gradient in gradients]
    norms = _fetch(
        [
            torch.linalg.vector_norm(gradient, dtype=dtype)
            for gradient, dtype in zip(gradients, wide, strict=True)
        ]
    )
    lost = [
        i
        for i, norm in enumerate(norms)
        if not _min_exact_norm(wide[i]) < norm < math.inf and gradients[i].numel()
    ]
    for i, norm in zip(lost, _scaled_norms([gradients[i].to(wide[i]) for i in lost]), strict=True):
        norms[i] = norm
    found: dict[str, list[float]] = {}
    for owner, norm in zip(owners, norms, strict=True):
        found.setdefault(owner, []).append(norm)
    return {owner: total_norm(some) for owner, some in found.items()}


def _fetch(numbers: list[torch.Tensor]) -> list[float]:
    """Return the values of one-element tensors, with one copy from each device."""
    values = [0.0] * len(numbers)
    positions: dict[torch.device, list[int]] = {}
    for i, number in enumerate(numbers):
        positions.setdefault(number.device, []).append(i)
    for device, here in positions.items():
        widest = torch.float32 if device.type == "mps" else torch.float64
        row = torch.stack([numbers[i].to(widest) for i in here]).tolist()
        for i, value in zip(here, row, strict=True):
            values[i] = value
    return values


def _scaled_norms(gradients: list[torch.Tensor]) -> list[float]:
    """Return the norms of gradients whose squares would overflow or underflow.

    Each gradient is divided by its largest element before its norm is computed.
    """
    units, ratios = [], []
    for gradient in gradients:
        sizes = gradient.abs()
        high = sizes.amax()
        unit = torch.where((high > 0) & high.isfinite(), high, 1)
        units.append(unit)
        ratios.append(torch.linalg.vector_norm(sizes / unit))
    found = _fetch(units + ratios)
    return [u * r for u, r in zip(found, found[len(units) :], strict=False)]


class ModuleNorms:
    """A writer of a model's gradient norms.

    Args:
        model, writer, every, tag: as for `watch`.
    """

    def __init__(self, model: torch.nn.Module, writer: Writer, every: int, tag: str) -> None:
        self._model = model
        self._writer = writer
        self._every = every
        self._tag = tag
        self._step = 0  # number of training steps; one step of each optimizer makes a training step
        # Optimizers that have stepped in this training step.
        self._stepped: WeakSet[torch.optim.Optimizer] = WeakSet()
        # `id` of each trainable parameter whose optimizer has not stepped in this training step.
        self._missing: set[int] = set()
        self._norms: dict[str, float] = {}  # norms of this step, until they are written
        self._series = NormSeries(tag)
        self._failed = False

    def on_optimizer_step_start(self, event: Stepping) -> None:
        """Measure the gradients before an optimizer steps."""
        optimizer = event.optimizer
        optimized = {id(p) for group in optimizer.param_groups for p in group["params"]}
        parameters = dict(self._model.named_parameters())
        mine = {name.rpartition(".")[0] for name, p in parameters.items() if id(p) in optimized}
        if not mine:
            return
        if not self._stepped or optimizer in self._stepped:
            self.flush()
            self._stepped = WeakSet()
            self._missing = {id(p) for p in parameters.values() if p.requires_grad}
            self._step += 1
        self._stepped.add(optimizer)
        if (self._step - 1) % self._every or not self._missing:
            return
        with torch.no_grad():
            norms = gradient_norms(self._model)
        # A module's norm is measured when its own optimizer steps. Norms of modules whose optimizer
        # has stepped already are kept.
        known = {path: norm for path, norm in self._norms.items() if path not in mine}
        self._norms = norms | known
        self._missing -= optimized
        if not self._missing:
            self.flush()

    def flush(self) -> None:
        """Write the norms of the current step, if it was measured. A failure is reported once."""
        norms, self._norms = self._norms, {}
        try:
            self._write({path or "model": norm for path, norm in norms.items()}, self._step - 1)
        except OSError as error:
            if not self._failed:
                self._failed = True
                message = f"watch() cannot write the gradient norms: {error}"
                warnings.warn(message, RuntimeWarning, stacklevel=2)

    def _write(self, norms: dict[str, float], step: int) -> None:
        if norms and hasattr(self._writer, "add_histogram_raw"):  # a SummaryWriter also gets charts
            from .events import writing

            with writing(self._writer) as write:
                for summary, when in self._series.summaries(norms, step):
                    write(summary, when)
            return
        for path, norm in norms.items():
            self._writer.add_scalar(f"{self._tag}/{path}", norm, step)


@cache
def _norm_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


@cache
def _min_exact_norm(dtype: torch.dtype) -> float:
    """Return the smallest norm that is exact. For smaller norms, squares of elements underflow."""
    info = torch.finfo(dtype)
    return math.sqrt(info.tiny / info.eps)


_LINES = 12  # maximum number of lines in the chart of all layers
# Matches the part of the model to which a layer belongs: the layer's path up to the first number,
# such as "encoder.layers.3" or, without a number, the first name, such as "head".
_PART = re.compile(r"[^.]+(\.[^.]+)*?\.\d+(?=\.|$)|[^.]+")


class NormSeries:
    """A builder of summaries, which is called with the gradient norms of each step.

    Args:
        tag: first part of all names: scalars are "<tag>/<layer>", the ridge plot "<tag> by depth".
    """

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self._first: tuple[int, Mapping[str, float]] | None = None  # (first step, its norms)
        self._charted: dict[str, None] = {}  # layers in the current layout of charts

    def summaries(self, norms: Mapping[str, float], step: int) -> list[tuple[Any, int]]:
        """Return the (summary, step) pairs to write now.

        If this method is called again for the first step, the later norms are used.

        Args:
            norms: the gradient norm of each layer, first layer first.
            step: the training step.
        """
        from .events import charts, scalars

        if not self._charted and (self._first is None or self._first[0] == step):
            self._first = step, dict(norms)
            return [(ridge(norms, self._tag), step)]
        found = []
        if self._first is not None:
            before, those = self._first
            self._first = None
            found.append((scalars(self._with_tag(those)), before))
        found += [(scalars(self._with_tag(norms)), step), (ridge(norms, self._tag), step)]
        if not norms.keys() <= self._charted.keys():
            self._charted |= dict.fromkeys(norms)
            found.append((charts(self._tag, chart_lines(self._charted, self._tag)), step))
        return found

    def _with_tag(self, norms: Mapping[str, float]) -> dict[str, float]:
        return {f"{self._tag}/{layer}": norm for layer, norm in norms.items()}


def ridge(norms: Mapping[str, float], tag: str) -> Any:
    """Return a histogram in which the bucket from i to i + 1 has the norm of layer i as count."""
    from .events import buckets

    # A histogram cannot contain NaN or Inf, which become 0 here. The scalars have the true values.
    rows = [
        (float(i), float(i + 1), norm if math.isfinite(norm) else 0.0)
        for i, norm in enumerate(norms.values())
    ]
    layers = ", ".join(f"{i}: `{layer}`" for i, layer in enumerate(norms))
    return buckets(f"{tag} by depth", rows, description=f"Layers: {layers}")


def chart_lines(layers: Iterable[str], tag: str) -> dict[str, list[str]]:
    """Return title of a chart -> tags of the scalars that it shows.

    The first chart has at most twelve layers, evenly spaced from the first to the last. If the
    model has more layers, each part of the model (a block of a list, or a child of the model) has a
    chart of its own. Parts with a single layer share a chart.

    >>> list(chart_lines([f"gpt.h.{i}.{j}" for i in (0, 1) for j in range(8)], "norm"))
    ['12 of 16 layers, first to last', 'gpt.h.0', 'gpt.h.1']
    >>> list(chart_lines(["embed", *(f"blocks.{i}.{j}" for i in (0, 1) for j in range(8))], "norm"))
    ['12 of 17 layers, first to last', 'blocks.0', 'blocks.1', 'other layers']
    """
    layers = list(layers)
    tags = [f"{tag}/{layer}" for layer in layers]
    if len(tags) <= _LINES:
        return {"all layers": tags}
    some = [tags[i * (len(tags) - 1) // (_LINES - 1)] for i in range(_LINES)]
    parts: dict[str, list[str]] = {}
    for layer in layers:
        name = _PART.match(layer)
        parts.setdefault(name[0] if name else layer, []).append(f"{tag}/{layer}")
    alone = [tag for lines in parts.values() if len(lines) == 1 for tag in lines]
    return {
        f"{_LINES} of {len(tags)} layers, first to last": some,
        **{part: lines for part, lines in parts.items() if len(lines) > 1},
        **({"other layers": alone} if alone else {}),
    }
