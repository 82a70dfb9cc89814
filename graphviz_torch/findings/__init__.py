"""Find faults in recorded training steps, each with its cause, source line and advice.

A rule reports nothing if the values that it reads were not recorded. To add a rule, add one
function to the file in `rules/` about the rule's subject.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.lazy import lazy_names

if TYPE_CHECKING:
    from .check import diagnosis as diagnosis
    from .check import find as find
else:
    # A recording imports events of single rules, but not all rules.
    __getattr__, __dir__, __all__ = lazy_names(__name__, {".check": "diagnosis find"})
