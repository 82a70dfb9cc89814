"""PyTorch's own list of operators, with sample inputs that are created fast."""

from __future__ import annotations

from typing import Any

import pytest
import torch


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return PyTorch's list of operators, without slow parts of creating samples.

    For each sample, PyTorch searches the stack for the calling test, which takes longer than all
    samples together, and seeds absent devices, each of which raises an exception. The list is
    imported in this function, so that other tests do not wait for it.
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
