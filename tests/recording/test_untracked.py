"""Test recorded data, and calls without a node, against forward hooks and the tensors."""

from __future__ import annotations

import gc
import inspect
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphviz_torch import record
from graphviz_torch.graph import Graph, Untracked
from graphviz_torch.graph.json import load
from graphviz_torch.integrations.training import record_steps
from tests.support import models
from tests.support.autograd_reference import check


def by_label(graph: Graph) -> dict[str, Untracked]:
    return {each.label: each for each in graph.untracked}


def takers(graph: Graph, each: Untracked) -> list[tuple[str, str]]:
    return [(graph.nodes[node].module, graph.nodes[node].operation) for node in each.targets]


def line(text: str) -> str:
    """The first line of the calling test that has a text, as "file:line"."""
    frame = inspect.stack()[1]
    lines, first = inspect.getsourcelines(frame.frame.f_code)
    at = next(i for i, each in enumerate(lines) if text in each)
    return f"{Path(frame.filename).name}:{first + at}"


class WithBackbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4))
        self.backbone.requires_grad_(False)
        self.head = nn.Linear(4, 2)

    def forward(self, image: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.backbone(image)))
        return out


def test_what_is_frozen_is_what_hooks_see_without_a_gradient() -> None:
    model = WithBackbone()
    without: dict[str, tuple[int, ...]] = {}
    for path, module in model.named_modules():

        def see(_: Any, __: Any, output: Tensor, path: str = path) -> None:
            if not output.requires_grad:
                without[path] = tuple(output.shape)

        module.register_forward_hook(see)
    with record(model) as recording:
        loss = F.cross_entropy(model(torch.ones(5, 3)), torch.ones(5, dtype=torch.long))
        loss.backward(retain_graph=True)
    outermost = {p: s for p, s in without.items() if p.rpartition(".")[0] not in without}
    modules = [each for each in recording.graph.untracked if each.kind == "module"]
    assert {each.module: each.tensors[0].shape for each in modules} == outermost
    assert [(each.title, each.reason) for each in modules] == [("backbone · Sequential", "frozen")]
    check(recording.graph, loss)  # they are no nodes


def test_what_is_frozen_is_connected_by_the_tensors_that_went_through() -> None:
    model = WithBackbone()
    with record(model) as recording:
        F.cross_entropy(model(torch.ones(5, 3)), torch.ones(5, dtype=torch.long)).backward()
    graph = recording.graph
    image, backbone, tanh, target = graph.untracked
    assert (image.label, image.kind, str(image.tensors[0])) == ("image", "data", "f32[5, 3] cpu")
    assert [graph.untracked[i] for i in backbone.inputs] == [image]
    assert [graph.untracked[i] for i in tanh.inputs] == [backbone]
    assert (tanh.kind, tanh.label, takers(graph, tanh)) == ("function", "tanh", [("head", "addmm")])
    assert (target.label, takers(graph, target)) == ("target", [("", "nll_loss")])


def test_a_teacher_says_at_which_line_gradients_were_off() -> None:
    teacher, student, x = nn.Linear(3, 2), nn.Linear(3, 2), torch.ones(4, 3)
    with record() as recording:
        with torch.no_grad():  # here
            soft = teacher(x).softmax(-1)
        F.kl_div(student(x).log_softmax(-1), soft, reduction="batchmean").backward()
    graph = recording.graph
    rows = by_label(graph)
    where = line("# here")
    assert rows["teacher"].reason == rows["softmax"].reason == f"no_grad at {where}"
    assert rows["x"].targets == tuple(
        node.id for node in graph.nodes if (node.module, node.operation) == ("student", "addmm")
    )
    assert graph.untracked[rows["teacher"].inputs[0]] == rows["x"]
    assert takers(graph, rows["softmax"])[0][0] == ""


def test_a_module_under_inference_mode_or_without_gradients_says_so() -> None:
    base, head, x = nn.Linear(3, 3), nn.Linear(3, 1), torch.ones(2, 3)
    with record() as recording:
        with torch.inference_mode():
            h = base(x)
        head(h.clone()).sum().backward()
    assert by_label(recording.graph)["base"].reason == "inference_mode"


def test_a_node_that_a_target_network_was_computed_from_is_its_source() -> None:
    net, target, w = nn.Linear(3, 3), nn.Linear(3, 3), torch.ones(2, 3, requires_grad=True)
    with record() as recording:
        h = w * 2
        with torch.no_grad():
            goal = target(h)
        F.mse_loss(net(h), goal).backward()
    graph = recording.graph
    [box] = [each for each in graph.untracked if each.kind == "module"]
    assert [graph.nodes[node].label for node in box.sources] == ["h"]
    assert takers(graph, box) == [("", "mse_loss")]


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(9, 8)

    def forward(self, xt: Tensor, t: Tensor, *, scale: Tensor) -> Tensor:
        out: Tensor = self.linear(torch.cat([xt, t[:, None]], 1)) + scale
        return out


def test_data_are_named_after_the_parameters_of_forward_and_every_operand_is_there() -> None:
    model, x0, y = Noise(), torch.ones(4, 8), torch.ones(4, 8)
    args = (x0 * 0.5, torch.ones(4))  # of no use as names
    with record(model) as recording:
        F.mse_loss(model(*args, scale=torch.tensor(0.5)), y).backward()
    graph = recording.graph
    rows = by_label(graph)
    assert [*rows] == ["xt", "t", "scale", "cat", "target"]
    assert rows["scale"].values == (0.5,)
    assert [graph.untracked[i].label for i in rows["cat"].inputs] == ["xt", "t"]
    assert takers(graph, rows["cat"]) == [("linear", "addmm")]
    assert takers(graph, rows["scale"]) == [("", "add")]


def test_a_library_model_has_its_own_names() -> None:
    tokens = models.tokens()
    model = models.gpt2(layers=1)
    with record(model) as recording:
        model(tokens, labels=tokens.clone()).loss.backward()
    rows = by_label(recording.graph)
    assert rows["input_ids"].kind == rows["labels"].kind == "data"
    assert takers(recording.graph, rows["input_ids"])[0][1] == "embedding"
    [pad, shift] = [
        each for each in recording.graph.untracked if each.label in ("pad", "[..., 1:]")
    ]
    assert [recording.graph.untracked[i].label for i in (*pad.inputs, *shift.inputs)] == [
        *("labels", "pad")
    ]
    assert takers(recording.graph, shift)[0][1] == "nll_loss"


def test_a_frozen_function_and_an_operand_without_a_gradient_are_there() -> None:
    weight = nn.Parameter(torch.ones(5, 3), requires_grad=False)
    ids, w, noise = torch.tensor([1, 2]), torch.ones(3, requires_grad=True), torch.ones(2, 3)
    with record() as recording:
        (F.embedding(ids, weight) * w + noise).sum().backward()
    graph = recording.graph
    rows = by_label(graph)
    assert (rows["embedding"].kind, rows["embedding"].reason) == ("function", "frozen")
    assert takers(graph, rows["embedding"]) == [("", "mul")]
    assert takers(graph, rows["noise"]) == [("", "add")]
    assert rows["ids"].values == (1, 2)


def test_buffers_and_parameters_are_no_data() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    with record(model) as recording:
        model(torch.ones(4, 3)).sum().backward()
    assert [each.label for each in recording.graph.untracked] == ["input"]


def test_a_step_without_data_has_none() -> None:
    with record() as recording:
        torch.ones(3, requires_grad=True).sin().sum().backward()
    assert recording.graph.untracked == ()


def test_it_is_saved_and_read_again(tmp_path: Path) -> None:
    with record(model := WithBackbone()) as recording:
        model(torch.ones(5, 3)).sum().backward()
    assert load(recording.graph.save(tmp_path / "step.json")) == recording.graph


def test_an_input_that_comes_later_is_refused() -> None:
    loop = Graph((), untracked=(Untracked("function", "a", inputs=(0,)),))
    with pytest.raises(ValueError, match="not below 0"):
        loop.check()


def test_no_tensor_is_kept_alive() -> None:
    model = WithBackbone()
    with record(model) as recording:
        x = torch.ones(5, 3)
        h = model.backbone(x)
        gone = [weakref.ref(x), weakref.ref(h)]
        loss = model.head(h).sum()
        loss.backward()
        del x, h, loss
        gc.collect()
        assert [ref() for ref in gone] == [None, None]
    assert [each.kind for each in recording.graph.untracked] == ["data", "module"]


def test_a_long_chain_under_no_grad_is_followed_to_a_bound() -> None:
    base, head = nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 1)
    h = torch.ones(2, 3)
    with record() as recording:
        for _ in range(1000):
            h = base(h)
        head(h).sum().backward()
    assert 0 < len(recording.graph.untracked) <= 200


class WithPositions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(10, 4), nn.Embedding(12, 4)

    def forward(self, ids: Tensor) -> Tensor:
        added: Tensor = self.words(ids) + self.places(torch.arange(12)[: len(ids)])
        return added * torch.empty(4).uniform_(1, 2) * torch.tensor([1.0, 2.0, 3.0, 4.0])


class Routed(nn.Module):
    """A model of two experts, of which `topk` chooses one for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(4, 2)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(1)
        out = torch.zeros(8, 4)
        for i, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == i)
            out = out.index_add(0, rows, expert(x[rows]) * weights[rows, slot, None])
        return out


def test_indices_that_a_forward_computes_lead_back_to_the_node_that_chose_them() -> None:
    model = Routed()
    with record(model) as recording:
        model(torch.randn(8, 4)).sum().backward()
    graph = recording.graph
    assert [each.label for each in graph.untracked if each.kind == "data"] == ["x"]
    comparisons = [each for each in graph.untracked if each.label == "eq"]
    assert len(comparisons) == 2
    for each in comparisons:
        assert [graph.nodes[node].operation for node in each.sources] == ["topk"]
    wheres = [each for each in graph.untracked if each.label == "where"]
    assert [graph.untracked[i] for each in wheres for i in each.inputs] == comparisons
    assert {kind for _, kind in takers(graph, wheres[0])} >= {"index", "index_add"}


def test_a_shift_of_the_labels_is_the_text_of_the_target() -> None:
    model, text = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9)), torch.randint(0, 9, (2, 6))
    with record(model) as recording:
        logits = model(text[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten()).backward()
    said = [(each.label, each.reason) for each in recording.graph.untracked]
    assert said == [("input", "text[:, :-1]"), ("target", "text[:, 1:]")]


class Shifted(nn.Module):
    """A decoder's input that is written into new zeros, and a mask of the targets."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)

    def forward(self, labels: Tensor) -> Tensor:
        ids = labels.new_zeros(labels.shape)
        ids[:, 1:] = labels[:, :-1]
        logits = self.head(self.embed(ids)).transpose(1, 2)
        losses = F.cross_entropy(logits, labels, reduction="none")
        return (losses * (labels != 0)).sum()


def test_data_that_a_forward_assigns_or_compares_is_a_function_of_its_operands() -> None:
    model = Shifted()
    with record(model) as recording:
        model(torch.randint(1, 9, (2, 6))).backward()
    graph = recording.graph
    rows = by_label(graph)
    assert takers(graph, rows["assign [:, 1:]"]) == [("embed", "embedding")]
    assert [graph.untracked[i].label for i in rows["assign [:, 1:]"].inputs] == ["labels[:, :-1]"]
    assert takers(graph, rows["ne"]) == [("", "mul")]
    assert [graph.untracked[i] for i in rows["ne"].inputs] == [rows["labels"]]


def test_data_without_a_variable_is_named_after_the_call_that_created_it() -> None:
    model = WithPositions()
    with record(model) as recording:
        model(torch.randint(0, 10, (6,))).sum().backward()
    labels = [(each.label, each.tensors[0].shape) for each in recording.graph.untracked]
    assert labels == [("ids", (6,)), ("arange", (6,)), ("uniform", (4,)), ("", (4,))]


def test_a_name_is_not_passed_on_to_a_tensor_at_the_same_address() -> None:
    weight = torch.ones(3, requires_grad=True)
    with record() as recording:
        together = [torch.arange(3) for _ in range(100)]
        freed = set(map(id, together))
        del together
        others = [torch.tensor([1, 2, 3])]
        while id(others[-1]) not in freed and len(others) < 1000:
            others.append(torch.tensor([1, 2, 3]))
        assert id(others[-1]) in freed
        (weight * others[-1]).sum().backward()
    assert [each.label for each in recording.graph.untracked] == [""]


def test_the_target_of_a_loss_without_reduction_enters_the_node_that_saved_it() -> None:
    model = nn.Linear(4, 3)
    target = torch.tensor([[0, 2], [1, 1]])
    with record(model) as recording:
        logits = model(torch.ones(2, 2, 4)).transpose(1, 2)
        F.cross_entropy(logits, target, reduction="none").sum().backward()
    each = by_label(recording.graph)["target"]
    assert takers(recording.graph, each) == [("", "nll_loss2d")]


def test_weights_that_are_copied_from_inference_mode_disturb_no_listener() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            with torch.inference_mode():
                averaged = torch.zeros(1, 3)
            with torch.no_grad():
                model.weight.copy_(averaged)
    notes = [node.note for graph in recording.graphs for node in graph.nodes]
    assert not any("not recorded" in note for note in notes)


def test_a_view_under_no_grad_belongs_to_the_node_of_its_base() -> None:
    layer = nn.Linear(4, 3)
    with record(layer) as recording:
        chances = layer(torch.randn(2, 4)).softmax(-1)
        with torch.no_grad():
            drawn = torch.multinomial(chances.reshape(-1, 3), 1)
        chances.gather(1, drawn).log().sum().backward()
    graph = recording.graph
    (row,) = [row for row in graph.untracked if row.label == "multinomial"]
    assert [graph.nodes[node].operation for node in row.sources] == ["softmax"]
    assert [graph.nodes[node].operation for node in row.targets] == ["gather"]


def test_a_view_that_no_backward_runs_leads_to_the_node_before_it() -> None:
    layer = nn.Linear(4, 3)
    with record(layer) as recording:
        chances = layer(torch.randn(4)).softmax(-1)
        rows = chances.reshape(-1, 3)
        with torch.no_grad():
            drawn = torch.multinomial(rows, 1)[0]
        chances.gather(0, drawn).log().sum().backward()
    graph = recording.graph
    (row,) = [row for row in graph.untracked if row.label == "multinomial"]
    assert [graph.nodes[node].operation for node in row.sources] == ["softmax"]


def test_a_tensor_of_an_earlier_step_is_data_of_the_next() -> None:
    query, key = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)
    optimizer = torch.optim.SGD(query.parameters(), 0.1)
    queue = torch.randn(4, 6)
    with record_steps(query) as steps:
        for _ in range(3):
            x = torch.randn(2, 4)
            (query(x) @ queue).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            queue = torch.cat([queue[:, 2:], key(x).t()], 1)
    # The queue of the last step was made after the optimizer step before; older ones are data.
    rows = [(row.kind, row.label) for row in steps.graph.untracked if row.label != "x"]
    assert rows == [("data", "queue[:, 2:]"), ("module", "key"), ("function", "cat")]
