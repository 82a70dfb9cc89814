"""A broken checkpoint ends in a ValueError or TypeError that says what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graphviz_torch import load_checkpoint

safetensors_torch = pytest.importorskip("safetensors.torch")


@pytest.mark.parametrize("same", ["3", '"a"', "[1]", '{"b": 1}', "[" * 100_000, "{"], ids=range(6))
def test_metadata_that_names_no_tensors_is_refused(same: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    safetensors_torch.save_file({"a": torch.ones(2)}, path, {"same_tensors": same})
    with pytest.raises(ValueError, match="its metadata 'same_tensors' is not"):
        load_checkpoint(path)


@pytest.mark.parametrize("value", [3, None, "x", [1.0], torch.ones(2, 2, device="meta")])
def test_a_state_whose_value_is_no_tensor_is_refused(value: Any, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    torch.save({"weight": value, "bias": torch.ones(2)}, tmp_path / "a.pt")
    before = model.bias.detach().clone()
    with pytest.raises((ValueError, TypeError)):
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
