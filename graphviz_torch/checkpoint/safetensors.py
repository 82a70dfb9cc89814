"""Write ".safetensors" files, and read them with the package safetensors.

In this format, tensors cannot share memory. Only one of several tensors with the same memory, such
as tied weights, is written, and the file's metadata lists the names of the others. Other views are
written as copies.

A file consists of the length of the header, the header as JSON, and the bytes of the tensors, those
with the widest dtype first.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ..graph.text import printable, type_text
from ..internals.tensors.memory import has_memory

# Key in the metadata. Its value is JSON: {name: name of the written tensor with the same memory}.
_SAME_TENSORS_KEY = "same_tensors"
# Name of a dtype in the format -> its name in PyTorch.
_DTYPES = {"C64": "complex64", "BF16": "bfloat16", "BOOL": "bool"}
_DTYPES |= {f"F{bits}": f"float{bits}" for bits in (16, 32, 64)}
_DTYPES |= {f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)}
_DTYPES |= {f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)}
_DTYPES |= {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
_DTYPES |= {"F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"}
_NAMES = {f"torch.{dtype}": name for name, dtype in _DTYPES.items()}


def save_safetensors(state: Any, file: BinaryIO) -> None:
    """Write a dict from names to tensors.

    Raises:
        TypeError: if `state` is not such a dict, or if the format does not support a tensor.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"A .safetensors file contains a dict of tensors, not {type_text(state)}.")
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"A .safetensors file can only contain tensors, and {name!r} is "
                f"{type_text(tensor)}. Save as .pt, or save the tensors alone."
            )
        if tensor.layout != torch.strided or str(tensor.dtype) not in _NAMES or tensor.is_meta:
            raise TypeError(
                f"{name!r} is {tensor.dtype}, {tensor.layout}, on {tensor.device}, which a "
                ".safetensors file cannot contain. Save as .pt, or convert the tensor."
            )
    first: dict[Any, str] = {}
    same: dict[str, str] = {}
    for name, tensor in state.items():
        address = tensor.data_ptr() if has_memory(tensor) else id(tensor)
        key = (address, tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and key in first:
            same[name] = first[key]
        else:
            first[key] = name
    written = {name: tensor for name, tensor in state.items() if name not in same}
    written = dict(sorted(written.items(), key=lambda item: -item[1].itemsize))
    header: dict[str, Any] = {"__metadata__": {_SAME_TENSORS_KEY: json.dumps(same)}}
    end = 0
    for name, tensor in written.items():
        begin, end = end, end + tensor.numel() * tensor.itemsize
        dtype = _NAMES[str(tensor.dtype)]
        header[name] = {"dtype": dtype, "shape": [*tensor.shape], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for tensor in written.values():
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        file.write(plain.reshape(-1).view(torch.uint8).numpy())


def load_safetensors(path: Path, device: Any) -> dict[str, torch.Tensor]:
    """Read a dict from names to tensors, which are placed on a device.

    Raises:
        ValueError: if the file is not in this format.
        ImportError: if the package safetensors is not installed.
    """
    package = _package()
    try:
        with package.safe_open(path, framework="pt", device=str(device or "cpu")) as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            same = json.loads((file.metadata() or {}).get(_SAME_TENSORS_KEY, "{}"))
    except package.SafetensorError as error:
        raise ValueError(
            f"{path} is not a .safetensors file: {printable(str(error), lines=True)}"
        ) from error
    except (RecursionError, ValueError) as error:
        raise ValueError(
            f"{path}: {_SAME_TENSORS_KEY!r} in its metadata is not JSON: {error}"
        ) from None
    if not isinstance(same, dict) or not all(isinstance(kept, str) for kept in same.values()):
        raise ValueError(f"{path}: {_SAME_TENSORS_KEY!r} in its metadata is not a dict of names.")
    return {**found, **{name: found[kept] for name, kept in same.items() if kept in found}}


def _package() -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            "Reading a .safetensors file needs the package safetensors: pip install safetensors"
        ) from error
    return safetensors
