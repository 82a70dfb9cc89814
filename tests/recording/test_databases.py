"""Run the programs of PyTorch's test databases recorded and bare, and compare the results.

PyTorch's own tests are made from these databases. Of each entry, the first sample runs twice with
equal values: once bare, once recorded. The programs are:

- every differentiable operator with plain tensors; every third one with wrapper subclasses and
  DTensors
- every custom operator, every custom Function, and every module with all of its hooks
- every optimizer with each set of options
- every function that a class can override

Compared are results, gradients, errors, and what the program's own hooks saw.
tests/bench/pytorch_suite.py runs PyTorch's tests themselves.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import record
from graphviz_torch.internals.tensors.pytree import flatten, map_tensors
from tests.support.operators import operators as operators
from tests.support.tensors.parallel import leave, mesh
from tests.support.tensors.programs import plain_values
from tests.support.tensors.subclasses import Named

SLICES = 6  # tests that run side by side
DTYPES = (torch.float32, torch.complex64, torch.float64)
# Their results are memory as it was found.
EMPTY = ("empty", "new_empty")

Run = Callable[[], Any]


@pytest.fixture(autouse=True, scope="module")
def group_of_one_module() -> Iterator[None]:
    """Destroy the process group that `mesh` creates at the end of this file."""
    yield
    leave()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def end_of(run: Run) -> str:
    """Return the exact result of a program, or its error."""
    torch.manual_seed(0)
    try:
        found = run()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return repr([(path, plain_values(tensor)) for path, tensor in flatten(found)])


def difference(run: Run) -> str:
    """Return how a program ends differently inside a recording; "" if it does not."""
    bare = end_of(run)
    recording = record()
    with recording:
        recorded = end_of(run)
    if recording.graphs:
        str(recording.graph)
    return "" if recorded == bare else f"{bare[:200]} -> {recorded[:200]}"


def differences(programs: Iterator[tuple[str, Run]]) -> dict[str, str]:
    found = {name: difference(run) for name, run in programs}
    assert found  # something ran
    return {name: how for name, how in found.items() if how}


def learn(result: Any, inputs: Any) -> list[Any]:
    """Run backward from all of a result; gives it, and the gradients of the inputs."""
    ends = [tensor for _, tensor in flatten([result]) if tensor.requires_grad]
    sums = [(end.abs() if end.is_complex() else end).float().sum() for end in ends]
    if sums:
        sum(sums[1:], sums[0]).backward()
    return [result, [t.grad for _, t in flatten([inputs]) if t.is_leaf]]


def of_operators(ops: list[Any], wrap: Callable[[Tensor], Tensor]) -> Iterator[tuple[str, Run]]:
    for op in ops:
        dtype = next((d for d in DTYPES if d in op.supported_dtypes("cpu")), None)
        if dtype is None or not op.supports_autograd or op.name.startswith(EMPTY):
            continue

        def run(op: Any = op, dtype: torch.dtype = dtype) -> Any:
            sample = next(iter(op.sample_inputs("cpu", dtype, requires_grad=True)))
            given = sample.input, sample.args, sample.kwargs
            first, args, kwargs = map_tensors(lambda tensor: wrap(tensor), given)
            return learn(op(first, *args, **kwargs), [first, args, kwargs])

        yield f"{op.name}.{op.variant_test_name}", run


def two(tensor: Tensor) -> Tensor:
    from torch.testing._internal.two_tensor import TwoTensor

    values = tensor.detach()
    return TwoTensor(values, values.clone()).requires_grad_(tensor.requires_grad)


def logging(tensor: Tensor) -> Tensor:
    from torch.testing._internal.logging_tensor import LoggingTensor

    return LoggingTensor(tensor.detach(), requires_grad=tensor.requires_grad)


def named(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(Named)


def divided(tensor: Tensor) -> Tensor:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    placement = Shard(0) if tensor.dim() and tensor.shape[0] > 1 else Replicate()
    made = distribute_tensor(tensor.detach(), mesh(), [placement])
    return made.detach().requires_grad_(tensor.requires_grad)


@pytest.mark.parametrize("part", range(SLICES))
def test_every_operator(operators: list[Any], part: int) -> None:
    assert differences(of_operators(operators[part::SLICES], lambda tensor: tensor)) == {}


@pytest.mark.parametrize("wrap", [two, logging, named, divided], ids=lambda wrap: wrap.__name__)
def test_every_third_operator_of_tensors_that_are_not_plain(
    operators: list[Any], wrap: Callable[[Tensor], Tensor]
) -> None:
    assert differences(of_operators(operators[::3], wrap)) == {}


def test_every_custom_operator_and_function(operators: list[Any]) -> None:
    from torch.testing._internal.autograd_function_db import autograd_function_db
    from torch.testing._internal.custom_op_db import custom_op_db

    programs = of_operators([*custom_op_db, *autograd_function_db], lambda tensor: tensor)
    assert differences(programs) == {}


def test_every_module_with_hooks_of_its_own(operators: list[Any]) -> None:
    from torch.testing._internal.common_modules import module_db

    def programs() -> Iterator[tuple[str, Run]]:
        for info in module_db:

            def run(info: Any = info) -> Any:
                samples = info.module_inputs_func(
                    info, device="cpu", dtype=torch.float32, requires_grad=True, training=True
                )
                sample = next(iter(samples))
                made, given = sample.constructor_input, sample.forward_input
                module = info.module_cls(*made.args, **made.kwargs)
                calls: list[str] = []
                for name in ("forward_pre", "forward", "full_backward_pre", "full_backward"):
                    getattr(module, f"register_{name}_hook")(
                        lambda *_, name=name: calls.append(name)
                    )
                if given is None:
                    return [torch.tensor(0.0)]
                found = learn(module(*given.args, **given.kwargs), [given.args, given.kwargs])
                numbers = [len(name) for name in calls]
                return [*found, *module.state_dict().values(), torch.tensor(numbers)]

            yield info.name, run

    assert differences(programs()) == {}


def test_every_optimizer_with_each_set_of_its_options() -> None:
    pytest.importorskip("expecttest")
    from torch.testing._internal.common_optimizers import optim_db

    def programs() -> Iterator[tuple[str, Run]]:
        for info in optim_db:
            for i, options in enumerate(info.optim_inputs_func(device="cpu")):

                def run(info: Any = info, options: Any = options) -> Any:
                    if info.only_supports_sparse_grads:
                        model: nn.Module = nn.Embedding(4, 2, sparse=True)
                        x = torch.tensor([1, 2, 1])
                    else:
                        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
                        x = torch.randn(3, 4)
                    optimizer = info.optim_cls(model.parameters(), **options.kwargs)

                    def closure() -> Tensor:
                        optimizer.zero_grad()
                        loss: Tensor = model(x).square().mean()
                        loss.backward()
                        return loss

                    losses = [optimizer.step(closure) for _ in range(2)]
                    return [losses, *model.parameters(), *optimizer.state.values()]

                yield f"{info.optim_cls.__name__} {i}: {options.desc}", run

    assert differences(programs()) == {}


class Answering(Tensor):
    """An object that answers each function itself."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func, len(args), sorted(kwargs or {})


def test_every_function_that_a_class_can_replace() -> None:
    from torch.overrides import get_testing_overrides

    answering = torch.ones(1).as_subclass(Answering)

    def answers() -> Iterator[str]:
        for func, override in get_testing_overrides().items():
            required = [
                p
                for p in inspect.signature(override).parameters.values()
                if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
            ]
            try:
                answer = func(*[answering] * len(required))
                own = type(answer) is tuple and len(answer) == 3
                yield f"{answer[0]} {answer[1:]}" if own else type(answer).__name__
            except Exception as error:
                yield f"{type(error).__name__}: {error}"

    bare = list(answers())
    with record():
        recorded = list(answers())
    assert sum(answer.endswith(", [])") for answer in bare) > 1000
    assert [pair for pair in zip(bare, recorded, strict=True) if pair[0] != pair[1]] == []
