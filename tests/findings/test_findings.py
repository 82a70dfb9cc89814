"""Test each rule on the smallest graph that triggers it, and on a similar one that does not."""

from __future__ import annotations

import json
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from graphviz_torch import Finding, Graph, diff, find, record, rules
from graphviz_torch.findings import check
from graphviz_torch.findings.graph_reading import Reading
from graphviz_torch.findings.rule import FINDERS
from graphviz_torch.findings.rules.meaning.targets import LossTarget
from graphviz_torch.findings.rules.meaning.weights import UnchangedParameters
from graphviz_torch.findings.rules.terms import ConstantTerm
from graphviz_torch.findings.table import apply
from graphviz_torch.graph import Edge, Failure, Node, Parameter, Step
from graphviz_torch.graph.events import GradientClip
from tests.findings.by_hand.cases import CASES
from tests.findings.by_hand.graphs import (
    CUT,
    META,
    MIB,
    NUMBER,
    Case,
    chain,
    cut,
    event,
    lost,
    mixed,
    model,
    parameter,
    stats,
    told,
)
from tests.findings.by_hand.processes import RANKS
from tests.findings.by_hand.transfers import GPU, moved, read, sent
from tests.findings.by_hand.values import deep, root, units
from tests.graph.test_json import graphs
from tests.support.recorded import every

FACTS = {
    "frozen",
    "most-memory",
    "constant-targets",
    "only-norms-train",
    "outside-autocast",
    "parameter-in-two-optimizers",
    "step-without-gradients",
}  # they stand alone: what to do depends on what is meant
TOLD = Path(__file__).parents[1] / "golden" / "findings.json"


def id_of(name: str) -> str:
    """Return the rule of a row, with the cause in brackets if the rule has several."""
    return name.partition(" (")[0]


def across(rule: str, graphs: list[Graph]) -> list[Finding]:
    return [finding for finding in find(graphs) if finding.rule == rule]


def test_every_rule_without_a_repaired_program_has_a_graph_made_by_hand_and_a_near_miss() -> None:
    needed = {rule.id for rule in rules() if "find" in rule.sources and not rule.repaired_examples}
    known = {*map(id_of, (*CASES, *RANKS))}
    assert needed - {"divided-twice"} <= known <= {rule.id for rule in rules()}
    assert all(case.near_misses for case in (*CASES.values(), *RANKS.values()))


@pytest.mark.parametrize("name", CASES)
def test_the_rule_finds_what_it_is_for(name: str) -> None:
    rule, case = id_of(name), CASES[name]
    (found,) = every(rule, case.graph)
    assert (found.severity, found.message) == (case.severity, case.message)
    assert found.cause
    assert found.advice[:1].isupper() or rule in FACTS
    assert all(0 <= node < len(case.graph.nodes) for node in found.nodes)
    assert all(0 <= transfer < len(case.graph.transfers) for transfer in found.transfers)


@pytest.mark.parametrize("name", RANKS)
def test_a_rule_that_compares_ranks_finds_what_it_is_for(name: str) -> None:
    case = RANKS[name]
    (found,) = across(id_of(name), case.graphs)
    assert (found.severity, found.message) == (case.severity, case.message)
    assert found.cause
    assert found.advice[0].isupper()


@pytest.mark.parametrize("name", [*CASES, *RANKS])
def test_the_other_fields_of_a_finding_are_as_they_were(name: str) -> None:
    """Where a rule has changed, delete its line in the file, run this test, and read the line."""
    golden, rule = json.loads(TOLD.read_text("utf-8")), id_of(name)
    ranks = RANKS.get(name)
    (found,) = every(rule, CASES[name].graph) if ranks is None else across(rule, ranks.graphs)
    fields = {
        "cause": found.cause,
        "advice": found.advice,
        "where": found.where,
        "nodes": [*found.nodes],
        "transfers": [*found.transfers],
    }
    if name not in golden:
        lines = {**golden, name: fields}
        rows = [f"{json.dumps(each)}: {json.dumps(lines[each])}" for each in sorted(lines)]
        TOLD.write_text("{\n" + ",\n".join(rows) + "\n}\n", "utf-8")
    assert fields == golden.get(name), f"check the line of {name} in {TOLD.name}, and run again"


@pytest.mark.parametrize(
    ("name", "number"),
    [(name, i) for name, case in CASES.items() for i in range(len(case.near_misses))],
)
def test_the_rule_is_silent_on_the_near_miss(name: str, number: int) -> None:
    assert every(id_of(name), CASES[name].near_misses[number]) == []


@pytest.mark.parametrize(
    ("name", "number"),
    [(name, i) for name, case in RANKS.items() for i in range(len(case.near_misses))],
)
def test_a_rule_that_compares_ranks_is_silent_on_the_near_miss(name: str, number: int) -> None:
    assert across(id_of(name), RANKS[name].near_misses[number]) == []


def test_a_graph_of_which_nothing_was_recorded_has_no_findings() -> None:
    assert find(Graph(())) == []
    assert find(chain("w", "MulBackward0", "SumBackward0")) == []


def test_errors_come_first_then_warnings_then_the_rest() -> None:
    graph = replace(mixed("cpu", "cuda:0"), transfers=(sent(used=False),))
    graph = replace(graph, parameters=(*graph.parameters, lost("f.weight", requires_grad=False)))
    assert [finding.severity for finding in find(graph)] == ["error", "warning", "info"]


@pytest.mark.parametrize(
    ("how", "severity", "cause"),
    [
        ("detach", "warning", "cut by detach()"),
        ("data", "warning", "cut by .data"),
        ("no_grad", "warning", "cut by torch.no_grad()"),
        ("item", "warning", "cut by item()"),
        ("numpy", "error", "cut by numpy()"),
        ("argmax", "error", "cut by argmax()"),
        ("long", "error", "cut by an integer cast"),
    ],
)
def test_each_way_to_cut_has_its_own_words(how: str, severity: str, cause: str) -> None:
    (found,) = every("cut-gradient", cut(replace(CUT, how=how)))
    assert (found.severity, found.cause) == (severity, cause)
    assert found.nodes == (3, 2, 1)  # the parameter, and both sides of the cut
    assert "net.py:7" in found.advice
    assert found.advice[0].isupper()


@pytest.mark.parametrize("wrong", [None, 3, "run.json", {}])
def test_what_has_no_graph_is_refused_with_what_to_pass(wrong: Any) -> None:
    for ask in (find, lambda graph: find([graph])):
        with pytest.raises(TypeError, match=r"^expected a graph, but got an? .* Pass a Graph"):
            ask(wrong)


def test_the_graphs_before_are_a_list() -> None:
    graph: Any = Graph(())
    said = r"^previous is a Graph, not a list of graphs: pass find\(graph, \[previous\]\)\.$"
    with pytest.raises(TypeError, match=said):
        find(graph, graph)
    with pytest.raises(TypeError, match=r"^previous is a Recording, not a list of graphs"):
        find(graph, record(torch.nn.Linear(1, 1)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a graph, but got a NoneType"):
        find(graph, [None])


def test_a_list_has_one_graph_for_each_rank_and_no_previous_steps() -> None:
    graph = Graph(())
    assert str(find([graph, graph])).endswith(
        "0 nodes of 2 ranks, 0 parameters: nothing found (no backward)"
    )
    with pytest.raises(ValueError, match=r"call find\(graph, previous\) for each"):
        find([graph, graph], [graph])


UNKNOWN = replace(CUT, before=None, module="head", how="argmax")

# What is said of a variant of a rule's graph: severity, and what message, cause and advice say.
SAID: dict[str, tuple[str, Graph, str, list[str]]] = {
    "many parameters of one cause are one finding": (
        "never-called",
        model(*[lost(f"head.{name}.weight", module_called=False) for name in "abcde"]), "warning",
        ["head.a.weight, head.b.weight, head.c.weight and 2 more got"],
    ),
    "a module that the loss does not depend on is one finding": (
        "output-not-in-loss", model(lost("head.0.weight"), lost("head.2.weight")), "warning",
        [
            "head.0.weight and head.2.weight got no gradient: head ran, but the loss does not "
            "depend on its result."
        ],
    ),
    "a parameter of the model itself": (
        "output-not-in-loss", model(lost("scale")), "warning",
        ["scale got no gradient: the loss does not depend on it."],
    ),
    "a parameter that its own module does not use": (
        "output-not-in-loss", model(parameter("head.weight"), lost("head.scale")), "warning",
        [
            "head.scale got no gradient: the loss depends on the rest of head, but not on it.",
            "Use head.scale in the forward of head",
        ],
    ),
    "a cut whose nodes are not known, by its module": (  # an error where it is in the way for sure
        "cut-gradient", cut(UNKNOWN, node=None), "warning",
        ["head.weight got no gradient, probably because h was cut by argmax() at net.py:7."],
    ),
    "a cut of whose way nothing is known": (
        "cut-gradient",
        cut(replace(UNKNOWN, after=()), node=None).annotate(order={1: 0, 0: 1}),
        "warning", ["probably because h was cut by argmax()"],
    ),
    "an accuracy read with argmax beside a detach": (
        "cut-gradient",
        replace(cut(), cuts=(replace(CUT, how="argmax", after=(), where="metrics.py:2"), CUT)),
        "warning", ["cut by detach()"],
    ),
    "a cut on the way before one whose nodes are not known": (
        "cut-gradient",
        replace(cut(), cuts=(replace(CUT, how="argmax", before=None, where="act.py:2"), CUT)),
        "warning", ["head.weight got no gradient: h was cut by detach() at net.py:7."],
    ),
    "an unrolled rnn, whose weights learn from the late steps": (
        "vanishing-gradient", deep(0.1, shared=True), "info", [],
    ),
    "dead units by the bias": ("dead-relu", units(0.95), "warning", ["95.0% of its units"]),
    "parameters that a step leaves still": (
        "no-update",
        told(event(UnchangedParameters, nodes=(0, 1), contiguous=False, rate=0.1, share=0.95)),
        "info",
        [": 95% of the sampled", "they have a gradient and a learning rate of 0.1, and they are"],
    ),
    "a gradient that was NaN from the start": (
        "nonfinite-gradient", root({i: stats(nan=1) for i in range(4)}), "error",
        ["The gradient that backward started from, at loss, is not finite: 1 NaN."],
    ),
    "a node with a name that tells more": (
        "nonfinite-gradient", root({0: stats(inf=2)}).annotate(label={1: "h"}), "error",
        ["sqrt at train.py:5 (h) "],
    ),
    "a node with a name that tells no more": (
        "nonfinite-gradient", root({0: stats(inf=2)}).annotate(label={1: "sqrt"}), "error",
        ["sqrt at train.py:5 received"],
    ),
    "a copy in every step": (
        "pageable-copy",
        moved(*[sent(pinned=False, tensor=GPU._replace(shape=(MIB,)), data=i) for i in range(3)]),
        "warning", ["12.0 MiB, 3 times"],
    ),
    "copies by the first name that one of them has": (
        "device-sync",
        moved(*[read(operation="item", data=i, label=n) for i, n in enumerate(("", "x", "y"))]),
        "info", ["x is read with item() in a loop"],
    ),
    "a cast that was asked for": (
        "unintended-float64",
        chain("w", "ToCopyBackward0").annotate(outputs={1: (META._replace(dtype="float64"),)}),
        "info", [],
    ),
    "a copy that nobody uses, with the line to write": (
        "unused-copy", moved(sent(used=False, operation="cuda")), "warning",
        ["Replace x.cuda() with x = x.cuda() at train.py:12"],
    ),
    "mixed devices, with the line to write": (
        "mixed-devices", mixed("cpu", "cuda:0"), "error",
        ['Move all tensors to one device: x = x.to("cuda:0").'],
    ),
    "a pageable copy, with the line to write": (
        "pageable-copy", CASES["pageable-copy"].graph, "info",
        ['x.to("cuda:0", non_blocking=True)'],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_of_a_variant_of_its_graph_a_rule_says_what_differs(name: str) -> None:
    rule, graph, severity, words = SAID[name]
    (found,) = every(rule, graph)
    assert found.severity == severity
    told = f"{found.message}\n{found.cause}\n{found.advice}"
    assert [said for said in words if said not in told] == []


def test_an_expert_that_was_not_chosen_is_a_note_and_all_of_them_are_one() -> None:
    experts = [lost(f"experts.{i}.0.weight", module_called=False) for i in (0, 2)]
    graph = model(
        *experts, parameter("experts.1.0.weight"), lost("spare.weight", module_called=False)
    )
    spare, chosen = every("never-called", graph)
    assert (spare.severity, chosen.severity) == ("warning", "info")
    assert chosen.message == (
        "experts.0.0.weight and experts.2.0.weight got no gradient: experts.0 and experts.2 "
        "were not called, but the similar experts.1 was."
    )


@pytest.mark.parametrize(
    "beside",
    [
        parameter("experts.1.1.weight"),  # of another make
        lost("experts.1.0.weight", module_called=False),  # nor was that
        parameter("others.1.0.weight"),
    ],
)
def test_what_has_no_like_that_was_called_was_never_called(beside: Parameter) -> None:
    found = every("never-called", model(lost("experts.0.0.weight", module_called=False), beside))
    assert [f.severity for f in found] == ["warning"]


def test_a_line_that_cuts_in_a_loop_is_one_finding() -> None:
    graph = cut()
    graph = replace(
        graph,
        nodes=(*graph.nodes, Node(4, "AccumulateGrad", (META,), leaf="parameter")),
        parameters=(*graph.parameters, lost("tail.weight", node=4)),
        cuts=(CUT, replace(CUT, before=4)),
    )
    (found,) = every("cut-gradient", graph)
    assert found.message == (
        "head.weight and tail.weight got no gradient: h was cut by detach() at net.py:7."
    )
    other = replace(graph, cuts=(CUT, replace(CUT, before=4, where="net.py:9")))
    assert len(every("cut-gradient", other)) == 2


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("Trying to backward through the graph a second time (or", "Add the losses"),
        ("a variable has been modified by an inplace operation: [", "Compute a new tensor"),
        ("mat1 and mat2 shapes cannot be multiplied", "The last dimension of the input"),
    ],
)
def test_the_advice_on_a_failure_goes_by_what_pytorch_says(said: str, advice: str) -> None:
    graph = mixed("cpu", "cpu")
    assert graph.failure is not None
    (found,) = every("exception", replace(graph, failure=replace(graph.failure, message=said)))
    assert found.advice.startswith(advice)


def test_a_loss_that_was_cut_everywhere_still_names_the_cut() -> None:
    message = "element 0 of tensors does not require grad and does not have a grad_fn"
    failure = Failure("RuntimeError", message, "backward", "train.py:9")
    graph = Graph(
        (), parameters=(lost("fc.weight"),), cuts=(replace(CUT, before=None, module="fc"),)
    )
    rules = [finding.rule for finding in find(replace(graph, failure=failure))]
    assert rules == ["cut-gradient", "exception"]


def test_of_nodes_with_a_nonfinite_gradient_the_one_that_made_it_is_named() -> None:
    # The gradient of x is the sum of what sqrt and the addition give: only one has such a slope.
    (found,) = every("nonfinite-gradient", root({0: stats(inf=2)}))
    assert (found.nodes[0], found.where) == (1, "train.py:5")
    assert "sqrt" in found.advice
    (first,) = every("nonfinite-gradient", root({0: stats(nan=1), 1: stats(nan=1)}))
    assert first.nodes[0] == 2  # in backward order


def test_an_overflow_of_the_scaled_loss_is_no_error() -> None:
    (found,) = every("nonfinite-gradient", root({0: stats(inf=2)}, step=Step(loss_scale=65536.0)))
    assert found.severity == "info"
    assert "65536" in found.advice
    (bad,) = every("nonfinite-gradient", root({0: stats(nan=2)}, step=Step(loss_scale=65536.0)))
    assert bad.severity == "error"


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), graphs())
def test_no_file_that_loads_as_a_graph_makes_a_rule_or_a_comparison_fail(
    a: Graph, b: Graph
) -> None:
    assert all(finding.message for finding in find(a, [b, b]) + find([a, b]))
    assert not unasked(a)
    difference = diff(a, b)
    assert difference.to_text()
    assert set(difference.marks()) <= set(range(len(difference.union().nodes)))


@pytest.mark.parametrize(
    ("moments", "causes"),
    [
        (["in time"], []),
        (["before backward"], ["clipped too early"]),
        (["in time", "before backward"], []),  # the first round finds nothing yet, the others do
        (["after the step"], ["clipped after the step"]),
        (["before backward", "after the step"], ["clipped too early"]),
        (["while scaled"], ["clipped while scaled"]),
        (["in time", "before the average"], ["clipped before the average"]),
    ],
)
def test_clipping_at_one_line_is_told_by_what_it_missed(
    moments: list[str], causes: list[str]
) -> None:
    events = [event(GradientClip, function="clip_grad_norm_", moment=moment) for moment in moments]
    assert [found.cause for found in every("ineffective-clipping", told(*events))] == causes


def test_what_did_not_run_is_not_on_the_chain_of_gradients() -> None:
    graph = deep(0.1)
    size = len(graph.nodes)
    idle = [Node(size + i, "MmBackward0", (META,), operation="mm") for i in range(40)]
    edges = [Edge(node.id - 1, node.id) for node in idle[1:]]
    more = replace(graph, nodes=(*graph.nodes, *idle), edges=(*graph.edges, *edges))
    assert every("vanishing-gradient", more) == every("vanishing-gradient", graph)


def unasked(graph: Graph) -> list[Finding]:
    """Return the findings of rules that `find` does not call."""
    reading = Reading(graph)
    finders = [each for each in FINDERS if each.reads in ("graph", "end") and each.of]
    silent = [each for each in finders if each.of.isdisjoint(reading.kinds)]
    return [found for each in silent for found in each.function(reading)]


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_rule_that_is_not_asked_would_have_found_nothing(case: Case) -> None:
    """In no example of any rule, nor in what comes near."""
    for graph in (case.graph, *case.near_misses):
        assert not unasked(graph)


def test_a_graph_is_judged_once_and_a_reader_may_change_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, asked = model(parameter("w", node=None, requires_grad=False)), []
    monkeypatch.setattr(check, "apply", lambda *args: asked.append(args) or apply(*args))
    first = find(graph)
    said, count = list(first), len(asked)
    assert [each.rule for each in said] == ["frozen"]
    first.clear()
    assert (list(find(graph)), len(asked)) == (said, count)
    changed = replace(graph, parameters=())
    assert (list(find(changed)), len(asked)) == ([], 2 * count)


def test_a_graph_that_was_judged_is_not_kept_alive() -> None:
    graph = model(parameter("w", node=None))
    find(graph)
    number, alive = id(graph), weakref.ref(graph)
    assert number in check._judged
    del graph
    assert alive() is None
    assert number not in check._judged


def test_an_operand_without_a_name_is_called_by_what_it_is() -> None:
    graph = mixed("cpu", "cuda:0")
    assert graph.failure is not None
    indices, weight = graph.failure.operands
    operands = (
        replace(indices, label="", tensor=indices.tensor._replace(dtype="int64")),
        replace(weight, label=""),
    )
    graph = replace(graph, failure=replace(graph.failure, operands=operands))
    [found] = every("mixed-devices", graph)
    assert found.message == (
        "addmm at net.py:9 got an i64[4] on cpu (made at train.py:3) and a f32[4, 4] on cuda:0 "
        "(made at train.py:8)."
    )


def test_a_term_that_never_had_a_gradient_is_told_without_a_cut() -> None:
    graph = chain("w", "MulBackward0", "AddBackward0", order=0)
    graph = graph.annotate(outputs={1: (NUMBER,), 2: (NUMBER,)})
    graph = replace(graph, events=(ConstantTerm(where="train.py:9", nodes=(2,)),))
    [found] = every("constant-term", graph)
    assert (found.where, found.nodes) == ("train.py:9", (2,))


@pytest.mark.parametrize(
    ("what", "said"),
    [("input", "3 of 8 values in its input are above 0"), ("ignored", "targets in the target")],
)
def test_what_a_loss_was_given_without_a_name_is_told_by_its_place(what: Any, said: str) -> None:
    given_to = LossTarget(function="kl_div", what=what, count=3, among=8, where="train.py:7")
    [found] = find(replace(told(), events=(given_to,)))
    assert said in found.message


def test_a_non_leaf_that_an_optimizer_got_is_told_by_one_rule() -> None:
    non_leaf = Failure("ValueError", "can't optimize a non-leaf Tensor", "", "train.py:7")
    other = replace(non_leaf, message="no such thing")
    assert every("exception", replace(told(), failure=non_leaf)) == []
    assert len(every("exception", replace(told(), failure=other))) == 1
