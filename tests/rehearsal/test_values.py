"""Test reads of values that a rehearsal does not compute, and which lines need a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from graphviz_torch.rehearsal import rehearse


def test_weights_within_bounds_need_no_value() -> None:
    def bounded() -> None:
        model = nn.Linear(4, 1, bias=False)
        nn.init.trunc_normal_(model.weight, std=0.02)
        model(torch.ones(2, 4)).sum().backward()

    assert rehearse(bounded).parameters_bytes == 4 * 4


def asking() -> None:
    model = nn.Linear(4, 1)
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    if loss.item() > 0.25:
        (loss.detach() + model.weight).sum().backward()


def test_a_value_that_the_program_needs_is_asked_for_with_its_line_and_may_be_given() -> None:
    line = asking.__code__.co_firstlineno + 4
    with pytest.raises(RuntimeError, match=rf"test_values\.py:{line} .*--value {line}=0\.5"):
        rehearse(asking)
    low = rehearse(asking, values={f"test_values.py:{line}": 0.0})
    high = rehearse(asking, values={str(line): 0.5})
    assert not any(node.operation == "add" for node in low.graph.nodes)
    assert any(node.operation == "add" for node in high.graph.nodes)


def choosing() -> None:
    x = torch.ones(4, requires_grad=True)
    x[x > 0].sum().backward()


def test_a_shape_that_depends_on_values_is_said_with_its_line() -> None:
    line = choosing.__code__.co_firstlineno + 2
    with pytest.raises(RuntimeError, match=rf"test_values\.py:{line} calls aten"):
        rehearse(choosing)


def printing() -> None:
    def one_step(optimizer: Any) -> Any:
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        optimizer.step()
        return loss

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters())
    total, history = 0.0, []
    for _ in range(3):
        loss = one_step(optimizer)
        total += loss.item() * 2
        history.append(total / 3)
        mean = float(loss) / 4  # which only the next but one reads
        rows = (loss > 0).sum().item()
        print(f"loss {history[-1]:.2f} {max(0, 1):d} %.1f" % mean, rows, total)
        print(
            "of several lines",
            float(loss),
        )


def test_a_value_that_is_only_printed_is_0_and_the_report_says_so(capsys: Any) -> None:
    found = rehearse(printing)
    first = printing.__code__.co_firstlineno
    asks = [f"test_values.py:{first + k}" for k in (12, 14, 15, 19)]
    assert list(found.printed) == asks
    assert "0 was printed instead at" in str(found)
    assert capsys.readouterr().out.startswith("loss 0.00 1 0.0 0 0.0\nof several lines 0.0\n")


DECIDES: dict[str, Callable[[Any], object]] = {
    "a comparison": lambda loss: 0 if loss.item() > 1 else 1,
    "of a number that was computed": lambda loss: (loss.item() * 2 + 1) / 3 > 1,
    "the larger of two": lambda loss: max(0.5, loss.item()),
    "its truth": lambda loss: not loss.item(),
    "an index": lambda loss: [0, 1][int(loss.item())],
    "a whole number": lambda loss: range((loss > 0).sum().item()),
    "a tensor's truth": lambda loss: 0 if loss > 1 else 1,
    "a float that is given on": lambda loss: [float(loss)],
}


@pytest.mark.parametrize("what", DECIDES)
def test_a_value_that_decides_asks_by_its_line(what: str) -> None:
    decide = DECIDES[what]
    line = decide.__code__.co_firstlineno
    with pytest.raises(RuntimeError, match=rf"test_values.py:{line} needs .* --value {line}=0.5"):
        rehearse(lambda: decide(torch.ones(2).sum()))
    assert rehearse(lambda: decide(torch.ones(2).sum()), values={str(line): 0.5}).printed == ()


def test_a_program_may_cut_its_data_at_random_and_write_a_tensor_of_one_value() -> None:
    shapes = []

    def cutting() -> None:
        data = np.arange(1000)
        at = torch.randint(len(data) - 10, (3,))
        rows = torch.stack([torch.from_numpy(data[i : i + 10]) for i in at])
        shapes.append(rows.shape)
        text = f"{rows.sum():d} {rows.double().mean():.1f}"
        assert text == "0 0.0"

    found = rehearse(cutting)
    assert shapes == [(3, 10)]
    assert found.printed == (f"test_values.py:{cutting.__code__.co_firstlineno + 5}",)


def test_all_that_decides_in_the_first_step_asks_at_once() -> None:
    steps = []

    def deciding() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters())
        for step in range(9):
            steps.append(step)
            loss = model(torch.ones(2, 4)).sum()
            if loss.item() > 1:
                print("more")
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if not torch.isfinite(norm):
                continue
            optimizer.step()

    first = deciding.__code__.co_firstlineno
    lines = first + 6, first + 10
    with pytest.raises(RuntimeError, match=r"need values of tensors") as raised:
        rehearse(deciding)
    assert all(f"--value {line}=0.5" in str(raised.value) for line in lines)
    rehearse(deciding, values={str(lines[0]): 0.5, str(lines[1]): 1.0})

    def waiting() -> None:
        while torch.ones(1).item() < 2:
            steps.append(0)

    with pytest.raises(RuntimeError, match="needs a value"):
        rehearse(waiting)


def test_what_is_compiled_as_a_whole_runs_as_it_is_written() -> None:
    def train(compiled: bool) -> None:
        model = nn.Linear(4, 4)
        run = torch.compile(model, fullgraph=True) if compiled else model
        optimizer = torch.optim.SGD(model.parameters())
        while True:
            run(torch.ones(2, 4)).sum().backward()
            optimizer.step()

    plain, found = (rehearse(lambda compiled=which: train(compiled)) for which in (False, True))
    assert (found.flops, found.peak_bytes) == (plain.flops, plain.peak_bytes)
    seen: list[bool] = []
    torch.compile(lambda x: seen.append(torch.compiler.is_compiling()) or x, backend="eager")(
        torch.ones(1)
    )
    assert seen != [False]
