"""Test the module, scope and source line of each node of several models."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import warnings
import weakref
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.checkpoint import checkpoint

from graphviz_torch import Graph, record
from graphviz_torch.internals import frames
from tests.support import models
from tests.support.processes.forks import forked
from tests.support.programs import in_threads
from tests.support.recorded import trained


def line_of(function: Any, text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    offset = next(i for i, line in enumerate(lines) if text in line)
    return f"{Path(inspect.getsourcefile(function) or '').name}:{first + offset}"


def column(graph: Graph, name: str) -> list[tuple[str, str]]:
    return [(node.title, getattr(node, name)) for node in graph.nodes if not node.leaf]


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return torch.tanh(y)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = Cell()
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cell(x)
        x = self.cell(x)
        return self.head(x) * 2


def test_what_the_root_makes_is_of_its_class_and_what_is_made_outside_of_none() -> None:
    with record() as recording:
        nn.LSTM(2, 3)(torch.ones(4, 1, 2))[0].sum().backward()
    classes = {node.title: node.module_class for node in recording.graph.nodes}
    assert classes.pop("sum") == ""
    assert set(classes.values()) == {"LSTM(2, 3)"}


def test_a_module_called_twice_has_one_path_two_scopes_and_the_users_own_lines() -> None:
    model = Twice()
    with record(model) as recording:
        out = model(torch.ones(1, 3))
        loss = out.sum()
        loss.backward()
    graph = recording.graph
    linear, tanh = line_of(Cell, "self.linear(x)"), line_of(Cell, "torch.tanh(y)")
    head, mul = line_of(Twice, "self.head(x)"), line_of(Twice, "* 2")
    here = test_a_module_called_twice_has_one_path_two_scopes_and_the_users_own_lines
    assert [(n.title, n.scope, n.where) for n in graph.nodes if not n.leaf] == [
        ("t", "cell.linear", linear),
        ("addmm", "cell.linear", linear),
        ("tanh", "cell", tanh),
        ("t", "cell#2.linear", linear),
        ("addmm", "cell#2.linear", linear),
        ("tanh", "cell#2", tanh),
        ("t", "head", head),
        ("addmm", "head", head),
        ("mul", "", mul),
        ("sum", "", line_of(here, "out.sum()")),
    ]
    assert column(graph, "module")[4] == ("addmm", "cell.linear")
    leaves = {node.label: node.module for node in graph.nodes if node.leaf}
    assert leaves == {name: name.rpartition(".")[0] for name, _ in model.named_parameters()}


def test_calls_are_counted_anew_for_each_backward() -> None:
    model = Cell()
    with record(model) as recording:
        for _ in range(2):
            (model(torch.ones(1, 3)) + model(torch.ones(1, 3))).sum().backward()
    for graph in recording.graphs:
        scopes = [scope for title, scope in column(graph, "scope") if title == "addmm"]
        assert scopes == ["linear", "#2.linear"]


@pytest.mark.parametrize("model", [models.MLP(), models.TransformerBlock(), models.ConvNet()])
def test_every_path_is_one_of_named_modules_and_every_parameter_is_in_its_own(
    model: nn.Module,
) -> None:
    x = {"MLP": (2, 4), "TransformerBlock": (1, 3, 8), "ConvNet": (1, 3, 4, 4)}
    graph = trained(model, torch.ones(x[type(model).__name__]))
    known = dict(model.named_modules())
    for node in graph.nodes:
        assert node.module in known
        if node.leaf == "parameter":
            name = node.label.rpartition(".")[2]
            assert getattr(known[node.module], name) is model.get_parameter(node.label)


def test_a_shared_module_goes_by_its_first_name() -> None:
    first = nn.Linear(2, 2)
    blocks = nn.ModuleList([nn.Sequential(first), nn.ReLU()])
    model = nn.ModuleDict({"first": first, "blocks": blocks})
    with record(model) as recording:
        blocks[1](blocks[0](first(torch.ones(1, 2)))).sum().backward()
    scopes = [row for row in column(recording.graph, "scope") if row[0] in ("addmm", "relu")]
    assert scopes == [("addmm", "first"), ("addmm", "first#2"), ("relu", "blocks.1")]


class Gated(nn.Module):
    def __init__(self, gate: nn.Module) -> None:
        super().__init__()
        self.linear, self.gate = nn.Linear(2, 2), gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.gate(self.linear(x))
        return result


def test_an_activation_that_modules_share_is_named_after_the_module_that_calls_it() -> None:
    gate = nn.Tanh()
    model = nn.Sequential(Gated(gate), Gated(gate))
    with record(model) as recording:
        model(torch.ones(1, 2)).sum().backward()
    found = [node for node in recording.graph.nodes if node.operation == "tanh"]
    assert [node.module for node in found] == ["0.gate", "1.gate"]
    assert {node.module_class for node in found} == {"Gated/Tanh"}


def test_a_module_outside_the_model_goes_by_its_variable_or_its_class() -> None:
    model, criterion = Twice(), nn.MSELoss()
    for given, outside, name in ((None, criterion, "criterion"), (model, nn.MSELoss(), "MSELoss")):
        with record(given) as recording:
            called = [outside]
            del outside
            called[0](model(torch.ones(1, 3)), torch.zeros(1, 2)).backward()
        modules = dict(column(recording.graph, "module"))
        assert (modules["mse_loss"], modules["tanh"]) == (name, "cell")


@pytest.mark.parametrize("given", [False, True])
def test_the_parameters_listed_are_those_of_the_model_or_of_all_modules_called(given: bool) -> None:
    model, other = Twice(), nn.Linear(2, 1)
    with record(model if given else None) as recording:
        other(model(torch.ones(1, 3))).sum().backward()
    names = [parameter.name for parameter in recording.graph.parameters]
    own = [name for name, _ in model.named_parameters()]
    both = [*(f"model.{name}" for name in own), "other.weight", "other.bias"]
    assert names == (own if given else both)
    assert all(
        parameter.module_called and parameter.has_grad for parameter in recording.graph.parameters
    )
    nodes = [parameter.node for parameter in recording.graph.parameters]
    assert all(recording.graph.nodes[node].leaf == "parameter" for node in nodes)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_modules_keep_their_names(reentrant: bool) -> None:
    cell = Cell()
    x = torch.ones(1, 3, requires_grad=True)
    with record(cell) as recording:
        y = checkpoint(cell, x, use_reentrant=reentrant)
        y.sum().backward()
    here = test_checkpointed_modules_keep_their_names
    rows = {node.title: node for node in recording.graph.nodes}
    if reentrant:
        assert rows["checkpoint"].where == line_of(here, "y = checkpoint")
    else:
        assert rows["addmm"].scope == "linear"
        assert rows["tanh"].where == line_of(Cell, "torch.tanh(y)")


def test_the_package_imports_where_a_functions_apply_is_a_builtin() -> None:
    program = "import torch; del torch.autograd.Function.apply; import graphviz_torch"
    if "apply" in vars(torch.autograd.Function):
        subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("builtin", [False, True])
@pytest.mark.parametrize("setup", [False, True])
def test_a_custom_function_belongs_to_the_line_that_applies_it(
    monkeypatch: pytest.MonkeyPatch, builtin: bool, setup: bool
) -> None:
    if builtin:  # as from torch 2.14 on
        monkeypatch.delattr(torch.autograd.Function, "apply", raising=False)

    class WithContext(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 2

    class WithSetup(WithContext):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

    double = WithSetup if setup else WithContext
    x = torch.ones(2, requires_grad=True)
    with record() as recording:
        a = x + 1
        b = double.apply(a)
        b.sum().backward()
    here = test_a_custom_function_belongs_to_the_line_that_applies_it
    sources = dict(column(recording.graph, "where"))
    assert sources[double.__name__] == line_of(here, "b = double.apply(a)")
    assert sources["add"] == line_of(here, "a = x + 1")


def test_nodes_from_before_the_block_have_no_line() -> None:
    x = torch.ones(2, requires_grad=True)
    before = x * 2
    with record() as recording:
        before.sum().backward()
    assert [bool(source) for _, source in column(recording.graph, "where")] == [False, True]


def test_what_a_scripted_function_makes_does_not_get_the_line_of_the_call_after_it() -> None:
    scripted = torch.jit.script(_double)

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = scripted(x)  # no call into torch is seen inside
            return y + 1

    x = torch.ones(2, requires_grad=True)
    model = Model()
    with record(model) as recording:
        model(x).sum().backward()
    sources = dict(column(recording.graph, "where"))
    assert sources["mul"] == ""
    assert sources["add"] == line_of(Model, "return y + 1")


def _double(x: Tensor) -> Tensor:
    return x * 2


def test_files_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    functions = []
    for folder in ("models", "losses"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "common.py"
        path.write_text("def run(x):\n    return x * 2\n")
        names: dict[str, Any] = {}
        exec(compile(path.read_text(), str(path), "exec"), names)
        functions.append(names["run"])
    x = torch.ones(2, requires_grad=True)
    with record() as recording:
        functions[1](functions[0](x)).sum().backward()
    sources = [source for title, source in column(recording.graph, "where") if title == "mul"]
    assert sources == ["models/common.py:2", "losses/common.py:2"]


def test_a_module_that_raised_and_was_caught_is_not_taken_for_the_caller_of_the_next() -> None:
    class Tries(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            with suppress(RuntimeError):
                x = self[0](x)
            return self[1](x + 1)

    model = Tries(nn.Linear(3, 3), nn.Linear(2, 2))  # the first takes another width
    rows = dict(column(trained(model, torch.ones(1, 2, requires_grad=True)), "scope"))
    assert (rows["addmm"], rows["sum"]) == ("1", "")


def test_a_module_that_a_hook_kept_from_running_does_not_end_its_parent() -> None:
    class Tries(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            with suppress(ValueError):
                x = self[0](x)
            return self[1](x).exp()

    part = Tries(nn.Linear(2, 2), nn.Linear(2, 2))

    def refuse(module: nn.Module, _: Any) -> None:
        if module is part[0]:
            raise ValueError

    model = nn.ModuleDict({"part": part})
    with register_module_forward_pre_hook(refuse), record(model) as recording:
        part(torch.ones(1, 2)).sum().backward()
    modules = dict(column(recording.graph, "module"))
    assert (modules["addmm"], modules["exp"], modules["sum"]) == ("part.1", "part", "")


def test_a_compiled_module_goes_by_the_name_of_what_it_wraps() -> None:
    model = Twice()
    compiled = torch.compile(model.cell, backend="aot_eager")
    x = torch.ones(1, 3)
    expected = model.head(compiled(x)).sum()
    with record(model) as recording:
        loss = model.head(compiled(x)).sum()
        loss.backward()
    assert torch.equal(loss, expected)
    row = next(node for node in recording.graph.nodes if node.note == "torch.compile region")
    assert (row.module, row.scope) == ("cell", "cell")
    called = {parameter.name: parameter.module_called for parameter in recording.graph.parameters}
    assert called == dict.fromkeys(called, True)


def test_the_modules_of_another_thread_do_not_disturb() -> None:
    model, other = Twice(), Twice()
    with record(model) as recording:
        out = model(torch.ones(1, 3))
        in_threads(lambda: other(torch.ones(1, 3)).sum().backward())
        out.sum().backward()
    assert len(recording.graphs) == 1
    assert dict(column(recording.graph, "scope"))["tanh"] == "cell#2"


def test_of_nodes_that_another_thread_made_with_the_same_numbers_nothing_is_said() -> None:
    x = torch.ones(3, requires_grad=True)

    def recorded() -> Graph:  # both threads are new, so both count from the same number
        model = nn.Linear(3, 3)
        with record(model) as recording:
            y = model(x).exp()
            (beside,) = in_threads(lambda: x.clone().sin().cos())
            (y.sum() + beside.sum()).backward()
        return recording.graph

    (graph,) = in_threads(recorded)
    rows = {node.title: (node.module, node.where) for node in graph.nodes}
    assert rows["clone"] == rows["sin"] == rows["cos"] == ("", "")
    assert rows["sum"][1].startswith("test_modules.py:")


def test_parameters_that_are_replaced_before_a_backward_keep_their_names_and_go_after_it() -> None:
    model = nn.Linear(3, 1)
    replaced = []
    with record(model) as recording:
        for _ in range(2):
            replaced += [weakref.ref(parameter) for parameter in model.parameters()]
            loss = model(torch.ones(2, 3)).sum()
            model.load_state_dict(nn.Linear(3, 1).state_dict(), assign=True)
            loss.backward()
            del loss
            assert [ref() for ref in replaced] == [None] * len(replaced)
    for graph in recording.graphs:
        named = {n.label: n.module for n in graph.nodes if n.name == "AccumulateGrad"}
        assert named == {"weight": "", "bias": ""}
        assert all(p.node is not None for p in graph.parameters)


def test_a_parameter_that_is_replaced_on_both_sides_of_a_forward_has_its_name() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 1)

    def replace_all() -> None:
        for part in (first, second):
            part.load_state_dict(deepcopy(part).state_dict(), assign=True)

    with record() as recording:
        for _ in range(2):
            replace_all()
            loss = second(first(torch.ones(2, 3))).sum()
            replace_all()
            loss.backward()
    for graph in recording.graphs:
        named = {n.label for n in graph.nodes if n.name == "AccumulateGrad"}
        assert named == {"first.weight", "first.bias", "second.weight", "second.bias"}


def test_an_operation_of_a_librarys_model_has_the_librarys_line_beside_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "lib"
    library.mkdir()
    (library / "modeling_tiny.py").write_text(
        "import torch\n"
        "class Tiny(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc = torch.nn.Linear(2, 2)\n"
        "    def forward(self, x):\n"
        "        x = self.fc(x)\n"
        "        return x.relu()\n"
    )
    monkeypatch.syspath_prepend(str(library))
    monkeypatch.setattr(frames, "_LIBRARIES", (f"{library}/",))
    model = importlib.import_module("modeling_tiny").Tiny()
    with record() as recording:
        loss = model(torch.ones(1, 2)).sum()
        loss.backward()
    here = test_an_operation_of_a_librarys_model_has_the_librarys_line_beside_the_users
    user = line_of(here, "loss = model")
    assert [node.where for node in recording.graph.nodes if not node.leaf] == [
        f"modeling_tiny.py:7, called at {user}",
        f"modeling_tiny.py:7, called at {user}",
        f"modeling_tiny.py:8, called at {user}",
        user,
    ]


def test_a_checkpointed_part_goes_by_its_own_name() -> None:
    model = nn.Sequential(checkpoint_wrapper(nn.Linear(2, 3)), nn.Linear(3, 1))
    graph = trained(model, torch.ones(2, 2, requires_grad=True))
    names = [parameter.name for parameter in graph.parameters]
    assert names == ["0.weight", "0.bias", "1.weight", "1.bias"]


FSDP = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from graphviz_torch import record
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
def wrapped(module):
    return FSDP(module, use_orig_params=True, device_id=torch.device("cpu"))
inner = torch.nn.Sequential(wrapped(torch.nn.Linear(2, 3)), torch.nn.Linear(3, 1))
model = wrapped(inner)
with record(model) as recording:
    model(torch.ones(2, 2)).sum().backward()
print([parameter.name for parameter in recording.graph.parameters])
print(sorted({node.module for node in recording.graph.nodes}))
dist.destroy_process_group()
"""


def test_fsdp_hides_no_name_where_it_leaves_the_parameters(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FSDP)
    done = forked("train.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [  # before them gloo's own words (2.8)
        "['0.weight', '0.bias', '1.weight', '1.bias']",
        "['', '0', '1']",
    ]


def test_a_module_that_gets_its_first_parameter_in_its_forward_is_named() -> None:
    class Late(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if not self._parameters:
                self.scale = nn.Parameter(torch.ones(4))
            return x * self.scale

    body, late = nn.Linear(4, 4), Late()
    with record() as recording:
        for _ in range(2):
            late(nn.ReLU()(body(torch.randn(2, 4)))).sum().backward()
    assert "late.scale" in {p.name for p in recording.graph.parameters}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_trace_by_jit_in_a_recording_compares_no_sizes() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    with record(), warnings.catch_warnings():
        model(torch.ones(2, 3)).sum().backward()
        warnings.simplefilter("error", torch.jit.TracerWarning)
        traced = torch.jit.trace(model, torch.ones(2, 3), check_trace=False)
    assert str(traced.inlined_graph).count("aten::") == 2
