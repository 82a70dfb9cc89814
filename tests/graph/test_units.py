"""Compare numbers as text with the table that also tests the view's TypeScript."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphviz_torch.graph import short_dtype
from graphviz_torch.graph.units import bytes_text, count_text, number_text, seconds_text

CASES = json.loads((Path(__file__).parents[1] / "golden" / "units.json").read_text("utf-8"))
SAY: dict[str, Any] = {
    "bytes": bytes_text,
    "seconds": seconds_text,
    "number": lambda value: number_text(float(value)),
    "count": lambda value: count_text(*value),
    "dtype": short_dtype,
}


@pytest.mark.parametrize("kind", sorted(CASES.keys() - {"about"}))
def test_every_case_of_the_table_reads_as_in_the_view(kind: str) -> None:
    assert [[value, SAY[kind](value)] for value, _ in CASES[kind]] == CASES[kind]
