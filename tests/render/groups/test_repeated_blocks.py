"""Test that equal groups form a stack, and that the rest of the tree does not change."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import Graph, record
from graphviz_torch.render.groups.groups import Groups, group
from graphviz_torch.render.groups.repeated_blocks import group_repeats


def recorded(model: nn.Module, x: Tensor) -> Graph:
    with record(model) as recording:
        model(x).sum().backward()
    return recording.graph


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh())


def rows() -> nn.Module:
    inner = [nn.Sequential(*[block() for _ in range(3)]) for _ in range(4)]
    return nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), *inner, nn.Linear(4, 4))


def names(tree: Groups, level: int | None = None) -> list[str]:
    children = tree.roots if level is None else tree.groups[level].children
    return [tree.groups[number].name for number in children]


def test_the_first_stands_by_itself_and_the_others_in_a_stack() -> None:
    tree = group_repeats(group(recorded(rows(), torch.ones(2, 4))))
    assert names(tree) == ["0", "1", "2", "3-5", "6"]
    stack = tree.groups[tree.roots[3]]
    assert stack.kind == "stack"
    assert names(tree, stack.id) == ["3", "4", "5"]
    inside = tree.groups[stack.children[0]]
    assert names(tree, inside.id) == ["0", "1-2"]  # segments_stacked in a stack


@pytest.mark.parametrize("depth", [1, 2, 3, 12])
def test_each_node_and_group_is_where_it_was_but_for_the_stacks_around_it(depth: int) -> None:
    model = nn.Sequential(*[block() for _ in range(depth)], nn.Linear(4, 2))
    tree = group(recorded(model, torch.ones(2, 4)))
    made = group_repeats(tree)
    assert [part.path for part in made.groups if part.kind != "stack"] == [
        part.path for part in tree.groups
    ]

    def around(groups: Groups, node: int) -> list[str]:
        every = [groups.groups[number] for number in groups.with_ancestors(groups.of[node])]
        return [part.path for part in every if part.kind != "stack"]

    for node in range(len(tree.of)):
        assert around(made, node) == around(tree, node)
    for part in made.groups:
        assert part.parent is None or part.parent < part.id
        assert [made.groups[child].parent for child in part.children] == [part.id] * len(
            part.children
        )
        assert part.size == len(part.nodes) + sum(made.groups[n].size for n in part.children)
    likes = {part.path: made.groups[part.like].path for part in made.groups if part.kind != "stack"}
    assert likes == {part.path: tree.groups[part.like].path for part in tree.groups}
    assert sum(part.kind == "stack" for part in made.groups) == (depth > 2)


def test_a_first_step_that_lacks_a_part_is_not_shown_for_the_others() -> None:
    cell = nn.LSTMCell(3, 3)
    model = nn.ModuleDict({"cell": cell})

    def run() -> Tensor:
        state = None
        for _ in range(5):
            state = cell(torch.ones(2, 3), state)
        return state[0].sum()

    with record(model) as recording:
        run().backward()
    tree = group_repeats(group(recording.graph))
    shown = [part for part in tree.groups if part.kind == "module"][:2]
    sizes = [part.span[1] - part.span[0] for part in shown]
    alone = [name for name in names(tree) if "-" not in name]
    assert alone == (["cell"] if sizes[0] >= sizes[1] else ["cell", "cell#2"])
