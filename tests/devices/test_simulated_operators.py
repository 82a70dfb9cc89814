"""Compare each operator that PyTorch lists on the simulated accelerator with the CPU."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from graphviz_torch import simulate_accelerator
from graphviz_torch.devices.simulated.tensor import SimulatedTensor
from tests.support.operators import operators as operators

# What does not work, and why. The test holds the list exactly, so that it can only shrink.
KNOWN_FAILURES = {
    "sparse.sampled_addmm": "sparse",
    "sparse.mm.reduce": "sparse",
    "to_sparse": "sparse",
    "tensor_split": "its indices must be on the CPU, as on a GPU",
}
# PyTorch chooses a generic formula for a tensor subclass: equal to rounding, not to the bit.
ROUNDED = {"nn.functional.mish", "prod", "masked.prod", "linalg.lstsq"}
ROUNDED |= {"linalg.lstsq.grad_oriented", "nn.functional.scaled_dot_product_attention"}
# No kernel on a CPU, or no values to compare.
SKIPPED = {"empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided"}
SKIPPED |= {"empty_permuted"}
SAMPLES = 2


def dtype_for(op: Any) -> torch.dtype | None:
    supported = op.supported_dtypes("cpu")
    wanted = (torch.float32, torch.int64, torch.complex64, torch.bool)
    return next((dtype for dtype in wanted if dtype in supported), None)


def run(op: Any, sample: Any, device: torch.device) -> list[torch.Tensor]:
    """Return the results for one sample input on `device`, and the gradients of their sum."""
    inputs = tree_map_only(
        torch.Tensor,
        lambda t: t.detach().clone().to(device).requires_grad_(t.requires_grad),
        (sample.input, sample.args, dict(sample.kwargs)),
    )
    arguments = tree_map_only(
        (str, torch.device), lambda d: device if str(d) == "cpu" else d, inputs[1:]
    )
    torch.manual_seed(0)
    out = op.op(inputs[0], *arguments[0], **arguments[1])
    outs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
    ends = [o.abs().sum() if o.is_complex() else o.sum() for o in outs if o.requires_grad]
    starts = [t for t in tree_leaves(inputs) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not ends or not starts:
        return outs
    gradients = torch.autograd.grad(ends, starts, allow_unused=True)
    return outs + [gradient for gradient in gradients if gradient is not None]


def difference(op: Any, sample: Any, device: torch.device) -> str:
    """Return the error of a sample on the device: "" if equal, "rounded" if close."""
    try:
        expected = run(op, sample, torch.device("cpu"))
    except (RuntimeError, NotImplementedError):
        return ""  # the CPU has none either
    factory = not any(isinstance(t, torch.Tensor) for t in tree_leaves((sample.input, sample.args)))
    try:
        got = run(op, sample, device)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    worst = ""
    for a, b in zip(expected, got, strict=True):
        if not isinstance(b, SimulatedTensor) and not factory:
            return f"a result is on {b.device}"
        a, b = a.detach().resolve_conj().resolve_neg(), b.detach().cpu()
        if not torch.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True):
            return "other values"
        if not torch.equal(torch.isnan(a), torch.isnan(b)) or bool(
            (a[~torch.isnan(a)] != b[~torch.isnan(a)]).any()
        ):
            worst = "rounded"
    return worst


def test_every_operator_gives_the_cpus_values_and_gradients_but_for_a_known_list(
    operators: list[Any],
) -> None:
    failed: dict[str, str] = {}
    rounded = set()
    with warnings.catch_warnings(), simulate_accelerator() as [device]:
        warnings.simplefilter("ignore")
        for op in operators:
            name = ".".join(filter(None, (op.name, op.variant_test_name)))
            dtype = dtype_for(op)
            if name in SKIPPED or dtype is None or "jiterator" in name:
                continue
            gradients = op.supports_autograd and dtype.is_floating_point
            samples = op.sample_inputs("cpu", dtype, requires_grad=gradients)
            for sample in itertools.islice(samples, SAMPLES):
                wrong = difference(op, sample, device)
                if wrong == "rounded":
                    rounded.add(name)
                elif wrong:
                    failed.setdefault(name, wrong)
    assert set(failed) == set(KNOWN_FAILURES), failed
    assert rounded <= ROUNDED
