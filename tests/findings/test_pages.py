"""Test each rule's page: its example triggers the rule, the repaired program nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch._dynamo  # noqa: F401  (imported later, each example's `gc.collect()` would read it)

import graphviz_torch
from docs import finding_pages
from graphviz_torch import rules
from graphviz_torch.findings.rule import HEADINGS, Rule

PACKAGE = Path(graphviz_torch.__file__).parent
REPORTED = "  # <- reported"  # ends the line of an example that its finding is at
REPAIRED = {
    f"{rule.id} {i}": (rule, program)
    for rule in rules()
    for i, program in enumerate(rule.repaired_examples)
}


def test_ids_are_unique_and_summaries_are_sentences() -> None:
    assert len({rule.id for rule in rules()}) == len(rules())
    assert not [r.id for r in rules() if not r.summary.endswith(".") or len(r.summary) < 30]


def test_what_watch_and_experiments_report_is_in_the_table_and_all_of_that_is_reported() -> None:
    calls = {
        "watch": r'(?:WatchReport\(|_say\(|_report\()\s*\w+,\s*"([\w-]+)"',
        "experiment": r'(?:Finding\(\s*|rule=|other, )"([a-z0-9]+-[a-z0-9-]+)"',
    }
    folders = {"watch": ("recording/health", "tensorboard"), "experiment": ("experiments",)}
    for source, pattern in calls.items():
        files = (file for name in folders[source] for file in (PACKAGE / name).rglob("*.py"))
        reported = {id for file in files for id in re.findall(pattern, file.read_text())}
        assert reported == {rule.id for rule in rules() if source in rule.sources}


def test_every_page_has_all_sections_in_order() -> None:
    assert not [rule.id for rule in rules() if tuple(rule.sections) != HEADINGS]
    assert not [rule.id for rule in rules() if not rule.examples or not rule.repaired_examples]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.id)
def test_an_example_reports_its_rule_first_at_the_marked_line_and_its_page_shows_the_report(
    rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {program: finding_pages.said(program) for program in rule.examples}
    for program, findings in found.items():
        firsts = [f for f in findings if f.severity in (findings[0].severity, "info")]
        own = [finding for finding in firsts if finding.rule == rule.id]
        assert own, [finding.rule for finding in findings]
        marked = [i for i, line in enumerate(program.split("\n"), 1) if line.endswith(REPORTED)]
        assert [own[0].where] == [f"train.py:{number}" for number in marked] or not marked
        assert marked or not own[0].where
        lines = [line for line in program.splitlines() if line.strip()]
        assert sum(not line.startswith(("import ", "from ")) for line in lines) <= 13
    monkeypatch.setattr(finding_pages, "said", found.__getitem__)
    shown = (finding_pages.FOLDER / f"{rule.id}.md").read_text()
    assert shown == finding_pages.kept_page(rule), "write it with `python -m docs.finding_pages`"


@pytest.mark.parametrize("name", REPAIRED)
def test_a_repaired_program_reports_nothing_and_what_should_learn_has_a_gradient(
    name: str,
) -> None:
    rule, program = REPAIRED[name]
    assert program not in rule.examples
    module = finding_pages.run(program)
    found = finding_pages.findings_of(module)
    assert [f for f in found if f.severity != "info" or f.rule == rule.id] == []
    if hasattr(module, "watching"):
        gradients = [parameter.grad for parameter in module.model.parameters()]
        assert all(each is not None and each.count_nonzero() for each in gradients)
        return
    recordings = getattr(module, "ranks", None) or [module.recording]
    graphs = [graph for each in recordings for graph in getattr(each, "graphs", [each])]
    learning = {
        (node.leaf, node.label)
        for graph in graphs
        for node in graph.nodes
        if node.leaf and any(stats is not None and stats.norm > 0 for stats in node.grad_outputs)
    }
    wanted = {p.name for g in graphs for p in g.parameters if p.requires_grad}
    assert learning
    assert wanted <= {name for _, name in learning}
