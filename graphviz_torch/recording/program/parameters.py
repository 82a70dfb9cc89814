"""Map the program's modules to paths, and their parameters to names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any

from torch import Tensor
from torch.nn import Module

from ...internals.wrappers import is_sharded, is_wrapped_child, unsharded_parameters, wrapped_module
from ...tracing.names import classes_along


def _members(rows: Iterable[tuple[Any, ...]], attribute: str) -> list[Tensor | None]:
    """Return the values of a dict of each module, such as `_parameters`, in one list.

    Args:
        rows: tuples that begin with a module.
        attribute: name of the attribute with the dict.
    """
    dicts = list(map(attrgetter(attribute), map(itemgetter(0), rows)))
    try:
        return list(chain.from_iterable(map(dict.values, dicts)))  # without a Python call for each
    except TypeError:  # a scripted module has an object with the methods of a dict
        return [value for each in dicts for value in each.values()]


class _Block:
    """A module and its submodules, added by one call of `add`, with paths and parameters."""

    __slots__ = ("modules", "parameters")

    def __init__(self) -> None:
        self.modules: list[tuple[Module, str]] = []
        self.parameters: list[Tensor | None] = []  # the parameters that were named last

    def current_parameters(self) -> list[Tensor | None]:
        """Return the current parameters of the modules, without a Python loop for speed."""
        return _members(self.modules, "_parameters")

    def has_changed(self) -> bool:
        """Return True if a parameter was replaced since the parameters were named."""
        now = self.current_parameters()
        return len(now) != len(self.parameters) or not all(map(is_, now, self.parameters))


class ParameterTable:
    """Names of modules, parameters and buffers.

    Args:
        model: the root module. Its submodules get the paths of `named_modules()`. If None, the
            first module that is added becomes the root.
    """

    def __init__(self, model: Module | None) -> None:
        self._traced = False  # True if module calls in compiled graphs are reported
        # Inside `read_once`: whether replaced parameters were searched for. None elsewhere.
        self._looked: bool | None = None
        self.clear(model)

    def clear(self, model: Module | None) -> None:
        """Forget all modules except this model's."""
        self._modules: dict[int, tuple[Module, str, _Block]] = {}  # by id() of the module
        self._blocks: list[_Block] = []  # the first block contains the root
        self._unnamed: list[_Block] = []  # blocks whose parameters have no names yet
        self._bare: list[_Block] = []  # single modules without parameters, such as a pooling layer
        self._paths: set[str] = set()  # paths of all modules
        self._counts: dict[str, int] = {}  # "head" -> 2 if the last path for it was "head_2"
        # Cached result of `classes`, and the number of modules when it was computed.
        self._other_paths: dict[str, Module] = {}  # further paths of shared activations
        self._classes: tuple[int, Mapping[str, str]] | None = None
        self._called: dict[str, None] = {}  # paths of the modules whose forward ran
        # True if a compiled graph may have called unknown modules.
        self.unknown_calls = not self._traced
        self._named: list[tuple[str, Tensor]] = []
        self._names: dict[int, str] = {}  # the names in `_named`, by id() of the parameter
        self._named_own = 0  # number of items of `_named` that belong to the first block
        self._replaced: list[tuple[str, Tensor]] = []  # parameters that a module no longer has
        self.is_given = model is not None
        if model is not None:
            self.add(model, "")

    def __len__(self) -> int:
        return len(self._modules)

    def path(self, module: Module) -> str | None:
        """Return the module's path; None if it is not in the table."""
        known = self._modules.get(id(module))
        return None if known is None else known[1]

    def path_of(self, key: int, kind: str) -> str | None:
        """Return the path of the module with this id() and class name; None if there is none.

        Args:
            key: id() of the module.
            kind: name of the module's class.
        """
        known = self._modules.get(key)
        return known[1] if known is not None and type(known[0]).__name__ == kind else None

    def add(self, module: Module, path: str) -> str:
        """Add a module and its submodules, and return its path.

        If another module already has the path, the new path ends in a number: "head_2".
        """
        if id(module) in self._modules:
            return self._modules[id(module)][1]
        wanted = path
        while path and path in self._paths:
            count = self._counts[wanted] = self._counts.get(wanted, 1) + 1
            path = f"{wanted}_{count}"
        # Faster than named_modules(), with the same paths. A shared module gets its first path.
        stack, block = [(path, module)], _Block()
        while stack:
            path, module_ = stack.pop()
            key = id(module_)
            if key in self._modules:
                continue
            wrapped = wrapped_module(module_) if (children := module_._modules) else None
            if wrapped is not None and id(wrapped) in self._modules:
                path = self._modules[id(wrapped)][1]
            self._modules[key] = (module_, path, block)
            block.modules.append((module_, path))
            self._paths.add(path)
            for name, child in reversed(children.items()) if children else ():
                if child is not None:
                    # A wrapper and the module that it wraps have the same path.
                    same = not name or (wrapped is not None and is_wrapped_child(module_, name))
                    stack.append((path if same else f"{path}.{name}" if path else name, child))
        if self._blocks and not module._modules and not module._parameters:
            self._bare.append(block)
        else:
            self._blocks.append(block)
            self._unnamed.append(block)
        return self._modules[id(module)][1]

    def take_in(self, module: Module) -> str | None:
        """Add a module that the program added to the model after the model was registered.

        Returns:
            The module's path. None if the model does not contain the module, or if the module has
            neither parameters nor submodules.
        """
        if not (module._parameters or module._modules):
            return None
        own = self._blocks[0].modules if self._blocks else []
        if not any(part is module for known, _ in own for part in known._modules.values()):
            return None
        before, self._blocks, self._unnamed = self._blocks + self._bare, [], []
        self._bare = []
        self._modules, self._paths, self._classes = {}, set(), None
        self.add(*own[0])
        for block in before[1:]:
            for known, path in block.modules:
                self.add(known, path)
        self._name()
        return self.path(module)

    def classes(self) -> Mapping[str, str]:
        """Return for each path the classes of the modules from the root to this path, as text."""
        known = len(self._modules) + len(self._other_paths)
        if self._classes is None or known != self._classes[0]:
            # A compiled module is shown with the class of the module that it wraps.
            own = [row for row in self._modules.values() if "_orig_mod" not in row[0]._modules]
            named = [(path, module) for module, path, _ in own]
            named += self._other_paths.items()
            self._classes = known, classes_along(named)
        return self._classes[1]

    def path_in(self, outer: Module, above: str, module: Module, path: str) -> str:
        """Return the path of a module that another module calls and does not contain by its path.

        Several modules may share one activation, such as a default argument `nn.Tanh()`. It is then
        named after the module that calls it, because it has no parameters that belong elsewhere.

        Args:
            outer: the module that calls `module`.
            above: path of `outer`.
            module: the called module.
            path: the first path of `module`.
        """
        if module._parameters or module._buffers or module._modules:
            return path
        names = [name for name, child in outer._modules.items() if child is module]
        if names:
            path = f"{above}.{names[0]}"
            self._other_paths[path] = module
        return path

    def call(self, module: Module) -> str | None:
        """Record that a module's forward runs, and return the module's path; None if unknown."""
        known = self._modules.get(id(module))
        if known is None:
            return None
        self._called[known[1]] = None
        return known[1]

    def trace_calls(self) -> None:
        """Assume from now on that `call_inside` is called for each compiled graph."""
        self._traced, self.unknown_calls = True, False

    def call_inside(self, modules: Iterable[tuple[int, str, str]] | None, above: str) -> None:
        """Record that a compiled graph called these modules.

        Args:
            modules: for each module the id(), the path below `above` and the name of the class.
                None if the called modules are unknown.
            above: path of the module in which the graph runs.
        """
        for key, text, kind in modules or ():
            path = self.path_inside(key, text, kind, above)
            self.unknown_calls |= path not in self._paths
            self._called[path] = None
        self.unknown_calls |= modules is None

    def path_inside(self, key: int, text: str, kind: str, above: str) -> str:
        """Return the path from the model's root of a module that a compiled graph called.

        Args:
            key: id() of the module.
            text: path of the module below `above`.
            kind: name of the module's class.
            above: path of the module in which the graph runs.
        """
        path = self.path_of(key, kind)
        if path is None or (above and path != above and not path.startswith(above + ".")):
            return ".".join(filter(None, (above, text)))
        return path

    def was_called(self, parameter: str) -> bool:
        """Return True if the forward of the module that owns a parameter ran.

        Args:
            parameter: name of the parameter.
        """
        return parameter.rpartition(".")[0] in self._called

    def ran(self, path: str) -> bool:
        """Return True if the forward of the module at this path ran."""
        return path in self._called

    def called_modules(self) -> list[tuple[Module, str]]:
        """Return the modules whose forward ran, with their paths."""
        return [(module, path) for module, path in self.modules() if path in self._called]

    def modules(self) -> list[tuple[Module, str]]:
        """Return the model's modules and all other called modules, with their paths."""
        return [(module, path) for module, path, _ in self._modules.values()]

    def own_ids(self) -> set[int]:
        """Return the id() of each parameter of the model.

        If no model was given, the first called module counts as the model.
        """
        found: list[Tensor | None] = []
        if self._blocks:
            found = (
                self._blocks[0].parameters if self._looked else self._blocks[0].current_parameters()
            )
        return set(map(id, found)) - {id(None)}

    def every(self) -> set[int]:
        """Return the id() of each parameter of the model and of all other called modules."""
        self.parameters()
        return set(self._names)

    def learns(self, module: Module) -> bool:
        """Return True if a parameter of a module, or of modules added with it, requires grad.

        `add` adds a module together with its submodules; the result is the same for each of them.
        """
        found = self._modules[id(module)][2].current_parameters()
        return any(parameter is not None and parameter.requires_grad for parameter in found)

    def buffers(self) -> list[Tensor]:
        """Return the buffers of the model and of all other called modules."""
        found = _members(self._modules.values(), "_buffers")
        return [buffer for buffer in found if buffer is not None]

    def parameters(self) -> list[tuple[str, Tensor]]:
        """Return names and parameters of the model and of all other called modules."""
        self._name_new()
        if not self._looked:
            if any(block.has_changed() for block in self._blocks):
                self._name()
            self._looked = None if self._looked is None else True
        return self._named

    def by_id(self) -> dict[int, Tensor]:
        """Return the parameters of the model and of all other called modules, by id()."""
        named = self.parameters()
        return dict(zip(self._names, map(itemgetter(1), named), strict=True))

    @contextmanager
    def read_once(self) -> Iterator[None]:
        """Check for replaced parameters only once in the `with` block, for speed.

        No user code may run in the block.
        """
        self._looked = False
        try:
            yield
        finally:
            self._looked = None

    def note(self, module: Module) -> None:
        """Name the current parameters of a module and of the modules that were added with it."""
        self._name_new()
        block = self._modules[id(module)][2]
        if block.has_changed():
            if block in self._bare:
                self._bare.remove(block)
                self._blocks.append(block)
            self._name()

    def names(self, tensors: Iterable[Tensor]) -> list[str]:
        """Return the names of tensors; "" for tensors that are not parameters."""
        self.parameters()
        return [self._names.get(id(tensor), "") for tensor in tensors]

    def with_replaced(self) -> list[tuple[str, Tensor]]:
        """Return names and parameters, including those of earlier modules that a graph may contain.

        These are parameters that the program replaced since the last backward, and parameters that
        FSDP gathered.
        """
        known = self.parameters() + self._replaced
        if not is_sharded(set(map(type, map(itemgetter(0), self._modules.values())))):
            return known
        whole = [
            (f"{path}.{name}" if path else name, parameter)
            for module, *_ in self._modules.values()
            for owner, name, parameter in unsharded_parameters(module)
            if (path := self.path(owner)) is not None
        ]
        return known + whole

    def listed_parameters(self) -> list[tuple[str, Tensor]]:
        """Return names and parameters of the given model, or else of all called modules."""
        named = self.parameters()
        return named[: self._named_own] if self.is_given else named

    def begin_step(self) -> None:
        """Drop the replaced parameters, which no later graph contains."""
        self._replaced = []

    def _name(self) -> None:
        """Name the current parameters of all modules again.

        Replaced parameters keep their names until the graph of the next backward has been read.
        """
        before, self._named, self._names = self._named, [], {}
        self._unnamed = list(self._blocks)
        self._name_new()
        # Only the parameters that were replaced last are kept, to save memory.
        gone = [pair for pair in before if id(pair[1]) not in self._names]
        self._replaced = gone or self._replaced

    def _name_new(self) -> None:
        for block in self._unnamed:
            block.parameters = block.current_parameters()
            for module, path in block.modules:
                for name, parameter in module._parameters.items():
                    key = id(parameter)
                    # A shared parameter gets the name of its first module.
                    if parameter is not None and key not in self._names:
                        self._names[key] = f"{path}.{name}" if path else name
                        self._named.append((self._names[key], parameter))
            if block is self._blocks[0]:
                self._named_own = len(self._named)
        self._unnamed = []
