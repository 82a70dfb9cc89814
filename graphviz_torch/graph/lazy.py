"""Load the names of a package when they are first used.

`import graphviz_torch` therefore does not import torch, and saved graphs can be read, checked,
compared and drawn where torch is not installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from .gc import with_gc_disabled

# A garbage collection during an import would visit all objects of torch and free none.
_import = with_gc_disabled(import_module)


def lazy_names(
    name: str, modules: Mapping[str, str], namespaces: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a module that loads its names lazily.

    Args:
        name: the module's `__name__`.
        modules: relative module name -> the public names that it defines, separated by spaces.
            `__all__` has the same order.
        namespaces: names of submodules to import on first use, separated by spaces.

    >>> load, names, public = lazy_names("graphviz_torch.graph", {".units": "bytes_text"})
    >>> load("bytes_text")(2048), public
    ('2.0 KiB', ['bytes_text'])
    """
    module_of = {each: module for module, names in modules.items() for each in names.split()}
    submodules = namespaces.split()

    def load(public: str) -> Any:
        this = sys.modules[name]
        if public in submodules:
            return _import(f".{public}", this.__package__)
        if public not in module_of:
            raise AttributeError(f"module {name!r} has no attribute {public!r}", name=public)
        value = getattr(_import(module_of[public], this.__package__), public)
        setattr(this, public, value)
        return value

    return load, lambda: sorted({*module_of, *submodules}), list(module_of)
