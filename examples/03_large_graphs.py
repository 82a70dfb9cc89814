"""Large graphs: a model of 4,000 nodes on one page, and the ways to see more of it.

Writes `large_*.svg` into the folder it is started in.
"""

import torch
from torch import Tensor, nn

from graphviz_torch import draw_graph, record


class Block(nn.Module):
    """Pre-norm MLP with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    """300 blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList(Block(8) for _ in range(300))
        self.head = nn.Linear(8, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


model = Model()
with record(model) as recording:
    model(torch.arange(4)[None]).sum().backward()
graph = recording.graph
assert len(graph.nodes) > 4000

# With more than 100 nodes to draw, blocks of the same structure are drawn as one.
whole = draw_graph(graph)
whole.render(outfile="large_folded.svg")
assert "blocks.0 … 299  \N{MULTIPLICATION SIGN}300 · Block" in whole.source

# One level of modules, everything deeper closed.
draw_graph(graph, depth=1).render(outfile="large_depth_1.svg")

# One module, with what comes before and after it by name.
one = draw_graph(graph, module="blocks.7", color_by="time")
one.render(outfile="large_one_block.svg")
assert "time in backward" in one.source

print(f"{len(graph.nodes):,} nodes, drawn in {whole.pipe('svg').count(b'<g ')} elements")
