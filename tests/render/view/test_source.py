"""Test which files of the view's TypeScript import which."""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from graphviz_torch.render import view

SOURCE = Path(view.__file__).parent / "src"


def imports(root: Path) -> dict[str, set[str]]:
    """Of each file under `root`, the files under `root` that it imports, types too."""
    found = {}
    for path in sorted(root.rglob("*.ts")):
        named = re.findall(r'^(?:import|export)\b[^;]*?"(\.[^"]+)";', path.read_text(), re.M)
        files = [(path.parent / name).resolve() for name in named]
        found[path.resolve().relative_to(root).as_posix()] = {
            file.with_name(f"{file.name}.ts").relative_to(root).as_posix()
            for file in files
            if file.suffix != ".css"
        }
    return found


def test_no_files_import_each_other_in_a_circle() -> None:
    found = imports(SOURCE.resolve())
    assert found["view.ts"] >= {"panel/panel.ts", "controls/keys.ts"}
    assert set().union(*found.values()) <= set(found)
    tuple(TopologicalSorter(found).static_order())


def test_a_circle_would_be_seen(tmp_path: Path) -> None:
    (tmp_path / "a.ts").write_text('import type { B } from "./b";\n')
    (tmp_path / "b.ts").write_text('export { a } from "./a";\n')
    with pytest.raises(CycleError):
        tuple(TopologicalSorter(imports(tmp_path.resolve())).static_order())


def test_what_is_read_of_a_graph_knows_nothing_of_how_it_is_shown() -> None:
    folders = {
        name: {file.split("/")[0] for file in uses}
        for name, uses in imports(SOURCE.resolve()).items()
    }
    allowed = {"graph": {"graph"}, "layout": {"layout"}}
    for name, used in folders.items():
        assert used <= allowed.get(name.split("/")[0], used), name


def test_every_column_that_the_page_reads_is_written() -> None:
    typescript = "".join(path.read_text() for path in SOURCE.rglob("*.ts"))
    read = set(re.findall(r'payload\.column\("(\w+)"', typescript))
    python = "".join(path.read_text() for path in SOURCE.parent.glob("*.py"))
    written = set(re.findall(r'"(\w+)"', python))
    assert {"groupKind", "edgeSource"} <= read <= written
