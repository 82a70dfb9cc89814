"""Test which module call and which line created a node, given sequence numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from graphviz_torch.recording.program.source_lines import Origins


def test_a_node_is_of_the_module_and_the_line_that_were_there_when_it_was_made() -> None:
    origins = Origins[int](100)
    origins.enter(100, ("", ""))
    origins.enter(101, ("fc", "fc"))
    origins.add_nodes(101, 103, 7)
    origins.enter(103, None)
    origins.add_nodes(104, 105, 9)
    classes = {"": "Net", "fc": "Linear(4, 2)"}
    columns = origins.columns([100, 102, 103, 104], "train.py:{}".format, classes)
    assert columns["module"] == ["", "fc", "", ""]
    assert columns["module_class"] == ["Net", "Linear(4, 2)", "", ""]
    assert columns["where"] == ["", "train.py:7", "", "train.py:9"]


def test_of_leaves_and_of_nodes_from_before_the_block_nothing_is_known() -> None:
    origins = Origins[int](100)
    origins.enter(100, ("fc", "fc"))
    origins.add_nodes(100, 110, 7)
    assert origins.columns([-1, 99], str, {"fc": "Linear(4, 2)"}) == {
        "module": [""] * 2,
        "module_class": [""] * 2,
        "scope": [""] * 2,
        "where": [""] * 2,
        "call": [""] * 2,
    }


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=20),
    st.lists(st.integers(-1, 80), max_size=20),
)
def test_any_order_of_calls_gives_what_a_slow_reading_of_them_gives(
    calls: list[tuple[int, int, bool]], asked: list[int]
) -> None:
    origins = Origins[int](10)
    number = 10
    modules = dict.fromkeys(range(-1, 81), "")
    lines = dict.fromkeys(range(-1, 81), "")
    for line, (skipped, nodes, enters) in enumerate(calls):
        number += skipped
        origins.skip(number)
        if enters:
            origins.enter(number, (f"m{line}", f"m{line}"))
            modules |= dict.fromkeys(range(number, 81), f"m{line}")
        origins.add_nodes(number, number + nodes, line)
        lines |= {n: str(line) for n in range(number, min(number + nodes, 81))}
        number += nodes
    asked = [n for n in asked if n < number]
    columns = origins.columns(asked, str, {})
    assert columns["module"] == [modules[n] if n >= 10 else "" for n in asked]
    assert columns["where"] == [lines[n] if n >= 10 else "" for n in asked]
