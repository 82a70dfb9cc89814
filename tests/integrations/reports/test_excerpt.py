"""Test the source line below a finding: the line that ran, underlined and escaped."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from graphviz_torch import Finding
from graphviz_torch.graph.terminal import in_shell
from graphviz_torch.integrations.command import reports
from graphviz_torch.integrations.command.reports import to_lines
from graphviz_torch.integrations.excerpt import SourceReader

FOUND = Finding(
    "cut-gradient",
    "warning",
    "w got no gradient: a result was cut by detach() at train.py:2.",
    "Remove the detach() at train.py:2.",
    where="train.py:2",
)
REPORT = """\
warning[cut-gradient]: w got no gradient: a result was cut by detach().
 --> train.py:2
  |
2 |     y = f(w).detach()
  |           ^  ^^^^^^
  = help: Remove the detach().

1 warning
Read more: graphviz-torch rule cut-gradient"""


def source(folder: Path, **options: bool) -> SourceReader:
    return SourceReader((folder,), time.time() + 1, **options)


@pytest.fixture
def train(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("import torch\n    y = f(w).detach()\n")
    return path


def test_the_line_stands_under_its_finding_and_its_place_is_said_once(train: Path) -> None:
    assert to_lines([FOUND], source=source(train.parent)) == REPORT


def test_a_file_that_was_changed_since_is_not_quoted(train: Path) -> None:
    unknown = to_lines([FOUND])
    assert "by detach() at train.py:2." in unknown.replace("\n    ", " ")
    os.utime(train, (time.time() + 60,) * 2)
    assert to_lines([FOUND], source=source(train.parent)) == unknown


def test_a_librarys_file_of_the_same_name_is_not_taken_for_the_programs(train: Path) -> None:
    for folder in ("src", "lib/site-packages/other"):
        (train.parent / folder).mkdir(parents=True)
        (train.parent / folder / "train.py").write_text(train.read_text() * len(folder))
    train.unlink()
    found = [train.parent / "lib" / "site-packages" / "other" / "train.py"]
    found.append(train.parent / "src" / "train.py")
    modules = {f"{number}": ModuleType(f"{number}") for number in range(2)}
    for module, file in zip(modules.values(), found, strict=True):
        module.__file__ = str(file)
    with pytest.MonkeyPatch.context() as patch:
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)
        assert to_lines([FOUND], source=source(train.parent, loaded=True)) == REPORT


def test_of_two_files_with_the_name_neither_is_quoted(train: Path) -> None:
    (train.parent / "src").mkdir()
    moved = train.rename(train.parent / "src" / "train.py")
    assert to_lines([FOUND], source=source(train.parent)) == REPORT
    (train.parent / "old").mkdir()
    (train.parent / "old" / "train.py").write_text(moved.read_text())
    assert to_lines([FOUND], source=source(train.parent)) == to_lines([FOUND])


@pytest.mark.parametrize("name", ["../train.py", "{}/train.py", "train.py:2", "nowhere.py"])
def test_only_files_below_the_folders_are_read(name: str, train: Path) -> None:
    (train.parent / "inner").mkdir()
    assert not source(train.parent / "inner")(name.format(train.parent))


def test_what_a_terminal_would_obey_is_escaped_and_letters_that_are_wide_move_the_signs(
    train: Path,
) -> None:
    train.write_text("import torch\n\ty = '损\x1b[2J' + detach(w)\n")
    lines = to_lines([FOUND], source=source(train.parent)).splitlines()
    line, below = lines[3:5]
    assert line == "2 |     y = '损\\x1b[2J' + detach(w)"
    assert below.index("^") == line.index("detach") + 1  # 损 takes two cells


def test_the_other_lines_that_a_message_names_follow(train: Path) -> None:
    found = Finding("nan", "error", "log at train.py:2 got 0 from relu at train.py:1.")
    train.write_text("x = w.relu()\ny = x.log()\n")
    lines = to_lines([found], source=source(train.parent)).splitlines()
    assert [line.strip() for line in lines if "::: " in line] == [
        "::: train.py:2",
        "::: train.py:1",
    ]
    assert "2 | y = x.log()" in lines


@pytest.mark.parametrize("terminal", [False, True])
def test_a_line_of_source_is_cut_only_where_a_terminal_would_wrap_it(
    train: Path, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = f"y = {' + '.join(['w'] * 40)} + detach(w)"
    train.write_text(f"import torch\n{long}\n")
    monkeypatch.setattr(reports, "is_terminal", lambda: terminal)
    lines = to_lines([FOUND], source=source(train.parent)).splitlines()
    assert (f"2 | {long}" in lines) is not terminal
    assert max(map(len, lines)) > 80 or terminal


@pytest.mark.parametrize("many", [7, 70])
def test_what_is_said_goes_over_lines_of_80_characters_and_where_it_is_wide_over_one(
    many: int,
) -> None:
    message, advice = "word " * many + "end.", "help " * many + "done."
    found = Finding("nan", "error", message, advice)
    first, *rest = to_lines([found], wide=True).split("\n")
    assert (first, rest[0]) == (f"error[nan]: {message}", f"  = help: {advice}")
    lines = to_lines([found]).split("\n")
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines).split()) == " ".join(" ".join([first, *rest]).split())


def test_in_a_shell_an_advice_names_the_flag() -> None:
    advice = 'Record the step with record(compiled="eager"): it says which.'
    found = Finding("nan", "error", "NaN.", advice)
    assert advice in to_lines([found])
    with in_shell():
        assert "= help: Record the step with --compiled eager: it says which." in to_lines([found])


def test_a_place_that_a_file_made_up_is_escaped_too() -> None:
    found = Finding("nan", "error", "NaN.", where="a\x1b[2J.py:3")
    assert "--> a\\x1b[2J.py:3" in to_lines([found])
