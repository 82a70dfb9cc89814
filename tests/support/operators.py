"""PyTorch's own list of operators, with sample inputs that are quick to make."""

from __future__ import annotations

from typing import Any

import pytest
import torch


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """PyTorch's list, without its search for the test that asks for each sample.

    The search reads the stack's sources, which costs more than all samples; and each absent device
    that is seeded costs a traceback. The list is read here: only who uses it waits for it.
    """
    pytest.importorskip("expecttest", reason="PyTorch's own list of operators needs it")
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo import core

    for device in (torch.cuda, torch.mtia, torch.xpu):
        monkeypatch.setattr(device, "manual_seed_all", lambda seed: None, raising=False)
    for module in (common_utils, core):
        monkeypatch.setattr(module, "extract_test_fn", lambda: None)
    return list(op_db)
