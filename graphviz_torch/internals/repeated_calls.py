"""Differentiate the operations of a block of the program, without running the program's code again.

`ReplayedCalls` notes each call into torch of a block, such as the forward of a custom Function.
`replay` then repeats the same calls on copies of the inputs, with gradients, and `derivative`
returns the gradients that autograd computes from them. The program's tensors, modes, graphs and
random state do not change. A block that autograd cannot differentiate by its calls is not
replayed: one that reads numbers (`item`, `numpy`), draws random numbers, rounds, or calls a
function that is not written with PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from .dynamo import not_compiled_itself
from .exceptions import ignore_exceptions
from .functions import METADATA_CALLS, TensorBase
from .guards import no_autocast, no_functions, no_operators
from .hooks.dispatch import unseen
from .tensors.memory import has_memory, storage_id
from .tensors.pytree import flatten
from .tensors.references import Ref

_MAX_ELEMENTS = 1 << 21  # number of elements of all tensors of a block
_MAX_CALLS = 5_000  # number of calls of a block
_data: Any = Tensor.data
_DETACH = frozenset((torch.detach, Tensor.detach, TensorBase.detach, _data.__get__))
# Functions that return no tensor and have no effect on tensors.
_TESTS = frozenset(("__bool__", "__len__", "is_nonzero", "equal", "allclose", "is_tensor"))
# Functions that are constant almost everywhere: a custom backward replaces their derivative.
_STEPS = {
    *("round", "round_", "floor", "floor_", "ceil", "ceil_", "trunc", "trunc_", "fix", "fix_"),
    *("sign", "sign_", "sgn", "sgn_", "frac", "frac_", "remainder", "fmod", "heaviside"),
    *("floor_divide", "__floordiv__", "__mod__", "bucketize", "searchsorted"),
    *("fake_quantize_per_tensor_affine", "fake_quantize_per_channel_affine", "quantize_per_tensor"),
}
_CASTS = {"to", "type", "type_as", "int", "long", "short", "char", "byte", "bool"}
# Functions whose second run would have an effect on the program.
_EFFECTS = {"backward", "grad", "register_hook", "share_memory_", "set_", "save", "apply_", "map_"}


class ReplayedCalls(TorchFunctionMode):
    """Function mode that notes the calls of a block, to repeat them on copies of its inputs.

    Args:
        inputs: the tensors that the block depends on; they are copied at once.
        constants: values with other tensors that the block may read: containers and modules.
    """

    def __init__(self, inputs: Sequence[Tensor], constants: Sequence[Any]) -> None:
        super().__init__()
        self.complete = True  # False once a call cannot be repeated
        self._copies = [_copy(each) for each in inputs]
        self._slots: dict[int, tuple[Ref, int]] = {}  # id() of a tensor -> its slot
        self._storages: set[int] = set()  # storages of the tensors with a slot
        # Function, its arguments flattened, their structure, their slots, and slots of its results.
        self._calls: list[tuple[Any, list[Any], Any, dict[int, int], list[int]]] = []
        self._versions: dict[Tensor, int] = {}  # constants, with their versions
        self._constants, self._known = constants, set[int]()
        self._device = next((each.device for each in inputs if each.is_cuda), None)
        self._random = _random_state(self._device)
        self._count, self._elements = 0, 0
        for each in inputs:
            self._add_slot(each)

    def stop(self) -> None:
        """Note no further calls; the block cannot be replayed."""
        self.complete = False
        self._calls, self._versions, self._slots = [], {}, {}

    @not_compiled_itself
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.complete:
            with no_functions():
                noted = False
                with ignore_exceptions():
                    noted = self._note(func, args, kwargs or {}, result)
                if not noted:
                    self.stop()
        return result

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any) -> bool:
        """Note a call; return False if it cannot be repeated."""
        if func in METADATA_CALLS and not isinstance(result, Tensor):
            return getattr(func, "__name__", "") not in ("data_ptr", "untyped_storage", "backward")
        name = getattr(func, "__name__", "")
        given, structure = tree_flatten((args, kwargs))
        results = [each for _, each in flatten(result)]
        slots = {i: self._slot(x) for i, x in enumerate(given) if isinstance(x, Tensor)}
        known = {i: slot for i, slot in slots.items() if slot is not None}
        if not results and name != "__setitem__":
            return name in _TESTS or not known
        if name in _EFFECTS or any(isinstance(x, torch.Generator) for x in given):
            return False
        floats = any(given[i].is_floating_point() for i in known)
        if floats and (name in _STEPS or kwargs.get("rounding_mode")):
            return False
        if floats and name in _CASTS and not all(map(_is_wide, results)):
            return False
        for i in slots.keys() - known.keys():
            if not self._is_constant(given[i]):
                return False
            if given[i] not in self._versions:
                self._versions[given[i]] = given[i]._version
                self._elements += TensorBase.numel(given[i])
        rest = [None if i in known else x for i, x in enumerate(given)]  # keeps no result alive
        self._calls.append((func, rest, structure, known, [self._add_slot(x) for x in results]))
        self._elements += sum(map(TensorBase.numel, results))
        return len(self._calls) <= _MAX_CALLS and self._elements <= _MAX_ELEMENTS

    def _slot(self, tensor: Tensor) -> int | None:
        ref, slot = self._slots.get(id(tensor), (None, 0))
        return slot if ref is not None and ref() is tensor else None

    def _add_slot(self, tensor: Tensor) -> int:
        known = self._slot(tensor)
        if known is not None:
            return known
        self._slots[id(tensor)] = Ref(tensor), self._count
        if storage_id(tensor) not in self._known:  # a view of a constant may be read again
            self._storages.add(storage_id(tensor))
        self._count += 1
        return self._count - 1

    def _is_constant(self, tensor: Tensor) -> bool:
        """Return True if the block only reads a tensor, which it did not compute itself."""
        storage = storage_id(tensor)
        if not has_memory(tensor) or storage in self._storages:
            return False
        if not self._known:
            self._known = set(_storages_of(self._constants))
        return isinstance(tensor, Parameter) or storage in self._known

    def replay(self, results: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]] | None:
        """Repeat the calls, and return the copies of the inputs and of the results, with graphs.

        Args:
            results: the tensors that the block returned.

        Returns:
            None if the block cannot be replayed, or if the copies differ from the results.
        """
        with no_functions(), no_operators(), unseen():
            try:
                return self._repeat(results) if self._is_unchanged() else None
            finally:
                self.stop()

    def _is_unchanged(self) -> bool:
        changed = any(each._version != version for each, version in self._versions.items())
        drawn = not torch.equal(self._random, _random_state(self._device))
        return self.complete and not changed and not drawn

    def _repeat(self, results: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]] | None:
        leaves, slots = self._copies, [self._slot(each) for each in results]
        if None in slots:
            return None
        constants = {each: _copy(each) for each in self._versions}  # a call may write into a view
        with _isolated_gradients():
            values: dict[int, Tensor] = {}
            for i, leaf in enumerate(leaves):
                leaf.requires_grad_(leaf.is_floating_point() or leaf.is_complex())
                values[i] = leaf.clone()  # a leaf itself must not be changed in place
            for func, rest, structure, known, made in self._calls:
                given = [
                    values[known[i]]
                    if i in known
                    else (constants[x] if isinstance(x, Tensor) else x)
                    for i, x in enumerate(rest)
                ]
                if func in _DETACH:
                    found: Any = given[0].view_as(given[0])
                else:
                    args, kwargs = tree_unflatten(given, structure)
                    found = func(*args, **kwargs)
                for slot, (_, each) in zip(made, flatten(found), strict=True):
                    values[slot] = each
            copies = [values[slot] for slot in slots if slot is not None]
            if all(map(_is_close, copies, results)):
                return leaves, copies
        return None


def derivative(
    leaves: Sequence[Tensor], results: Sequence[Tensor], given: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Return the gradients of `results` with respect to `leaves`; None where there is none.

    Args:
        leaves: the copies of the inputs.
        results: the copies of the results.
        given: the gradients of the results; None for zeros.
    """
    with _isolated_gradients():
        pairs = [(r, g) for r, g in zip(results, given, strict=True) if g is not None and r.grad_fn]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        if not pairs or not wanted:
            return [None] * len(leaves)
        # The engine itself is called, so that no watch reports this backward.
        found = iter(
            torch.autograd.Variable._execution_engine.run_backward(
                tuple(r for r, _ in pairs),
                tuple(g for _, g in pairs),
                False,
                False,
                tuple(wanted),
                allow_unreachable=True,
                accumulate_grad=False,
            )
        )
        return [next(found) if leaf.requires_grad else None for leaf in leaves]


@contextmanager
def _isolated_gradients() -> Iterator[None]:
    """Run tensor operations with gradients, hidden from modes, watches, hooks and autocast.

    Saved tensors are copies, because a custom forward may change them in place afterwards.
    """
    copy: Callable[[Tensor], Tensor] = lambda tensor: TensorBase.clone(TensorBase.detach(tensor))  # noqa: E731
    hooks = torch.autograd.graph.saved_tensors_hooks(copy, lambda tensor: tensor)
    with no_functions(), no_operators(), unseen(), no_autocast(), torch.enable_grad(), hooks:
        yield


def _copy(tensor: Tensor) -> Tensor:
    with no_functions(), no_operators(), unseen(), torch.no_grad():
        return TensorBase.detach(tensor).clone()


def _random_state(device: torch.device | None) -> Tensor:
    return torch.get_rng_state() if device is None else torch.cuda.get_rng_state(device)


def _is_wide(tensor: Tensor) -> bool:
    return tensor.is_complex() or (tensor.is_floating_point() and tensor.element_size() > 1)


def _is_close(copy: Tensor, result: Tensor) -> bool:
    if copy.shape != result.shape or copy.dtype != result.dtype:
        return False
    return torch.allclose(copy.detach(), result.detach(), rtol=1e-3, atol=1e-5)


def _storages_of(values: Sequence[Any]) -> Iterator[int]:
    for value in values:
        if isinstance(value, Module):
            yield from (storage_id(each) for each in (*value.parameters(), *value.buffers()))
        else:
            yield from (storage_id(each) for _, each in flatten(value, ask=False))


def saved_tensor_hooks() -> Any:
    """Return the hooks that tensors saved now will have; None without such hooks (2.13)."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def variables_of(function: Any) -> list[Any]:
    """Return the global and enclosing variables of a function that are or contain tensors."""
    kinds = (Tensor, Module, list, tuple, dict)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    values = [*function.__globals__.values(), *cells]
    return [value for value in values if issubclass(type(value), kinds)]
