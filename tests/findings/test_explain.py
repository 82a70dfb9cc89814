"""Compare `explain` with the gradients that autograd computes."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import draw_graph, explain, record, trace
from tests.support.programs import function
from tests.support.recorded import trained

pytestmark = pytest.mark.usefixtures("the_same_numbers")

DROP = function(lambda ctx, x: x.clone(), lambda ctx, gradient: None)


class Residual(nn.Module):
    """A body with a weak and a strong branch around it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.encoder(x)
        return self.head(h + 1e-3 * h.tanh())


def test_norms_and_factors_are_those_of_autograds_own_gradients() -> None:
    fc1, fc2 = nn.Linear(4, 8), nn.Linear(8, 1)
    model, x = nn.Sequential(fc1, nn.Tanh(), fc2), torch.randn(5, 4)
    a = fc1(x)
    b = a.tanh()
    c = fc2(b)
    for tensor in (a, b, c):
        tensor.retain_grad()
    c.sum().backward()
    kept = [tensor.grad for tensor in (c, b, a)]
    weight = fc1.weight.grad
    assert weight is not None
    want = [1.0, *(float(g.norm()) for g in kept if g is not None)]
    model.zero_grad()
    with record(model) as recording:
        model(x).sum().backward()
    way = explain(recording, "0.weight")
    assert [point.name for point in way.points][:3] == ["sum", "addmm", "tanh"]
    norms = [point.norm for point in way.points]
    assert norms[:4] == pytest.approx(want)
    assert way.points[-1].name == "0.weight"
    assert norms[-1] == pytest.approx(float(weight.norm()))
    assert way.points[0].factor is None
    for before, point in zip(way.points, way.points[1:], strict=False):
        assert point.factor == pytest.approx((point.norm or 0) / (before.norm or 1))
    assert way.shrank is min(way.points[1:], key=lambda p: p.factor or 0)
    assert way.end == f"The gradient arrived at 0.weight with a norm of {way.points[-1].norm_text}."


@pytest.mark.parametrize(
    ("start", "made", "said"),
    [
        (
            1.0,
            lambda w: -(w * 100 / 4),
            "shrank most from div to mul: 0.25 times.\nThe norm grew most",
        ),
        (1.0, lambda w: -(w * 100 / 4), "The norm grew most from mul to w: 100 times.\n"),
        (1.0, lambda w: (w * -1).relu(), "The norm became zero from relu to mul.\n"),
        (1.0, lambda w: (w * -1).relu(), "The gradient ended at mul, where it is zero."),
        (0.0, lambda w: (w * 2).sqrt() * 0.0, "The gradient has NaN or Inf from mul on."),
        (
            1.0,
            lambda w: DROP.apply(w * 2),
            "The gradient ended at Custom, which passed none to mul.",
        ),
    ],
    ids=["shrank", "grew", "became zero", "ended", "NaN", "dropped"],
)
def test_what_became_of_a_gradient_on_its_way_is_said(
    start: float, made: Callable[[Tensor], Tensor], said: str
) -> None:
    w = torch.full((3,), start, requires_grad=True)
    with record() as recording:
        made(w).sum().backward()
    assert said in explain(recording, "w").to_text()


def test_of_several_ways_the_strongest_is_told_and_all_are_counted() -> None:
    way = explain(trained(Residual(), torch.randn(3, 4)), "encoder.weight")
    assert way.path_count == 2
    assert "tanh" not in {point.name for point in way.points}
    assert 0.99 < way.share < 1
    share = re.search(r"the strongest of 2 paths \(([\d.]+) % of the gradient, estimated", str(way))
    assert share
    assert float(share[1]) == pytest.approx(100 * way.share, rel=1e-2)


def test_a_trace_has_ways_the_shortest_of_equals_first_and_no_norms() -> None:
    w = torch.ones(3, requires_grad=True)
    way = explain(trace((w.sin().cos() + w).sum()), "w")
    assert [point.name for point in way.points] == ["sum", "add", "w"]
    assert way.end.startswith("No norms")
    assert way.shrank is way.grew is None


def test_the_points_of_a_way_print_names_to_the_left_and_numbers_to_the_right() -> None:
    w = torch.ones(3, requires_grad=True)
    with record() as recording:
        ((w * 2).sum() ** 2).backward()
    assert str(explain(recording, "w")).splitlines()[1:6] == [
        "  node  operation  module   norm  factor",
        "     3  pow                    1",
        "     2  sum                   12      12",
        "     1  mul                20.78   1.732",
        "     0  w                  41.57       2",
    ]


def test_a_parameter_that_the_loss_does_not_depend_on_has_no_way() -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 1), "idle": nn.Linear(2, 1)})
    with record(model) as recording:
        model["used"](torch.ones(1, 2)).sum().backward()
    way = explain(recording, "idle.weight")
    assert not way.points
    assert str(way) == ("Backward cannot reach idle.weight: the loss does not depend on it.")
    assert "text/plain" in way._repr_mimebundle_()


def test_a_million_ways_are_counted_without_walking_them() -> None:
    x = w = torch.ones(1, requires_grad=True)
    for _ in range(64):
        x = x + x
    way = explain(trace(x.sum()), "w")
    assert way.path_count == 2**64
    assert "more than a million" in str(way)
    assert math.isclose(way.share, 2.0**-64)
    assert w.grad is None


def test_a_node_goes_by_its_id_too_and_an_unknown_name_by_what_is_near() -> None:
    graph = trained(Residual(), torch.randn(3, 4))
    way = explain(graph, "encoder.weight")
    assert explain(graph, way.points[-1].node) == way
    with pytest.raises(ValueError, match=r"Similar: encoder\.weight, .*, ") as raised:
        explain(graph, "encoder.wieght")
    assert str(raised.value).partition("Similar")[2].count(",") == 2
    with pytest.raises(ValueError, match="'999' is neither"):
        explain(graph, 999)


def test_the_way_draws_alone_and_marks_the_whole() -> None:
    graph = trained(Residual(), torch.randn(3, 4))
    way = explain(graph, "encoder.weight")
    way.graph.check()
    assert len(way.graph.edges) == len(way.points) - 1
    assert [node.grad_outputs for node in way.graph.nodes] == [
        graph.nodes[point.node].grad_outputs for point in reversed(way.points)
    ]
    assert "tanh" not in draw_graph(way).source
    assert "gradient-path" in draw_graph(graph, findings=[way.mark()]).source
    assert way._repr_mimebundle_()["text/plain"] == str(way)


def test_a_way_that_was_cut_ends_where_it_was_and_says_by_what_and_at_which_line() -> None:
    model = nn.ModuleDict({"encoder": nn.Linear(4, 4), "head": nn.Linear(4, 1)})
    with record(model) as recording:
        h = model["encoder"](torch.randn(3, 4)).tanh()
        z = h.detach()
        line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
        model["head"](z).square().mean().backward()
    for target in ("encoder.weight", "h"):
        way = explain(recording, target)
        assert [point.name for point in way.points] == ["mean", "pow", "addmm"]
        assert way.end == (
            f"The gradient ended at addmm in head and did not reach {target}: h was cut by "
            f"detach() at test_explain.py:{line}."
        )


def test_a_way_whose_backward_could_not_start_says_what_cut_it() -> None:
    layer = nn.Linear(4, 4)
    with pytest.raises(RuntimeError), record(layer) as recording:
        layer(torch.randn(3, 4)).argmax(1).float().sum().backward()
    end = explain(recording, "weight").end
    assert end.startswith("Backward did not start: a result was cut by argmax() at test_explain")


class ActorCritic:
    """A training step with three losses, as in soft actor-critic."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.networks = nn.ModuleDict(
            {"actor": nn.Linear(4, 2), "critic": nn.Linear(6, 1), "target": nn.Linear(6, 1)}
        )
        self.temperature = nn.Parameter(torch.zeros(1))

    def losses(self) -> dict[str, Tensor]:
        torch.manual_seed(1)
        actor, critic, target = self.networks.values()
        state, action = torch.randn(8, 4), torch.randn(8, 2)
        with torch.no_grad():
            aim = target(torch.cat([state, action], 1))
        critic_loss = (critic(torch.cat([state, action], 1)) - aim).square().mean()
        chosen, heat = actor(state), self.temperature.exp()
        value = critic(torch.cat([state, chosen], 1))
        actor_loss = (heat.detach() * chosen.square().sum(1) - value[:, 0]).mean()
        temperature_loss = (heat * (chosen.detach().mean() + 2)).mean()
        return {"critic": critic_loss, "actor": actor_loss, "temperature": temperature_loss}


def test_without_a_target_it_tells_which_loss_trains_which_network() -> None:
    program = ActorCritic()
    known = {name: list(part.parameters()) for name, part in program.networks.items()}
    known["temperature"] = [program.temperature]
    expected = []
    for loss in program.losses().values():
        row = []
        for parameters in known.values():
            grads = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
            given = [grad.norm() for grad in grads if grad is not None]
            row.append(pytest.approx(float(torch.stack(given).norm())) if given else None)
        expected.append(tuple(row))
    with record(program.networks) as recording:
        for loss in program.losses().values():
            loss.backward()
        torch.optim.SGD([*known["actor"], *known["critic"]], lr=0.1).step()
    table = explain(recording)
    assert table.networks == ("actor", "critic", "target", "known.temperature[0]")
    assert [row.norms for row in table.rows] == expected
    assert table.stepped == (True, True, False, None)
    assert str(table).endswith("\nno gradient: target\nno optimizer stepped: target")


def test_a_model_of_one_layer_is_one_network() -> None:
    layer = nn.Linear(2, 1)
    with record(layer) as recording:
        layer(torch.ones(1, 2)).sum().backward()
    assert explain(recording).networks == ("the model",)


def test_a_loss_of_several_terms_names_each_with_its_line() -> None:
    encoder, head = nn.Linear(4, 4), nn.Linear(4, 1)
    with record() as recording:
        hidden = encoder(torch.randn(8, 4))
        error = head(hidden).square().mean()
        loss = error + 0.1 * hidden.abs().mean() - hidden.std() / 3
        loss.backward()
        error.detach().requires_grad_().backward()
    here = inspect.currentframe()
    assert here is not None
    line = here.f_lineno - 6
    error_line = f"error at test_explain.py:{line}"
    others = [f"{name} at test_explain.py:{line + 1}" for name in ("mean", "std")]
    table = explain(recording)
    assert table.rows[0].terms == (error_line, *others)
    assert f"\nterms of loss: {error_line}, {', '.join(others)}" in table.to_text()
    assert table.rows[1].terms == ()


@pytest.mark.parametrize(("steps", "said"), [(0, "1 node"), (1, "2 nodes")])
def test_the_nodes_of_a_way_are_counted_in_singular_and_plural(steps: int, said: str) -> None:
    weight = torch.ones((), requires_grad=True)
    loss = weight * 2 if steps else weight
    way = explain(trace(loss, names={"weight": weight}), "weight")
    assert way.to_text().splitlines()[0] == f"The gradient's path to weight: {said}"


def test_a_module_without_gradients_is_the_reason_that_a_parameter_is_not_reached() -> None:
    frozen, bare, head = nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 3), nn.Linear(3, 1)
    with record() as recording:
        with torch.no_grad():
            h = bare(frozen(torch.ones(2, 3)))
        head(h).sum().backward()
    said = str(explain(recording, "frozen.weight"))
    assert said == "Backward cannot reach frozen.weight: it is frozen (requires_grad is False)."
    line = inspect.currentframe().f_lineno - 4  # type: ignore[union-attr]
    end = f"did not reach bare.weight: bare ran under torch.no_grad() at test_explain.py:{line}."
    assert str(explain(recording, "bare.weight")).endswith(end)
