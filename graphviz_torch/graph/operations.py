"""Operations whose result contains the elements of their input, by the names that nodes have."""

from __future__ import annotations

# The elements in the same order, with other sizes of the dimensions.
VIEWS = frozenset(("view", "unsafe_view", "reshape_alias"))
# The elements in the same order.
RESHAPES = VIEWS | {"alias", "squeeze", "unsqueeze"}
# Each element once, in any order, possibly copied or converted.
SAME_VALUES = RESHAPES | {"t", "transpose", "permute", "clone", "to_copy"}
