"""Follow noise from where it is drawn to the input of a network, and to the target of its loss.

A network that denoises gets a mixture of data and noise, such as `a * data + b * noise`. Such
mixtures are computed without a gradient, so the graph does not contain them. Here a tensor without
a gradient is known as a sum of data and draws with factors, if it is one, and otherwise by the
draws that its values were computed from. No tensor of the program is kept alive; factors, which
have one number for each sample, are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ...findings.rules.noise import MixedNoise, NoiseFault
from ...graph.immutable import immutable, mutable
from ...internals.frames import CodePosition
from ...internals.functions import TensorBase
from ...internals.guards import no_functions
from ...internals.hooks.calls import Called
from ...internals.probes import Probe, fetch, probe, run_unobserved
from ...internals.tensors.references import Ref
from ..listener import BackwardEnded, Listener
from ..program import Program
from ..program.call_names import bare_name
from ..program.events import UserLine

_MAX_KNOWN = 1024  # maximum number of tensors that are followed at a time
_MAX_COMPARED = 64  # maximum number of losses in a step
_MAX_FACTORS = 1 << 12  # a larger factor is not copied
_TOLERANCE = 0.02  # largest deviation that is explained by rounding, and by small constants

DrawKind = Literal["normal", "uniform", "integers", "data"]
_DRAWS: dict[str, DrawKind] = {
    "randn": "normal",
    "randn_like": "normal",
    "normal": "normal",
    "rand": "uniform",
    "rand_like": "uniform",
    "uniform": "uniform",
    "randint": "integers",
    "randint_like": "integers",
}
_PRODUCTS = ("mul", "multiply", "rmul", "imul", "div", "true_divide", "truediv", "divide")
_SUMS = ("add", "radd", "iadd", "sub", "isub", "rsub", "subtract")
_NAMES = """
    view reshape unsqueeze squeeze flatten unflatten expand expand_as contiguous clone detach to
    float half bfloat16 double cuda cpu type type_as permute transpose movedim t T
"""
_RESHAPES = frozenset(_NAMES.split())  # functions that return the values of their first operand
_TIMES = {"uniform", "integers"}  # kinds of draws that times are computed from
_LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_COMPARISONS = (*_LOSSES, "sub", "rsub", "subtract")

Factor = float | Tensor | None  # None: unknown


@immutable(eq=False)
class _NoiseSource:
    """Data or noise that tensors were computed from."""

    kind: DrawKind
    shape: tuple[int, ...]
    place: CodePosition | None  # of the draw


@mutable(eq=False)
class _TensorOrigin:
    """The origin of a tensor's values."""

    terms: dict[_NoiseSource, Factor] | None = (
        None  # factor of each source; None if it is not a sum
    )
    sources: frozenset[_NoiseSource] = frozenset()  # sources of the values
    scales: frozenset[_NoiseSource] = frozenset()  # sources of the factors
    parts: tuple[_TensorOrigin, ...] = ()  # mixtures of data and noise that the values contain
    place: CodePosition | None = None  # line that computed a mixture
    shape: tuple[int, ...] = ()

    @property
    def varies(self) -> bool:
        """True if samples have different factors, as far as is known."""
        return any(not isinstance(factor, float) for factor in (self.terms or {}).values())


class _OriginRef(Ref):
    __slots__ = ("value",)

    value: _TensorOrigin


@mutable
class _NoisyTarget:
    """A loss whose target contains noise, or whose network got noise."""

    number: int  # sequence number of the loss's node
    place: CodePosition | None
    fault: NoiseFault
    drawn: CodePosition | None
    given: CodePosition | None
    numbers: Probe | None = None  # how far the factors are from those of known mixtures


class MixedNoises(Listener):
    """Listener that compares the noise in the input of a network with the noise in its target."""

    needs_constant = True

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._kinds: dict[Any, str] = {}  # function -> its name
        self._known: dict[int, _OriginRef] = {}  # by id() of the tensor
        self._data: dict[int, tuple[Ref, _NoiseSource]] = {}  # by id() of the tensor
        self._inputs: list[_TensorOrigin] = []  # mixtures that a node used since the last backward
        self._reached: set[_NoiseSource] = set()  # sources whose values such a node used
        self._compared: list[_NoisyTarget] = []

    def on_call_end(self, event: Called) -> None:
        name = self._kinds.get(event.func)
        if name is None:
            name = self._kinds.setdefault(event.func, bare_name(event.func).rstrip("_"))
        draw = _DRAWS.get(name)
        if draw is None and not self._known:
            return
        with no_functions():
            if event.end > event.start:
                self._use(name, event)
            elif not self.program.steps.running:
                self._follow(name, draw, event)

    def on_backward_end(self, event: BackwardEnded) -> None:
        self._inputs, self._reached = [], set()

    def on_step_end(self, event: None) -> None:
        self._inputs, self._reached, self._compared = [], set(), []
        self._known = {key: each for key, each in self._known.items() if each() is not None}
        self._data = {key: each for key, each in self._data.items() if each[0]() is not None}

    def close(self) -> None:
        self._known, self._data, self._inputs, self._compared = {}, {}, [], []

    def on_graphs_built(self, backwards: Any, graphs: Any) -> None:
        compared, self._compared = self._compared, []
        measured = [each for each in compared if each.numbers is not None]
        rows = fetch([each.numbers for each in measured if each.numbers is not None])
        fits = {id(each): row for each, row in zip(measured, rows, strict=True)}
        for each in compared:
            row = fits.get(id(each), [0.0])
            if each.fault == "factors" and (not row or min(row) < _TOLERANCE):
                continue
            if each.fault == "uniform" and not (row and row[0] < _TOLERANCE):
                continue
            lines = UserLine(each.drawn), UserLine(each.given)
            event = MixedNoise(fault=each.fault)
            self.events.note(event, each.place, [each.number], drawn=lines[0], given=lines[1])

    def _follow(self, name: str, draw: DrawKind | None, event: Called) -> None:
        """Find the origin of the result of a call that created no node."""
        result = event.args[0] if name == "setitem" else event.result
        if type(result) is not Tensor or result.requires_grad:
            return
        if draw is not None:
            source = _NoiseSource(draw, tuple(result.shape), self.program.place(event.frame))
            self._keep(result, _TensorOrigin({source: 1.0}, frozenset((source,))))
            return
        given = _operands(event)
        known = [self._value(one) for one in given]
        found = [one for one in known if one is not None]
        if not found or not given:
            return
        sources = frozenset().union(*(one.sources for one in found))
        if name not in (*_SUMS, *_PRODUCTS, *_RESHAPES):  # such as the cosine of an embedding
            sources = sources.union(*(one.scales for one in found if not one.parts))
        scales = frozenset().union(*(one.scales for one in found))
        parts = tuple(dict.fromkeys(part for one in found for part in one.parts))
        value = _TensorOrigin(None, sources, scales, parts, None, tuple(result.shape))
        first = known[0]
        if name in _RESHAPES and first is not None:
            value.terms = first.terms
        elif name == "neg" and first is not None and first.terms is not None:
            value.terms = {key: _times(factor, -1.0) for key, factor in first.terms.items()}
        elif name in _PRODUCTS:
            self._scale(name, event.args, value)
        elif name in _SUMS:
            self._add(name, event, value)
        self._keep(result, value)

    def _scale(self, name: str, args: Sequence[Any], value: _TensorOrigin) -> None:
        """Find the origin of a product or quotient of a tensor and a factor."""
        if len(args) != 2:
            return
        one, other = args
        inverse = "div" in name
        if not inverse and (not isinstance(one, Tensor) or self._is_factor(one, other)):
            one, other = other, one
        if not isinstance(one, Tensor):
            return
        factor: Factor = None
        if isinstance(other, Tensor):
            if not self._is_factor(other, one):
                return
            factor = _copy(other)
        elif isinstance(other, int | float):
            factor = float(other)
        if inverse:
            factor = 1 / factor if isinstance(factor, float) and factor else None
        terms = self._terms(one)
        if isinstance(factor, float) and {key.kind for key in terms} == {"data"}:
            return  # data that is scaled is other data
        value.terms = {key: _times(each, factor) for key, each in terms.items()}
        scale = self._value(other) if isinstance(other, Tensor) else None
        own = self._value(one)
        value.sources = frozenset(terms) | (own.sources if own is not None else frozenset())
        if scale is not None:
            value.scales |= scale.sources | scale.scales

    def _is_factor(self, one: Tensor, other: Any) -> bool:
        """Return True if a tensor has one number for each sample, and may scale the other one."""
        if not isinstance(other, Tensor):
            return False
        if TensorBase.numel(one) == 1 or not _has_one_number(one) or not _has_one_number(other):
            return _has_one_number(one)
        kinds = [self._kinds_of(each) for each in (one, other)]
        return kinds[0] <= _TIMES and not kinds[1] <= _TIMES

    def _kinds_of(self, tensor: Tensor) -> set[str]:
        value = self._value(tensor)
        return {"data"} if value is None else {key.kind for key in value.sources}

    def _add(self, name: str, event: Called, value: _TensorOrigin) -> None:
        """Find the origin of a sum or difference; a mixture of data and noise is a part of it."""
        if len(event.args) != 2 or event.kwargs:
            return
        terms: dict[_NoiseSource, Factor] = {}
        signs = [1.0, -1.0 if "sub" in name else 1.0]
        operands = event.args[::-1] if name == "rsub" else event.args
        for sign, operand in zip(signs, operands, strict=True):
            if isinstance(operand, Tensor):
                for key, factor in self._terms(operand).items():
                    more = _times(factor, sign)
                    terms[key] = more if key not in terms else None
        value.terms = terms
        value.sources |= frozenset(terms)
        kinds = {key.kind for key in terms}
        if len(terms) > 1 and kinds & {"normal", "uniform"}:
            value.place = self.program.place(event.frame)
            value.parts = (value,)

    def _terms(self, tensor: Tensor) -> dict[_NoiseSource, Factor]:
        """Return the terms of a tensor. A tensor of unknown origin is data of its own."""
        known = self._value(tensor)
        if known is not None and known.terms is not None:
            return known.terms
        data = self._data.get(id(tensor))
        if data is None or data[0]() is not tensor:
            data = Ref(tensor), _NoiseSource("data", tuple(tensor.shape), None)
            self._data[id(tensor)] = data
            while len(self._data) > _MAX_KNOWN:
                del self._data[next(iter(self._data))]
        return {data[1]: 1.0}

    def _value(self, tensor: Tensor) -> _TensorOrigin | None:
        known = self._known.get(id(tensor))
        return known.value if known is not None and known() is tensor else None

    def _keep(self, tensor: Tensor, value: _TensorOrigin) -> None:
        value.shape = tuple(tensor.shape)
        followed = _OriginRef(tensor)
        followed.value = value
        self._known[id(tensor)] = followed
        while len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def _use(self, name: str, event: Called) -> None:
        """Note the noise in the operands of a call that created a node."""
        given = _operands(event)
        target = None
        if name in _COMPARISONS and len(given) == 2 and given[0].shape == given[1].shape:
            target = next((one for one in given if not one.requires_grad), None)
        for one in given:
            value = None if one.requires_grad else self._value(one)
            if value is None:
                continue
            if one is target and value.terms is not None:
                self._compare(value, event)
                if name in _LOSSES:
                    continue
            # The network does not get the factors of a mixture, but those of an embedding.
            self._reached |= value.sources if value.parts else value.sources | value.scales
            self._inputs += [part for part in value.parts if part not in self._inputs]

    def _compare(self, target: _TensorOrigin, event: Called) -> None:
        """Compare the noise in the target of a loss with the noise that the network got."""
        if len(self._compared) >= _MAX_COMPARED or target.terms is None:
            return
        inputs = [part for part in self._inputs if part.shape == target.shape and part.varies]
        noise = [key for key in target.terms if key.kind in ("normal", "uniform")]
        if not inputs or not noise:
            return
        if target in inputs:
            if event.func.__name__ in _LOSSES:
                self._note(event, "input", None, target.place)
            return
        lost = [key for key in noise if key not in self._reached]
        if lost and _is_velocity(target.terms, lost):
            self._note(event, "other noise", lost[0].place, inputs[-1].place)
        wanted = [part for part in inputs if part.terms is not None and noise[0] in part.terms]
        if lost or not wanted:
            return
        part, source = wanted[-1], noise[0]
        size = part.shape[0] if part.shape else 1
        one = source.shape[:1] == (1,) if len(source.shape) == len(part.shape) else True
        if size > 1 and one and source.shape != part.shape:
            self._note(event, "one for all", source.place, part.place)
        times = [key for key in self._reached if self._is_time(key, part)]
        if part.scales and times and not part.scales & self._reached:
            same = {key.shape for key in part.scales}
            if times[0].shape in same:
                scale = next((each.place for each in part.scales if each.kind in _TIMES), None)
                self._note(event, "other time", times[0].place, scale)
        numbers = self._fit(part, noise[0])
        if numbers is not None:
            kinds = {key.kind for key in part.terms or ()}
            if source.kind == "uniform" and "normal" not in kinds:
                self._note(event, "uniform", source.place, part.place, numbers)
            # Data that is drawn itself may have a scale of its own.
            elif "data" in kinds and sum(key.kind != "data" for key in part.scales) < 2:
                self._note(event, "factors", source.place, part.place, numbers)

    def _is_time(self, key: _NoiseSource, part: _TensorOrigin) -> bool:
        """Return True for a draw that the network got, and that is not in the mixture itself."""
        kinds = {each.kind for each in part.scales} & _TIMES
        own = part.terms is not None and key in part.terms
        return not own and key not in part.scales and key.kind in kinds

    def _fit(self, part: _TensorOrigin, noise: _NoiseSource) -> Probe | None:
        """Start to compare the factors of data and noise with those of known mixtures."""
        terms = part.terms or {}
        factors = [terms[noise], *(factor for key, factor in terms.items() if key != noise)]
        if len(factors) != 2 or any(factor is None for factor in factors):
            return None
        b, a = factors
        numbers = [one for one in (a, b) if isinstance(one, Tensor)]
        if not numbers or all(TensorBase.numel(one) < 2 for one in numbers):
            return None
        like = numbers[0]
        a, b = (
            one if isinstance(one, Tensor) else torch.full_like(like, one or 0.0) for one in (a, b)
        )
        if a.shape != b.shape or a.device != b.device:
            return None
        return probe(_deviations, a, b)

    def _note(
        self,
        event: Called,
        fault: NoiseFault,
        drawn: CodePosition | None,
        given: CodePosition | None,
        numbers: Probe | None = None,
    ) -> None:
        place = self.program.place(event.frame)
        made = _NoisyTarget(event.end - 1, place, fault, drawn, given, numbers)
        self._compared.append(made)


def _operands(event: Called) -> list[Tensor]:
    """Return the tensors among the arguments of a call, and in lists of arguments."""
    found = []
    for given in (*event.args, *event.kwargs.values()) if event.kwargs else event.args:
        if isinstance(given, Tensor):
            found.append(given)
        elif type(given) in (list, tuple):
            found += [each for each in given if isinstance(each, Tensor)]
    return found


def _has_one_number(tensor: Tensor) -> bool:
    """Return True if all dimensions after the first one have the size 1."""
    return max(tensor.shape[1:], default=1) == 1


def _is_velocity(terms: dict[_NoiseSource, Factor], noise: Sequence[_NoiseSource]) -> bool:
    """Return True for noise, and for a difference of data and noise.

    A sum of data and noise may be a noisy target, as in Noise2Noise.
    """
    signs = {isinstance(factor, float) and factor > 0 for factor in terms.values()}
    return len(noise) == len(terms) or (
        all(isinstance(factor, float) for factor in terms.values()) and len(signs) == 2
    )


def _copy(factor: Tensor) -> Tensor | None:
    if TensorBase.numel(factor) > _MAX_FACTORS or not factor.is_floating_point():
        return None
    return run_unobserved(lambda: TensorBase.clone(TensorBase.detach(factor)))


def _times(factor: Factor, by: Factor) -> Factor:
    if factor is None or by is None:
        return None
    if isinstance(factor, float) and isinstance(by, float):
        return factor * by
    if isinstance(factor, float) and factor == 1:
        return by
    if isinstance(by, float) and by == 1:
        return factor
    if isinstance(factor, Tensor) and isinstance(by, Tensor) and factor.shape != by.shape:
        return None
    return run_unobserved(lambda: torch.mul(factor, by))


def _deviations(a: Tensor, b: Tensor) -> Tensor:
    """Return how far two factors, of data and of noise, are from those of known mixtures.

    These are mixtures that keep the variance, linear ones, those that add noise to the data, and
    those of data with another variance than 1.
    """
    a, b = TensorBase.double(a), TensorBase.double(b)
    squares = torch.add(torch.square(a), torch.square(b))
    return torch.stack(
        [
            torch.amax(torch.abs(torch.sub(squares, 1))),
            torch.amax(torch.abs(torch.sub(torch.add(a, b), 1))),
            torch.sub(torch.amax(a), torch.amin(a)),
            torch.sub(torch.amax(b), torch.amin(b)),
            _spread_of_variance(a, b),
            _spread_of_variance(b, a),
        ]
    )


def _spread_of_variance(a: Tensor, b: Tensor) -> Tensor:
    """Return the relative spread of the variance of the data for which mixtures have variance 1."""
    variances = torch.div(torch.rsub(torch.square(b), 1), torch.square(a))
    spread = torch.sub(torch.amax(variances), torch.amin(variances))
    return torch.div(spread, torch.abs(torch.mean(variances)))
