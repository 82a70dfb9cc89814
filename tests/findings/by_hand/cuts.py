"""Graphs that trigger the rules on cuts, and similar ones that do not."""

from __future__ import annotations

from tests.findings.by_hand.graphs import Case, cut

CASES: dict[str, Case] = {
    "cut-gradient": Case(
        cut(),
        "warning",
        "head.weight got no gradient: h was cut by detach() at net.py:7.",
        [cut(has_grad=True), cut(requires_grad=False), cut(module_called=False, node=None)],
    )
}
