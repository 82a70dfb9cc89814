"""PyTorch's own list of operators, with sample inputs that are quick to make."""

from __future__ import annotations

import pytest
import torch
from torch.testing._internal import common_utils


@pytest.fixture
def quick_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """No search for the test that asks for samples, nor a traceback for each absent device."""
    for device in (torch.cuda, torch.mtia, torch.xpu):
        monkeypatch.setattr(device, "manual_seed_all", lambda seed: None)
    monkeypatch.setattr(common_utils, "extract_test_fn", lambda: None)
