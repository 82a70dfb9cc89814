"""Test the wording of findings: the user's line, suitable names, one finding for all blocks."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from graphviz_torch import Finding, explain, find, record, rules
from graphviz_torch.findings.repeated_findings import one_per_block
from graphviz_torch.findings.rule import finding
from graphviz_torch.graph.text import with_short_names
from graphviz_torch.integrations.command.reports import to_json, to_lines
from tests.findings.corpus.cases import Record, play

LONG = "backbone.encoder_of_the_transformer.layers.{}.attention_output_projection.weight"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.used(x)) + x


def test_a_detach_that_starves_an_encoder_no_optimizer_holds_is_a_note_as_explain_has_it() -> None:
    encoder, head = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    with record(nn.ModuleDict({"encoder": encoder, "head": head})) as recording:
        head(encoder(torch.randn(8, 4)).detach()).square().mean().backward()
        optimizer.step()
    [found] = find(recording)
    assert (found.rule, found.severity, found.advice) == ("cut-gradient", "info", "")
    assert "encoder.weight and encoder.bias got no gradient" in found.message
    assert "no optimizer holds them" in found.message
    assert f"cut by detach() at {found.where}" in str(explain(recording, "encoder.weight"))


def test_layers_of_repeated_blocks_that_are_never_called_are_one_finding() -> None:
    model = nn.Sequential(*[Block() for _ in range(4)], nn.Linear(4, 1))
    with record(model) as recording:
        model(torch.randn(8, 4)).square().mean().backward()
    [found] = [each for each in find(recording) if each.severity != "info"]
    assert found.rule == "never-called"
    assert found.message.endswith("0.unused was never called. The same holds for 1, 2 and 3.")


def test_blocks_of_shortened_names_are_named_by_their_whole_path() -> None:
    same = [
        Finding(
            "r", "warning", f"encoder.enc…s.{i}.fc.weight has 0: encoder.blocks.{i}.fc is dead."
        )
        for i in range(2)
    ]
    [merged] = one_per_block(same)
    assert merged.message == f"{same[0].message} The same holds for encoder.blocks.1."


def test_findings_of_blocks_are_one_with_the_nodes_of_all() -> None:
    same = [
        Finding("dead-relu", "warning", f"relu in net.{i}.act is dead: 9{i}.5%.", nodes=(i,))
        for i in range(3)
    ]
    other = Finding("dead-relu", "warning", "relu in net.9.gate is dead: 90.5%.", nodes=(9,))
    [merged, apart] = one_per_block([*same, other])
    assert merged.message == f"{same[0].message} The same holds for net.1 and net.2."
    assert merged.nodes == (0, 1, 2)
    assert apart is other


@pytest.mark.parametrize("change", [{"where": "a.py:3"}, {"severity": "info"}, {"cause": "other"}])
def test_findings_of_other_lines_severities_or_causes_stay_apart(change: dict[str, str]) -> None:
    given = {"rule": "r", "severity": "warning", "where": "a.py:2", "cause": "one"}
    first = Finding(**given, message="net.0.act is dead.")  # type: ignore[arg-type]
    second = Finding(**(given | change), message="net.1.act is dead.")  # type: ignore[arg-type]
    assert one_per_block([first, second]) == [first, second]


def test_the_same_sentence_of_other_shapes_stays_two_findings() -> None:
    given = [Finding("r", "warning", f"sub broadcast x [{n}, 1] with y [{n}].") for n in (8, 9)]
    assert one_per_block(given) == given


def test_findings_of_one_line_about_several_parameters_are_one_with_the_steps_of_all() -> None:
    names = "net.0.weight", "net.0.bias", "net.2.bias", "copy.0.bias", "other.0.bias"
    same = [
        Finding("r", "warning", f"{name} is cut: use {name}.", where="a.py:3", steps=(i,))
        for i, name in enumerate(names)
    ]
    [merged] = one_per_block(same)
    assert merged.message == (
        f"{same[0].message} The same holds for net.0.bias, net.2, copy and 1 more."
    )
    assert merged.steps == (0, 1, 2, 3, 4)
    apart = [replace(each, where="") for each in same]
    assert one_per_block(apart) == apart


def test_causes_of_rules_are_rules_and_no_rule_causes_itself() -> None:
    causes = {rule.id: rule.caused_by for rule in rules()}
    assert {cause for ids in causes.values() for cause in ids} <= causes.keys()

    def reached(id: str, met: tuple[str, ...]) -> None:
        assert id not in met, (*met, id)
        for cause in causes[id]:
            reached(cause, (*met, id))

    for id in causes:
        reached(id, ())


def test_an_inner_loop_that_cuts_the_history_of_copies_is_one_finding() -> None:
    def program(record: Record) -> None:
        model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with record(model):
            for _ in range(4):
                losses = []
                for _task in range(3):
                    learner = copy.deepcopy(model)
                    inner = learner(torch.randn(4, 1)).square().mean()
                    grads = torch.autograd.grad(inner, learner.parameters(), create_graph=True)
                    for parameter, grad in zip(learner.parameters(), grads, strict=True):
                        parameter.data -= 0.1 * grad
                    losses.append(learner(torch.randn(4, 1)).square().mean())
                optimizer.zero_grad()
                torch.stack(losses).mean().backward()
                optimizer.step()

    assert [each.rule for each in play(program, run=True)] == ["data-assignment"]


def test_a_parameter_at_the_address_of_a_freed_one_has_no_gradient_that_is_cleared() -> None:
    def program(record: Record) -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        freed = 0
        with record(model):
            for _ in range(8):
                model(torch.randn(8, 4))
                learner = nn.Linear(4, 1, bias=False)
                created = [nn.Parameter(torch.randn(1, 4)) for _ in range(3000)]
                learner.weight = next((p for p in created if id(p) == freed), learner.weight)
                freed = id(learner.weight)
                loss = learner(torch.randn(8, 4)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                del learner, loss, created

    assert "zero-grad-before-step" not in [each.rule for each in play(program, run=True)]


def test_the_users_line_is_first_and_the_librarys_is_in_brackets() -> None:
    source = "modeling.py:7, called at train.py:41"
    found = finding("error", f"sqrt at {source} made NaN.", where=source, advice=f"See {source}.")
    assert found.where == "train.py:41"
    assert found.message == "sqrt at train.py:41 (in modeling.py:7) made NaN."
    assert found.advice == "See train.py:41 (in modeling.py:7)."


def test_a_report_shortens_long_names_in_the_middle_and_json_has_them_whole() -> None:
    found = Finding("frozen", "warning", f"{LONG.format(11)} is frozen.")
    [first, *_] = to_lines([found]).splitlines()
    name = first.removeprefix("warning[frozen]: ").removesuffix(" is frozen.")
    assert len(name) <= 40
    assert "…" in name
    assert name.startswith("backbone.")
    assert ".11." in name
    assert name.endswith(".weight")
    assert json.loads(to_json([found]))["findings"][0]["message"] == found.message


@pytest.mark.parametrize(
    "text",
    [
        "Use torch.nn.functional.scaled_dot_product_attention_with_more.",
        "at package/some_module_with_a_name_of_more_than_forty_characters.py:12.",
        "layers.0.attention.self.query.weight is frozen.",
    ],
)
def test_names_of_torch_lines_and_short_names_are_left_alone(text: str) -> None:
    assert with_short_names(text) == text
