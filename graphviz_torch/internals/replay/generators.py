"""Save and restore the random generators that an operator draws from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class GeneratorStates:
    """The saved states of some random generators.

    Args:
        seed: if given, the states are those of new generators with this seed.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._states: list[tuple[torch.Generator, Tensor]] = []
        if seed is not None:
            for generator in _generators():
                other = torch.Generator(generator.device)
                other.manual_seed(seed)
                self._states.append((generator, other.get_state()))

    @classmethod
    def save(cls, args: Any, kwargs: Any, operands: list[Tensor]) -> GeneratorStates:
        """Save the states of the default generators, and of generators among the arguments.

        Args:
            args: arguments of an operator, which may contain generators.
            kwargs: its keyword arguments.
            operands: tensors among the arguments; they are not used.
        """
        found = cls()
        given = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Generator)]
        for generator in [*given, *_generators()]:
            found._states.append((generator, generator.get_state()))
        return found

    def current(self) -> GeneratorStates:
        """Return the states that the same generators have now."""
        found = GeneratorStates()
        found._states = [(g, g.get_state()) for g, _ in self._states]
        return found

    def have_changed(self) -> bool:
        """Return True if any of the generators has drawn numbers since its state was saved."""
        return any(not torch.equal(state, g.get_state()) for g, state in self._states)

    def restore(self) -> None:
        """Set each generator back to its saved state."""
        for generator, state in self._states:
            generator.set_state(state)


def _generators() -> list[torch.Generator]:
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return [torch.default_generator, *(torch.cuda.default_generators if started else ())]
