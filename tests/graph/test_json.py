"""Test that a saved graph loads unchanged, and that other files are refused with a reason."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
from dataclasses import fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphviz_torch import load
from graphviz_torch.findings.rules.terms import UnusedSum
from graphviz_torch.graph import (
    Cause,
    Cut,
    Edge,
    Event,
    Failure,
    GradientStats,
    Graph,
    ModuleRow,
    Node,
    Operand,
    Parameter,
    RetainedGraphs,
    SavedTensor,
    Step,
    TensorMeta,
    Transfer,
)
from graphviz_torch.graph.events import CLASSES
from graphviz_torch.graph.files.columns import codec
from graphviz_torch.graph.files.file import VERSION
from graphviz_torch.graph.json import from_json, to_json

HOSTILE = 'a"b\\c\n<b>&\x00\u2028☃'
META = TensorMeta((2, -1), "float32", "cuda:0")

import_module("graphviz_torch.findings.table")  # declares the events of rules
KINDS = len(CLASSES)


def filled(kind: Any) -> Any:
    """Return a value of an annotated type in which no field, at any depth, has its default."""
    simple = {int: 1, float: 1e-300, bool: True, str: HOSTILE, Any: 1 - 2j}
    if kind in simple:
        return simple[kind]
    if kind is Edge:
        return Edge(0, 1, 2, 3)
    if kind is GradientStats:
        return GradientStats(1.5, 2.0, -0.5, 0.25, 1, 2, (1.0, -0.0, True, 3, 1 - 2j), META)
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return kind(**{name: filled(hint) for name, hint in get_type_hints(kind).items()})
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return arguments[-1]
    if get_origin(kind) is tuple and arguments[0] == Event:
        return tuple(filled(cls) for cls in CLASSES.values())
    if get_origin(kind) is tuple:
        return tuple(filled(part) for part in arguments if part is not Ellipsis)
    return filled(next(part for part in arguments if part is not type(None)))


def full_graph() -> Graph:
    """Return a graph without default values, except in its second node."""
    graph: Graph = filled(Graph)
    second = Node(1, "F", (None, META), grad_outputs=(None,))
    untracked = (replace(graph.untracked[0], inputs=()), replace(graph.untracked[0], inputs=(0,)))
    nodes = (graph.nodes[0]._replace(id=0), second)
    return replace(graph, nodes=nodes, untracked=untracked)


# ---------------------------------------------------------------- what is loaded is what was saved


@pytest.mark.parametrize("name", ["graph.json", "graph.json.gz"])
def test_a_graph_with_every_field_set_loads_as_it_was_and_gives_the_same_bytes(
    tmp_path: Path, name: str
) -> None:
    graph = full_graph()
    assert graph.save(tmp_path / name) == tmp_path / name
    assert load(tmp_path / name) == graph
    assert parts(load(str(tmp_path / name))) == parts(graph)  # types and signs of zero too
    assert full_graph().save(tmp_path / f"b-{name}").read_bytes() == (tmp_path / name).read_bytes()


def test_the_file_is_strict_json_even_where_statistics_are_not_finite() -> None:
    stats = GradientStats(
        math.nan, math.inf, -math.inf, 0.0, values=(math.nan, complex(0, math.inf))
    )
    graph = Graph((Node(0, "F", (), grad_outputs=(stats,), seconds=0.5),), step=Step(math.nan))
    text = to_json(graph)

    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(text, parse_constant=refuse)
    assert parts(from_json(text)) == parts(graph)


def test_a_loaded_graph_needs_no_torch(tmp_path: Path) -> None:
    path = full_graph().save(tmp_path / "g.json")
    code = (
        "import sys; sys.modules['torch'] = None; from graphviz_torch import load;"
        "graph = load(sys.argv[1]); print(len(graph.nodes), len(graph.events))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["2", str(KINDS)]


def test_a_node_that_only_the_event_of_a_rule_names_is_checked() -> None:
    unused = UnusedSum(used=Operand("loss", META, "train.py:3", 7))
    with pytest.raises(ValueError, match=r"graph\.events\.used\.node"):
        from_json(to_json(Graph((Node(0, "F", (META,)),), events=(unused,))))


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
FLOATS = st.floats()
SHAPES = st.lists(st.integers(-1, 2**20), max_size=3).map(tuple)
WHOLE = st.integers(0, 2**63 - 1)
# What is refused beyond is in test_hostile_files.py: of five nodes together, and of one.
BYTES = st.integers(0, 2**59)
TIMES = st.none() | st.floats(0, 1e8)  # seconds: three years
ORDERS = st.none() | st.integers(0, 2**31 - 1)


hints_of = cache(get_type_hints)


@cache
def of(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a type as annotated in graph.py, except node ids."""
    if kind is int:
        return st.integers(-(2**63), 2**63 - 1)
    if kind is float:
        return FLOATS | st.integers(-5, 5)
    if kind is bool:
        return st.booleans()
    if kind is str:
        return TEXT
    if kind is Any:
        return st.booleans() | st.integers(-(2**63), 2**63 - 1) | FLOATS | st.complex_numbers()
    if kind is TensorMeta:
        return st.builds(TensorMeta, SHAPES, TEXT, TEXT)
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return some(kind)
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return st.sampled_from(arguments)
    if get_origin(kind) is tuple:
        return tuples(of(arguments[0]))
    return st.one_of(*(st.none() if part is type(None) else of(part) for part in arguments))


def some(cls: Any, **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for objects of a class, whose fields are of their types or as given."""
    hints = hints_of(cls)
    parts = {name: fixed[name] if name in fixed else of(hint) for name, hint in hints.items()}
    return st.builds(cls, **parts)


def tuples(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(strategy, max_size=3).map(tuple)


@cache
def graphs_of(count: int) -> st.SearchStrategy[Graph]:
    """Return a strategy for graphs with `count` nodes."""
    ids = st.integers(0, count - 1) if count else st.nothing()
    maybe = st.none() | ids
    several = st.lists(ids, max_size=2).map(tuple) if count else st.just(())
    numbers = st.integers(0, 9)

    norms, shares = st.floats(0) | st.just(math.nan), st.floats(0, 1)
    stats = some(
        GradientStats, norm=norms, max_abs=norms, zero_fraction=shares, nan=WHOLE, inf=WHOLE
    )
    node = {
        "saved": tuples(some(SavedTensor, shared_with=maybe, nbytes=BYTES)),
        "grad_outputs": tuples(st.none() | stats),
        "order": ORDERS,
        "seconds": TIMES,
    }

    def edge(source: int) -> st.SearchStrategy[Edge]:
        target = st.integers(source + 1, count - 1)
        return st.builds(Edge, st.just(source), target, numbers, numbers)

    edges = st.lists(st.integers(0, count - 2).flatmap(edge), max_size=4) if count > 1 else None
    operand = some(Operand, node=maybe)
    failure = some(
        Failure,
        operands=tuples(operand),
        node=maybe,
        modified=st.none() | operand,
        causes=tuples(some(Cause, nodes=several)),
    )
    of_events = {"operands": tuples(operand), "nodes": several}  # where an event has them

    def event(cls: Any) -> st.SearchStrategy[Any]:
        hints = hints_of(cls)
        one = {n: st.none() | operand for n, hint in hints.items() if Operand in get_args(hint)}
        return some(cls, **{**one, **of_events})

    return st.builds(
        Graph,
        st.tuples(*(some(Node, id=st.just(i), **node) for i in range(count))),
        st.just(()) if edges is None else edges.map(tuple),
        tuples(st.tuples(ids, numbers)) if count else st.just(()),
        tuples(some(Transfer, node=maybe, seconds=TIMES)),
        tuples(some(Parameter, node=maybe, norm=st.none() | norms)),
        tuples(some(Cut, before=maybe, after=several)),
        st.none() | failure,
        some(Step, retained=st.none() | some(RetainedGraphs, node=maybe)),
        events=tuples(st.one_of(*map(event, CLASSES.values()))),
        modules=st.lists(of(ModuleRow), max_size=3, unique_by=itemgetter(0)).map(tuple),
    )


def graphs() -> st.SearchStrategy[Graph]:
    """Return a strategy for graphs with up to five nodes."""
    return st.integers(0, 5).flatmap(graphs_of)


def parts(graph: Graph) -> list[str]:
    return [repr(getattr(graph, field.name)) for field in fields(graph)]


def test_every_field_of_a_graph_has_a_codec() -> None:
    assert codec(Graph) is codec(Graph)
    with pytest.raises(TypeError, match="bytes"):
        codec(bytes)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs())
def test_any_graph_loads_as_it_was_saved(graph: Graph) -> None:
    # By repr: it tells NaN from NaN nowhere, and 1 from 1.0 and 0.0 from -0.0 everywhere.
    assert parts(from_json(to_json(graph))) == parts(graph)


def test_a_hundred_thousand_nodes_save_and_load(tmp_path: Path) -> None:
    meta = TensorMeta((8, 8), "float32", "cpu")
    nodes = tuple(Node(i, "MulBackward0", (meta,), operation="mul") for i in range(100_000))
    graph = Graph(nodes, tuple(Edge(i, i + 1) for i in range(99_999)), ((99_999, 0),))
    path = graph.save(tmp_path / "g.json.gz")
    assert load(path) == graph
    assert path.stat().st_size < 1_000_000


# ---------------------------------------------------------------------------- what is no graph


@cache
def _full_text() -> str:
    return to_json(full_graph())


def changed(**changes: Any) -> str:
    """The full graph's file with members replaced: `nodes__items__id=...`; None takes one out."""
    data = json.loads(_full_text())
    for path, value in changes.items():
        *way, last = path.split("__")
        place = data
        for step in way:
            place = place[int(step)] if step.isdigit() else place[step]
        if value is None:
            del place[last]
        else:
            place[int(last) if last.isdigit() else last] = value
    return json.dumps(data)


NO_INDEX = r"not an integer from 0 to 2\*\*63 - 1"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty"),
        ("{", "cut short"),
        ("[]", "not a saved graph"),
        ('{"nodes": []}', "not a saved graph"),
        (changed(version=VERSION + 1), f"version {VERSION + 1}.*Update"),
        (changed(version="1"), "not a positive integer"),
        (changed(version=True), "not a positive integer"),
        (changed(version=0), "not a positive integer"),
        (changed(nodes=None), "no field 'nodes'"),
        (changed(extra=1), "unknown field 'extra'"),
        (changed(nodes=[]), "nodes is not an object"),
        (changed(nodes__lengths=[3]), "3"),
        (changed(nodes__lengths=[10**15]), "values instead of"),
        (changed(nodes__lengths=[-2]), f"not a? ?length|{NO_INDEX}"),
        (changed(nodes__lengths=[2, 0]), "2 values instead of 1"),
        (changed(nodes__items__name=None), "no field 'name'"),
        (changed(nodes__items__id=[0, 0]), "has the id 0"),
        (changed(nodes__items__id=[0, True]), "type bool"),
        (changed(nodes__items__id=[0, 1.0]), "type float"),
        (changed(nodes__items__id=[0, None]), "type NoneType"),
        (changed(nodes__items__label={"distinct": ["a"], "at": [0, 1]}), '"distinct" has 1 items'),
        (changed(nodes__items__label={"distinct": ["a"], "at": [0, -1]}), NO_INDEX),
        (changed(nodes__items__label={"distinct": ["a"], "at": [0, None]}), NO_INDEX),
        (changed(nodes__items__label={"distinct": [1], "at": [0, 0]}), "not a? ?text"),
        (changed(nodes__items__leaf={"distinct": ["root"], "at": [0, 0]}), "none of"),
        (changed(nodes__items__leaf={"distinct": [[]], "at": [0, 0]}), "none of"),
        (changed(nodes__items__seconds=["fast", 1]), "neither an int nor a float"),
        (changed(nodes__items__seconds=[[1, 2], 1]), "type list"),
        (changed(nodes__items__outputs__items__distinct=[[[2.0], "f", "c"]]), "not a? ?shape"),
        (changed(nodes__items__outputs__items__distinct=[[[2], 3, "c"]]), "not a? ?text"),
        (changed(nodes__items__outputs__items__distinct=[[[2], "f"]]), "wrong value"),
        (changed(nodes__items__outputs__items__distinct=[7]), "wrong value"),
        (changed(edges__items__source=[1]), "from node 1 to node 1"),  # a cycle of one
        (changed(edges__items__target=[2]), "from node 0 to node 2"),
        (changed(edges__items__source=[-1]), "from node -1"),
        (changed(edges__items__output_nr=[-1]), "negative"),
        (changed(outputs__items__0=[2]), "outputs contains node id 2"),
        (changed(outputs__items__1=[-2]), "outputs has a negative"),
        (changed(transfers__items__node=[2]), "graph.transfers.node contains node id 2"),
        (changed(transfers__items__kind={"distinct": ["up"], "at": [0]}), "none of"),
        (changed(parameters__items__node=[-1]), "parameters.node contains node id -1"),
        (changed(cuts__items__before=[5]), "cuts.before contains node id 5"),
        (changed(cuts__items__after__items=[5]), "cuts.after contains node id 5"),
        (changed(events__items__values__0__nodes__items=[5]), "events.nodes contains node id 5"),
        (changed(events__items__kinds__0="Party"), "unknown kind 'Party'. If a newer"),
        (changed(events__items__kinds__27="ParameterFreeze"), "'ParameterFreeze' twice"),
        (changed(events__items__kinds__0=["Broadcast"]), "unknown kind"),
        (
            changed(events__items__at__0=KINDS),
            f'an index in "at" is too large: "kinds" has {KINDS} items',
        ),
        (changed(events__items__at__0=1), r"has 1 values instead of 0|has 1 values instead of 2"),
        (changed(events__items__values=[]), f"has 0 values instead of {KINDS}"),
        (
            changed(events__items__kinds=None),
            "is not an object with the keys 'kinds', 'at' and 'values'",
        ),
        (
            changed(failure__items__operands__items__node=[9]),
            "failure.operands.node contains node id 9",
        ),
        (changed(failure__lengths=[2]), "values instead of 2"),
        (
            changed(nodes__items__saved__items__shared_with=[7]),
            "nodes.saved.shared_with contains node id 7",
        ),
        (changed(step={"loss_scale": [math.nan]}), "NaN is not a number"),
        (changed(step={"loss_scale": [math.inf]}), "Infinity is not a number"),
        (to_json(full_graph()).replace('"edges"', '"nodes"'), "same key twice"),
        ("[" * 10**6, "nested too deeply"),
        ('{"format":' * 10**6, "nested too deeply"),
        (
            '{"format": "graphviz_torch", "version": 1, "loss_scale": [' + "9" * 5000 + "]}",
            "digits",
        ),
    ],
    ids=lambda value: value if len(value) < 40 else value[:3],
)
def test_a_file_that_is_no_graph_is_refused_with_the_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason) as error:
        load(path)
    assert str(error.value).startswith(f"{path}: ")


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path, suffix: str) -> None:
    path = full_graph().save(tmp_path / f"g{suffix}")
    whole = path.read_bytes().rstrip()
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        with pytest.raises(ValueError, match=r"g\.json"):
            load(path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    path.write_bytes(b'{"format": "\xff\xfe"}')
    with pytest.raises(ValueError, match="not JSON text"):
        load(path)


def test_a_gzip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(300):
            file.write(b" " * (1 << 20))
    assert path.stat().st_size < 400_000
    with pytest.raises(ValueError, match="has more than 33,554,432 bytes"):
        load(path)
    with pytest.raises(ValueError, match="has more than 1,000 bytes"):
        load(path, max_bytes=1000)


@pytest.mark.parametrize(
    "graph",
    [
        Graph((Node(1, "F", ()),)),
        Graph((Node(0, "F", ()), Node(1, "F", ())), (Edge(1, 0),)),
        Graph((Node(0, "F", ()),), outputs=((3, 0),)),
        Graph((Node(0, "F", (), seconds="1"),)),
        Graph((Node(0, "F", (), order=True),)),
    ],
    ids=["id", "edge", "output", "text for a number", "bool for a number"],
)
def test_a_graph_that_could_not_be_loaded_is_not_saved(tmp_path: Path, graph: Graph) -> None:
    path = tmp_path / "g.json"
    path.write_text("before")
    with pytest.raises(ValueError, match="graph"):
        graph.save(path)
    assert path.read_text() == "before"


def test_a_path_that_cannot_be_opened_raises_what_open_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.json")
    with pytest.raises(FileNotFoundError):
        full_graph().save(tmp_path / "none" / "g.json")
