"""Test files that were made to break their reader: each is refused with a reason, or drawn."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import graphviz_torch as gt
from graphviz_torch.graph.json import from_json, to_json
from graphviz_torch.integrations.command.main import main
from tests.graph.test_json import changed

SAVED = Path(__file__).parents[1] / "golden" / "saved"
SEED, MUTATIONS = 20, 300

RENDERERS: dict[str, Callable[[gt.Graph, Path], Any]] = {
    "text": lambda graph, _: gt.to_text(graph),
    "dot": lambda graph, _: gt.export.to_dot(graph, findings=gt.find(graph)),
    "closed": lambda graph, _: gt.export.to_dot(graph, depth=0, color_by="gradient"),
    "payload": lambda graph, _: gt.export.view_payload(graph, gt.find(graph)),
    "diff": lambda graph, _: str(gt.diff(graph, ORIGINAL)) + repr(gt.diff(ORIGINAL, graph).marks()),
    "union": lambda graph, _: gt.export.to_dot(gt.diff(ORIGINAL, graph).union()),
    "pbtxt": lambda graph, folder: gt.export.to_pbtxt(graph, folder / "graph.pbtxt"),
    "tensorboard": lambda graph, folder: gt.to_tensorboard(graph, folder, backward=True),
    "transfers": lambda graph, folder: gt.tensorboard.add_transfers(graph, folder, step=0),
    "collectives": lambda graph, _: gt.distributed.collectives(graph),
    "ranks": lambda graph, _: gt.find([ORIGINAL, graph]),
    "steps": lambda graph, _: gt.find(graph, [ORIGINAL]),
    "mermaid": lambda graph, _: gt.export.to_mermaid(graph, findings=gt.find(graph)),
    "summary": lambda graph, _: str(gt.summary(graph)),
    "explain": lambda graph, _: [str(gt.explain(graph, node.id)) for node in graph.nodes[:2]],
    "chrome": lambda graph, folder: gt.export.to_chrome_trace(graph, folder / "trace.json"),
    "dict": lambda graph, _: gt.export.to_dict(graph),
    "model explorer": lambda graph, folder: gt.export.to_model_explorer(
        graph, folder / "model.json"
    ),
    "networkx": lambda graph, _: gt.export.to_networkx(graph),
    "source": lambda graph, folder: gt.export.annotate_source(graph, folder / "train.py"),
    "saved": lambda graph, _: from_json(to_json(graph)),
}
ORIGINAL = gt.load(SAVED / "recording.json")

VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 2**62, 2**63, 10**30, 0.5, -0.5, 1e308, 5e-324, "NaN", "Infinity"),
    *("", "a.b", "a" * 5000, ".".join("a" * 150), '<b>&"\\n{|}', "\ud800", "☃\u2028\x00"),
    *([], {}, [0], [10**6], {"distinct": [], "at": []}, {"lengths": [3], "items": []}),
]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each (container, key) inside a JSON value."""
    stack = [value]
    while stack:
        container = stack.pop()
        pairs = container.items() if isinstance(container, dict) else enumerate(container)
        for key, part in pairs:
            yield container, key
            if isinstance(part, (dict, list)):
                stack.append(part)


def mutations() -> Iterator[str]:
    """Yield files with one to three of their values replaced, swapped or removed."""
    chance = random.Random(SEED)
    files = [json.loads(to_json(gt.load(SAVED / f"{n}.json"))) for n in ("trace", "recording")]
    files += [json.loads(to_json(gt.load(SAVED / "failed.json"))), json.loads(changed())]
    for _ in range(MUTATIONS):
        data = copy.deepcopy(chance.choice(files))
        for _ in range(chance.randint(1, 3)):
            container, key = chance.choice(list(places(data)))
            kind = chance.random()
            if kind < 0.1 and isinstance(container, dict):
                del container[key]
            elif kind < 0.5 and type(container[key]) in (int, float):
                container[key] = chance.choice([n for n in VALUES if type(n) in (int, float)])
            elif kind < 0.7 and isinstance(container[key], str):
                container[key] = chance.choice([s for s in VALUES if isinstance(s, str)])
            elif kind < 0.8 and isinstance(container, list):
                chance.shuffle(container)
            else:
                container[key] = copy.deepcopy(chance.choice(VALUES))
        yield json.dumps(data)


def test_a_file_with_any_value_replaced_is_refused_or_drawn_by_every_renderer(
    tmp_path: Path,
) -> None:
    loaded = 0
    (tmp_path / "train.py").write_text("x = 1\n" * 9)
    for i, text in enumerate(mutations()):
        try:
            graph = from_json(text)
        except ValueError:
            continue
        loaded += 1
        for name, render in RENDERERS.items():
            try:
                render(graph, tmp_path)
            except ValueError:  # one sentence, as of a graph that can't be shown
                continue
            except Exception as error:
                raise AssertionError(f"mutation {i}, {name}: {text[:2000]}") from error
    assert loaded > MUTATIONS // 10


@pytest.mark.parametrize("column", ["label", "name", "operation", "where", "note"])
@pytest.mark.parametrize(
    "text", ["x y" * 170_000, '<"\\\u2028>' * 90_000], ids=["plain", "escaped"]
)
def test_a_picture_shows_the_beginning_of_a_text_of_half_a_million_letters(
    column: str, text: str
) -> None:
    data = json.loads(to_json(ORIGINAL))
    nodes = data["nodes"]["items"]
    nodes[column] = {"distinct": [text], "at": [0] * len(nodes["id"])}
    graph = from_json(json.dumps(data))
    for picture in (gt.export.to_dot(graph), gt.export.to_mermaid(graph)):
        assert len(picture) < 200_000 * len(graph.nodes)


@pytest.mark.parametrize(
    ("norm", "total"),  # of several norms of 1e308, the total is beyond the largest number
    [(1e308, "Infinity"), (5e-324, "0"), ("Infinity", "Infinity"), ("NaN", "NaN"), (0, "0")],
)
def test_a_norm_of_any_size_is_drawn_and_summed(norm: Any, total: str) -> None:
    data = json.loads(to_json(ORIGINAL))
    statistics = data["nodes"]["items"]["grad_outputs"]["items"]["items"]
    statistics["norm"] = [norm] * len(statistics["norm"])
    graph = from_json(json.dumps(data))
    [last] = [line for line in str(gt.summary(graph)).splitlines() if line.startswith("total")]
    assert last.split()[-1] == total
    written = float(norm)
    assert all(
        picture for picture in (gt.to_text(graph), gt.export.to_dot(graph, color_by="gradient"))
    )
    shown = {n.grad_outputs[0].norm for n in graph.nodes if any(n.grad_outputs)}
    assert shown == {written} or all(math.isnan(value) for value in shown)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            changed(nodes__items__outputs__items__distinct__0=[[1] * 65, "float32", "cpu"]),
            r"nodes\.outputs contains a wrong value: a shape of 65 dimensions",
        ),
        (
            changed(nodes__items__outputs__items__distinct__0=[[2**63], "float32", "cpu"]),
            r"nodes\.outputs contains a wrong value: .* is not a shape",
        ),
        (
            changed(nodes__items__outputs__items__distinct__0=[[2**40] * 2, "float32", "cpu"]),
            r"fewer than 2\*\*63 elements",
        ),
        (changed(nodes__items__order=[10**30, 1]), r"nodes\.order contains an integer of more"),
        (changed(nodes__items__order=[-1, 1]), r"nodes\[0\]\.order is -1"),
        (
            changed(nodes__items__order=[2**63 - 1, 1]),
            r"order is 9\d+; it must be from 0 to 2147483647",
        ),
        (
            changed(nodes__items__order=[2**31, 1]),
            r"order is 2\d+; it must be from 0 to 2147483647",
        ),
        (
            changed(nodes__items__outputs__items__distinct__0=[[2**61], "float32", "cpu"]),
            r"nodes\.outputs contains a wrong value: .* has 2\*\*63 bytes or more",
        ),
        (changed(nodes__items__seconds=[6e8, 6e8]), r"nodes take more than 1,000,000,000 seconds"),
        (changed(nodes__items__seconds=[-0.5, 1]), r"nodes\[0\]\.seconds is -0\.5"),
        (changed(nodes__items__seconds=[1e308, 1]), r"nodes\[0\]\.seconds is 1e\+308"),
        *(
            (
                changed(
                    nodes__items__grad_outputs={
                        "lengths": [1, 0],
                        "items": {"lengths": [1], "items": statistics | {name: [value]}},
                    }
                ),
                r"nodes\[0\]\.grad_outputs has .* norms and counts must not be negative",
            )
            for statistics in [
                {"norm": [1.0], "max_abs": [1.0], "mean": [1.0], "zero_fraction": [0.0]}
            ]
            for name, value in [
                *(("norm", -1.0), ("max_abs", -1.0)),
                *(("zero_fraction", 1.5), ("zero_fraction", "NaN")),
            ]
        ),
        (changed(parameters__items__norm=[-1.0]), r"parameters\[0\]\.norm is -1\.0"),
        (changed(nodes__items__seconds=["NaN", 1]), r"nodes\[0\]\.seconds is nan"),
        (
            changed(nodes__items__seconds=[12345.0, 1]).replace("12345.0", "1e999"),
            r"nodes\[0\]\.seconds is inf",
        ),
        (
            changed(nodes__items__seconds=[12345.0, 1]).replace("12345.0", "1" + "0" * 400),
            r"nodes\.seconds contains an integer of more than 64 bits",
        ),
        (
            changed(nodes__items__order=[12345, 1]).replace("12345", "1" * 5000),
            r"^this is not a saved graph: a number has thousands of digits\.$",
        ),
        (
            changed(nodes__items__saved__lengths=[10**400, 0]),
            r"nodes\.saved contains a value that is not an integer from 0 to 2\*\*63 - 1\.$",
        ),
        (
            changed(nodes__items__module={"distinct": [".".join("a" * 101)], "at": [0, 0]}),
            r"a module path of 101 levels",
        ),
        (
            changed(parameters__items__name={"distinct": [".".join("a" * 250_000)], "at": [0]}),
            r"a module path of 249,999 levels",
        ),
        (
            changed(nodes__items__scope={"distinct": ["a" * 5000], "at": [0, 0]}),
            r"5,000 characters",
        ),
        (
            changed(modules__items__mode={"distinct": ["fun"], "at": [0]}),
            r"modules\.mode contains a wrong value: 'fun' is none of '', 'train', 'eval'",
        ),
        (
            changed(modules__items__path={"distinct": [".".join("a" * 101)], "at": [0]}),
            r"a module path of 101 levels",
        ),
        (
            changed(
                modules__lengths=[2],
                modules__items={"path": {"distinct": ["a"], "at": [0, 0]}},
            ),
            r"graph\.modules has two rows for the same module",
        ),
        (
            changed(modules__items__speed=[1]),
            r"graph\.modules has an unknown field 'speed'",
        ),
        (
            changed(nodes__items__label={"distinct": ["\ud800"], "at": [0, 0]}),
            r"nodes\.label contains a wrong value: .*surrogates not allowed",
        ),
    ],
)
def test_what_no_graph_can_hold_is_refused_with_column_and_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        from_json(text)


@pytest.mark.parametrize(
    "command",
    ["find", "draw", *(f"export --to {name}" for name in ("text", "html", "tensorboard"))],
)
def test_a_command_ends_with_one_sentence_and_exit_status_2(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(changed(nodes__items__seconds=[-0.5, 1]))
    extra = ["-o", str(tmp_path)] if "tensorboard" in command else []
    assert main([*command.split(), str(path), *extra]) == 2
    said = capsys.readouterr().err
    assert said.startswith("graphviz-torch: ")
    assert said.count("\n") == 1
