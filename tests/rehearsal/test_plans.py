"""A plan takes what the script takes that has it written down; the command joins those that fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import device_mesh, fsdp
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from graphviz_torch import Trial, plans, rehearse, try_plans
from graphviz_torch.rehearsal.trials import best_first

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
WIDTH, ROWS, LAYERS = 64, 512, 4
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
WRITTEN: dict[str, dict[str, Any]] = {
    "fused": {"fused": True},
    "checkpoint": {"checkpointed": True},
    "reshard": {"sharding": {"reshard_after_forward": True}},
    "bf16": {"sharding": {"mp_policy": BF16}},
    "offload": {"sharding": {"offload_policy": CPUOffloadPolicy()}},
    "micro-batches=2": {"micro": 2},
    "micro-batches=4": {"micro": 4},
    "bf16-parameters": {
        "dtype": torch.bfloat16,
        "sharding": {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)},
    },
    "mesh=1x8": {"shape": (1, 8)},
    "mesh=4x2": {"shape": (4, 2)},
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
    *,
    fused: bool = False,
    checkpointed: bool = False,
    sharding: dict[str, Any] | None = None,
    micro: int = 1,
    dtype: torch.dtype = torch.float32,
    shape: tuple[int, int] = (2, 4),
) -> None:
    mesh = device_mesh.init_device_mesh("cuda", shape, mesh_dim_names=("replicate", "shard"))
    model = Net(checkpointed=checkpointed).to("cuda", dtype)
    options = {"reshard_after_forward": False, "mesh": mesh, **(sharding or {})}
    for block in model.blocks:
        fsdp.fully_shard(block, **options)
    fsdp.fully_shard(model, **options)
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused or None)
    optimizer.zero_grad()
    for number, x in enumerate(DataLoader(range(8 * ROWS), batch_size=ROWS // micro), 1):
        rows = torch.ones(len(x), WIDTH, device="cuda")
        model(rows).float().sum().backward()
        if number % micro == 0:
            optimizer.step()
            optimizer.zero_grad()


def figures(program: Callable[[], object], *names: str) -> tuple[int, int, int, int]:
    found = rehearse(program, ranks=8, plans=names)
    return found.peak_bytes, found.flops, found.wire_bytes, found.optimizer_bytes


@pytest.mark.parametrize("name", WRITTEN)
def test_a_plan_takes_what_the_script_takes_that_has_it_written_down(name: str) -> None:
    plan, written = figures(train, name), figures(partial(train, **WRITTEN[name]))
    assert plan[1:] == written[1:]
    assert plan[0] == pytest.approx(written[0], rel=0.01)
    assert name == "fused" or plan != figures(train)


def test_every_plan_is_compared_with_a_script() -> None:
    assert {name for name, _ in plans()} <= WRITTEN.keys()


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


def test_only_a_mesh_of_as_many_ranks_is_changed() -> None:
    found = rehearse(train, ranks=8, plans=["mesh=4x4"])
    assert found.meshes == ((2, 4),)
    assert rehearse(train, ranks=8, plans=["mesh=8x1"]).meshes == ((8, 1),)


def test_module_zero_grad_and_a_closure_wait_for_the_last_micro_batch() -> None:
    """A gradient is the sum of those of all parts; without values, its number of backwards."""
    backwards: list[int] = []

    def train() -> None:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters())
        for x in DataLoader(torch.ones(32, 4), batch_size=4):  # type: ignore[arg-type]
            backwards.append(len(x) if model.weight.grad is None else -len(x))

            def closure(x: Tensor = x) -> Tensor:
                loss = model(x).sum()
                loss.backward()
                return loss

            optimizer.step(closure)
            model.zero_grad()

    rehearse(train, plans=["micro-batches=4"])
    assert backwards == [1, -1, -1, -1, 1, -1, -1, -1]


def joining(peaks: dict[str, int], tries: list[tuple[str, ...]]) -> Callable[..., Trial | None]:
    """Attempts in which each change frees what it frees alone, out of 100."""

    def attempt(changes: tuple[str, ...]) -> Trial | None:
        tries.append(changes)
        if not peaks.keys() >= set(changes):
            return None
        return Trial(changes, 100 - sum(100 - peaks[name] for name in changes), 10, 7)

    return attempt


def test_plans_are_joined_until_the_step_fits_and_one_of_each_kind() -> None:
    tries: list[tuple[str, ...]] = []
    peaks = {
        "fused": 95,
        "checkpoint": 60,
        "micro-batches=2": 80,
        "micro-batches=4": 70,
        "mesh=4x2": 100,
        "mesh=1x8": 85,
        "--batch=1": 90,
    }
    attempt = joining(peaks, tries)
    assert [each.changes for each in try_plans(attempt, 100)] == [()]
    tries.clear()
    found = try_plans(attempt, 12, mesh=[2, 4], others=["--batch=1"])
    assert best_first(found, 12)[0].changes == (
        "checkpoint",
        "micro-batches=4",
        "mesh=1x8",
        "--batch=1",
    )
    assert ("micro-batches=8",) in tries
    assert ("micro-batches=16",) not in tries
    assert ("mesh=4x2",) in tries
    assert ("mesh=8x1",) not in tries
    assert len([each for each in tries if len(each) > 1]) == 3
    tries.clear()
    assert best_first(try_plans(attempt, 80), 80)[0].changes in {
        ("checkpoint",),
        ("micro-batches=2",),
    }
    assert ("micro-batches=4",) not in tries


def test_what_sees_less_data_in_a_step_is_not_cheaper_for_it() -> None:
    plain, half = Trial((), 9, 100, 100), Trial(("mesh=1x2",), 5, 80, 50)
    fused = Trial(("fused",), 5, 100, 100)
    assert [each.name for each in best_first([plain, half, fused], 5)][:2] == ["fused", "mesh=1x2"]


def test_the_command_tells_and_draws_what_fits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from graphviz_torch.integrations.command.main import main
    from graphviz_torch.integrations.command.rehearsal import fit

    def process(
        parsed: Any, rank: int, form: str, names: Sequence[str], args: Sequence[str]
    ) -> tuple[int, str]:
        if "offload" in names:
            return 1, ""
        peak = 100 - 40 * ("checkpoint" in names) - 30 * ("2" in args)
        row = {"peak_bytes": peak, "wire_bytes": 10 * len(names), "flops": 7, "meshes": [[2, 4]]}
        return 0, json.dumps(row)

    monkeypatch.setattr(fit, "process", process)
    script, picture = str(Path(__file__)), tmp_path / "plans.svg"
    given = ["rehearse", "--ranks", "8", "--try=--batch 2", "-o", str(picture)]
    assert main([*given, "--format", "json", "--fit", "35", script]) == 0
    said = capsys.readouterr()
    rows = json.loads(said.out)
    assert [row["plans"] for row in rows if row["fits"]] == [["checkpoint", "--batch 2"]]
    assert said.err == "offload: does not run\n"
    drawn = picture.read_text()
    assert drawn.count("<circle") == len(rows) == 4
    assert 'font-weight="bold">checkpoint + --batch 2<' in drawn
    assert main([*given, "--fit", "4", script]) == 1
    text = capsys.readouterr().out
    assert text.splitlines()[1].startswith("checkpoint + --batch 2")
    assert text.endswith("None of these fits in 4 B.\n")
