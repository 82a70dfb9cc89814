"""Test that a broken checkpoint raises a ValueError that says what is wrong."""

from __future__ import annotations

import copy
import random
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from graphviz_torch.checkpoint import load_checkpoint

safetensors_torch = pytest.importorskip("safetensors.torch")


@pytest.mark.parametrize("same", ["3", '"a"', "[1]", '{"b": 1}', "[" * 100_000, "{"], ids=range(6))
def test_metadata_that_names_no_tensors_is_refused(same: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    safetensors_torch.save_file({"a": torch.ones(2)}, path, {"same_tensors": same})
    with pytest.raises(ValueError, match="'same_tensors' in its metadata is not"):
        load_checkpoint(path)


@pytest.mark.parametrize("value", [3, None, "x", [1.0], torch.ones(2, 2, device="meta")])
def test_a_state_whose_value_is_no_tensor_is_refused(value: Any, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    torch.save({"weight": value, "bias": torch.ones(2)}, tmp_path / "a.pt")
    before = model.bias.detach().clone()
    with pytest.raises(ValueError, match=r"not a tensor|is a meta tensor"):
        load_checkpoint(tmp_path / "a.pt", model)
    assert torch.equal(model.bias, before)


@pytest.mark.parametrize("groups", [3, [3], [{}], [{"params": 4}]])
def test_an_optimizers_state_of_another_form_does_not_fit(groups: Any, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    torch.save({"o": {"state": {}, "param_groups": groups}}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match="does not fit"):
        load_checkpoint(tmp_path / "a.pt", {"o": optimizer})


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(9.0), "b": [1, {"c": 2}]}, tmp_path / "whole.pt")
    whole = (tmp_path / "whole.pt").read_bytes()
    for end in range(0, len(whole) - 1, 23):
        (tmp_path / "cut.pt").write_bytes(whole[:end])
        with pytest.raises(ValueError, match=r"cut\.pt"):
            load_checkpoint(tmp_path / "cut.pt")


def packed(parts: dict[str, bytes], path: Path) -> Path:
    """Return a compressed checkpoint of one tensor, with other bytes in these parts."""
    torch.save({"w": torch.zeros(1 << 18)}, path)
    with zipfile.ZipFile(path) as archive:
        found = {part: archive.read(part) for part in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in found.items():
            archive.writestr(name, parts.get(name.partition("/")[2], data))
    return path


@pytest.mark.parametrize(("part", "size"), [("data/0", 300 << 20), ("data.pkl", 2 << 20)])
def test_an_archive_whose_parts_are_many_times_its_size_is_refused_unread(
    part: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packed({part: b"\0" * size}, tmp_path / "bomb.pt")
    assert path.stat().st_size < 400_000
    monkeypatch.setattr(torch, "load", pytest.fail)
    with pytest.raises(
        ValueError, match=r"bomb\.pt is not .*: its [\d,]+ bytes unpack to [\d,]+ bytes\.$"
    ):
        load_checkpoint(path)


def test_an_archive_that_is_compressed_is_read(tmp_path: Path) -> None:
    value = load_checkpoint(packed({}, tmp_path / "small.pt"))
    assert torch.equal(value["w"], torch.zeros(1 << 18))


VALUES: list[Any] = [
    None,
    3,
    -1,
    2**70,
    float("nan"),
    True,
    "",
    "x",
    b"a",
    [],
    [1],
    (1,),
    {},
    {1: 2},
]
VALUES += [{"a": 1}, torch.float32, torch.ones(2, 2), torch.ones(2, device="meta")]
VALUES += [torch.zeros(2, 2).to_sparse()]
KEYS = [3, None, (1, 2), "k", b"x", 2.5]


def changes(state: dict[str, Any], count: int) -> Iterator[dict[str, Any]]:
    """Yield copies with one or two of their values or names replaced."""
    chance = random.Random(49)
    for _ in range(count):
        changed = copy.deepcopy(state)
        for _ in range(chance.randint(1, 2)):
            stack, places = [changed], []
            while stack:
                container: Any = stack.pop()
                pairs = container.items() if isinstance(container, dict) else enumerate(container)
                for key, part in pairs:
                    places.append((container, key))
                    stack += [part] if isinstance(part, (dict, list)) else []
            container, key = chance.choice(places)
            if chance.random() < 0.2 and isinstance(container, dict):
                container[chance.choice(KEYS)] = container.pop(key)
            else:
                container[key] = copy.deepcopy(chance.choice(VALUES))
        yield changed


def built() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_checkpoint_with_any_value_or_name_replaced_is_read_or_refused(tmp_path: Path) -> None:
    parts = built()
    state = {name: dict(part.state_dict()) for name, part in parts.items()}
    path, refused = tmp_path / "changed.pt", 0
    for changed in changes(state, 400):
        torch.save(changed, path)
        for strict in (True, False):
            into = copy.deepcopy(parts)
            before = copy.deepcopy(into["model"].state_dict())
            with suppress(ValueError):
                load_checkpoint(path, into, strict=strict)
                continue
            refused += 1
            after = into["model"].state_dict()
            assert all(torch.equal(after[name], before[name]) for name in before)
    assert 200 < refused < 700


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("archive", [True, False])
def test_a_checkpoint_with_any_byte_replaced_is_read_or_refused(
    archive: bool, tmp_path: Path
) -> None:
    path, chance = tmp_path / "changed.pt", random.Random(49)
    value = {"a": torch.ones(3), "b": [1, {"c": "x"}]}
    torch.save(value, path, _use_new_zipfile_serialization=archive)
    whole = path.read_bytes()
    for _ in range(700):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(min(len(data), 700))] = chance.randrange(256)
        path.write_bytes(data)
        with suppress(ValueError):
            load_checkpoint(path)
