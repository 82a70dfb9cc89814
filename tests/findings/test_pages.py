"""Each rule's page: its example reports the rule at its line, the repaired program nothing."""

from __future__ import annotations

import pytest

from docs.finding_pages import run, said
from graphviz_torch import rules
from graphviz_torch.findings.rule import HEADINGS, Rule

REPORTED = "  # <- reported"  # ends the line of an example that its finding is at
# The rules whose pages lack a section. A rule leaves the list when its page has all of them.
_LISTED = """
accidental-broadcast alike-rows attribute-without-effect averaged-again awaited-parameter
backward-twice batch-taken-for-time blocking-read both-sides-learn bypassed-wrapper
called-for-each-sample changed-in-place clip-bound clipped-in-vain constant-targets
constant-term copy-in-backward cut-collective cut-gradient data-replaced dead-relu decayed-norms
different-collectives different-weights divided-twice dropout-in-evaluation dropped-gradient
empty-group everything-frozen exploding-gradient failed float64-crept-in frozen gathered-again
gradient-of-a-result graph-break graph-kept-for-nothing growing-graph ignored-targets
kept-history local-batch-norm lone-transfer loss-call loss-input loss-is-a-leaf lost-gradient
made-anew mixed-devices mixed-losses most-memory never-called nonfinite-gradient nonfinite-value
norm-axis not-in-optimizer not-registered one-unit only-vectors-learn optimizer-epsilon
optimizer-got-a-result optimizer-never-stepped outside-autocast pageable-copy parted-buffers
parted-ranks rate-of-zero recompilation redistributed-back repeated-average repeated-batch
repeated-copy round-trip same-batch scheduler-stepped-first scheduler-steps
scheduler-without-steps shared-by-optimizers skipped-function skipped-parameter skipped-step
softmax-axis step-without-gradients still-parameters sum-with-itself targets-outside tiny-copies
trained-in-eval-mode unaveraged-parameter uncleared-gradient unstepped-term untied-weights
unused-copy unused-result vanished-epsilon vanishing-gradient view-across-axes
view-keeps-storage weighted-log-prob zero-factors zero-gradient zero-second-derivative
"""
INCOMPLETE = frozenset(_LISTED.split())
EXAMPLES = [rule for rule in rules() if rule.example]
REPAIRED = [rule for rule in rules() if rule.repaired]


def test_ids_are_unique_and_summaries_are_sentences() -> None:
    assert len({rule.id for rule in rules()}) == len(rules())
    assert not [r.id for r in rules() if not r.summary.endswith(".") or len(r.summary) < 30]
    assert not [rule.id for rule in rules() if set(rule.sections) - set(HEADINGS)]


def test_the_pages_that_are_not_listed_as_incomplete_have_all_sections() -> None:
    assert {rule.id for rule in rules() if set(rule.sections) != set(HEADINGS)} == INCOMPLETE


@pytest.mark.parametrize("rule", EXAMPLES, ids=lambda rule: rule.id)
def test_an_example_reports_its_rule_first_at_the_marked_line(rule: Rule) -> None:
    found = said(rule.example)
    firsts = [f for f in found if f.severity == found[0].severity or f.severity == "info"]
    own = [finding for finding in firsts if finding.rule == rule.id]
    assert own, [finding.rule for finding in found]
    marked = [i for i, line in enumerate(rule.example.split("\n"), 1) if line.endswith(REPORTED)]
    assert [own[0].where] == [f"train.py:{number}" for number in marked] or not marked
    assert marked or not own[0].where or rule.id in INCOMPLETE
    lines = [line for line in rule.example.splitlines() if line.strip()]
    assert sum(not line.startswith(("import ", "from ")) for line in lines) <= 12


@pytest.mark.parametrize("rule", REPAIRED, ids=lambda rule: rule.id)
def test_a_repaired_program_reports_nothing_and_what_should_learn_has_a_gradient(
    rule: Rule,
) -> None:
    assert rule.repaired != rule.example
    assert [f for f in said(rule.repaired) if f.severity != "info" or f.rule == rule.id] == []
    module = run(rule.repaired)
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
