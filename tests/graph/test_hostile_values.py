"""Replace each value of a file by an extreme one: the file is refused, or can be shown."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

import graphviz_torch as gt
from graphviz_torch.graph.json import from_json, to_json
from graphviz_torch.graph.terminal import cut
from graphviz_torch.graph.text import users_line_first, with_short_names
from graphviz_torch.integrations.command import main as command
from tests.graph.test_hostile_files import RENDERERS, SAVED
from tests.graph.test_json import full_graph
from tests.tensorboard.test_plugin import client

SEED, MUTATIONS, PARTS = 49, 500, 4

WHOLE = (0, 1, -1, 2, 255, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, -(2**63))
REAL = (0.0, -0.0, 0.5, -0.5, 1.0, 1.5, 1e9, 1e308, -1e308, 5e-324, 1, 2**62, 2**63 - 1)
REAL += ("NaN", "Infinity", "-Infinity")
TEXTS = ("", "a.b", "/", "a" * 4096, ".".join("a" * 100), '<b>&"\\n{|}', "☃\u2028\x00", "-1", "%")
TEXTS += ("a, b called at", "Linear(4, x)", "float99999", "cuda:-1", "x" * 30_000, "../..", "\r\n")
# Positions and lengths say where a value stands: what is replaced is a value.
_FORM = ("at", "lengths", "kinds", "version", "format")

# Of the command, what prints; a file stands for {}.
COMMANDS = [
    *(["export", "--to", "text", "{}"], ["summary", "{}"], ["find", "{}", "--format", "json"]),
    *(["find", "{}", "--format", "sarif"], ["diff", "{}", str(SAVED / "recording.json")]),
]
# What a format may say of a graph that it can't show.
SENTENCES = "has no source lines|no time was measured|has no values of this kind"


def fields(data: Any) -> dict[tuple[str, ...], list[tuple[Any, Any]]]:
    """Return the (container, key) of each value that is a number or a text, by its field."""
    found: dict[tuple[str, ...], list[tuple[Any, Any]]] = {}
    stack: list[tuple[tuple[str, ...], Any]] = [((), data)]
    while stack:
        field, container = stack.pop()
        pairs = container.items() if isinstance(container, dict) else enumerate(container)
        for key, part in pairs:
            if key in _FORM:
                continue
            inner = (*field, key) if isinstance(container, dict) else field
            if isinstance(part, (dict, list)):
                stack.append((inner, part))
            else:
                found.setdefault(inner, []).append((container, key))
    return found


def leaves(data: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each (container, key) of a value that is a number or a text."""
    for places in fields(data).values():
        yield from places


def others(old: Any) -> tuple[Any, ...]:
    """Return the extreme values of the same kind."""
    if isinstance(old, float) or old in REAL[-3:]:
        return REAL
    if isinstance(old, str):
        return TEXTS
    return (True, False, None) if isinstance(old, bool) or old is None else WHOLE


def mutations(part: int) -> Iterator[str]:
    """Yield files with one or two values replaced by values of the same kind.

    No field gets the same value twice, except as the second one.
    """
    chance = random.Random(SEED)
    graphs = [gt.load(SAVED / f"{name}.json") for name in ("recording", "failed")]
    files = [to_json(graph) for graph in (*graphs, full_graph())]
    # The number of a file, a field of it, and an extreme value.
    replacements = [
        (number, field, values, value)
        for number, file in enumerate(files)
        for field, places in fields(json.loads(file)).items()
        for values in dict.fromkeys(others(container[key]) for container, key in places)
        for value in values
    ]
    chance.shuffle(replacements)
    for number, *first in replacements[part:MUTATIONS:PARTS]:
        data = json.loads(files[number])
        alike = [more for other, *more in replacements[MUTATIONS:] if other == number]
        for field, values, value in (first, *chance.sample(alike, chance.randint(0, 1))):
            places = [
                place for place in fields(data)[field] if others(place[0][place[1]]) == values
            ]
            if places:
                container, key = chance.choice(places)
                container[key] = value
        yield json.dumps(data)


def doors(path: Path, graph: gt.Graph, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the functions that show a graph, each with its name."""
    for name, render in RENDERERS.items():
        yield name, partial(render, graph, folder)
    yield "html", partial(gt.to_html, graph, folder / "page.html")
    yield "time", partial(gt.export.to_dot, graph, depth=0, color_by="time")
    yield "repr", partial(repr, (graph, graph.nodes, graph.events, gt.find(graph)))
    steps = (gt.graph.TrainingStep(0, (graph,)), gt.graph.TrainingStep(1, (graph,)))
    yield "training", partial(gt.save, gt.graph.Training(steps), folder / "run.json.gz")
    for words in COMMANDS:
        given = [word.format(path) for word in words]
        yield f"command {words[0]}", partial(command.main, given)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_file_with_any_value_replaced_is_refused_or_shown_at_every_door(
    part: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "parser", cache(command.parser))  # else most of the time is its
    (tmp_path / "train.py").write_text("x = 1\n" * 9)
    loaded = []
    for i, text in enumerate(mutations(part)):
        path = tmp_path / f"{i}.json"
        path.write_text(text)
        try:
            graph = gt.load(path)
        except ValueError:
            continue
        loaded.append(path)
        assert isinstance(graph, gt.Graph)
        for name, show in doors(path, graph, tmp_path):
            try:
                show()
            except Exception as error:
                if isinstance(error, ValueError) and re.search(SENTENCES, str(error)):
                    continue
                raise AssertionError(f"mutation {i}, {name}: {text[:2000]}") from error
        assert "Traceback" not in capsys.readouterr().err
    assert len(loaded) > MUTATIONS // PARTS // 2


def test_tensorboard_serves_every_graph_whose_values_were_replaced(tmp_path: Path) -> None:
    written = []
    for i, text in enumerate(mutations(0)):
        try:
            graph = from_json(text)
            gt.to_tensorboard(graph, tmp_path / str(i), backward=True)
        except ValueError:
            continue
        written.append(str(i))
    web = client(tmp_path)
    listing = web.get("/data/plugin/graphviz_torch/graphs").json
    assert listing.keys() == set(written)
    for run in written:
        query = {"run": run, "tag": "graph", "step": 0}
        answer = web.get("/data/plugin/graphviz_torch/graph", query_string=query)
        assert (answer.status_code, answer.text[:4]) == (200, "H4sI"), (run, answer.text[:200])


META = gt.graph.TensorMeta((2**61,), "float16", "cpu")
SAVED_TENSOR = gt.graph.SavedTensor("self", META, 2**62)
GRADIENT = gt.graph.GradientStats(0.0, 0.0, 0.0, 0.0, tensor=META)


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (
            gt.Graph((gt.graph.Node(0, "F", (), saved=(SAVED_TENSOR, SAVED_TENSOR)),)),
            "saved tensors in",
        ),
        (
            gt.Graph((gt.graph.Node(0, "F", (), grad_outputs=(GRADIENT,) * 2),)),
            r"nodes\[0\]\.grad_out",
        ),
        (
            gt.Graph((), transfers=(gt.graph.Transfer("HtoD", "a", "b", META, "forward"),) * 2),
            "transfe",
        ),
        (gt.Graph((), parameters=(gt.graph.Parameter("a", META, True),) * 2), r"graph\.parameters"),
        (
            gt.Graph((), collectives=(gt.graph.Collective("send", 2**62),) * 2),
            r"graph\.collectives",
        ),
    ],
    ids=["saved", "gradients", "transfers", "parameters", "collectives"],
)
def test_bytes_that_cannot_be_added_up_are_refused(graph: gt.Graph, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"{reason}.*2\*\*63 bytes or more in total"):
        to_json(graph)


def test_a_text_of_many_letters_is_read_in_one_pass() -> None:
    text = "损" * 300_000
    assert cut(text, 9) == "损" * 4 + "…"
    assert cut(text, 10, tail=True) == "…" + "损" * 4
    assert users_line_first(text) == text
    assert len(with_short_names(".".join(text))) <= 40


def test_a_dtype_with_a_sign_of_the_markup_is_drawn() -> None:
    x = torch.ones(3, requires_grad=True)
    graph = gt.trace((x * 2).sum())
    graph = graph.annotate(outputs={0: (gt.graph.TensorMeta((3,), "a|b|c", "d|e"),)})
    assert "a|b|c" in gt.export.to_dot(graph)


def test_a_scale_of_colours_holds_the_largest_numbers_and_the_smallest() -> None:
    sizes = [5e-324, 1.0, 1e308]
    nodes = [
        gt.graph.Node(i, "F", (META,), grad_outputs=(gt.graph.GradientStats(size, size, 0.0, 0.0),))
        for i, size in enumerate(sizes)
    ]
    fills = re.findall(
        r'fillcolor="(#\w+)"', gt.export.to_dot(gt.Graph(tuple(nodes)), color_by="gradient")
    )
    assert len(set(fills)) >= 3
