"""Print a hash at the end of a training, so that runs can be compared bit by bit."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

random.seed(0)
np.random.seed(0)  # for timm's mixup
torch.manual_seed(0)
torch.backends.cudnn.deterministic = True

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def done(losses: Iterable[Tensor | float], model: torch.nn.Module) -> None:
    """Print a hash of the losses and of the model's state."""
    digest = hashlib.sha256()
    for value in (*losses, *model.state_dict().values()):
        cpu = torch.as_tensor(value).detach().cpu().contiguous()
        digest.update(cpu.reshape(-1).view(torch.uint8).numpy().tobytes())
    print("BITS", digest.hexdigest()[:16])
