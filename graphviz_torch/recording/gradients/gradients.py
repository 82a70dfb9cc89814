"""The columns of what every gradient looked like, when its node ran, and how long it took."""

from __future__ import annotations

from ...graph.gc import uncollected
from ...tracing.nodes import End
from ..backward import Backward
from ..listener import Columns, Listener, RunBegan, RunEnded
from ..program import Program
from .recorder import GradientHooks


class Gradients(Listener):
    """The gradient at every node; of a light recording only which are not finite."""

    needs = ("with_gradients",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._finite = program.options.light
        self._running: GradientHooks | None = None
        self._asked: list[End] = []  # the inputs of `autograd.grad`
        self._runs: dict[int, GradientHooks] = {}  # by graph

    @uncollected
    def backward_began(self, event: RunBegan) -> None:
        """Hook every node, if that may be."""
        live, ran = event.live, event.live.ran.rows
        if ran is None:
            return
        self._asked = event.asked
        nodes = zip(live.ids, live.reading.columns["outputs"], strict=True)
        hooks = GradientHooks(nodes, ran, live.devices, finite=self._finite)
        self._running = hooks
        self._runs[live.position] = hooks
        hooks.__enter__()

    def backward_ended(self, event: RunEnded) -> None:
        """Take the hooks off."""
        hooks, self._running = self._running, None
        if hooks is None:
            return
        try:
            if event.error is not None:
                hooks.fail()
            # The engine hands these out without running their nodes.
            ids = event.live.ids
            pairs = zip(self._asked, event.gradients, strict=False)
            hooks.add([(ids[fn], nr, gradient) for (fn, nr), gradient in pairs if fn in ids])
        finally:
            self._asked = []
            hooks.__exit__()

    def step_ended(self, event: None) -> None:
        self._runs = {}

    def columns(self, backward: Backward) -> Columns:
        hooks = self._runs.get(backward.position)
        if hooks is None:
            return {}
        return {
            "grad_outputs": hooks.statistics(backward.reading.columns["outputs"]),
            "order": {node: k for k, node in enumerate(backward.ran or ())},
            "seconds": hooks.seconds(),
        }

    def close(self) -> None:
        if self._running is not None:
            self._running.unhook()
