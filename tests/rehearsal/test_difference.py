"""Compare two rehearsals: the figures are those of their reports, or counted by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import fsdp

from graphviz_torch.integrations.command.main import main
from graphviz_torch.rehearsal import compare_rehearsals, rehearse
from graphviz_torch.rehearsal.difference import FigureChange

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
WIDTH, ROWS, LAYERS, RANKS = 64, 256, 3, 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def train(*, reshard: bool = False, rows: int = ROWS) -> None:
    dist.init_process_group()
    model = Net()
    for layer in model.layers:
        fsdp.fully_shard(layer, reshard_after_forward=reshard)
    fsdp.fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(2):
        model(torch.ones(rows, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_resharding_gathers_each_layer_twice_and_holds_less() -> None:
    before, after = (rehearse(lambda r=r: train(reshard=r), ranks=RANKS) for r in (False, True))
    found = compare_rehearsals(before, after)
    # A layer is WIDTH * WIDTH numbers; a rank sends its part of it to the three others.
    layer, wire = WIDTH * WIDTH * 4, 3 * WIDTH * WIDTH * 4 // RANKS
    figures = {each.name: each for each in found.figures}
    assert figures["on the wire"].after - figures["on the wire"].before == LAYERS * wire
    assert figures["gathered"].before == LAYERS * layer
    assert figures["gathered"].after < LAYERS * layer
    assert found.counts == (FigureChange("all_gather layers.*", LAYERS, 2 * LAYERS),)
    assert found.collectives == (
        FigureChange("all_gather layers.*", LAYERS * wire, 2 * LAYERS * wire),
    )
    assert "operations" not in figures
    text = found.to_text()
    assert f"all_gather layers.* {LAYERS} → {2 * LAYERS} times, 36.0 KiB → 72.0 KiB" in text
    assert text.startswith("peak ")


def test_more_rows_take_more_of_what_depends_on_rows_alone() -> None:
    found = compare_rehearsals(
        *(rehearse(lambda r=r: train(rows=r), ranks=RANKS) for r in (ROWS, 2 * ROWS))
    )
    figures = {each.name: each for each in found.figures}
    assert figures["operations"].after == 2 * figures["operations"].before
    assert figures["activations"].after == 2 * figures["activations"].before
    assert not {"parameters", "gradients", "optimizer", "on the wire"} & figures.keys()
    assert found.collectives == found.counts == ()


def test_those_that_differ_most_come_first_and_what_is_alike_is_not_told() -> None:
    before = rehearse(train, ranks=RANKS).to_dict()
    after = {**before, "activations": {"a": 5, "b.3": 40, "b.4": 40, "c": 7}}
    found = compare_rehearsals({**before, "activations": {"a": 4, "b.3": 10, "c": 7}}, after)
    assert found.activations == (FigureChange("b.*", 10, 80), FigureChange("a", 4, 5))
    assert found.figures == found.at_peak == found.counts == ()
    same = compare_rehearsals(before, {**before, "seconds": 1.0})
    assert not same
    assert same.to_text() == "The two rehearsals are equal."


def test_the_command_compares_what_rehearse_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = rehearse(train, ranks=RANKS).to_dict()
    files = [tmp_path / name for name in ("before.json", "after.json")]
    files[0].write_text(json.dumps(report))
    files[1].write_text(json.dumps({**report, "peak_bytes": report["peak_bytes"] + 1024}))
    paths = [str(file) for file in files]
    assert main(["diff", paths[0], paths[0]]) == 0
    assert capsys.readouterr().out == "The two rehearsals are equal.\n"
    assert main(["diff", *paths]) == 1
    assert "(+1.0 KiB, +" in capsys.readouterr().out
    assert main(["diff", *paths, "--fail-on", "never", "--format", "json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert row["figures"] == {"peak": [report["peak_bytes"], report["peak_bytes"] + 1024]}
    files[1].write_text(json.dumps([report, {**report, "rank": 3, "flops": 0}]))
    files[0].write_text(json.dumps([{**report, "rank": 3}, report]))
    assert main(["diff", *paths]) == 1
    assert capsys.readouterr().out.startswith("rank 3:\noperations ")
    assert main(["diff", *paths, "-o", str(tmp_path / "both.svg")]) == 2
    assert "for two rehearsals, diff prints text" in capsys.readouterr().err


def test_something_else_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match="not a rehearsal of one rank: pass the output of `graphviz-torch rehearse --rank 0",
    ):
        compare_rehearsals({}, {})


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key) of a JSON value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in list(pairs):
        yield value, key
        if isinstance(part, (dict, list)):
            yield from places(part)


def test_a_report_with_any_value_replaced_is_refused_or_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = rehearse(train, ranks=RANKS).to_dict()
    Path("a.json").write_text(json.dumps(whole))
    wrong = [None, -1, 2**63, 0.5, "\x1b[2J\u202e", [], {}, [1], [[1]]]
    count = len(list(places(whole)))
    for i in range(count):
        for value in wrong:
            changed = json.loads(json.dumps(whole))
            container, key = list(places(changed))[i]
            container[key] = value
            Path("b.json").write_text(json.dumps(changed))
            assert main(["diff", "a.json", "b.json"]) in (0, 1, 2)
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    assert not {"\x1b", "\u202e"} & {*said.out, *said.err}
