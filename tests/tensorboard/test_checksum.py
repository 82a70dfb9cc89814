"""Compare the checksum of a record with TensorBoard's own and with published values."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("tensorboard")
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from graphviz_torch.tensorboard import events
from graphviz_torch.tensorboard.events import checksum


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@pytest.mark.parametrize("library", [True, False], ids=["library", "TensorBoard alone"])
@pytest.mark.parametrize(
    ("data", "crc"),
    [  # RFC 3720, appendix B.4, and the check value of the catalogue of CRCs
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"123456789", 0xE3069283),
    ],
)
def test_published_checksums_are_met(
    data: bytes, crc: int, library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert events.crc32c is not None
    if not library:
        monkeypatch.setattr(events, "crc32c", None)
    assert checksum(data) == masked(crc)


@pytest.mark.parametrize("size", [0, 1, 4, 8191, 8192, 99_999])
def test_it_is_tensorboards_own_at_every_length(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert checksum(data) == masked_crc32c(data)
