"""Draw a gallery of forty models of other projects, chosen because each computes something else.

`docs/architectures.md` and the pictures in `docs/architectures/` are overwritten.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from docs.sixteen import SMALLEST, size_and_text
from graphviz_torch import draw_graph, record
from graphviz_torch.render.dot.layout import layout

from .sources import Entry

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "architectures.md"
_COLUMNS = 2
_HEAD = """\
# Forty architectures

Each picture shows one training step of a model that another project wrote, drawn by
`draw_graph(recording)` without any option. The sizes are small and the weights random. A click
opens a picture in full size.

If a model computes no loss itself, the loss is the mean square of its results, in the frame
`loss_of`. The [gallery](gallery.md) has well-known models, and
[Models that were recorded](models.md) lists all that were tried.

`python -m tests.bench.foreign gallery docs/architectures SOURCE ...` draws the pictures.
"""


class Chosen(NamedTuple):
    """A model of the gallery, its title, and a line about the computation."""

    library: str
    name: str
    title: str
    line: str


_TABLE = """
torch-geometric / GATv2Conv / Graph attention
    Each edge gets a weight from both of its nodes, and a node sums the messages of its
    neighbors.
torchdiffeq / direct_euler / Neural differential equation
    A network is the derivative of the state; Euler's method integrates it over three steps.
nflows / real_nvp / Normalizing flow
    Coupling layers map data to a normal distribution; the loss is the negative
    log-likelihood.
egnn-pytorch / egnn / Equivariant network
    Messages depend on distances alone, so the positions that they move rotate with the input.
neuralop / FNO / Fourier neural operator
    Each layer multiplies low frequencies of a field with weights, next to a pointwise
    convolution.
peft / Llama.Lora / Low-rank adaptation
    The language model is frozen; only small matrices that are added to the attention learn.
vector-quantize-pytorch / VectorQuantize / Vector quantization
    The nearest entry of a codebook replaces each code; a rotation of the code carries the
    gradient.
diffusers / UNet2DModel / Diffusion U-Net
    A U-Net predicts the noise in an image; each level also reads the time step.
transformers / gpt_oss / Mixture of experts
    A router sends each token to a few of the experts of a transformer's block.
transformers / moonshine / Speech recognition
    Convolutions turn the waveform into frames, which an encoder and a decoder turn into
    text.
classics / ssm_s4 / State space model
    A linear recurrence over time is computed as one long convolution.
classics / mamba_block / Selective state space
    The recurrence depends on the input, so it is computed step by step.
classics / matrix_capsules_em / Capsules
    Poses of parts vote for poses of wholes, and EM decides which votes agree.
classics / memn2n_match_lstm / Memory network
    A question attends to stored sentences three times, each time with the answer so far.
classics / hyperneat / Hypernetwork
    A small network computes the weights of another one from the positions of its units.
classics / spyx_lif_snn / Spiking network
    A neuron adds up its inputs and spikes above a threshold; a sigmoid replaces the
    gradient of the spike.
classics / siamese_trackers / Siamese tracker
    The features of a template are the kernel that searches the features of an image.
classics / beta_vae / Variational autoencoder
    The code is sampled from a normal distribution, whose divergence is a result as well.
classics / dcgan_progan / Generator of a GAN
    Transposed convolutions turn noise into an image.
classics / paddleseg_u2net / Segmentation
    Two levels each predict a mask, and a convolution fuses both.
classics / paddledet_fcos / Detection head
    Three heads predict the class at each position, the distances to the sides of a box, and
    how near the center of the box is.
classics / pytorch_tabular_tabnet / Tabular data
    Each step chooses features by a mask that depends on the masks before it.
classics / qmix_marl / Multi-agent reinforcement learning
    The values of the agents are mixed with weights that depend on the state.
classics / rs_L1574_popart_impala / Actor-critic
    Two heads read an image, the last reward and the last action: a policy, and values that are
    scaled by the statistics of each task.
classics / gaussian_splatting / Gaussian splatting
    The scene is its parameters: scale, rotation, opacity and color of 256 Gaussians.
classics / multinerf_mipnerf360 / Radiance field
    One network weights samples along a ray; the other gives their color and density.
classics / satnet / Differentiable logic
    Five steps move relaxed variables towards the satisfaction of all clauses.
classics / deephit / Survival analysis
    Three competing risks share one probability distribution over time.
classics / reimpl2_kan / Kolmogorov-Arnold network
    A sum of learned functions of single inputs replaces each linear layer.
classics / theano_dynet_landmarks / Spatial transformer
    One network predicts an affine map, which samples the image for another.
classics / pointnet_compact / Point cloud
    Points are rotated by a predicted matrix, and the maximum over all points is classified.
classics / pondernet / Adaptive computation
    After each step, a recurrent cell makes a prediction and the probability to stop there.
classics / growing_nca / Cellular automaton
    Each cell of an image is updated from its neighbors, four times with the same rule.
classics / deepxde_fnn_pinn / Physics-informed network
    One network at five points near each other: their differences are the residual of an
    equation.
classics / pointer_sentinel_lstm / Pointer network
    A softmax over words is mixed with a pointer into the text before.
classics / listen_attend_spell / Attention over speech
    A pyramid of LSTMs listens; a decoder attends to it for each of twelve characters.
classics / flow_matching / Flow matching
    A velocity network carries a sample through six steps from noise to data.
classics / relation_network_omniglot / Few-shot learning
    Each query is paired with each class, and a network scores how related they are.
classics / dlrm / Recommendation
    Embeddings of categories and a network of numbers meet in products of all pairs.
classics / rbm_bernoulli_bernoulli / Boltzmann machine
    The results are a reconstruction and the free energy of the visible units.
"""


def _chosen() -> list[Chosen]:
    blocks = re.split(r"\n(?=\S)", _TABLE.strip())
    parts = (block.partition("\n") for block in blocks)
    return [Chosen(*head.split(" / "), " ".join(line.split())) for head, _, line in parts]


CHOSEN = _chosen()


def write(folder: Path, entries: Iterable[Entry], forked: Callable[..., Any]) -> None:
    """Draw the chosen models, and write their page.

    Args:
        folder: the pictures are written into this folder.
        entries: models to choose from.
        forked: a function that runs another one in a fork and returns its facts.
    """
    folder.mkdir(exist_ok=True)
    known = {(entry.library, entry.name): entry for entry in entries}
    cells = []
    for chosen in CHOSEN:
        file = folder / f"{re.sub(r'[^a-z0-9]+', '-', chosen.title.lower())}.svg"
        entry = known.get((chosen.library, chosen.name))
        if entry is not None:
            facts = forked(lambda entry=entry, file=file: _draw(entry, file), 60)
            print(chosen.name, facts, flush=True)
        link = f"{folder.name}/{file.name}"
        cells.append(f"[![{chosen.title}]({link})]({link})<br>**{chosen.title}**: {chosen.line}")
    rows = ["| " * _COLUMNS + "|", "|---" * _COLUMNS + "|"]
    for first in range(0, len(cells), _COLUMNS):
        rows.append("| " + " | ".join(cells[first : first + _COLUMNS]) + " |")
    PAGE.write_text(_HEAD + "\n" + "\n".join(rows) + "\n")


def _draw(entry: Entry, file: Path) -> dict[str, Any]:
    from . import checks

    torch.manual_seed(0)
    training = checks.Training(*entry.build())
    with record(training.model) as recording:
        training.step()
    svg = layout(draw_graph(recording).source, "svg", timeout=60).decode()
    width, height, text = size_and_text(svg)
    file.write_text(svg)
    return {"width": width, "height": height, "text": text, "fits": text >= SMALLEST}
