"""Create the chunks of a parameter given to fully_shard only when they are used.

PyTorch splits a parameter into one chunk per rank and keeps one of them. With a thousand ranks,
this takes longer than the training step. A `LazyChunks` takes the place of the list of chunks, and
creates a chunk when it is indexed.

It replaces the private function `_chunk_with_empty`, which pads with empty chunks (2.13).
"""

from __future__ import annotations

from torch import Tensor


class LazyChunks:
    """Lazy sequence of the chunks that `_chunk_with_empty` returns.

    Args:
        tensor: tensor to split.
        num_chunks: number of chunks; the last ones may be shorter or empty.
        dim: dimension along which to split.
    """

    def __init__(self, tensor: Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._count, self._dim = tensor, num_chunks, dim

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: int) -> Tensor:
        if not 0 <= i < self._count:
            raise IndexError(i)
        size = self._tensor.size(self._dim)
        length = -(-size // self._count)
        start = i * length
        if start < size or not size:
            return self._tensor.narrow(self._dim, start, min(length, size - start))
        return self._tensor.new_empty(0)
