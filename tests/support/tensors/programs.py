"""Run programs with tensors of all kinds with and without a recording, and compare the results.

    python -m tests.support.tensors.programs NAME ...      prints JSON when each begins and ends

Code that reads the memory of a tensor without memory crashes the process. Therefore `outcomes` runs
the programs in another process.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from tests.support.processes.forks import forked

from . import made_by_torch as made
from . import parallel, subclasses
from .steps import Program, mlp, steps_of
from .subclasses import with_parameters

PROGRAMS: dict[str, Program] = {
    "plain": lambda: ((model := mlp()), steps_of(model)),
    "tensor parallel": parallel.tensor_parallel,
    "sequence parallel": parallel.sequence_parallel,
    "sharded": lambda: parallel.sharded(mlp()),
    "sharded, mixed precision": parallel.mixed_precision,
    "tensor parallel and sharded": parallel.tensor_parallel_and_sharded,
    "a DTensor": parallel.dtensor_leaf,
    "a collective that is awaited": parallel.awaited,
    "TwoTensor": subclasses.two_tensors,
    "LoggingTensor": subclasses.logging_tensors,
    "DiagTensorBelow": subclasses.diagonals,
    "a wrapper": with_parameters(subclasses.Wrapper),
    "a wrapper with an offset": with_parameters(subclasses.Offset),
    "a subclass with memory": with_parameters(lambda tensor: tensor.as_subclass(subclasses.Named)),
    "a subclass that dispatches": with_parameters(
        lambda tensor: torch.Tensor._make_subclass(subclasses.Dispatching, tensor)
    ),
    "fake": made.fake,
    "meta": made.meta,
    "functional": made.functional,
    "batched": made.batched,
    "forward mode": made.forward_mode,
    "zeros without memory": made.zero_tensor,
    "nested": made.nested(torch.strided),
    "jagged": made.nested(torch.jagged),
    "COO": made.sparse(lambda tensor: tensor.to_sparse()),
    "CSR": made.sparse(lambda tensor: tensor.to_sparse_csr()),
    "CSC": made.sparse(lambda tensor: tensor.to_sparse_csc()),
    "BSR": made.sparse(lambda tensor: tensor.to_sparse_bsr((2, 2))),
    "an embedding with sparse gradients": made.embedding,
    "MKL-DNN": made.mkldnn,
    "freed": made.freed,
}
if find_spec("torchao"):
    PROGRAMS |= {
        "torchao's int8 weights": made.quantised(made.int8_weights),
        "torchao's int8 training": made.quantised(made.int8_training),
        "torchao's NF4": made.quantised(made.nf4_weights),
    }


def plain_values(value: Any) -> Any:
    """Return the part of a result that has to be equal bit for bit."""
    if not isinstance(value, Tensor):
        return value
    with torch.no_grad():
        if hasattr(value, "to_local"):
            return plain_values(value.to_local())
        for names in (["a", "b"], ["elem"], ["inside"], ["diag"]):
            if all(isinstance(getattr(value, name, None), Tensor) for name in names):
                return [plain_values(getattr(value, name)) for name in names]
        if "dequantize" in vars(type(value)):
            return plain_values(value.dequantize())
        if value.is_meta or type(value).__name__ == "FakeTensor":
            return tuple(value.shape), str(value.dtype)
        if value.is_nested:
            return [part.tolist() for part in value.unbind()]
        dense = value if value.layout == torch.strided else value.to_dense()
        if dense.numel() and not dense.untyped_storage().nbytes():
            return tuple(dense.shape), "freed"
        if dense._is_zerotensor():
            return tuple(dense.shape), "zeros without memory"
        return str(value.layout), tuple(dense.shape), dense.flatten().tolist()


def compared(name: str) -> dict[str, Any]:
    """Run a program with and without a recording; raise if the results differ."""
    from graphviz_torch import find, load, record, summary, to_html, to_text
    from graphviz_torch.export import to_dot

    warnings.simplefilter("ignore")
    _, step = PROGRAMS[name]()
    expected = list(map(plain_values, step()))
    found: dict[str, Any] = {}
    for how in (True, "finite"):
        model, step = PROGRAMS[name]()
        with record(model, gradients=how) as recording:
            result = step()
        assert repr(list(map(plain_values, result))) == repr(expected), how
        graph = recording.graph
        stats = [each for node in graph.nodes for each in node.grad_outputs if each is not None]
        if how is True:
            found = {
                "nodes": len(graph.nodes),
                "notes": sorted({node.note for node in graph.nodes if node.note}),
                "extents": sorted({each.extent for each in stats}),
                "norms": [p.norm for p in graph.parameters],
                "saved": sum(node.saved_bytes for node in graph.nodes),
                "leaves": {
                    node.label: [s and s.norm for s in node.grad_outputs]
                    for node in graph.nodes
                    if node.leaf
                },
            }
        for show in (to_dot, to_text, summary, find, repr):
            str(show(graph))  # type: ignore[operator]
        with TemporaryDirectory() as folder:
            to_html(graph, Path(folder, "graph.html"))
            graph.save(Path(folder, "graph.json"))
            assert load(Path(folder, "graph.json")) == graph
    return found


def outcomes(names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run programs in another process, a new one after each crash; yield how each one ended."""
    left = list(names)
    while left:
        done = forked("-m", __name__, *left, folder=Path(__file__).parents[3])
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        ended = {line["name"]: line for line in lines if "error" in line}
        begun = lines[-1]["name"] if lines else left[0]
        if begun not in ended:
            where = [line.strip() for line in done.stderr.splitlines() if "File" in line]
            ended[begun] = {"error": f"exit status {done.returncode}: {where[:3]}"}
        yield from ended.items()
        left = [name for name in left if name not in ended]


@contextmanager
def _reported(name: str) -> Iterator[dict[str, Any]]:
    print(json.dumps({"name": name}), flush=True)
    outcome: dict[str, Any] = {"name": name, "error": ""}
    try:
        yield outcome
    except Exception:
        outcome["error"] = traceback.format_exc()[-1500:]
    print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    faulthandler.enable()
    for each in sys.argv[1:] or PROGRAMS:
        with _reported(each) as outcome:
            outcome |= compared(each)
