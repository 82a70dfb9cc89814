"""Test the inner loops of MAML: equal steps and equal tasks are drawn once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import mse_loss

from graphviz_torch import Graph, record
from graphviz_torch.export import to_dot, to_mermaid
from graphviz_torch.render.drawing.steps import draw
from graphviz_torch.render.labels import TIMES


def adapted(tasks: int, steps: int, *, summed: bool = True) -> Graph:
    """The graph of a step of MAML.

    Args:
        summed: are the losses of the tasks added up, or collected in a list.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    with record(model) as recording:
        total: Tensor | float = 0.0
        losses: list[Tensor] = []
        for _ in range(tasks):
            x, y = torch.rand(5, 1), torch.rand(5, 1)
            fast: dict[str, Tensor] = dict(model.named_parameters())
            for _ in range(steps):
                loss = mse_loss(functional_call(model, fast, (x,)), y)
                gradients = torch.autograd.grad(loss, [*fast.values()], create_graph=True)
                fast = {n: p - 0.1 * g for (n, p), g in zip(fast.items(), gradients, strict=True)}
            query = mse_loss(functional_call(model, fast, (x,)), y)
            losses.append(query)
            if summed:
                total = total + query
        (total if isinstance(total, Tensor) else torch.stack(losses).sum()).backward()
    return recording.graph


@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize(("tasks", "steps"), [(1, 3), (1, 5), (3, 3), (4, 5)])
def test_inner_steps_and_tasks_are_drawn_once_each(tasks: int, steps: int, summed: bool) -> None:
    graph = adapted(tasks, steps, summed=summed)
    drawing = draw(graph, {})
    times = [steps] if tasks == 1 else [tasks, steps]
    families = sorted(drawing.tree.represented_groups.items())  # outer before inner
    assert [len(family) for _, family in families] == times
    titles = [drawing.title(number) for number, _ in families]
    assert titles[-1].endswith(f"{TIMES}{steps}")
    if tasks > 1:
        assert f"{TIMES}{tasks}" in titles[0]
        assert "in sequence" not in titles[0]
    for text in (to_dot(graph), to_mermaid(graph)):
        # One gradient is drawn for those of every step; each step hands on the four parameters.
        assert text.count("_backward") == 0
        assert text.count("add 0.0") == (tasks == 1 and summed)
        assert text.count("go on to the next step") + text.count("goes on to the next step") >= 1


def test_a_gradient_that_is_differentiated_is_one_box_with_all_its_operations() -> None:
    graph = adapted(1, 2)
    [line] = {node.where for node in graph.nodes if node.operation == "tanh_backward"}
    each = [node for node in graph.nodes if node.where == line and not node.leaf]
    drawing = draw(graph, {})
    assert drawing.groups is not None
    groups = [part for part in drawing.groups.groups if part.name.startswith("autograd.grad")]
    assert sum([part.size for part in groups]) == len(each)
    assert {part.name for part in groups} == {f"autograd.grad, {len(each) // 2} operations"}
    assert {part.id for part in groups} <= set(drawing.closed_groups)


def test_what_every_step_hands_on_is_counted_at_a_closed_box() -> None:
    torch.manual_seed(0)
    layers = [part for _ in range(3) for part in (nn.Linear(4, 4), nn.Tanh())]
    model = nn.Sequential(*layers)
    with record(model) as recording:
        fast: dict[str, Tensor] = dict(model.named_parameters())
        x = torch.rand(5, 4)
        for _ in range(4):
            loss = functional_call(model, fast, (x,)).square().mean()
            gradients = torch.autograd.grad(loss, [*fast.values()], create_graph=True)
            fast = {n: p - 0.1 * g for (n, p), g in zip(fast.items(), gradients, strict=True)}
        functional_call(model, fast, (x,)).square().mean().backward()
    assert f"↓ {len(fast)} tensors go on to the next step" in to_dot(recording.graph)
