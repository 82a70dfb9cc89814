"""Test `graphviz-torch rehearse`, which runs an unchanged script as one rank of many."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from graphviz_torch import load
from graphviz_torch.integrations.command import rehearse
from graphviz_torch.integrations.command.main import main
from tests.support.processes.forks import forked

SCRIPT = """\
import os
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    print("rank", dist.get_rank(), "of", os.environ["WORLD_SIZE"], sys.argv[1:])
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("dp",))
    model = torch.nn.Linear(64, 64, bias=False).to(device)
    model.load_state_dict(torch.load("weights.pt", map_location=device))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(1000):
        loss = model(torch.ones(4, 64, device=device)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            print("loss", loss.item())

main()
"""
ACCELERATED = """\
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(mixed_precision="bf16")
model = torch.nn.Linear(64, 64, bias=False)
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.ones(96, 64))
loader = DataLoader(data, batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
print(len(loader), "batches")
for (x,) in loader:
    accelerator.backward(model(x).square().mean())
    optimizer.step()
    optimizer.zero_grad()
"""
KEYS = "format ranks rank parameters_bytes gradients_bytes optimizer_bytes activations_bytes "
KEYS += "gathered_bytes peak_bytes peak_at fits flops wire_bytes collectives at_peak activations "
KEYS += "meshes seconds"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the script train.py, and a file with weights of ones."""
    import torch

    (tmp_path / "train.py").write_text(SCRIPT)
    torch.save({"weight": torch.ones(64, 64)}, tmp_path / "weights.pt")
    return tmp_path


def rehearsed(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked("-m", "graphviz_torch", "rehearse", *arguments, folder=folder)


@pytest.fixture
def ranks_rehearsed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """The same for several ranks: exit code, stdout and stderr. Each rank is forked."""

    def start(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        done = forked(*command[1:], folder=folder)
        sys.stderr.write(done.stderr)
        return done

    def run(*arguments: str) -> tuple[int, str, str]:
        return main(["rehearse", *arguments]), *capfd.readouterr()

    monkeypatch.chdir(folder)
    replaced = SimpleNamespace(run=start, PIPE=subprocess.PIPE)  # `forked` may call the original
    monkeypatch.setattr(rehearse, "subprocess", replaced)
    return run


def test_a_script_for_a_cluster_is_rehearsed_as_it_is_on_each_rank(
    ranks_rehearsed: Callable[..., tuple[int, str, str]],
) -> None:
    given = ("--ranks", "4", "--rank", "0", "--rank", "3", "--format", "json", "--value", "24=0.5")
    code, out, err = ranks_rehearsed(*given, "--device-memory=16KiB", "train.py", "--lr", "3")
    assert code == 0, err
    assert "rank 3 of 4 ['--lr', '3']" in err  # what it prints is not in the report
    first, last = json.loads(out)
    assert " ".join(first) == KEYS
    assert (first["rank"], last["rank"]) == (0, 3)
    shard = 64 * 64 * 4 // 4
    for each in (first, last):
        assert each["parameters_bytes"] == each["gradients_bytes"] == shard
        assert each["optimizer_bytes"] == 2 * shard + 4
        assert each["fits"] is False
        # Forward, and backward for the weight alone: x needs no gradient.
        assert each["flops"] == 2 * 2 * 4 * 64 * 64
        sent = {row["kind"]: row for row in each["collectives"]}
        assert sent["all_gather"]["nbytes"] == shard * sent["all_gather"]["count"]
        assert sent["reduce_scatter"]["nbytes"] == 64 * 64 * 4
        assert all(row["group"] == "dp" and "train.py:" in row["where"] for row in sent.values())


def test_a_script_of_accelerates_is_rehearsed_as_it_is(folder: Path) -> None:
    (folder / "train.py").write_text(ACCELERATED)
    done = rehearsed(folder, "--ranks", "4", "--format", "json", "train.py")
    assert done.returncode == 0, done.stderr
    assert "3 batches" in done.stderr  # 12, divided among 4 ranks
    found = json.loads(done.stdout)
    assert found["parameters_bytes"] == 64 * 64 * 4
    [row] = [row for row in found["collectives"] if row["kind"] == "all_reduce"]
    assert (row["count"], row["nbytes"]) == (1, 64 * 64 * 4)


def test_a_missing_value_is_said_in_a_sentence_with_what_to_give(folder: Path) -> None:
    script = folder / "train.py"
    assert "print(" in script.read_text().splitlines()[23]  # what decides nothing is 0
    lines = script.read_text().splitlines()
    lines[23] = lines[23][: len(lines[23]) - len(lines[23].lstrip())] + "assert loss.item() < 9"
    script.write_text("\n".join(lines))
    done = rehearsed(folder, "--ranks", "4", "train.py")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("graphviz-torch: train.py:24 needs a value")
    assert "--value 24=0.5" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_writes_the_graph_the_view_and_the_picture(folder: Path) -> None:
    files = ("-o", "step.json", "-o", "step.html", "-o", "memory.svg")
    done = rehearsed(folder, "--mesh", "dp=4", "--value", "0.5", *files, "--tflops=1", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("rank 0 of 4, 2nd step")
    assert "lower bound at the given speed and bandwidth: a step takes" in done.stdout
    graph = load(folder / "step.json")
    assert {each.kind for each in graph.collectives} == {"all_gather", "reduce_scatter"}
    assert "<html" in (folder / "step.html").read_text()
    assert (folder / "memory.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--mesh", "dp"), "pass names and sizes, such as dp=8,tp=8"),
        (("--device-memory", "lots"), "pass a number of bytes, such as 80GiB"),
        (("--tflops", "0"), "pass a number above 0"),
        (("--value", "x=y"), "pass a line and a number, such as 30=0.5"),
        (("-o", "step.png"), "pass a name that ends in"),
        (("--ranks", "2", "--rank", "2"), "rank=2: pass a rank from 0 to 1"),
    ],
)
def test_what_it_cannot_do_it_says_in_a_sentence(
    folder: Path, given: tuple[str, ...], said: str
) -> None:
    done = rehearsed(folder, *given, "train.py")
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]


ORDER = """import torch
import torch.distributed as dist

dist.init_process_group("nccl")
dist.all_reduce(torch.ones(4))
if dist.get_rank() == dist.get_world_size() - 1:
    dist.all_reduce(torch.ones(5))
dist.barrier()
"""


def test_ranks_that_do_not_ask_for_the_same_are_told_with_both_lines(
    folder: Path, ranks_rehearsed: Callable[..., tuple[int, str, str]]
) -> None:
    (folder / "train.py").write_text(ORDER)
    code, out, err = ranks_rehearsed("--ranks", "64", "--order", "train.py")
    assert code == 1, err
    assert out.splitlines() == [
        "ranks 0 to 63, their 2nd: barrier at train.py:8 on rank 0, and all_reduce of 20 B float32 "
        "at train.py:7 on rank 63 [mismatched-collectives]",
        "rehearsed ranks 0, 1 and 63, with 1 process group shared by at least two of them",
    ]
    ranks = ("--rank", "1", "--rank", "2")
    code, out, err = ranks_rehearsed("--ranks", "64", *ranks, "--order", "train.py")
    assert code == 0, err
    assert out == (
        "rehearsed ranks 1 and 2, with 1 process group shared by at least two of them: they call "
        "the same collectives, in the same order\n"
    )


def test_each_of_several_ranks_is_rehearsed_in_a_new_process(folder: Path) -> None:
    (folder / "train.py").write_text(ORDER + "print('rank', dist.get_rank())\n")
    done = rehearsed(folder, "--ranks", "2", "--order", "train.py")
    assert done.returncode == 1, done.stderr
    assert {"rank 0", "rank 1"} <= {*done.stderr.splitlines()}
    assert done.stdout.splitlines()[-1] == (
        "rehearsed ranks 0 and 1, with 1 process group shared by at least two of them"
    )
