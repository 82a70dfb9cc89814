"""Test the recorded steps of a run as one value and in one file."""

from __future__ import annotations

import copy
import gzip
import json
import random
import resource
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from graphviz_torch import Graph, diff, find, load, record, save, summary, to_html, to_text
from graphviz_torch.export import to_dot
from graphviz_torch.findings.rules.meaning.calls import DropoutInEvalMode
from graphviz_torch.graph import Node, TensorMeta, Training, TrainingStep, Transfer
from graphviz_torch.graph.join import join_graphs
from graphviz_torch.graph.training_file import (
    TrainingFile,
    apply_change,
    apply_changes,
    change,
    changes,
)
from graphviz_torch.integrations.command.main import main
from tests.graph.test_hostile_files import RENDERERS, VALUES, places

MEASURED = {"norm": 2, "max_abs": 2, "mean": 1, "zero_fraction": 2}


def steps(count: int, depth: int = 2) -> list[TrainingStep]:
    """Return steps of a training of a small model, each with another batch."""
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(4, 4), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = []
    for number in range(count):
        with record(model) as recording:
            optimizer.zero_grad()
            model(torch.randn(64, 4)).square().mean().backward()
            optimizer.step()
        found.append(TrainingStep(number, tuple(recording.graphs)))
    return found


@pytest.fixture(scope="module")
def training() -> Training:
    return Training(tuple(steps(5)))


def unmeasured(graph: Graph) -> Graph:
    """Return the graph without the numbers that a file rounds to two digits."""
    nodes = [
        node._replace(
            seconds=None,
            grad_outputs=tuple(
                stats and stats._replace(norm=0.0, max_abs=0.0, mean=0.0, zero_fraction=0.0)
                for stats in node.grad_outputs
            ),
        )
        for node in graph.nodes
    ]
    parameters = [replace(each, norm=None) for each in graph.parameters]
    return replace(graph, nodes=tuple(nodes), parameters=tuple(parameters))


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_what_is_loaded_is_what_was_saved_with_two_digits_of_what_was_measured(
    training: Training, name: str, tmp_path: Path
) -> None:
    again = load(save(training, tmp_path / name))
    assert isinstance(again, Training)
    assert again.steps[0] == training.steps[0]  # the first one is exact
    for old, new in zip(training.steps, again.steps, strict=True):
        assert unmeasured(old.graph) == unmeasured(new.graph)
        pairs = [
            (getattr(a, field), getattr(b, field), digits)
            for before, after in zip(old.graph.nodes, new.graph.nodes, strict=True)
            for a, b in zip(before.grad_outputs, after.grad_outputs, strict=True)
            if a is not None
            for field, digits in MEASURED.items()
        ]
        assert len(pairs) > 20
        exact = new is again.steps[0]
        assert all(b == (a if exact else _rounded(a, digits)) for a, b, digits in pairs)
    assert load(save(again, tmp_path / name)) == again  # off by no more when it is written again


def _rounded(number: float, digits: int) -> float:
    rounded = float(f"{number:.{digits - 1}e}")
    return min(rounded, 1 - 0.1**digits) if 0 < number < 1 else rounded


def test_a_number_has_two_digits_and_what_matters_exactly_is_exact() -> None:
    numbers: list[Any] = [1e-30, 3.0, -3.14, 1e300, 1.7e308, 5e-324, 0.27641, 9.96, 99.4]
    shares = [0.999, 0.9999999]  # are not all
    exact = [0.0, 1.0, 2.0, 0.5, None, "NaN", "Infinity", "-Infinity"]
    given = numbers + shares + exact
    again = apply_changes([1.5] * len(given), changes([1.5] * len(given), given))
    assert again == [*(float(f"{number:.1e}") for number in numbers), 0.99, 0.99, *exact]
    assert apply_changes([1.5], changes([1.5], [1.79e308])) == [1.7e308]
    assert apply_changes([1.5], changes([1.5], [-0.0276], 1), 1) == [-0.03]


def test_what_changed_in_a_tree_gives_the_tree() -> None:
    old = {"a": [1, 2], "norm": [1.0, 2.0], "gone": 1, "in": {"b": {"c": "x"}}, "list": [{"d": 1}]}
    new = {"a": [1, 3], "norm": [4.0, 0.0], "new": [1], "in": {"b": {}}, "list": [{"d": 2}]}
    assert apply_change(old, change(old, new)) == new
    assert change(old, copy.deepcopy(old)) is None


def test_the_file_of_a_hundred_steps_is_smaller_than_ten_files_of_one(tmp_path: Path) -> None:
    # The graph of GPT-2 small, with a narrower model; every number that was measured differs.
    model = GPT2LMHeadModel(GPT2Config(n_embd=96, vocab_size=256, n_positions=32))
    few = []
    for _ in range(10):
        words = torch.randint(0, 256, (1, 32))
        with record(model) as recording:
            model.zero_grad()
            model(input_ids=words, labels=words).loss.backward()
        few.append(tuple(recording.graphs))
    run = [TrainingStep(i, few[i % 10]) for i in range(100)]
    one = save(few[3][-1], tmp_path / "one.json.gz").stat().st_size
    file = TrainingFile(tmp_path / "run.json.gz")
    for step in run:
        file.append(step)
    assert file.path.stat().st_size < 10 * one


def test_steps_in_turn_are_written_as_what_changed_since_their_own_kind(tmp_path: Path) -> None:
    both = [*steps(4, depth=2), *steps(4, depth=5)]
    turns = [TrainingStep(i, both[i // 2 + 4 * (i % 2)].backwards) for i in range(8)]
    file = TrainingFile(tmp_path / "run.json")
    file.append(*turns)
    rows = [json.loads(line) for line in file.path.read_text().splitlines()[1:]]
    whole = [i for i, row in enumerate(rows) if "columns" in row["graphs"][0]]
    assert whole == [0, 1]
    again = load(file.path)
    assert isinstance(again, Training)
    assert [unmeasured(s.graph) for s in again.steps] == [unmeasured(s.graph) for s in turns]


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_a_file_that_is_cut_anywhere_gives_the_steps_that_were_finished(
    training: Training, name: str, tmp_path: Path
) -> None:
    file, ends = TrainingFile(tmp_path / name), []
    for step in training.steps:
        file.append(step)
        ends.append(file.path.stat().st_size)
    data = file.path.read_bytes()
    for cut in [ends[0], ends[0] + 1, (ends[2] + ends[3]) // 2, ends[3] - 30, ends[3], len(data)]:
        file.path.write_bytes(data[:cut])
        finished = sum(end <= cut for end in ends)
        again = load(file.path)
        assert isinstance(again, Training)
        assert len(again.steps) == finished
    file.path.write_bytes(data[: ends[0] // 2])
    with pytest.raises(ValueError, match=r"cut short at byte [\d,]+, before its first step"):
        load(file.path)


def test_a_step_that_is_written_twice_is_what_the_second_line_says(tmp_path: Path) -> None:
    first, second = steps(2)
    more = replace(
        second,
        backwards=(replace(second.graph, events=(DropoutInEvalMode(function="drop"),)),),
    )
    file = TrainingFile(tmp_path / "run.json.gz")
    file.append(first, second)
    file.append(more)
    run = load(file.path)
    assert isinstance(run, Training)
    assert [step.number for step in run.steps] == [0, 1]
    assert run.graph.events == more.graph.events


def test_a_run_does_not_write_into_the_file_of_another(training: Training, tmp_path: Path) -> None:
    file, other = (TrainingFile(tmp_path / "run.json.gz") for _ in range(2))
    file.append(training.steps[0])
    other.append(*training.steps[:3])
    with pytest.raises(OSError, match="was replaced or changed since"):
        file.append(training.steps[1])
    again = load(file.path)
    assert isinstance(again, Training)
    assert len(again.steps) == 3
    file.path.unlink()
    with pytest.raises(FileNotFoundError):
        other.append(training.steps[3])


def test_a_writing_that_fails_leaves_the_steps_before_and_the_next_is_read(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = TrainingFile(tmp_path / "run.json.gz")
    file.append(training.steps[0])
    with monkeypatch.context() as patch:
        patch.setattr(gzip, "compress", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            file.append(training.steps[1])
    file.append(*training.steps[1:])
    again = load(file.path)
    assert isinstance(again, Training)
    assert [unmeasured(s.graph) for s in again.steps] == [
        unmeasured(s.graph) for s in training.steps
    ]


@contextmanager
def full_disk(path: Path, room: int) -> Iterator[None]:
    """Limit files of this process to the file's current size and some bytes more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_after_a_full_disk_the_next_writing_has_what_was_missed(
    name: str, training: Training, tmp_path: Path
) -> None:
    file = TrainingFile(tmp_path / name)
    file.append(training.steps[0])
    whole = file.path.read_bytes()
    for room in (0, 1, 50):
        with full_disk(file.path, room), pytest.raises(OSError, match="too large"):
            file.append(*training.steps[1:3])
        assert file.path.read_bytes() == whole
    file.append(*training.steps[1:3])
    file.append(*training.steps[3:])
    again = load(file.path)
    assert isinstance(again, Training)
    assert [step.number for step in again.steps] == [step.number for step in training.steps]


def test_a_training_stands_where_a_graph_is_needed_as_its_last_step(training: Training) -> None:
    last = training.steps[-1]
    assert to_text(training) == to_text(last) == to_text(last.graph)
    assert to_dot(training) == to_dot(last.graph)
    assert to_html(training) == to_html(last.graph)
    assert str(summary(training)) == str(summary(last.graph))
    assert repr(training) == f"Training(5 steps, {len(last.graph.nodes)} nodes)"
    assert not diff(training, last.graph)
    assert {each.what for each in diff(*training.steps[:2]).changed} == {"gradient"}


def test_a_step_without_nodes_that_failed_is_drawn_with_the_step_before(training: Training) -> None:
    with pytest.raises(ZeroDivisionError), record() as recording:
        raise ZeroDivisionError
    failed = TrainingStep(5, (recording.graph,))
    run = Training((*training.steps, failed))
    assert len(run.graph.nodes) == len(training.graph.nodes)
    assert run.graph.failure is not None
    assert run.graph.failure.error == "ZeroDivisionError"


def test_each_thing_is_found_once_with_the_steps_that_have_it() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    found = []
    for number in range(4):
        with record(model) as recording:
            hidden = model[0](torch.ones(2, 3))
            model[1](hidden.detach() if number in (1, 2) else hidden).sum().backward()
        found.append(TrainingStep(10 * number, tuple(recording.graphs)))
    run = find(Training(tuple(found)))
    assert [(each.rule, each.steps) for each in run] == [("cut-gradient", (1, 2))]
    assert "nodes of 4 steps, 4 parameters: 1 warning" in str(run)
    assert "steps 2 to 3 of 4" in str(run)


def test_a_training_is_read_judged_and_drawn_without_torch(
    training: Training, tmp_path: Path
) -> None:
    path = save(training, tmp_path / "run.json.gz")
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from graphviz_torch import find, load, to_text\n"
        f"run = load({str(path)!r}); find(run); to_text(run); print(len(run.steps))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("5\n", "")


def test_a_command_takes_the_last_step_or_the_one_that_is_named(
    training: Training, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(training, tmp_path / "run.json.gz")
    loaded = load(path)
    assert isinstance(loaded, Training)
    for name, graph in ((path, loaded.graph), (f"{path}@2", loaded.steps[2].graph)):
        assert main(["export", "--to", "text", str(name), "--wide"]) == 0
        assert capsys.readouterr().out.rstrip() == to_text(graph, wide=True).rstrip()
    assert main(["diff", f"{path}@0", f"{path}@1"]) == 1
    assert "gradient" in capsys.readouterr().out
    assert main(["draw", f"{path}@2", "--format", "dot"]) == 0
    assert (tmp_path / "run@2.dot").exists()
    capsys.readouterr()
    assert main(["find", f"{path}@9"]) == 2
    said = capsys.readouterr().err
    assert said.endswith("run.json.gz has no step 9, but 0, 1, 2, 3 and 4.\n")


def lines_of(training: Training, folder: Path) -> list[Any]:
    text = save(training, folder / "lines.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_a_training_with_any_value_replaced_is_refused_or_drawn(
    training: Training, tmp_path: Path
) -> None:
    chance, lines = random.Random(32), lines_of(training, tmp_path)
    path, loaded = tmp_path / "bad.json", 0
    for i in range(200):
        data = copy.deepcopy(lines)
        for _ in range(chance.randint(1, 3)):
            container, key = chance.choice(list(places(data[chance.randint(1, 2)])))
            if type(container[key]) is int and chance.random() < 0.5:
                container[key] = chance.choice([n for n in VALUES if type(n) in (int, float)])
            else:
                container[key] = copy.deepcopy(chance.choice(VALUES))
        path.write_text("".join(json.dumps(row) + "\n" for row in data))
        try:
            run = load(path)
        except ValueError:
            continue
        loaded += 1
        for name in ("text", "dot", "summary", "steps"):
            try:
                RENDERERS[name](run.graph, tmp_path)  # type: ignore[union-attr]
                find(run)
            except ValueError:
                continue
            except Exception as error:
                raise AssertionError(f"{i}, {name}: {data[1:3]}"[:2000]) from error
    assert loaded > 5


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda rows: rows[0].update(version=99), "Update graphviz_torch"),
        (lambda rows: rows[0].update(steps=3), "unknown field 'steps'"),
        (lambda rows: rows[3].update(step=0), "must be 0 or more, and increase"),
        (lambda rows: rows[2].update(step="1"), "a step has the number '1'"),
        (lambda rows: rows[-1].update(graphs=[]), "step 4 has no graph"),
        (lambda rows: rows[2]["graphs"][0].update(like=7), "refers to graph 7 of the 1 before"),
        (lambda rows: rows[2]["graphs"][0].update(like=-1), "refers to graph -1 of the 1 before"),
        (lambda rows: rows[2]["graphs"][0].update(change=["=", []]), "not a JSON object"),
        (lambda rows: rows[2]["graphs"][0].update(change={"nodes": ["~", 1]}), "change of 'nodes'"),
        (lambda rows: rows[2]["graphs"][0].update(change={"x": {"y": ["-"]}}), "changes 'x'"),
        (lambda rows: rows[2]["graphs"][0].update(change={"x": ["=", 1]}), "unknown field 'x'"),
        (lambda rows: rows[1]["graphs"][0].update(extra=1), "not an object with the keys"),
    ],
)
def test_what_is_no_training_is_refused_with_its_reason(
    spoil: Any, reason: str, training: Training, tmp_path: Path
) -> None:
    rows = lines_of(training, tmp_path)
    spoil(rows)
    path = tmp_path / "bad.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=reason) as refused:
        load(path)
    assert str(refused.value).startswith(str(path))


def steps_of_one_graph(training: Training, change: str, count: int, folder: Path) -> str:
    """Return a training's file: its first graph, and steps that each change the graph so."""
    head = "".join(json.dumps(row) + "\n" for row in lines_of(training, folder)[:2])
    row = f',"graphs":[{{"like":0,"change":{change}}}]}}\n'
    return head + "".join(f'{{"step":{i}{row}' for i in range(1, count))


def test_a_small_file_of_many_large_steps_is_refused(training: Training, tmp_path: Path) -> None:
    text = steps_of_one_graph(training, "{}", 9_000, tmp_path)
    path = tmp_path / "many.json.gz"
    path.write_bytes(gzip.compress(text.encode()))
    assert path.stat().st_size < 60_000
    with pytest.raises(ValueError, match="more than 524,288 values"):
        load(path)
    head = text[: text.index("\n") + 1]
    packed = tmp_path / "bomb.json.gz"
    packed.write_bytes(gzip.compress(head.encode() + b" " * 10_000_000))
    with pytest.raises(ValueError, match="more than 500,000 bytes of text"):
        load(packed, max_bytes=500_000)


def test_what_steps_have_in_common_is_decoded_once(training: Training, tmp_path: Path) -> None:
    read = load(training.save(tmp_path / "run.json.gz"))
    assert isinstance(read, Training)
    first, *others = (step.graph for step in read.steps)
    assert all(graph.edges is first.edges for graph in others)
    assert all(a.outputs is b.outputs for a, b in zip(first.nodes, others[-1].nodes, strict=True))
    assert first.nodes[-1].values != others[-1].nodes[-1].values


def test_one_step_is_loaded_without_decoding_the_others(training: Training, tmp_path: Path) -> None:
    path = training.save(tmp_path / "run.json")
    rows = path.read_text().splitlines()
    whole = load(path)
    assert isinstance(whole, Training)
    for number, step in enumerate(whole.steps):
        assert load(path, step=number) == step
    spoilt = json.loads(rows[1])
    spoilt["graphs"][0]["columns"]["nodes"]["items"]["label"] = "not a column"
    path.write_text("\n".join([rows[0], json.dumps(spoilt), *rows[2:], ""]))
    with pytest.raises(ValueError, match="label"):
        load(path, step=0)
    with pytest.raises(ValueError, match="has no step 7, but 0, 1, 2, 3 and 4"):
        load(path, step=7)
    graph = training.graph.save(tmp_path / "graph.json")
    with pytest.raises(ValueError, match="is one graph, not a training run: it has no step 0"):
        load(graph, step=0)


def test_steps_in_which_nothing_changed_have_one_graph(training: Training, tmp_path: Path) -> None:
    path = tmp_path / "same.json.gz"
    path.write_bytes(gzip.compress(steps_of_one_graph(training, "null", 9_000, tmp_path).encode()))
    read = load(path)
    assert isinstance(read, Training)
    assert {len(step.backwards) for step in read.steps} == {1}
    assert len({id(step.graph) for step in read.steps}) == 1
    assert read.steps[8_999].graph == training.steps[0].backwards[0]


def test_a_damaged_gzip_file_is_refused(training: Training, tmp_path: Path) -> None:
    path = save(training, tmp_path / "run.json.gz")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(zlib.error):
        zlib.decompress(data, 31)  # it is damaged, indeed
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"run\.json\.gz: "):
        load(path)


def test_a_copy_that_several_graphs_of_a_step_list_is_one_copy_of_the_joined_graph() -> None:
    weight, x = TensorMeta((4,), "float32", "cpu"), TensorMeta((2, 4), "float32", "cpu")
    moved = Transfer("HtoD", "cpu", "cuda:0", weight, "forward")
    first = Transfer("HtoD", "cpu", "cuda:0", x, "forward", 0)
    later = replace(first, node=None, after_backward=True)
    node = Node(0, "AddmmBackward0", (x,))
    graphs = [
        Graph((node,), outputs=((0, 0),), transfers=(moved, moved, first, later)),
        Graph(
            (node,),
            outputs=((0, 0),),
            transfers=(
                moved,
                moved,
                replace(first, node=None),
                replace(later, node=0, after_backward=False),
            ),
        ),
    ]
    joined, places = join_graphs(graphs, ["first", "second"])
    assert [copy.node for copy in joined.transfers] == [None, None, 0, 1]
    assert not any(copy.after_backward for copy in joined.transfers)
    assert [at for _, at in places] == [[0, 1, 2, 3], [0, 1, 2, 3]]
