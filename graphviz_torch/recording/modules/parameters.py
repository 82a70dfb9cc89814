"""The modules of a recording by path, and the names of their parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, islice
from operator import attrgetter, is_, itemgetter, methodcaller

from torch import Tensor
from torch.nn import Module

from ...internals.wrappers import is_inside, is_sharded, unsharded, wrapped_by
from ...tracing.classes import classes_along


class ParameterTable:
    """What modules, parameters and buffers are called.

    Args:
        model: its submodules are called as in `named_modules()`. None: the first module that is
            added is the model; its path is "" unless the code that calls it holds several.
    """

    def __init__(self, model: Module | None) -> None:
        self._modules: dict[int, tuple[Module, str]] = {}  # by id()
        self._paths: set[str] = set()  # of all of them
        self._counts: dict[str, int] = {}  # the last number that each of these got at its end
        self._classes: tuple[int, Mapping[str, str]] | None = None  # of how many modules
        self._first = 0  # how many of them the first that was added has, with itself
        self._called: dict[str, None] = {}  # paths of the modules whose forward ran
        self._named: list[tuple[str, Tensor]] = []
        self._names: dict[int, str] = {}  # the same by id()
        self._named_of: list[Tensor | None] = []  # what they are the names of ...
        self._named_modules = 0  # ... in how many modules
        self._named_own = 0  # how many of them are the model's
        self._replaced: list[tuple[str, Tensor]] = []  # that had a name until others took it
        if model is not None:
            self.add(model, "")
        self._own = len(self._modules)  # these are the model's; 0 where none was given

    def __len__(self) -> int:
        return len(self._modules)

    def path(self, module: Module) -> str | None:
        """The module's path; None for one that is not here."""
        known = self._modules.get(id(module))
        return None if known is None else known[1]

    def add(self, module: Module, path: str) -> str:
        """Add a module and those below it; returns its path.

        The path gets a number at its end where another module has it already.
        """
        if id(module) in self._modules:
            return self._modules[id(module)][1]
        wanted = path
        while path and path in self._paths:
            count = self._counts[wanted] = self._counts.get(wanted, 1) + 1
            path = f"{wanted}_{count}"
        # As named_modules(), in half the time; a module that is there twice has its first name.
        stack = [(path, module)]
        while stack:
            path, module_ = stack.pop()
            key = id(module_)
            if key in self._modules:
                continue
            inner = self._modules.get(id(wrapped_by(module_))) if module_._modules else None
            if inner is not None:
                path = inner[1]
            self._modules[key] = (module_, path)
            self._paths.add(path)
            for name, child in reversed(module_._modules.items()):
                if child is not None:
                    # A wrapper has the name of what it wraps.
                    below = "" if is_inside(module_, name) else name
                    stack.append((f"{path}.{below}" if path and below else path or below, child))
        self._first = self._first or len(self._modules)
        return self._modules[id(module)][1]

    def take_in(self, module: Module) -> str | None:
        """The path of a module that was put into the model, perhaps in the place of another.

        None for one that is not there, or has nothing that could learn.
        """
        if not (module._parameters or module._modules):
            return None
        modules = list(self._modules.values())
        own = modules[: self._own or self._first]
        if not any(part is module for known, _ in own for part in known._modules.values()):
            return None
        self._modules, self._paths, self._classes, self._first = {}, set(), None, 0
        self.add(*own[0])
        self._own = self._own and len(self._modules)
        for known, path in modules[len(own) :]:
            self.add(known, path)
        return self.path(module)

    def classes(self) -> Mapping[str, str]:
        """The classes of the modules along each path."""
        if self._classes is None or len(self._modules) != self._classes[0]:
            named = [(path, module) for module, path in self._modules.values()]
            self._classes = len(named), classes_along(named)
        return self._classes[1]

    def call(self, module: Module) -> str | None:
        """The module's forward runs: its path; None for one that is not here."""
        known = self._modules.get(id(module))
        if known is None:
            return None
        self._called[known[1]] = None
        return known[1]

    def was_called(self, parameter: str) -> bool:
        """Did the forward of the module run that owns the parameter of this name."""
        return parameter.rpartition(".")[0] in self._called

    def ran(self, path: str) -> bool:
        """Did the forward of the module at this path run."""
        return path in self._called

    def called(self) -> list[tuple[Module, str]]:
        """The modules whose forward ran, each with its path."""
        return [(module, path) for module, path in self._modules.values() if path in self._called]

    def modules(self) -> list[tuple[Module, str]]:
        """The modules of the model and every other module called, each with its path."""
        return list(self._modules.values())

    def own(self) -> set[int]:
        """id() of the parameters of the model: of the one given, or of the first one called."""
        modules = islice(self._modules.values(), self._own or self._first)
        return set(map(id, _parameters(modules))) - {id(None)}

    def buffers(self) -> list[Tensor]:
        """Buffers of the model and of every other module called."""
        found = (b for module, _ in self._modules.values() for b in module._buffers.values())
        return [buffer for buffer in found if buffer is not None]

    def parameters(self) -> list[tuple[str, Tensor]]:
        """Names and parameters of the model and of every other module called."""
        # Another may have been put in the place of any meanwhile.
        now = _parameters(self._modules.values())
        known = (self._named_modules, len(self._named_of)) == (len(self._modules), len(now))
        if not known or not all(map(is_, now, self._named_of)):
            self._name(now)
        return self._named

    def names(self, tensors: Iterable[Tensor]) -> list[str]:
        """The names of those that are parameters; "" for any other tensor."""
        self.parameters()
        return [self._names.get(id(tensor), "") for tensor in tensors]

    def known(self) -> list[tuple[str, Tensor]]:
        """Also those that others have replaced since the last backward: a graph may hold them."""
        known = self.parameters() + self._replaced
        if not is_sharded(set(map(type, map(itemgetter(0), self._modules.values())))):
            return known
        whole = [
            (f"{path}.{name}" if path else name, parameter)
            for module, _ in self._modules.values()
            for owner, name, parameter in unsharded(module)
            if (path := self.path(owner)) is not None
        ]
        return known + whole

    def listed(self) -> list[tuple[str, Tensor]]:
        """Those of the model; where none was given, those of every module called."""
        named = self.parameters()
        return named[: self._named_own] if self._own else named

    def begin_step(self) -> None:
        """A backward has been read: what was replaced before it is in no graph to come."""
        self._replaced = []

    def _name(self, now: list[Tensor | None]) -> None:
        named: dict[int, tuple[str, Tensor]] = {}
        for i, (module, path) in enumerate(self._modules.values()):
            if i == self._own:
                self._named_own = len(named)
            for name, parameter in module._parameters.items():
                key = id(parameter)
                if parameter is not None and key not in named:  # the first name of a shared one
                    named[key] = (f"{path}.{name}" if path else name, parameter)
        # The last ones alone, for they would keep the memory of all before them.
        gone = [pair for pair in self._named if id(pair[1]) not in named]
        self._replaced = gone or self._replaced
        self._named = list(named.values())
        self._names = {key: name for key, (name, _) in named.items()}
        self._named_modules, self._named_of = len(self._modules), now
        if self._own == len(self._modules):
            self._named_own = len(named)


def _parameters(modules: Iterable[tuple[Module, str]]) -> list[Tensor | None]:
    """The parameters of these modules, without a line of Python for each: there are many."""
    members = map(attrgetter("_parameters"), map(itemgetter(0), modules))
    return list(chain.from_iterable(map(methodcaller("values"), members)))
