"""The pieces of a parameter that fully_shard cuts for all ranks, each made when it is asked for.

PyTorch cuts a parameter into as many pieces as there are ranks, and keeps one. On a thousand ranks
that takes longer than the step. `Pieces` stands in the place of the list, and has the same pieces.

Private: `_chunk_with_empty`, which fully_shard cuts with, and pads with empty pieces (2.13).
"""

from __future__ import annotations

from torch import Tensor


class Pieces:
    """What `_chunk_with_empty` lists.

    Args:
        tensor: is cut.
        num_chunks: into so many pieces, the last of which may be shorter or empty.
        dim: along this dimension.
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
