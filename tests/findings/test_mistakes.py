"""Test that each short program with a mistake gets the expected rule, line, words and advice."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from tests.findings.corpus.cases import names_own_line_first, play
from tests.findings.mistakes.rows import MISTAKES, RAISES, SILENT

for file in sorted((Path(__file__).parent / "mistakes").glob("*.py")):
    import_module(f"tests.findings.mistakes.{file.stem}")


@pytest.mark.parametrize("name", MISTAKES, ids=lambda name: f"{name} {MISTAKES[name].rule}")
def test_a_mistake_is_named_with_its_line_and_what_fits_it(name: str) -> None:
    row = MISTAKES[name]
    lines, findings = row.lines, play(row.program, row.raises)
    found, *others = [finding for finding in findings if finding.rule == row.rule]
    assert found.severity not in {finding.severity for finding in others}
    assert found.severity == (row.severity or found.severity)
    assert found.cause == (row.cause or found.cause)
    assert found.where == lines.get("cause", found.where)
    assert not [words for words in row.words if words.format(**lines) not in found.message]
    assert row.advice.format(**lines) in found.advice
    told = f"{found.where} {found.message} {found.advice}"
    assert not [line for line in lines.values() if line not in told]
    assert names_own_line_first(row.program, [found])
    if row.rule in RAISES:
        assert "exception" not in [finding.rule for finding in findings]


@pytest.mark.parametrize("name", SILENT, ids=lambda name: " ".join((name, *SILENT[name][1])))
def test_the_nearest_program_without_the_mistake_is_left_alone(name: str) -> None:
    program, rules = SILENT[name]
    findings = play(program)
    assert [f for f in findings if f.rule in rules or (not rules and f.severity != "info")] == []
