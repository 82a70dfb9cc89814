"""Find the numbers by which scores are scaled before a softmax, in both arguments of a loss."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from torch import Tensor
from torch.nn import functional

from ...findings.rules.scores import SoftTargets
from ...internals.frames import user_frame
from ...internals.functions import TensorBase, functions_named
from ...internals.guards import no_functions
from ...internals.hooks.calls import Called
from ...internals.tensors.weak import Ref
from ..listener import Listener
from ..program import Program

_MAX_KNOWN = 256  # maximum number of tensors that are followed at a time

_PRODUCTS = functions_named("mul multiply __mul__ __rmul__")
_QUOTIENTS = functions_named("div true_divide __truediv__")
_SOFTMAXES = functions_named("softmax log_softmax") | {
    functional.softmax,
    functional.log_softmax,
}
_MOVES = functions_named(
    "neg __neg__ detach to float clone contiguous view reshape squeeze unsqueeze"
)


ScoreKind = Literal["scores", "probabilities", "log-probabilities"]


class _Scaled(NamedTuple):
    """A tensor of scores times a number, or of probabilities computed from such scores."""

    tensor: Ref
    scale: float
    kind: ScoreKind


class Temperatures(Listener):
    """Listener that reports losses of two distributions, with the scales of their scores."""

    needs = ("every_call",)
    functions = frozenset(
        {*_PRODUCTS, *_QUOTIENTS, *_SOFTMAXES, *_MOVES}
        | {functional.kl_div, functional.cross_entropy}
    )

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._known: dict[int, _Scaled] = {}  # by id() of the tensor

    def on_call_end(self, event: Called) -> None:
        func, args, result = event.func, event.args, event.result
        if func is functional.kl_div or func is functional.cross_entropy:
            self._note_loss(event)
            return
        given = args[0] if args else None
        if type(given) is not Tensor or type(result) is not Tensor:
            return
        known = self._find(given)
        scale, kind = (known.scale, known.kind) if known else (1.0, "scores")
        if func in _SOFTMAXES:
            kind = "log-probabilities" if "log" in func.__name__ else "probabilities"
        elif func in _MOVES:
            if known is None:
                return
        else:
            by = args[1] if len(args) > 1 else None
            if type(by) is Tensor and func in _PRODUCTS:
                self._note_loss(event)
            if type(by) not in (int, float) or not by or kind != "scores":
                return
            scale *= by if func in _PRODUCTS else 1 / by
        self._known[id(result)] = _Scaled(Ref(result), scale, kind)
        while len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def on_step_end(self, event: None) -> None:
        self._known = {}

    def close(self) -> None:
        self._known = {}

    def _find(self, tensor: Any) -> _Scaled | None:
        known = self._known.get(id(tensor))
        return known if known is not None and known.tensor() is tensor else None

    def _note_loss(self, event: Called) -> None:
        """Note a loss whose target is a distribution that was computed from scores."""
        kwargs = event.kwargs or {}
        given = [*event.args[:2], *(kwargs[key] for key in ("input", "target") if key in kwargs)]
        if len(given) != 2 or event.end == event.start or type(given[0]) is not Tensor:
            return
        scores, target = map(self._find, given)
        if event.func in _PRODUCTS and target is not None and target.kind == "log-probabilities":
            scores, target = target, scores
        kind = "scores" if scores is None else scores.kind
        wanted = "scores" if event.func is functional.cross_entropy else "log-probabilities"
        if target is None or target.kind != "probabilities" or kind != wanted:
            return
        scale = 1.0 if scores is None else scores.scale
        outer = user_frame(event.frame)
        with no_functions():
            same = given[0].shape == given[1].shape and TensorBase.dim(given[0]) > 0
        if same and scale != target.scale:
            name = event.func.__name__.strip("_")
            found = SoftTargets(function=name, scale=scale, target_scale=target.scale)
            self.events.note(found, self.program.place(outer), [event.end - 1])
