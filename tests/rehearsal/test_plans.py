"""Compare the cost of a plan with that of a script which contains the plan's changes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import product
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

from graphviz_torch.rehearsal import Trial, plans, rehearse, try_plans
from graphviz_torch.rehearsal.trials import best_first, cost

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
    for number, x in enumerate(DataLoader(range(3 * ROWS), batch_size=ROWS // micro), 1):
        rows = torch.ones(len(x), WIDTH, device="cuda")
        model(rows).float().sum().backward()
        if number % micro == 0:
            optimizer.step()
            optimizer.zero_grad()


def figures(program: Callable[[], object], *names: str) -> tuple[int, int, int, int]:
    found = rehearse(program, ranks=8, plans=names)
    return found.peak_bytes, found.flops, found.wire_bytes, found.optimizer_bytes


@cache
def figures_without_a_plan() -> tuple[int, int, int, int]:
    return figures(train)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_plan_takes_what_the_script_takes_that_has_it_written_down(name: str) -> None:
    plan, written = figures(train, name), figures(partial(train, **WRITTEN[name]))
    assert plan[1:] == written[1:]
    assert plan[0] == pytest.approx(written[0], rel=0.01)
    assert name == "fused" or plan != figures_without_a_plan()


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
    with pytest.raises(
        ValueError, match=r"plans=\['smaller'\]: this plan is unknown\. Pass some of fused, reshard"
    ):
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


def a_step(tries: list[tuple[str, ...]], *, kept: int) -> Callable[..., Trial | None]:
    """Attempts of a step with weights of 32, 8 gathered, and activations of `kept`: arithmetic."""

    def attempt(changes: tuple[str, ...]) -> Trial | None:
        tries.append(changes)
        weights, gathered, activations, wire, flops = 32.0, 8.0, float(kept), 100.0, 1000.0
        for each in changes:
            name, _, count = each.partition("=")
            if name == "micro-batches":
                activations, wire = activations / int(count), wire * int(count)
            elif name == "checkpoint":
                activations, flops = activations / 5, flops + 300
            elif name == "bf16":
                activations /= 2
            elif name == "offload":
                weights, gathered = weights / 2, gathered / 2
            elif name == "reshard":
                wire, gathered = wire + 50, 1
            elif name == "--batch":
                activations *= 0.9
            else:
                return None
        sizes = {"parameter": weights, "gathered": gathered, "activation": activations}
        roles = {role: round(size) for role, size in sizes.items()}
        total = sum(roles.values())
        return Trial(changes, total, round(wire), round(flops), tuple(roles.items()))

    return attempt


def all_sets() -> list[tuple[str, ...]]:
    """Every choice of plans, one of each kind, the script's own argument among them."""
    micro = ["", *(f"micro-batches={2**i}" for i in range(1, 7))]
    single = ["checkpoint", "bf16", "offload", "reshard", "--batch=1"]
    kinds = [micro, *(["", name] for name in single)]
    return [tuple(name for name in names if name) for names in product(*kinds)]


@pytest.mark.parametrize("size", range(24, 140, 4))
@pytest.mark.parametrize("kept", [10, 60, 100])
def test_the_search_finds_what_trying_everything_finds(kept: int, size: int) -> None:
    tries: list[tuple[str, ...]] = []
    found = try_plans(a_step(tries, kept=kept), size, others=["--batch=1"])
    assert len(tries) < 30
    every = [trial for each in all_sets() if (trial := a_step([], kept=kept)(each)) is not None]
    plain, best, truth = found[0], best_first(found, size)[0], best_first(every, size)[0]
    assert (best.peak_bytes <= size) == (truth.peak_bytes <= size)
    if truth.peak_bytes <= size:
        assert cost(best, plain)[0] <= 1.25 * cost(truth, plain)[0]


def test_what_fits_as_it_is_is_tried_with_nothing_else() -> None:
    tries: list[tuple[str, ...]] = []
    assert [each.changes for each in try_plans(a_step(tries, kept=60), 100)] == [()] == tries


def test_a_mesh_gives_its_factors_as_long_as_that_frees_memory() -> None:
    tries: list[tuple[str, ...]] = []
    peaks = {(): 100, ("mesh=1x8",): 85, ("mesh=4x2",): 100}

    def attempt(changes: tuple[str, ...]) -> Trial | None:
        tries.append(changes)
        return Trial(changes, peaks[changes], 1, 1) if changes in peaks else None

    found = try_plans(attempt, 12, mesh=[2, 4])
    assert [each.name for each in found] == ["as it is", "mesh=1x8"]
    assert ("mesh=4x2",) in tries
    assert ("mesh=8x1",) not in tries


def test_what_sees_less_data_in_a_step_is_not_cheaper_for_it() -> None:
    plain, half = Trial((), 9, 100, 100), Trial(("mesh=1x2",), 5, 80, 50)
    fused = Trial(("fused",), 5, 100, 100)
    assert [each.name for each in best_first([plain, half, fused], 5)][:2] == ["fused", "mesh=1x2"]


def test_the_command_tells_and_draws_what_fits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from graphviz_torch.integrations.command.main import main

    def process(
        parsed: Any, rank: int, form: str, names: Sequence[str], args: Sequence[str]
    ) -> tuple[int, str]:
        if "offload" in names:
            return 1, "TypeError: no"
        peak = 100 - 40 * ("checkpoint" in names) - 30 * ("2" in args)
        row = {"peak_bytes": peak, "wire_bytes": 10 * len(names), "flops": 7, "meshes": [[2, 4]]}
        return 0, json.dumps({**row, "at_peak": {}})

    monkeypatch.setattr("graphviz_torch.integrations.command.rehearse.rehearse_in_process", process)
    script, picture = str(Path(__file__)), tmp_path / "plans.svg"
    given = ["rehearse", "--ranks", "8", "--try=--batch 2", "-o", str(picture)]
    assert main([*given, "--format", "json", "--fit", "35", script]) == 0
    said = capsys.readouterr()
    rows = json.loads(said.out)
    assert [row["plans"] for row in rows if row["fits"]] == [["checkpoint", "--batch 2"]]
    assert said.err.splitlines() == [
        "as it is: 100 B",
        "--batch 2: 70 B",
        *(f"{name}: 100 B" for name in ("fused", "reshard", "bf16")),
        "checkpoint: 60 B",
        "offload: does not run: TypeError: no",
        *(f"{name}: 100 B" for name in ("bf16-parameters", "micro-batches=2")),
        *(f"mesh={sizes}: 100 B" for sizes in ("1x8", "4x2")),
        "checkpoint + --batch 2: 30 B, fits",
    ]
    drawn = picture.read_text()
    assert drawn.count("<circle") == len(rows) == 4
    [bold] = re.findall('<g font-weight="bold"><text[^>]*>([^<]*)', drawn)
    assert bold == "checkpoint + --batch 2"
    assert main([*given, "--fit", "4", script]) == 1
    text = capsys.readouterr().out
    assert text.splitlines()[1].startswith("checkpoint + --batch 2")
    assert text.endswith("None of these fits in 4 B.\n")
