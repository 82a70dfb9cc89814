"""Draw a graph of 4,000 nodes on one page, then parts of it in more detail.

The script writes `large_*.svg` to the current folder.
"""

import torch
from torch import Tensor, nn

from graphviz_torch import draw_graph, record


class Block(nn.Module):
    """An MLP with a norm before it, and a residual connection around both."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    """An embedding, 300 blocks and a linear layer."""

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

# In a graph of more than 100 nodes, blocks of the same structure are drawn as one.
whole = draw_graph(graph)
whole.render(outfile="large_folded.svg")
assert "blocks.0 … 299  \N{MULTIPLICATION SIGN}300 · Block" in whole.source

# This picture opens one level of modules. Modules inside of these stay closed.
draw_graph(graph, depth=1).render(outfile="large_depth_1.svg")

# This picture shows one module, and the names of the modules before and after it.
one = draw_graph(graph, module="blocks.7", color_by="time")
one.render(outfile="large_one_block.svg")
assert "time in backward" in one.source

print(f"{len(graph.nodes):,} nodes, drawn in {whole.pipe('svg').count(b'<g ')} elements")
