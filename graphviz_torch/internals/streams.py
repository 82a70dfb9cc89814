"""Get and synchronize CUDA streams by handle, fast enough for every gradient."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from .functions import TensorBase


def current_stream(device: int) -> int:
    """Return the handle of this thread's current stream on a device."""
    return int(torch._C._cuda_getCurrentRawStream(device))  # private (2.13)


def current_device() -> int:
    """Return the index of this thread's current CUDA device."""
    return int(torch._C._cuda_getDevice())  # private (2.13)


def is_set_up(device: int) -> bool:
    """Return True if this process has a CUDA context on the device."""
    cuda: Any = torch._C  # private (2.13); a build without CUDA does not have it
    return bool(cuda._cuda_hasPrimaryContext(device))


def wait_for_tensor(tensor: Tensor, device: int) -> None:
    """Make the current stream of `device` wait for a tensor that the current device computes.

    For each node, the engine sets the current device to that of the node's first output. The node's
    other gradients may be on other devices.
    """
    stream = torch.cuda.current_stream(device)
    stream.wait_stream(torch.cuda.current_stream())
    TensorBase.record_stream(tensor, stream)


def on_stream(device: int, stream: int) -> AbstractContextManager[Any]:
    """Return a context manager that makes a stream current."""
    return torch.cuda.stream(_stream(device, stream))


def wait_for(device: int, stream: int) -> None:
    """Make the current stream of a device wait for the work submitted to `stream` so far."""
    if stream != current_stream(device):
        torch.cuda.current_stream(device).wait_stream(_stream(device, stream))


def _stream(device: int, stream: int) -> Any:
    # ExternalStream is not used, because ExternalStream(0) is not the default stream (2.11).
    return torch.cuda.get_stream_from_external(stream, device)
