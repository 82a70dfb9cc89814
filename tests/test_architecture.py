"""The house: which room may import which, how large a room gets, who names torch's insides.

All is read from the source with `ast`, imports inside functions and for type checkers included.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import graphviz_torch
from graphviz_torch.recording import listeners
from tests.bench.house import rooms

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "graphviz_torch"

# Packages that hand out public names.
NAMESPACES = [
    f"graphviz_torch.{name}"
    for name in ("graph", "experiments", "rehearsal", "devices", "checkpoint", "tensorboard")
]
# Room -> the rooms that it may import. A room is a folder of the package.
MAY_IMPORT = {
    "graph": "",
    "internals": "graph",
    "tracing": "graph internals",
    "recording": "graph internals tracing findings",
    "rehearsal": "graph internals tracing recording render",
    "experiments": "graph internals tracing recording",
    "findings": "graph",
    "comparison": "graph",
    "render": "graph findings",
    "tensorboard": "graph internals recording findings render",
    "devices": "graph internals render",
    "checkpoint": "graph internals tracing devices",
    "integrations": "graph findings recording",  # and the public names
    # The app, whose folders are rooms as well; all use the public names.
    "expression": "",
    "models": "",
    "jobs": "expression models",
    "panels": "expression jobs models",
    "views": "expression jobs models panels",
}
# Rooms that use what the package's root hands on.
OUTSIDE = ("integrations", "expression", "models", "jobs", "panels", "views")
# Rooms in which nothing imports torch: what reads a saved graph.
WITHOUT_TORCH = ("graph", "findings", "comparison", "render", "integrations/command")
# Words that tell nobody what a thing is.
RIDDLES = {"across", "dropped", "earlier", "elsewhere", "heard", "held", "kept", "others"}
RIDDLES |= {"seen", "several", "stuck", "told"}


# The files outside internals/ that name what PyTorch calls private, and why (at most 8).
PRIVATE = {
    "devices/simulated/accelerator.py": "stands in for a device: patches what torch asks of one",
    "devices/simulated/autocast.py": "stands in for the casts of autocast on CUDA",
    "devices/simulated/data_parallel.py": "stands in for the replicas of nn.DataParallel",
    "devices/simulated/files.py": "rebuilds tensors as torch.load does",
    "devices/simulated/patches.py": "walks the containers that torch itself walks",
    "devices/simulated/tensor.py": "a tensor subclass with a device that does not exist",
    "checkpoint/verify.py": "sees each value that a node computes, with a dispatch mode",
}

# What reads the memory of a tensor, or tells where it lies.
READS = {"data_ptr", "untyped_storage", "numpy", "tolist", "item", "_foreach_norm", "foreach_norm"}
# The files that have such a read and do not ask internals/tensors/memory.py, and why they need not.
READ_THEIR_OWN = {
    "jobs/training.py": "reads the loss of the app's own training",
    "internals/sharding.py": "reads which ranks a mesh has: each process knows their numbers",
    "internals/functions.py": "gives a name to what others call",
    "internals/fake/values.py": "answers for fake tensors, which have no memory",
    "recording/gradients/cpu.py": "is given the plain tensors that memory.py gave",
    "devices/simulated/accelerator.py": "marks the storages of tensors that it pins itself",
    "devices/simulated/tensor.py": "answers for the memory that it wraps",
}


def sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "node_modules" not in path.parts)


def dotted(path: Path) -> str:
    """The name that imports call a file by; a room's own file ends in ".__init__"."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


PATHS = [*sources(PACKAGE), *sources(ROOT / "app")]


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax trees of package and app, parsed by the one worker that needs them."""
    return {dotted(path): ast.parse(path.read_text()) for path in PATHS}


def imported(name: str) -> Iterator[str]:
    """Absolute names that a file of ours imports: "torch.nn", "graphviz_torch.graph.Node"."""
    parts = name.split(".")
    for node in ast.walk(trees()[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif parts[0] == "app" and isinstance(node, ast.Call) and node.args:
            given = node.args[0]  # the package's root alone hands on by name what imports it
            if ast.unparse(node.func) == "import_module" and isinstance(given, ast.Constant):
                yield ".".join([*parts[:-1], str(given.value)[1:]])


def file_of(name: str) -> str | None:
    """The file of ours that an imported name stands in, if it is ours."""
    if name.split(".")[0] not in ("graphviz_torch", "app"):
        return None
    for each in (name, name.rpartition(".")[0]):
        for file in (each, f"{each}.__init__"):
            if file in trees():
                return file
    raise AssertionError(f"{name} stands in no file")


@cache
def arrows() -> dict[str, set[str]]:
    """Return, for each file, our files that it imports."""
    return {
        name: {file for each in imported(name) if (file := file_of(each))} - {name}
        for name in trees()
    }


def room(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 2 else ""


def folder(name: str) -> str:
    return "/".join(name.split(".")[1:])


def test_every_room_stands_in_the_table() -> None:
    assert {room(name) for name in trees()} - {""} == MAY_IMPORT.keys()


def is_namespace(name: str) -> bool:
    """True if a file hands out public names: the root, or the `__init__` of a package."""
    return not room(name) or name == f"graphviz_torch.{room(name)}.__init__"


def test_a_file_imports_from_the_packages_that_its_package_may() -> None:
    wrong = {}
    for name in trees():
        if here := room(name):  # the root hands on what the packages have
            allowed = {here, *MAY_IMPORT[here].split()}
            others = {each for each in arrows()[name] if room(each) not in allowed}
            if here in OUTSIDE:
                others = {each for each in others if not is_namespace(each)}
            if others:
                wrong[folder(name)] = sorted(map(folder, others))
    assert not wrong


def test_the_house_is_counted_from_the_lowest_room_up() -> None:
    house = rooms()
    assert sum(each.files for each in house.values()) == len(package_files())
    order = list(house)
    for name, each in house.items():
        assert each.imports <= {*order[: order.index(name)]}


def names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def setters(tree: ast.AST) -> Iterator[str]:
    """The functions by which a file is given a value to hold: `global _judge; _judge = judge`."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            given = {each.arg for each in [*function.args.args, *function.args.kwonlyargs]}
            inside = list(ast.walk(function))
            outer = {each for node in inside if isinstance(node, ast.Global) for each in node.names}
            sets = [node for node in inside if isinstance(node, ast.Assign)]
            if any(
                names(n.value) & given and outer & set().union(*map(names, n.targets)) for n in sets
            ):
                yield function.name


def hand_ins(name: str) -> set[str]:
    """What a file, while it is imported, calls or changes in another room: `judge_with(find)`."""
    touched: set[str] = set()
    for node in getattr(trees()[name], "body", ()):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            touched |= names(node.value.func)
        elif isinstance(node, ast.Assign):
            touched |= {
                each for t in node.targets if not isinstance(t, ast.Name) for each in names(t)
            }
    others = {
        each for each in imported(name) if (file := file_of(each)) and room(file) != room(name)
    }
    return touched & {each.rpartition(".")[2] for each in others}


def package_files() -> list[str]:
    return [name for name in trees() if name.startswith("graphviz_torch.")]


def test_no_package_is_given_a_function_to_hold_by_one_above() -> None:
    # The root of the package alone registers: what reads a tensor, and what shows a graph.
    files = {name for name in package_files() if room(name)} - {"graphviz_torch.graph.registry"}
    assert not {name: found for name in files if (found := list(setters(trees()[name])))}
    assert not {name: found for name in files if (found := hand_ins(name))}


def test_no_circle_of_files() -> None:
    left = {name: set(others) for name, others in arrows().items()}
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert not left, f"in circles, or above one: {sorted(left)}"


def inner_room(name: str) -> str:
    """A folder inside a room as one, and a file that stands in no such folder."""
    return ".".join(name.split(".")[: 3 if name.count(".") > 2 else None])


# The folders of these two are kinds of things, and no floors.
@pytest.mark.parametrize("top", sorted(MAY_IMPORT.keys() - {"internals", "render"}))
def test_no_circle_of_the_folders_inside_a_package(top: str) -> None:
    left: dict[str, set[str]] = {}
    for name in (each for each in trees() if room(each) == top):
        inside = {inner_room(other) for other in arrows()[name] if room(other) == top}
        left.setdefault(inner_room(name), set()).update(inside - {inner_room(name)})
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert not left, f"in circles, or above one: {left}"


def test_what_reads_a_saved_graph_never_imports_torch() -> None:
    for name in trees():
        if folder(name).startswith(WITHOUT_TORCH):
            assert "torch" not in {each.split(".")[0] for each in imported(name)}, name


def test_the_values_stand_on_the_standard_library_alone() -> None:
    for name in trees():
        if room(name) == "graph":
            used = {each.split(".")[0] for each in imported(name)} - {"graphviz_torch"}
            assert used <= sys.stdlib_module_names, name


LISTENERS = sorted({kind.__module__ for kind in listeners.LISTENERS})


def test_a_listener_does_not_know_the_other_listeners() -> None:
    above = {f"graphviz_torch.recording.{each}" for each in ("recording", "session")}
    known = {name: arrows()[name] & ({*LISTENERS} - {name} | above) for name in LISTENERS}
    assert not {name: others for name, others in known.items() if others}


def test_the_app_uses_public_names_only() -> None:
    for path in sources(ROOT / "app"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                used = [alias.name for alias in node.names]
            else:
                used = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert all(name.count(".") < 2 for name in used if name.startswith("graphviz_")), path


def private(tree: ast.AST) -> Iterator[str]:
    """What a file names of torch that begins with "_": `torch._C`, `torch.utils._pytree`."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        yield from (name for name in names if re.match(r"torch\b(\.\w+)*\._[a-zA-Z]", name))


def test_what_torch_calls_private_is_named_in_internals_alone() -> None:
    naming = {
        f"{folder(name)}.py"
        for name, tree in trees().items()
        if room(name) != "internals" and any(private(tree))
    }
    assert len(PRIVATE) <= 8
    assert naming == PRIVATE.keys()


def test_what_reads_a_tensor_asks_first_what_may_be_read() -> None:
    reading = {
        name
        for name, tree in trees().items()
        if any(isinstance(node, ast.Attribute) and node.attr in READS for node in ast.walk(tree))
    }
    memory = dotted(PACKAGE / "internals" / "tensors" / "memory.py")
    asking = {name for name in trees() if memory in arrows()[name]} | {memory}
    assert {f"{folder(name)}.py" for name in reading - asking} == READ_THEIR_OWN.keys()


def test_no_module_has_the_name_of_a_public_function_beside_it() -> None:
    # Importing `graphviz_torch.trace` as a module would put the module in the function's place.
    for package in (graphviz_torch, *map(import_module, NAMESPACES)):
        beside = {path.stem for path in Path(str(package.__file__)).parent.iterdir()}
        if Path(str(package.__file__)).stem == "__init__":
            assert not beside & set(package.__all__), package


def test_files_classes_and_functions_have_no_riddles_for_names() -> None:
    for path in PATHS:
        kinds = ast.ClassDef | ast.FunctionDef
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]
        # A rule is named by its function: "backward-returned-none".
        rules = {
            node.name for node in nodes if "rule(" in "".join(map(ast.unparse, node.decorator_list))
        }
        for name in {path.stem, *(node.name for node in nodes)} - rules:
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")
            assert not RIDDLES & {*words}, f"{path}: {name}"


def test_rows_of_unequal_length_are_an_error_where_graphs_are_made() -> None:
    for name, tree in trees().items():
        calls = (ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call))
        zips = [call for call in calls if call.startswith("zip(")]
        assert room(name) not in ("graph", "tracing") or all("strict=True" in z for z in zips), name
