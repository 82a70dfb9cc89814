"""The CUDA stream that work goes to: by its handle, for it is looked at for every gradient."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from .functions import TensorBase


def current_stream(device: int) -> int:
    """The handle of the stream that this thread's work on a device goes to."""
    return int(torch._C._cuda_getCurrentRawStream(device))  # private (2.13)


def current_device() -> int:
    """The CUDA device that is current in this thread."""
    return int(torch._C._cuda_getDevice())  # private (2.13)


def is_set_up(device: int) -> bool:
    """Has this process used a CUDA device."""
    cuda: Any = torch._C  # private (2.13); a build without CUDA does not have it
    return bool(cuda._cuda_hasPrimaryContext(device))


def fetch(tensor: Tensor, device: int) -> None:
    """Let its device's current stream read a tensor that is there for the current device's.

    The engine brings a gradient to the stream of the node, on the first device of its outputs.
    """
    stream = torch.cuda.current_stream(device)
    stream.wait_stream(torch.cuda.current_stream())
    TensorBase.record_stream(tensor, stream)


def on_stream(device: int, stream: int) -> AbstractContextManager[Any]:
    """A context in which work goes to this stream."""
    return torch.cuda.stream(_stream(device, stream))


def wait_for(device: int, stream: int) -> None:
    """Let the current stream wait for what was sent to this one so far."""
    if stream != current_stream(device):
        torch.cuda.current_stream(device).wait_stream(_stream(device, stream))


def _stream(device: int, stream: int) -> Any:
    # An ExternalStream(0) is not the default stream (2.11).
    return torch.cuda.get_stream_from_external(stream, device)
