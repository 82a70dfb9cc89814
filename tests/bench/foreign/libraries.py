"""Build models of libraries, each with an example input.

A library that is not installed yields nothing. `peft` is applied to models of transformers.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from .sources import Entry, Forward

Built = tuple[nn.Module, Forward]
_ENTRIES: list[Entry] = []


def entries() -> Iterator[Entry]:
    """Yield the entries of the libraries that are installed."""
    for entry in _ENTRIES:
        if find_spec(entry.library.replace("-", "_")) is not None:
            yield entry
    if find_spec("timm") is not None:
        yield from _timm_entries()


def _model(library: str) -> Callable[[Callable[[], Built]], Callable[[], Built]]:
    def add(build: Callable[[], Built]) -> Callable[[], Built]:
        _ENTRIES.append(Entry(library, build.__name__, build))
        return build

    return add


def _each(library: str, names: str, build: Callable[[str], Built]) -> None:
    for name in names.split():
        _ENTRIES.append(Entry(library, name, lambda name=name: build(name)))


def _call(model: nn.Module, *inputs: Any, **named: Any) -> Built:
    return model, lambda: model(*inputs, **named)


def _ids(length: int = 16, batch: int = 2) -> Tensor:
    return torch.randint(1, 90, (batch, length))


# x-transformers: one architecture for each option of its attention layers


def _decoder(**options: Any) -> Built:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, **options)
    net = TransformerWrapper(num_tokens=99, max_seq_len=32, attn_layers=layers)
    return _call(AutoregressiveWrapper(net), _ids())


_OPTIONS = """use_scalenorm use_rmsnorm ff_glu rotary_pos_emb rel_pos_bias alibi_pos_bias
    sandwich_norm macaron shift_tokens attn_gate_values attn_qk_norm ff_swish
    residual_attn scale_residual attn_one_kv_head dynamic_pos_bias
    pre_norm_has_final_norm attn_add_zero_kv ff_relu_squared gate_residual use_dynamic_tanh
    attn_head_scale
    attn_softclamp_logits add_value_residual"""
for _option in _OPTIONS.split():
    _ENTRIES.append(
        Entry("x-transformers", _option, lambda option=_option: _decoder(**{option: True}))
    )


@_model("x-transformers")
def vision_transformer() -> Built:
    from x_transformers import Encoder, ViTransformerWrapper

    layers = Encoder(dim=32, depth=2, heads=4, attn_dim_head=8)
    model = ViTransformerWrapper(image_size=16, patch_size=8, num_classes=3, attn_layers=layers)
    return _call(model, torch.randn(2, 3, 16, 16))


@_model("x-transformers")
def encoder_decoder() -> Built:
    from x_transformers import XTransformer

    model = XTransformer(
        dim=32,
        **{
            f"enc_{k}": v
            for k, v in {"num_tokens": 99, "depth": 1, "heads": 4, "max_seq_len": 32}.items()
        },
        **{
            f"dec_{k}": v
            for k, v in {"num_tokens": 99, "depth": 1, "heads": 4, "max_seq_len": 32}.items()
        },
    )
    return _call(model, _ids(), _ids())


# torchvision and timm: one small architecture of each family


def _torchvision(name: str) -> Built:
    from torchvision import models

    create = models.get_model_builder(name)
    options = {"weights_backbone": None} if name in _SEGMENTATION else {}
    model = create(weights=None, num_classes=3, **options)
    size = (4, 32, 32) if name in _VIDEO else (_SIDES.get(name, 64),) * 2
    return _call(model, torch.randn(2, 3, *size))


_SEGMENTATION = ["fcn_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large"]
_VIDEO = ["r3d_18", "mc3_18", "r2plus1d_18"]
_SIDES = {"alexnet": 96, "inception_v3": 299, "maxvit_t": 224, "vit_b_32": 224}
_each(
    "torchvision",
    """alexnet vgg11 resnet18 densenet121 googlenet inception_v3 squeezenet1_1 mobilenet_v2
    mobilenet_v3_small mnasnet0_5 shufflenet_v2_x0_5 efficientnet_b0 regnet_y_400mf convnext_tiny
    vit_b_32 swin_t maxvit_t fcn_resnet50 deeplabv3_mobilenet_v3_large
    lraspp_mobilenet_v3_large r3d_18 mc3_18 r2plus1d_18""",
    _torchvision,
)
_SMALL = [
    "test_",
    "pico",
    "femto",
    "atto",
    "nano",
    "xxs",
    "tiny",
    "_s0",
    "b0",
    "050",
    "18",
    "small",
    "mini",
    "xs",
]


def _timm_entries() -> Iterator[Entry]:
    """Yield the architecture of each module of timm whose name says that it is the smallest."""
    import timm

    for module in timm.list_modules():
        if names := timm.list_models(module=module):
            name = min(names, key=lambda name: (_place_of_size(name), len(name)))
            yield Entry("timm", name, lambda name=name: _timm(name))


def _place_of_size(name: str) -> int:
    return next((i for i, size in enumerate(_SMALL) if size in name), len(_SMALL))


def _timm(name: str) -> Built:
    import timm

    model = timm.create_model(name, pretrained=False, num_classes=3)
    return _call(model, torch.randn(2, *model.default_cfg["input_size"]))


# vit-pytorch


def _vit(name: str) -> Built:
    for missing in ("torchvision", "torchvision.transforms"):  # imported, but not needed here
        sys.modules.setdefault(missing, ModuleType(missing))
    module, kind = name.split(".")
    options: dict[str, Any] = {"image_size": 32, "num_classes": 3, "dim": 32, "depth": 2}
    options |= {"patch_size": 8, "heads": 4, "mlp_dim": 64}
    options |= _VIT_OPTIONS.get(module, {})
    kind_of = getattr(import_module(f"vit_pytorch.{module}"), kind)
    known = inspect.signature(kind_of.__init__).parameters
    model = kind_of(**{key: each for key, each in options.items() if key in known})
    return _call(model, torch.randn(2, 3, 32, 32))


_VIT_OPTIONS: dict[str, dict[str, Any]] = {
    "cait": {"cls_depth": 1},
    "regionvit": {"dim": (8, 16, 32, 64), "depth": (1, 1, 1, 1), "window_size": 1},
    "crossformer": {
        "dim": (8, 16, 32, 64),
        "depth": (1, 1, 1, 1),
        "global_window_size": 1,
        "local_window_size": 1,
    },
    "nest": {"num_hierarchies": 2, "block_repeats": (1, 1)},
}
_each(
    "vit-pytorch",
    """vit.ViT simple_vit.SimpleViT cait.CaiT deepvit.DeepViT parallel_vit.ViT
    simple_vit_with_register_tokens.SimpleViT vit_for_small_dataset.ViT local_vit.LocalViT
    rvt.RvT nest.NesT simple_vit_with_patch_dropout.SimpleViT simple_vit_with_qk_norm.SimpleViT
    vit_with_patch_dropout.ViT simple_vit_with_fft.SimpleViT simple_flash_attn_vit.SimpleViT
    learnable_memory_vit.ViT xcit.XCiT vit_with_patch_merger.ViT
    simple_vit_with_value_residual.SimpleViT simple_vit_with_hyper_connections.SimpleViT
    vit_with_decorr.ViT normalized_vit.nViT look_vit.LookViT""",
    _vit,
)


# torch-geometric: each convolution in a network of two


def _graph_network(name: str) -> Built:
    import torch_geometric.nn as pyg

    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 0, 3, 5]])
    edges = torch.cat([edges, edges.flip(0)], 1)
    kind = getattr(pyg, name)
    given = _CONVOLUTIONS.get(name, (16, 16))
    first, second = kind(*given), kind(*given)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.first, self.second = nn.Linear(8, 16), first, second
            self.head = nn.Linear(16, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = self.embed(x)
            x = self.first(x, edge_index).relu()
            x = self.second(x, edge_index)
            return self.head(pyg.global_mean_pool(x, None))

    return _call(Network(), torch.randn(6, 8), edges)


_CONVOLUTIONS: dict[str, tuple[Any, ...]] = {
    "ChebConv": (16, 16, 3),
    "GatedGraphConv": (16, 2),
    "ResGatedGraphConv": (16, 16),
    "GINConv": (nn.Linear(16, 16),),
    "EdgeConv": (nn.Linear(32, 16),),
    "APPNP": (3, 0.1),
    "ARMAConv": (16, 16, 2),
    "AGNNConv": (),
    "LEConv": (16, 16),
    "FiLMConv": (16, 16),
    "GCN2Conv": (16, 0.1),
    "LGConv": (),
    "SGConv": (16, 16, 2),
    "SSGConv": (16, 16, 0.1),
    "SuperGATConv": (16, 16),
    "GENConv": (16, 16),
    "FeaStConv": (16, 16),
    "TAGConv": (16, 16),
    "DNAConv": (16,),
    "ClusterGCNConv": (16, 16),
}
_each(
    "torch-geometric",
    """GCNConv ChebConv SAGEConv GraphConv GatedGraphConv ResGatedGraphConv GATConv GATv2Conv
    TransformerConv AGNNConv TAGConv GINConv ARMAConv SGConv SSGConv APPNP MFConv FeaStConv
    EdgeConv LEConv ClusterGCNConv GENConv FiLMConv SuperGATConv EGConv GeneralConv LGConv""",
    _graph_network,
)


# diffusers


def _diffusers(name: str, inputs: Callable[[], dict[str, Any]], **options: Any) -> None:
    def build() -> Built:
        import diffusers

        return _call(getattr(diffusers, name)(**options), **inputs())

    _ENTRIES.append(Entry("diffusers", name, build))


def _image(channels: int = 3, **more: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"sample": torch.randn(2, channels, 16, 16), **{k: v() for k, v in more.items()}}


_TIME = {"timestep": lambda: torch.tensor([3, 7])}
_TEXT = {"encoder_hidden_states": lambda: torch.randn(2, 4, 8)}
_UNET = {
    "block_out_channels": (8, 16),
    "norm_num_groups": 4,
    "layers_per_block": 1,
    "sample_size": 16,
}
_diffusers(
    "UNet2DModel",
    _image(**_TIME),
    **_UNET,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    attention_head_dim=4,
)
_diffusers(
    "UNet2DConditionModel",
    _image(4, **_TIME, **_TEXT),
    **_UNET,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    cross_attention_dim=8,
    attention_head_dim=4,
)
_VAE = {
    "block_out_channels": [8, 16],
    "down_block_types": ["DownEncoderBlock2D"] * 2,
    "up_block_types": ["UpDecoderBlock2D"] * 2,
    "norm_num_groups": 4,
    "latent_channels": 4,
}
_diffusers("AutoencoderKL", _image(), **_VAE)
_diffusers("VQModel", _image(), **_VAE)
_diffusers(
    "AutoencoderTiny",
    _image(),
    encoder_block_out_channels=(8, 8),
    decoder_block_out_channels=(8, 8),
    num_encoder_blocks=(1, 2),
    num_decoder_blocks=(2, 1),
)
_diffusers(
    "DiTTransformer2DModel",
    _image(4, **_TIME, class_labels=lambda: torch.tensor([1, 2])),
    sample_size=16,
    num_layers=2,
    patch_size=2,
    attention_head_dim=8,
    num_attention_heads=2,
    in_channels=4,
    out_channels=8,
    num_embeds_ada_norm=8,
)
_diffusers(
    "SD3Transformer2DModel",
    lambda: {
        "hidden_states": torch.randn(2, 4, 16, 16),
        "encoder_hidden_states": torch.randn(2, 4, 32),
        "pooled_projections": torch.randn(2, 64),
        "timestep": torch.tensor([3, 7]),
    },
    sample_size=16,
    patch_size=2,
    in_channels=4,
    num_layers=2,
    attention_head_dim=8,
    num_attention_heads=4,
    caption_projection_dim=32,
    joint_attention_dim=32,
    pooled_projection_dim=64,
    out_channels=4,
)
_diffusers(
    "UNet1DModel",
    lambda: {"sample": torch.randn(2, 14, 16), "timestep": torch.tensor([3, 7])},
    block_out_channels=(8, 8, 16, 16),
    in_channels=14,
    out_channels=14,
    time_embedding_type="positional",
    use_timestep_embedding=True,
    out_block_type="OutConv1DBlock",
    flip_sin_to_cos=False,
    freq_shift=1.0,
    mid_block_type="MidResTemporalBlock1D",
    down_block_types=("DownResnetBlock1D",) * 4,
    up_block_types=("UpResnetBlock1D",) * 3,
    act_fn="swish",
)


# flows, Gaussian processes, differential equations, equivariance


@_model("nflows")
def masked_autoregressive_flow() -> Built:
    from nflows.flows import MaskedAutoregressiveFlow

    return _log_prob(MaskedAutoregressiveFlow(4, 16, 2, 1))


@_model("nflows")
def real_nvp() -> Built:
    from nflows.flows import SimpleRealNVP

    return _log_prob(SimpleRealNVP(4, 16, 2, 1))


@_model("nflows")
def spline_coupling() -> Built:
    from nflows import distributions, flows, transforms
    from nflows.nn.nets import ResidualNet

    def net(inputs: int, outputs: int) -> nn.Module:
        return ResidualNet(inputs, outputs, hidden_features=16, num_blocks=1)

    mask = torch.tensor([1, -1, 1, -1])
    step = transforms.PiecewiseRationalQuadraticCouplingTransform(mask, net, tails="linear")
    return _log_prob(flows.Flow(step, distributions.StandardNormal([4])))


def _log_prob(flow: Any) -> Built:
    data = torch.randn(8, 4)
    return flow, lambda: -flow.log_prob(data).mean()


@_model("gpytorch")
def exact_gp() -> Built:
    import gpytorch

    x = torch.linspace(0, 1, 12)
    y = torch.sin(6 * x)

    class Model(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    model = Model()
    loss = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    return model, lambda: -loss(model(x), y)


@_model("gpytorch")
def variational_gp() -> Built:
    import gpytorch

    x = torch.linspace(0, 1, 12)
    y = torch.sin(6 * x)

    class Model(gpytorch.models.ApproximateGP):  # type: ignore[misc]
        def __init__(self) -> None:
            points = torch.linspace(0, 1, 5)[:, None]
            distribution = gpytorch.variational.CholeskyVariationalDistribution(5)
            super().__init__(gpytorch.variational.VariationalStrategy(self, points, distribution))
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel())
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood()

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    model = Model()
    loss = gpytorch.mlls.VariationalELBO(model.likelihood, model, 12)
    return model, lambda: -loss(model(x), y)


@_model("botorch")
def single_task_gp() -> Built:
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    x = torch.rand(10, 2, dtype=torch.float64)
    model = SingleTaskGP(x, x.sum(1, keepdim=True).sin())
    loss = ExactMarginalLogLikelihood(model.likelihood, model)
    return model, lambda: -loss(model(*model.train_inputs), model.train_targets)


class _Field(nn.Module):
    """A vector field, and the diffusion of a stochastic differential equation."""

    noise_type, sde_type = "diagonal", "ito"

    def __init__(self) -> None:
        super().__init__()
        self.net, self.noise = (
            nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)),
            nn.Linear(2, 2),
        )

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.net(y)

    f = forward

    def g(self, t: Tensor, y: Tensor) -> Tensor:
        return self.noise(y).sigmoid()


def _ode(method: str) -> Built:
    import torchdiffeq

    adjoint, _, solver = method.partition("_")
    solve = torchdiffeq.odeint_adjoint if adjoint == "adjoint" else torchdiffeq.odeint
    field, y = _Field(), torch.randn(4, 2)
    return field, lambda: solve(field, y, torch.linspace(0, 1, 4), method=solver)


_each("torchdiffeq", "direct_euler direct_rk4 direct_dopri5 adjoint_rk4 adjoint_dopri5", _ode)


def _sde(name: str) -> Built:
    import torchsde

    solve = torchsde.sdeint_adjoint if name == "adjoint" else torchsde.sdeint
    field, y = _Field(), torch.randn(4, 2)
    return field, lambda: solve(field, y, torch.linspace(0, 1, 3), dt=0.2)


_each("torchsde", "direct adjoint", _sde)


def _e3nn(name: str) -> Built:
    from e3nn import nn as e3
    from e3nn import o3

    irreps = o3.Irreps("4x0e + 2x1o")
    model: nn.Module
    if name == "linear":
        model = nn.Sequential(o3.Linear(irreps, irreps), o3.Linear(irreps, "3x0e"))
    elif name == "tensor_product":
        product = o3.FullyConnectedTensorProduct(irreps, irreps, irreps)
        x = irreps.randn(3, -1)
        return product, lambda: product(x, x)
    elif name == "gate":
        gate = e3.Gate("4x0e", [torch.tanh], "2x0e", [torch.sigmoid], "2x1o")
        model = nn.Sequential(o3.Linear(irreps, gate.irreps_in), gate)
    else:
        model = nn.Sequential(o3.Linear(irreps, irreps), e3.BatchNorm(irreps))
    return _call(model, irreps.randn(3, -1))


_each("e3nn", "linear tensor_product gate batch_norm", _e3nn)


# peft on top of transformers


def _adapted(name: str) -> Built:
    import peft
    import transformers

    base, kind = name.split(".")
    sizes = {"vocab_size": 99, "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 64}
    if base == "GPT2":
        sizes = {"vocab_size": 99, "n_layer": 2, "n_embd": 32, "n_head": 4}
    task = {"Bert": "ForSequenceClassification", "GPT2": "LMHeadModel"}.get(base, "ForCausalLM")
    config = getattr(transformers, f"{base}Config")(**sizes)
    model = getattr(transformers, base + task)(config)
    adapter = getattr(peft, f"{kind}Config")
    general = {"task_type": "SEQ_CLS" if base == "Bert" else "CAUSAL_LM"}
    options = {"PromptTuning": {"num_virtual_tokens": 4}, "PrefixTuning": {"num_virtual_tokens": 4}}
    if kind == "PromptEncoder":
        options[kind] = {"num_virtual_tokens": 4, "encoder_hidden_size": 32}
    adapted = peft.get_peft_model(model, adapter(**general, **options.get(kind, {})))
    labels = torch.tensor([0, 1]) if base == "Bert" else _ids()
    return _call(adapted, input_ids=_ids(), labels=labels)


_each(
    "peft",
    """Llama.Lora Llama.IA3 Llama.LoHa Llama.LoKr Llama.PromptTuning Llama.PrefixTuning Llama.OFT
    Llama.VeRA Llama.PromptEncoder Llama.BOFT Llama.HRA Llama.FourierFT GPT2.Lora GPT2.IA3 Bert.Lora
    Bert.IA3 Bert.PromptTuning Mistral.Lora Qwen2.Lora Gemma.Lora Llama.LNTuning Llama.VBLoRA""",
    _adapted,
)


# others


@_model("linformer")
def linformer_lm() -> Built:
    from linformer import LinformerLM

    return _call(LinformerLM(num_tokens=99, dim=32, seq_len=16, depth=2, heads=4, k=8), _ids())


@_model("performer-pytorch")
def performer_lm() -> Built:
    from performer_pytorch import PerformerLM

    return _call(
        PerformerLM(num_tokens=99, dim=32, max_seq_len=16, depth=2, heads=4, dim_head=8), _ids()
    )


@_model("reformer-pytorch")
def reformer_lm() -> Built:
    from reformer_pytorch import ReformerLM

    return _call(
        ReformerLM(num_tokens=99, dim=32, depth=2, max_seq_len=32, heads=4, bucket_size=8), _ids(32)
    )


@_model("perceiver-pytorch")
def perceiver() -> Built:
    from perceiver_pytorch import Perceiver

    model = Perceiver(
        input_channels=3,
        input_axis=2,
        num_freq_bands=2,
        max_freq=4.0,
        depth=2,
        num_latents=8,
        latent_dim=16,
        cross_heads=1,
        latent_heads=2,
        cross_dim_head=8,
        latent_dim_head=8,
        num_classes=3,
    )
    return _call(model, torch.randn(2, 8, 8, 3))


@_model("egnn-pytorch")
def egnn() -> Built:
    from egnn_pytorch import EGNN_Network

    return _call(EGNN_Network(dim=8, depth=2), torch.randn(1, 6, 8), torch.randn(1, 6, 3))


def _quantizer(name: str) -> Built:
    import vector_quantize_pytorch as vq

    options: dict[str, dict[str, Any]] = {
        "VectorQuantize": {"dim": 16, "codebook_size": 32},
        "ResidualVQ": {"dim": 16, "codebook_size": 32, "num_quantizers": 2},
        "FSQ": {"levels": [4, 4, 4], "dim": 16},
        "LFQ": {"codebook_size": 32, "dim": 16},
        "SimVQ": {"dim": 16, "codebook_size": 32},
    }
    quantizer = getattr(vq, name)(**options[name])
    return _call(_Quantized(quantizer), torch.randn(2, 8, 16))


class _Quantized(nn.Module):
    """An autoencoder around a codebook."""

    def __init__(self, quantizer: nn.Module) -> None:
        super().__init__()
        self.encoder, self.quantizer, self.decoder = nn.Linear(16, 16), quantizer, nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.quantizer(self.encoder(x))[0])


_each("vector-quantize-pytorch", "VectorQuantize ResidualVQ FSQ LFQ SimVQ", _quantizer)


def _operator(name: str) -> Built:
    from neuralop import models

    options: dict[str, dict[str, Any]] = {
        "FNO": {"n_modes": (4, 4), "in_channels": 1, "out_channels": 1, "hidden_channels": 8},
        "TFNO": {"n_modes": (4, 4), "in_channels": 1, "out_channels": 1, "hidden_channels": 8},
    }
    return _call(getattr(models, name)(n_layers=2, **options[name]), torch.randn(2, 1, 16, 16))


_each("neuralop", "FNO TFNO", _operator)


@_model("denoising-diffusion-pytorch")
def gaussian_diffusion() -> Built:
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    model = GaussianDiffusion(
        Unet(dim=8, dim_mults=(1, 2), flash_attn=False), image_size=16, timesteps=10
    )
    return _call(model, torch.rand(2, 3, 16, 16))


def _normalizing(name: str) -> Built:
    import normflows as nf

    base = nf.distributions.DiagGaussian(2)
    nets = [nf.nets.MLP([1, 8, 2], init_zeros=True) for _ in range(3)]
    flows: list[Any] = {
        "planar": lambda: [nf.flows.Planar((2,)) for _ in range(3)],
        "radial": lambda: [nf.flows.Radial((2,)) for _ in range(3)],
        "affine_coupling": lambda: [nf.flows.AffineCouplingBlock(net) for net in nets],
        "autoregressive_spline": lambda: [nf.flows.AutoregressiveRationalQuadraticSpline(2, 1, 8)],
    }[name]()
    model = nf.NormalizingFlow(base, flows)
    if name in ("planar", "radial"):  # these flows have no inverse
        return model, lambda: model.sample(16)[1].mean()
    x = torch.randn(8, 2)
    return model, lambda: model.forward_kld(x)


_each("normflows", "planar radial affine_coupling autoregressive_spline", _normalizing)
