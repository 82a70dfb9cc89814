"""Graphs made by hand for each rule: one that triggers the rule, and similar ones that do not."""

from __future__ import annotations

from tests.findings.by_hand import (
    cuts,
    devices,
    failures,
    freezing,
    leaves,
    losses,
    lost,
    memory,
    paths,
    processes,
    terms,
    training,
    transfers,
    values,
)
from tests.findings.by_hand.graphs import Case
from tests.findings.by_hand.meaning import (
    arguments,
    axes,
    calls,
    compiled,
    computations,
    roles,
    targets,
    weights,
)

FAMILIES = (
    devices,
    leaves,
    failures,
    training,
    paths,
    cuts,
    terms,
    freezing,
    lost,
    losses,
    axes,
    roles,
    weights,
    targets,
    arguments,
    computations,
    calls,
    compiled,
    values,
    transfers,
    memory,
    processes,
)
CASES: dict[str, Case] = {rule: case for family in FAMILIES for rule, case in family.CASES.items()}
