"""Define `Recorder`, the base class of listeners and queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from .backward import Backward

# Field of `Node` -> node id -> value. Nodes without a value are left out.
Columns = Mapping[str, Mapping[int, Any]]
# Field of `ModuleRow` -> path of the module -> value. Modules without a value are left out.
ModuleColumns = Mapping[str, Mapping[str, Any]]


class Recorder:
    """A source of values of nodes and modules: a listener, or a query over the log."""

    # Properties of `Options` that are all true if the recorder is used.
    needs: ClassVar[tuple[str, ...]] = ("every_call",)

    @classmethod
    def is_used(cls, options: Any) -> bool:
        """Return True if a recording with these `Options` uses the recorder."""
        return all(getattr(options, need) for need in cls.needs)

    def node_columns(self, backward: Backward) -> Columns:
        """Return this recorder's values of nodes, by field of `Node` and then by node id."""
        return {}

    def module_columns(self) -> ModuleColumns:
        """Return this recorder's values of modules, by field of `ModuleRow` and then by path.

        The values are added to all graphs of the recording.
        """
        return {}
