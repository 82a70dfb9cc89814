"""Pass a graph with terminal control characters in all texts to all functions and commands."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import graphviz_torch as gt
from graphviz_torch.checkpoint.checkpoint import CheckpointDiff
from graphviz_torch.graph import Experiment, TensorMeta, Training, TrainingStep
from graphviz_torch.graph.json import from_json, to_json
from graphviz_torch.integrations.command.main import COMMANDS, main
from graphviz_torch.integrations.command.reports import to_sarif
from graphviz_torch.tensorboard.scalars import transfers_markdown
from tests.graph.test_hostile_files import SAVED
from tests.graph.test_hostile_values import leaves
from tests.graph.test_json import full_graph

# A title and a cleared screen, a return, an ending, C1, two directions, lines, and entities.
HOSTILE = (
    "\x1b]0;t\x07\x1b[2J\r\x00\x9b31m\x7f\u202e\u2066\u200f\u2028&#x1b;&#8238;\nFORGED: a line"
)
_DIRECTIONS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")


def obeyed(text: str) -> set[str]:
    """Return the characters of a text that control a terminal or viewer instead of being shown."""
    return {
        each
        for each in set(text) - {"\n", "\t"}
        if unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp")
        or unicodedata.bidirectional(each) in _DIRECTIONS
        or each in "\u200e\u200f\u061c"
    }


def hostile(graph: gt.Graph) -> gt.Graph:
    """Return the graph with `HOSTILE` at the end of each free text."""
    data = json.loads(to_json(graph))
    for container, key in leaves(data):
        old = container[key]
        if isinstance(old, str) and old not in ("NaN", "Infinity", "-Infinity"):
            container[key] = old + HOSTILE
            try:
                from_json(json.dumps(data))
            except ValueError:  # such as a phase, which is one of two words
                container[key] = old
    made = from_json(json.dumps(data))
    assert isinstance(made, gt.Graph)
    return made


GRAPHS = [from_json((SAVED / f"{n}.json").read_text()) for n in ("recording", "failed")]
GRAPHS.append(full_graph())
NAMES = ["recording", "failed", "full"]


@pytest.fixture(params=range(3), ids=NAMES, scope="module")
def graphs(request: pytest.FixtureRequest) -> tuple[gt.Graph, gt.Graph]:
    """Return a graph, and the same graph with hostile texts."""
    graph = GRAPHS[request.param]
    return graph, hostile(graph)


def texts(
    plain: gt.Graph, graph: gt.Graph, folder: Path
) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield each public function that writes text or a picture of a graph, by its name."""
    found = gt.find(graph)
    steps = Training((TrainingStep(0, (plain,)), TrainingStep(1, (graph,))))
    for wide in (False, True):
        yield "to_text", partial(gt.to_text, graph, wide=wide)
        yield "summary", partial(gt.summary(graph).to_text, wide=wide)
        yield "find", partial(found.to_text, wide=wide)
        yield "diff", partial(gt.diff(plain, graph, titles=("a", HOSTILE)).to_text, wide=wide)
        yield "diff back", partial(gt.diff(graph, plain).to_text, wide=wide)
    yield "find in a notebook", found._repr_html_
    yield "summary in a notebook", gt.summary(graph)._repr_html_
    yield "diff in a notebook", gt.diff(plain, graph)._repr_html_
    yield "graph", partial(repr, graph)
    yield "repr", lambda: repr((graph.nodes, graph.edges, graph.events, graph.cuts, graph.failure))
    yield "find of steps", lambda: str(gt.find(graph, [plain]))
    yield "find in ranks", lambda: str(gt.find([plain, graph]))
    for node in graph.nodes:
        yield "explain", lambda node=node: str(gt.explain(graph, node.id))
    yield "explain of all", lambda: str(gt.explain(graph))
    yield "first_difference", lambda: str(gt.compare.first_difference(plain, graph))
    yield "collectives", lambda: str(gt.distributed.collectives(graph))
    yield "alternation", lambda: steps.alternation
    yield "to_mermaid", partial(gt.export.to_mermaid, graph, findings=found)
    yield "to_dot", partial(gt.export.to_dot, graph, findings=found)
    yield "draw_graph", lambda: str(gt.draw_graph(graph, findings=found).pipe("svg"))
    yield "draw_graph of two", lambda: str(gt.draw_graph(gt.diff(plain, graph)).pipe("svg"))
    yield "draw_flow", lambda: str(gt.draw_flow(graph))
    yield "rank_chart", lambda: str(gt.distributed.rank_chart([plain, graph]))
    page = partial(gt.to_html, graph, findings=found, title=HOSTILE)
    yield "to_html", lambda: page().replace(gt.export.view_script(), "")
    yield "to_pbtxt", lambda: gt.export.to_pbtxt(graph, folder / "a.pbtxt").read_text("utf-8")
    yield "add_transfers", lambda: transfers_markdown(graph)
    yield "to_chrome_trace", lambda: json.dumps(gt.export.to_chrome_trace(graph, folder / "t.json"))
    yield "to_model_explorer", lambda: str(gt.export.to_model_explorer(graph, folder / "m.json"))
    yield (
        "to_sarif",
        lambda: " ".join(
            result["message"]["text"].replace("\n", " ")
            for result in json.loads(to_sarif(found))["runs"][0]["results"]
        ),
    )
    yield "to_json", partial(to_json, graph)
    yield "Experiment", lambda: str(Experiment(HOSTILE, HOSTILE, True, HOSTILE, where=HOSTILE))
    names, meta = (HOSTILE,), TensorMeta((1,), HOSTILE, HOSTILE)
    shapes = ((HOSTILE, meta, meta),)
    different = CheckpointDiff(names, names, shapes, shapes, shapes, names)
    yield "compare_checkpoint", partial(str, different)
    yield "verify", lambda: str(gt.compare.Verification(graph, 0.0, ((HOSTILE, 1.0),), ()))


def test_no_public_function_writes_what_a_terminal_obeys(
    graphs: tuple[gt.Graph, gt.Graph], tmp_path: Path
) -> None:
    let_through: dict[str, str] = {}
    for name, write in texts(*graphs, tmp_path):
        try:
            text = write()
        except ValueError as error:  # such as of a graph without a measured time
            text = str(error)
        if wrong := obeyed(text):
            let_through[name] = ascii("".join(sorted(wrong)))
        elif "<" not in text and re.search("^FORGED", text, re.M):
            let_through[name] = "a line of its own"
    assert let_through == {}


# The arguments of each command.
GIVEN: dict[str, list[str]] = {
    "summary": ["hostile.json"],
    "find": ["plain.json", "hostile.json"],
    "explain": ["hostile.json", "0"],
    "diff": ["plain.json", "hostile.json"],
    "draw": ["hostile.json", "--format", "svg", "-o", "-"],
    "view": ["hostile.json"],
    "export": ["hostile.json", "--to", "text", "-o", "-"],
}
MORE = [
    *(
        ["export", "hostile.json", "--to", form, "-o", "-"]
        for form in ("dot", "flow", "html", "mermaid")
    ),
    ["export", "hostile.json", "--to", "tensorboard", "-o", "runs"],
    ["export", "hostile.json", "--to", "text", "--wide", "-o", "-"],
    ["summary", "hostile.json", "--format", "csv"],
    ["summary", "hostile.json", "--format", "json"],
    ["find", "hostile.json", "--wide"],
    ["find", "hostile.json", "--ranks", "plain.json"],
    *(["find", "hostile.json", "--format", form] for form in ("json", "sarif")),
    ["explain", "hostile.json"],
    ["explain", "hostile.json", "no such name"],
    ["explain", "hostile.json", HOSTILE],
    ["diff", "hostile.json", "plain.json", "--wide"],
    ["diff", "plain.json", "hostile.json", "--format", "json"],
    ["diff", "plain.json", "hostile.json", "--fingerprints"],
    ["summary", HOSTILE],
    ["summary", "plain.json", f"--{HOSTILE}"],
    [HOSTILE],
    ["rule", HOSTILE],
    ["export", "hostile.json", "--to", HOSTILE],
    ["draw", "hostile.json", "--format", HOSTILE],
    ["draw", "hostile.json", "--color-by", HOSTILE],
]
NO_GRAPH = {"run", "rehearse", "app", "completion", "rule"}  # they read no saved graph


def test_every_command_that_reads_a_graph_is_given_a_hostile_one() -> None:
    assert COMMANDS.keys() - NO_GRAPH == GIVEN.keys()


def test_no_command_prints_what_a_terminal_obeys(
    graphs: tuple[gt.Graph, gt.Graph],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("webbrowser.open", lambda _: False)
    for graph, name in zip(graphs, ("plain", "hostile"), strict=True):
        graph.save(f"{name}.json")
    let_through: dict[str, str] = {}
    for words in [*([name, *given] for name, given in GIVEN.items()), *MORE]:
        with suppress(SystemExit):  # of argparse
            main(words)
        for text in capfd.readouterr():
            if wrong := obeyed(text):
                let_through[" ".join(map(ascii, words))] = ascii("".join(sorted(wrong)))
            elif not text.startswith(("<svg", "module,")) and re.search("^FORGED", text, re.M):
                let_through[" ".join(map(ascii, words))] = "a line of its own"
    assert let_through == {}


@pytest.mark.parametrize("edit", [0, 1], ids=["a name", "a key"])
def test_no_refusal_of_a_file_prints_what_a_terminal_obeys(
    edit: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data: Any = json.loads(to_json(GRAPHS[0]))
    if edit:
        data["nodes"]["items"][HOSTILE] = []
    else:
        path = {"distinct": [HOSTILE * 200], "at": [0]}
        data["modules"] = {
            "lengths": [1],
            "items": {"path": path},
        }
    file = tmp_path / f"{HOSTILE}.json".replace("\0", "")
    file.write_text(json.dumps(data))
    assert main(["summary", str(file)]) == 2
    said = capsys.readouterr().err
    assert not obeyed(said)
    assert said.count("\n") == 1
