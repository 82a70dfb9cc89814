"""A plan takes what the script takes that has it written down; the command joins those that fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import fsdp
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy
from torch.utils.checkpoint import checkpoint

from graphviz_torch import plans, rehearse

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
WIDTH, ROWS, LAYERS = 64, 512, 4
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
WRITTEN: dict[str, dict[str, Any]] = {
    "fused": {"fused": True},
    "checkpoint": {"checkpointed": True},
    "reshard": {"sharding": {"reshard_after_forward": True}},
    "bf16": {"sharding": {"mp_policy": BF16}},
    "offload": {"sharding": {"offload_policy": CPUOffloadPolicy()}},
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self, *, checkpointed: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x


def train(
    *, fused: bool = False, checkpointed: bool = False, sharding: dict[str, Any] | None = None
) -> None:
    dist.init_process_group("nccl")
    model = Net(checkpointed=checkpointed).to("cuda")
    options = {"reshard_after_forward": False, **(sharding or {})}
    for block in model.blocks:
        fsdp.fully_shard(block, **options)
    fsdp.fully_shard(model, **options)
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused or None)
    while True:
        model(torch.ones(ROWS, WIDTH, device="cuda")).float().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def figures(program: Callable[[], object], *names: str) -> tuple[int, int, int, int]:
    found = rehearse(program, ranks=8, plans=names)
    return found.peak_bytes, found.flops, found.wire_bytes, found.optimizer_bytes


@pytest.mark.parametrize("name", [name for name, _ in plans()])
def test_a_plan_takes_what_the_script_takes_that_has_it_written_down(name: str) -> None:
    plan, written = figures(train, name), figures(partial(train, **WRITTEN[name]))
    assert plan[1:] == written[1:]
    assert plan[0] == pytest.approx(written[0], rel=0.01)
    assert name == "fused" or plan != figures(train)


def test_plans_are_gone_afterwards() -> None:
    before = fsdp.fully_shard, torch.optim.AdamW.__init__
    model = Net(checkpointed=False)
    rehearse(
        lambda: model(torch.ones(2, WIDTH)).sum().backward(), plans=[name for name, _ in plans()]
    )
    assert (fsdp.fully_shard, torch.optim.AdamW.__init__) == before
    assert all("forward" not in vars(block) for block in model.blocks)
    with pytest.raises(ValueError, match=r"plans=\['smaller'\]: pass some of fused, reshard"):
        rehearse(print, plans=["smaller"])


def test_the_command_joins_plans_until_the_step_fits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from graphviz_torch.integrations.command.main import main
    from graphviz_torch.integrations.command.rehearsal import fit

    alone = {"fused": 95, "checkpoint": 60, "reshard": 80, "bf16": 70}

    def process(parsed: Any, rank: int, form: str, names: tuple[str, ...]) -> tuple[int, str]:
        if "offload" in names:
            return 1, ""
        peak = 100 - sum(100 - alone[name] for name in names)
        row = {"peak_bytes": peak, "wire_bytes": 10 * len(names), "flops": 7}
        return 0, json.dumps(row)

    monkeypatch.setattr(fit, "process", process)
    script = str(Path(__file__))
    given = ["rehearse", "--ranks", "8", "--format", "json", "--fit"]
    assert main([*given, "100", script]) == 0
    assert [row["plans"] for row in json.loads(capsys.readouterr().out)] == [[]]
    assert main([*given, "35", script]) == 0
    said = capsys.readouterr()
    rows = json.loads(said.out)
    assert [row["plans"] for row in rows if row["fits"]] == [["checkpoint", "bf16"]]
    assert len(rows) == 1 + 4 + 1
    assert said.err == "offload: does not run\n"
    assert main([*given[:3], "--fit", "4", script]) == 1
    text = capsys.readouterr().out
    assert text.splitlines()[1].startswith("checkpoint + bf16 + reshard + fused")
    assert text.endswith("None of these fits in 4 B.\n")
