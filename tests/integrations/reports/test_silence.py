"""Test selecting and silencing rules: in Python, by options, in pyproject.toml, by comments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from graphviz_torch import find, record, rules
from graphviz_torch.graph import Finding, Graph, Parameter, TensorMeta
from graphviz_torch.integrations.command.judge import configuration
from graphviz_torch.integrations.command.main import main

FAULTY = """import torch
from graphviz_torch import record
body, head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
with record(torch.nn.ModuleList([body, head])) as recording:
    h = body(torch.ones(8, 4)).detach(){comment}
    head(h).mean().backward()
recording.graph.save("step.json.gz")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report(
    capsys: pytest.CaptureFixture[str], *options: str, comment: str = ""
) -> tuple[list[str], str]:
    """The rules that `find` reports of the faulty program, and what it says on stderr."""
    program = FAULTY.format(comment=comment)
    Path("train.py").write_text(program)
    exec(compile(program, str(Path("train.py").resolve()), "exec"), {})
    assert main(["find", "step.json.gz", "--format", "json", *options]) in (0, 1)
    printed = capsys.readouterr()
    return [each["rule"] for each in json.loads(printed.out)["findings"]], printed.err


SILENCED = "graphviz-torch: 1 finding silenced: cut-gradient\n"


def test_find_reports_the_selected_rules_less_the_ignored_ones() -> None:
    meta = TensorMeta((3,), "float32", "cpu")
    lost = Parameter("head.weight", meta, True, module_called=False, has_grad=False)
    used = Parameter("body.weight", meta, True, module_called=True, has_grad=True)
    graph = Graph((), parameters=(used, lost))
    assert [each.rule for each in find(graph)] == ["never-called"]
    assert find(graph, ignore=["never-called"]) == []
    assert find(graph, select=["cut-gradient"]) == []
    assert [each.rule for each in find(graph, select=["never-called"])] == ["never-called"]
    assert find(graph, select=["never-called"], ignore="never-called") == []


@pytest.mark.parametrize("name", ["select", "ignore"])
def test_a_mistyped_id_raises_and_names_the_closest(name: str) -> None:
    with pytest.raises(ValueError, match="Did you mean 'never-called'"):
        find(Graph(()), **{name: ["never-caled"]})


def test_options_select_and_ignore(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(capsys) == (["cut-gradient"], "")
    assert report(capsys, "--ignore", "dead-relu,cut-gradient") == ([], SILENCED)
    assert report(capsys, "--select", "dead-relu") == ([], "")
    assert main(["find", "step.json.gz", "--ignore", "cut-gradent"]) == 2
    assert "Did you mean 'cut-gradient'?" in capsys.readouterr().err


def test_a_comment_silences_the_rules_that_it_names_at_its_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(capsys, comment="  # gt: ignore[frozen, cut-gradient]") == ([], SILENCED)
    assert report(capsys, comment="  # gt: ignore[frozen]") == (["cut-gradient"], "")
    found, said = report(capsys, comment="  # gt: ignore[cut-gradent]")
    assert found == ["cut-gradient"]
    assert "train.py:5: Unknown rule 'cut-gradent'. Did you mean 'cut-gradient'?" in said


def test_the_nearest_configuration_with_a_table_is_taken(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = folder / "a" / "b"
    inner.mkdir(parents=True)
    (folder / "pyproject.toml").write_text('[tool.graphviz_torch]\nignore = ["cut-gradient"]\n')
    (folder / "a" / "pyproject.toml").write_text("[tool.other]\n")
    assert configuration(inner) == {"ignore": ["cut-gradient"]}
    assert report(capsys) == ([], SILENCED)
    (inner / "pyproject.toml").write_text("[tool.graphviz_torch]\n")
    assert configuration(inner) == {}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('ignore = ["cut-gradent"]', "Did you mean 'cut-gradient'"),
        ('ignores = ["cut-gradient"]', "has no key 'ignores': use ignore or select"),
        ('ignore = "cut-gradient"', "ignore of .* is a str: pass a list of ids"),
        ("ignore = [", "pyproject.toml: "),
    ],
)
def test_a_configuration_that_cannot_be_read_says_where(
    folder: Path, table: str, said: str
) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.graphviz_torch]\n{table}\n")
    with pytest.raises(ValueError, match=said):
        configuration(folder)


def test_a_run_takes_the_configuration_above_its_script(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = folder / "scripts" / "train.py"
    script.parent.mkdir()
    script.write_text(FAULTY.format(comment="").replace("recording.graph", "#"))
    (script.parent / "pyproject.toml").write_text(
        '[tool.graphviz_torch]\nignore = ["cut-gradient"]\n'
    )
    main(["run", "--no-hint", str(script)])
    said = capsys.readouterr().err
    assert "warning[cut-gradient]" not in said
    assert SILENCED in said
    (script.parent / "pyproject.toml").unlink()
    main(["run", "--no-hint", str(script)])
    said = capsys.readouterr().err
    assert "warning[cut-gradient]" in said
    assert "silenced" not in said


def test_notes_are_counted_and_shown_when_asked_for() -> None:
    w = torch.ones(3, requires_grad=True)
    frozen = torch.nn.Linear(3, 1).requires_grad_(False)
    with record(frozen) as recording:
        frozen(w).sum().backward()
    found = find(recording)
    assert [each.severity for each in found] == ["info"]
    assert str(found).endswith("1 note (to_text(notes=True) shows all)")
    assert "are frozen" in found.to_text(notes=True)


def test_a_rules_page_is_printed_and_linked_in_sarif(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rule", "cut-gradient"]) == 0
    assert capsys.readouterr().out.rstrip() == rules().by_id("cut-gradient").to_markdown().rstrip()
    assert main(["rule"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(rules())
    assert main(["rule", "cut-gradent"]) == 2
    assert "Did you mean 'cut-gradient'?" in capsys.readouterr().err
    report(capsys)
    main(["find", "step.json.gz", "--format", "sarif"])
    [row] = json.loads(capsys.readouterr().out)["runs"][0]["tool"]["driver"]["rules"]
    page = Path(__file__).parents[3] / "docs" / "findings" / "cut-gradient.md"
    assert row["helpUri"].endswith(f"/{page.relative_to(page.parents[1]).with_suffix('.html')}")
    assert row["fullDescription"]["text"]
    assert row["shortDescription"]["text"] in page.read_text()


def test_a_rule_that_is_not_known_here_is_reported_without_a_page() -> None:
    from graphviz_torch.integrations.command.reports import to_sarif

    said = to_sarif([Finding("of-tomorrow", "error", "It is so.")])
    assert json.loads(said)["runs"][0]["tool"]["driver"]["rules"] == [{"id": "of-tomorrow"}]
