"""Compare the report of one rank with bytes counted by hand, and check that nothing is left."""

from __future__ import annotations

import io
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import get_ident

import jsonschema
import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from safetensors.torch import save_file as save_alias
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset

from graphviz_torch import to_text
from graphviz_torch.rehearsal import Rehearsal, draw_memory, rehearse
from graphviz_torch.rehearsal.order import ordinal
from graphviz_torch.render.labels import TIMES
from tests.rehearsal.test_values import asking, choosing

WIDTH = 1024
MATRIX = 4 * WIDTH * WIDTH  # bytes of a parameter


def two_layers(
    *, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD, **options: float
) -> None:
    """Steps of two linear layers without bias on 8 rows."""
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)])
    stepping = optimizer(model.parameters(), **options)
    for _ in range(9):
        model(torch.ones(8, WIDTH)).sum().backward()
        stepping.step()
        stepping.zero_grad()


def test_bytes_and_operations_are_those_that_one_counts_by_hand() -> None:
    found = rehearse(partial(two_layers, lr=0.1, momentum=0.9))
    assert found.parameters_bytes == found.gradients_bytes == found.optimizer_bytes == 2 * MATRIX
    assert found.activations_bytes == 4 * 8 * WIDTH  # the second layer's input; the first's is x
    # Products: one forward and one for the weight in both layers, one for x in the second alone.
    assert found.flops == 5 * 2 * 8 * WIDTH * WIDTH
    assert found.steps == 2
    assert found.collectives == ()


def test_the_peak_holds_what_stands_at_it_and_names_its_line() -> None:
    found = rehearse(partial(two_layers, lr=0.1), device_memory=3 * MATRIX)
    assert sum(each.nbytes for each in found.at_peak) == found.peak_bytes
    assert max(sum(s.nbytes for s in each.shares) for each in found.moments) == found.peak_bytes
    # In the end both gradients are there, and little else; never more than 16 rows.
    assert 4 * MATRIX <= found.peak_bytes <= 4 * MATRIX + 6 * 4 * 8 * WIDTH
    assert found.fits is False
    assert found.peak_at.startswith("backward, ")
    assert "test_rehearse.py:" in found.peak_at
    assert 2 * MATRIX in [each.nbytes for each in found.lines]  # the line that makes the model


def test_the_first_step_lacks_the_state_that_it_makes() -> None:
    one = rehearse(partial(two_layers, optimizer=torch.optim.AdamW), steps=1)
    two = rehearse(partial(two_layers, optimizer=torch.optim.AdamW), steps=2)
    assert one.optimizer_bytes == two.optimizer_bytes == 4 * MATRIX + 2 * 4
    before = [each for each in one.moments if each.phase == "forward"]
    assert not any(share.name == "optimizer" for each in before for share in each.shares)
    after = [each for each in two.moments if each.phase == "forward"]
    assert all(dict(each.shares)["optimizer"] >= 4 * MATRIX for each in after)


def sharded() -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)])
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(9):
        model(torch.ones(8, WIDTH, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_rank_of_a_cluster_has_its_shard_and_sends_what_fsdp_sends() -> None:
    found = rehearse(sharded, ranks=8, rank=5)
    assert (found.ranks, found.rank) == (8, 5)
    assert found.parameters_bytes == found.gradients_bytes == 2 * MATRIX // 4
    assert found.optimizer_bytes == 2 * (2 * MATRIX // 4) + 2 * 4
    sent = {(each.kind, each.group): each for each in found.collectives}
    counts: dict[str, int] = {}
    for each in found.collectives:
        counts[each.kind] = counts.get(each.kind, 0) + each.count
    # Each layer is gathered for forward and for backward.
    assert counts == {"all_gather": 4, "reduce_scatter": 2, "all_reduce": 2}
    assert {group for _, group in sent} == {"shard", "replicate"}
    gathered = sum(each.nbytes for each in found.collectives if each.kind == "all_gather")
    wire = sum(each.wire_bytes for each in found.collectives if each.kind == "all_gather")
    assert (gathered, wire) == (4 * MATRIX // 4, 3 * 4 * MATRIX // 4)
    assert all(each.where for each in found.collectives)


def grouped() -> None:
    dist.init_process_group("nccl")
    group = dist.new_group([dist.get_rank() // 2 * 2, dist.get_rank() // 2 * 2 + 1], backend="gloo")
    model = nn.Linear(4, 4)
    model(torch.ones(1, 4)).sum().backward()
    assert model.weight.grad is not None
    dist.all_reduce(model.weight.grad, group=group)


def test_a_mesh_names_the_groups_that_the_program_does_not_name() -> None:
    found = rehearse(grouped, mesh={"dp": 2, "tp": 2}, rank=[0, 3])
    assert [each.rank for each in found] == [0, 3]
    assert [each.collectives[0].group for each in found] == ["tp", "tp"]
    assert all(each.collectives[0].nbytes == 4 * 4 * 4 for each in found)


def loading() -> None:
    data = TensorDataset(torch.ones(6, 4), torch.ones(6, 1))
    model = nn.Linear(4, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in DataLoader(data, batch_size=3, shuffle=True, num_workers=2, pin_memory=True):
        assert x.shape == (3, 4)
        with torch.autocast("cuda"):
            loss = (model(x.cuda(non_blocking=True)) - y.to("cuda:0")).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def test_a_program_finds_cuda_and_its_data_is_not_on_the_device() -> None:
    assert not torch.cuda.is_available()
    found = rehearse(loading, device_memory=10_000)
    assert found.fits
    assert found.peak_bytes < 1000
    assert found.parameters_bytes == 4 * 5
    assert not torch.cuda.is_available()


def test_what_is_computed_from_numbers_of_the_device_is_there() -> None:
    devices = []

    def train() -> None:
        loss = nn.Linear(4, 1, device="cuda")(torch.ones(2, 4, device="cuda")).sum()
        shared = loss / torch.tensor(2.0)
        devices.extend(each.device.type for each in (loss / 2, shared, torch.ones(()) * 2))
        loss.backward()

    rehearse(train)
    assert devices == ["cuda", "cuda", "cpu"]


@pytest.mark.parametrize(("device", "said"), [("cuda", set()), ("cpu", {"cpu"})])
def test_a_graph_of_a_cuda_script_does_not_say_cpu(device: str, said: set[str]) -> None:
    def train() -> None:
        nn.Linear(4, 1, device=device)(torch.ones(2, 4, device=device)).sum().backward()

    graph = rehearse(train).graph
    metas = [meta for node in graph.nodes for meta in node.outputs if meta is not None]
    metas += [parameter.tensor for parameter in graph.parameters]
    assert len(metas) == 7  # two parameters, t, addmm, sum; and the parameters again
    assert {meta.device for meta in metas} - {""} == said
    assert ("all on cpu" in to_text(graph)) == bool(said)


def test_random_numbers_of_a_tensor_divided_twice_need_no_cuda() -> None:
    def train() -> None:
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(8, 8, bias=False))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
        model.to_empty(device="cuda").get_submodule("0").reset_parameters()  # type: ignore[operator]
        optimizer = torch.optim.SGD(model.parameters())
        model(torch.ones(4, 8, device="cuda")).sum().backward()
        optimizer.step()

    assert rehearse(train, ranks=4, steps=1).parameters_bytes == 8 * 8 * 4 // 4


def test_a_device_is_found_by_its_number() -> None:
    def numbered() -> None:
        model = nn.Linear(4, 1).to(1)
        assert torch.device(1) == torch.device("cuda", 1)
        x = torch.ones(2, 4).to(1, torch.float32) + torch.ones(4, device=1)
        model(x).sum().backward()

    assert rehearse(numbered, ranks=2, rank=1).parameters_bytes == 4 * 5


def test_a_file_of_weights_is_read_as_shapes(tmp_path: Path) -> None:
    rows = 2**21  # of 1,024 numbers, 8 GiB, none of which is on the disk
    header = {
        "weight": {"dtype": "F32", "shape": [rows, WIDTH], "data_offsets": [0, rows * WIDTH * 4]}
    }
    text = json.dumps(header).encode()
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + rows * WIDTH * 4)

    def loading_weights() -> None:
        path = str(tmp_path / "model.safetensors")
        with safetensors.safe_open(path, framework="pt") as weights:
            assert list(weights.keys()) == ["weight"]
            assert weights.get_tensor("weight").shape == (rows, WIDTH)
            part = weights.get_slice("weight")
            assert part.get_shape() == [rows, WIDTH]
            assert part[:3].shape == (3, WIDTH)
        with torch.device("meta"):
            model = nn.Linear(WIDTH, rows, bias=False)
        state = safetensors.torch.load_file(path, device="cuda:0")
        model.load_state_dict(state, assign=True)
        model(torch.ones(1, WIDTH, device="cuda")).sum().backward()

    real = safetensors.safe_open, safetensors.torch.safe_open
    found = rehearse(loading_weights, device_memory=2**30)
    assert found.parameters_bytes == rows * WIDTH * 4
    assert found.fits is False
    assert (safetensors.safe_open, safetensors.torch.safe_open) == real
    safetensors.torch.save_file({"a": torch.ones(2)}, str(tmp_path / "small"))
    assert safetensors.torch.load_file(str(tmp_path / "small"))["a"].tolist() == [1, 1]


def test_what_a_pool_of_threads_makes_is_fake_and_counted() -> None:
    def pooled() -> None:
        model = nn.Linear(WIDTH, WIDTH, bias=False, device="meta")
        with ThreadPoolExecutor(2) as pool:
            made = pool.submit(torch.ones, WIDTH, WIDTH)
            failing = pool.submit(int, "x")
        with pytest.raises(ValueError, match="invalid literal"):
            failing.result()
        model.weight = nn.Parameter(made.result())
        model(torch.ones(1, WIDTH)).sum().backward()

    assert rehearse(pooled).parameters_bytes == MATRIX
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(get_ident).result() != get_ident()


def test_nothing_stays_of_a_rehearsal_not_even_after_an_error() -> None:
    before = (dict(os.environ), torch.ones(2).tolist(), dist.is_initialized())
    cuda = dict(vars(torch.cuda))
    for program in (sharded, asking, choosing, grouped):
        with suppress(RuntimeError):
            rehearse(program, ranks=8)
        assert (dict(os.environ), torch.ones(2).tolist(), dist.is_initialized()) == before
        assert dict(vars(torch.cuda)) == cuda


def test_what_cannot_be_rehearsed_is_refused_with_what_to_pass() -> None:
    with pytest.raises(ValueError, match=r"has 4 ranks, but ranks=8"):
        rehearse(grouped, ranks=8, mesh={"dp": 4})
    with pytest.raises(ValueError, match=r"rank=2: pass a rank from 0 to 1"):
        rehearse(grouped, ranks=2, rank=2)
    with pytest.raises(ValueError, match=r"steps=0: pass 1 or more"):
        rehearse(grouped, steps=0)


@pytest.fixture(scope="module")
def small() -> Rehearsal:
    return rehearse(partial(two_layers, lr=0.1), device_memory=24 * 2**20)


def test_the_text_says_what_fits_and_by_how_much(small: Rehearsal) -> None:
    text = str(small)
    assert text.startswith("rank 0 of 1, 2nd step (rehearsed here in ")
    assert "fits in 24.0 MiB, 7.9 MiB (33.1%) are left" in text
    assert small.margin_bytes == 24 * 2**20 - small.peak_bytes
    assert small.flops == 83_886_080
    assert "83.9 MFLOP" in text
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 21)] == [
        "1st",
        "2nd",
        "3rd",
        "4th",
        "11th",
        "12th",
        "21st",
    ]


def test_a_bound_is_the_longer_of_computing_and_sending(small: Rehearsal) -> None:
    assert small.seconds_at_least(tflops=1) == pytest.approx(small.flops / 1e12)
    assert small.seconds_at_least(tflops=1, gbytes=1) == small.seconds_at_least(tflops=1)
    assert small.seconds_at_least() == 0


@pytest.mark.parametrize("figures", [{}, {"tflops": 1.0}, {"gbytes": 2.0, "tflops": 0.5}])
def test_the_values_are_those_of_the_schema_in_the_documentation(
    small: Rehearsal, figures: dict[str, float]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "rehearsal.md").read_text("utf-8")
    [schema] = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    validator = jsonschema.Draft202012Validator(json.loads(schema))
    rows = small.to_dict(**figures)
    validator.validate(json.loads(json.dumps(rows)))
    assert ("bound" in rows) == bool(figures)
    if figures:
        assert rows["bound"]["bandwidth"] == figures.get("gbytes")
        assert rows["bound"]["seconds_at_least"] == small.flops / figures["tflops"] / 1e12
        rows["bound"]["estimate"] = 1.0
        assert not validator.is_valid(rows)


def test_the_picture_names_who_stands_at_the_peak_and_loads_nothing(small: Rehearsal) -> None:
    svg = draw_memory(small).source
    assert "parameters 8.0 MiB" in svg
    assert "gradients 8.0 MiB" in svg
    assert "Peak 16.1 MiB in backward, 0, test_rehearse.py:" in svg
    assert "href" not in svg


def four_layers(device: str) -> None:
    dist.init_process_group("nccl")
    mesh = init_device_mesh(device, (8,))
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)]).to(device)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    rows = torch.ones(1000, WIDTH)  # on the host, but for those that are copied
    for _ in range(9):
        model(rows[:4].to(device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_what_fully_shard_gathers_and_reduces_is_on_the_device() -> None:
    found = rehearse(partial(four_layers, "cuda"), ranks=8)
    # Whole at least: a layer, its gradient, and the copy of it that is scattered.
    assert found.peak_bytes >= 4 * 4 * MATRIX // 8 + 3 * MATRIX
    assert dict(found.at_peak)["gathered"] == MATRIX
    cpu = rehearse(partial(four_layers, "cpu"), ranks=8)
    assert dict(cpu.at_peak)["gathered"] == MATRIX
    rows = 4 * 1000 * WIDTH
    # Of a step's rows, a copy is on the device, and none on the CPU.
    assert 0 <= found.peak_bytes - (cpu.peak_bytes - rows) <= 4 * 4 * WIDTH


def offloaded() -> None:
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (8,))
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)])
    for layer in model:
        fully_shard(layer, mesh=mesh, offload_policy=CPUOffloadPolicy())
    fully_shard(model, mesh=mesh, offload_policy=CPUOffloadPolicy())
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(9):
        rows = torch.ones(4, WIDTH, device="cuda")
        assert (rows * 2).device == torch.ones(1, device=rows.device).device
        model(rows).sum().backward()
        assert all(p.device.type == p.grad.device.type == "cpu" for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()


def test_what_is_offloaded_is_on_the_device_only_while_it_is_used() -> None:
    found = rehearse(offloaded, ranks=8)
    shards = 4 * MATRIX // 8
    assert found.parameters_bytes == found.gradients_bytes == shards
    assert found.optimizer_bytes == 2 * shards + 4 * 4
    at_peak = dict(found.at_peak)
    assert not at_peak.keys() & {"parameter", "optimizer"}
    kept = rehearse(partial(four_layers, "cuda"), ranks=8)
    # Neither shards nor their state; while a layer's are copied, one of them more.
    gone = dict(kept.at_peak)
    less = gone["parameter"] + gone["optimizer"] + gone["gradient"] - MATRIX  # one is whole
    assert abs(kept.peak_bytes - less - found.peak_bytes) <= 2 * MATRIX // 8


def deep() -> None:
    dist.init_process_group("nccl")
    layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(30)])
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 8 * WIDTH, bias=False)).to("cuda")
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        model(torch.ones(8, WIDTH, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_what_is_alike_is_one_row_and_the_largest_stands_first() -> None:
    found = rehearse(deep, ranks=8)
    rows = [line.strip() for line in str(found).splitlines() if " sent · " in line]
    assert len(rows) == 6  # of the thirty, and of the one that is larger: two gathers, a reduction
    each = "4.0 MiB float32 each, 105 MiB sent"  # a ring of 8 sends 7 of 8 parts
    phases = [("all_gather", "forward"), ("all_gather", "backward"), ("reduce_scatter", "backward")]
    for row, (kind, phase) in zip(rows, phases, strict=False):
        assert row.startswith(f"30 {TIMES} {kind} of {each} · {phase} · 8 ranks · ")
    assert f"1 {TIMES} all_gather of 32.0 MiB float32, 28.0 MiB sent · forward" in str(found)
    picture = draw_memory(found).source
    assert all(f">{phase}</text>" in picture for phase in ("forward", "backward", "optimizer"))
    assert all(f">{role} " in picture for role in ("gradients", "gathered parameters"))


def test_the_program_is_told_of_the_memory_that_the_rehearsal_knows() -> None:
    said: list[int] = []

    def asking() -> None:
        held = torch.ones(WIDTH, WIDTH, device="cuda")
        here = torch.ones(WIDTH, WIDTH)
        said.extend((torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]))
        said.append(torch.cuda.memory_stats()["allocated_bytes.all.current"])
        (held * 2).sum()
        said.extend((torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()))
        assert here.device.type == "cpu"
        assert torch.cuda.memory_stats()["num_ooms"] == 0

    rehearse(asking, device_memory=10 * MATRIX)
    assert said[:3] == [MATRIX, 9 * MATRIX, MATRIX]
    assert MATRIX <= said[3] <= MATRIX + 16  # the sum is gone, or is not yet
    assert 2 * MATRIX <= said[4] <= 2 * MATRIX + 16


def test_a_checkpoint_that_the_script_saves_keeps_its_bytes(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(3)}, tmp_path / "best.pt")
    safetensors.torch.save_file({"a": torch.ones(2)}, str(tmp_path / "best.safetensors"))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def training() -> None:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            torch.save(optimizer.state_dict(), tmp_path / "best.pt")
            save_alias(model.state_dict(), str(tmp_path / "best.safetensors"))
            memory = io.BytesIO()
            torch.save({"epoch": 1}, memory)
            memory.seek(0)
            assert torch.load(memory) == {"epoch": 1}

    found = rehearse(training)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    line = training.__code__.co_firstlineno + 6
    assert found.unsaved == (f"test_rehearse.py:{line}", f"test_rehearse.py:{line + 1}")
    assert f"nothing was saved at test_rehearse.py:{line}" in str(found)
    torch.save({"weight": torch.zeros(3)}, tmp_path / "best.pt")
    assert torch.load(tmp_path / "best.pt")["weight"].tolist() == [0, 0, 0]
