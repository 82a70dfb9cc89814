"""Check the structure of the code: imports between packages, private names of torch, and names.

A package is a folder of graphviz_torch or of the app. All imports in the source are read with
`ast`, including those inside functions and those for type checkers.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import graphviz_torch
from graphviz_torch.recording import listeners
from tests.bench.packages import packages

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "graphviz_torch"

# Packages whose `__init__` has public names.
NAMESPACES = [
    f"graphviz_torch.{name}"
    for name in ("graph", "experiments", "rehearsal", "devices", "checkpoint", "tensorboard")
]
# Package -> the packages that it may import, apart from itself.
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
    # The folders of the app; all use the public names.
    "expression": "",
    "models": "",
    "jobs": "expression models",
    "panels": "expression jobs models",
    "views": "expression jobs models panels",
}
# Packages that use the public names of graphviz_torch.
OUTSIDE = ("integrations", "expression", "models", "jobs", "panels", "views")
# Packages that never import torch, because they work on saved graphs.
WITHOUT_TORCH = ("graph", "findings", "comparison", "render", "integrations/command")
# Words that do not say what a thing is, so that names must not contain them.
VAGUE_WORDS = {"across", "dropped", "earlier", "elsewhere", "heard", "held", "kept", "others"}
VAGUE_WORDS |= {"seen", "several", "stuck", "told"}


# The files outside internals/ that use private names of PyTorch, and why (at most 8).
PRIVATE = {
    "devices/simulated/accelerator.py": "simulates a device: patches the functions that query one",
    "devices/simulated/autocast.py": "simulates the casts of autocast on CUDA",
    "devices/simulated/data_parallel.py": "simulates the replicas of nn.DataParallel",
    "devices/simulated/patches.py": "rebuilds tensors, and traverses containers, as torch does",
    "devices/simulated/tensor.py": "a tensor subclass with a device that does not exist",
    "checkpoint/verify.py": "compares each value that a node computes, in a dispatch mode",
}

# Functions that read the memory of a tensor, or return its address.
READS = {"data_ptr", "untyped_storage", "numpy", "tolist", "item", "_foreach_norm", "foreach_norm"}
# The files that call these functions without internals/tensors/memory.py, and why they may.
READ_THEIR_OWN = {
    "jobs/training.py": "reads the loss of the app's own training",
    "internals/sharding.py": "reads the ranks of a mesh, which every process knows",
    "internals/functions.py": "names functions that other files call",
    "internals/fake/values.py": "replaces these functions for fake tensors, which have no memory",
    "recording/gradients/cpu.py": "reads plain tensors that memory.py has selected",
    "devices/simulated/accelerator.py": "marks the storages of tensors that it pins itself",
    "devices/simulated/tensor.py": "reads the memory of the tensor that it wraps",
}


def sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "node_modules" not in path.parts)


def dotted(path: Path) -> str:
    """Return the name by which a file is imported; that of a package ends in ".__init__"."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


PATHS = [*sources(PACKAGE), *sources(ROOT / "app")]


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each file of graphviz_torch and of the app, by dotted name."""
    parsed = {dotted(path): ast.parse(path.read_text()) for path in PATHS}
    gc.freeze()  # otherwise each collection visits a million nodes
    return parsed


@cache
def nodes_of(name: str) -> list[ast.AST]:
    """Return all nodes of a file's syntax tree."""
    return list(ast.walk(trees()[name]))


def imported(name: str) -> Iterator[str]:
    """Yield the absolute names that a file imports: "torch.nn", "graphviz_torch.graph.Node"."""
    parts = name.split(".")
    for node in nodes_of(name):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif parts[0] == "app" and isinstance(node, ast.Call) and node.args:
            given = node.args[0]  # the app imports some files by name
            if ast.unparse(node.func) == "import_module" and isinstance(given, ast.Constant):
                yield ".".join([*parts[:-1], str(given.value)[1:]])


def file_of(name: str) -> str | None:
    """Return the dotted name of the file that defines an imported name; None if not one of ours."""
    if name.split(".")[0] not in ("graphviz_torch", "app"):
        return None
    for each in (name, name.rpartition(".")[0]):
        for file in (each, f"{each}.__init__"):
            if file in trees():
                return file
    raise AssertionError(f"no file defines {name}")


@cache
def imported_files() -> dict[str, set[str]]:
    """Return, for each file, the files of graphviz_torch and of the app that it imports."""
    return {
        name: {file for each in imported(name) if (file := file_of(each))} - {name}
        for name in trees()
    }


def package_of(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 2 else ""


def folder(name: str) -> str:
    return "/".join(name.split(".")[1:])


def test_every_package_is_in_the_table() -> None:
    assert {package_of(name) for name in trees()} - {""} == MAY_IMPORT.keys()


def is_namespace(name: str) -> bool:
    """Return True for files with public names: the root, and the `__init__` of a package."""
    return not package_of(name) or name == f"graphviz_torch.{package_of(name)}.__init__"


def test_a_file_imports_from_the_packages_that_its_package_may() -> None:
    wrong = {}
    for name in trees():
        if here := package_of(name):  # the root may import from all packages
            allowed = {here, *MAY_IMPORT[here].split()}
            others = {each for each in imported_files()[name] if package_of(each) not in allowed}
            if here in OUTSIDE:
                others = {each for each in others if not is_namespace(each)}
            if others:
                wrong[folder(name)] = sorted(map(folder, others))
    assert not wrong


def test_packages_are_listed_after_those_that_they_import() -> None:
    sizes = packages()
    assert sum(each.files for each in sizes.values()) == len(package_files())
    order = list(sizes)
    for name, each in sizes.items():
        assert each.imports <= {*order[: order.index(name)]}


def test_the_map_of_contributing_has_the_imports_of_each_package() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = dict(re.findall(r"^\| `(\w+)/` \|.*\| (.*) \|$", text, re.MULTILINE))
    for name, each in packages().items():
        if name != "(root)":
            listed = set(table[name].split(", ")) - {"the standard library only"}
            assert (name, listed) == (name, each.imports)


def names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def setters(name: str) -> Iterator[str]:
    """Yield functions that store an argument in a global: `global _judge; _judge = judge`."""
    if not any(isinstance(node, ast.Global) for node in nodes_of(name)):
        return
    for function in nodes_of(name):
        if isinstance(function, ast.FunctionDef):
            given = {each.arg for each in [*function.args.args, *function.args.kwonlyargs]}
            inside = list(ast.walk(function))
            outer = {each for node in inside if isinstance(node, ast.Global) for each in node.names}
            sets = [node for node in inside if isinstance(node, ast.Assign)]
            if any(
                names(n.value) & given and outer & set().union(*map(names, n.targets)) for n in sets
            ):
                yield function.name


def import_effects(name: str) -> set[str]:
    """Return what a file calls or changes in another package at import: `judge_with(find)`."""
    touched: set[str] = set()
    for node in getattr(trees()[name], "body", ()):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            touched |= names(node.value.func)
        elif isinstance(node, ast.Assign):
            touched |= {
                each for t in node.targets if not isinstance(t, ast.Name) for each in names(t)
            }
    others = {
        each
        for each in imported(name)
        if (file := file_of(each)) and package_of(file) != package_of(name)
    }
    return touched & {each.rpartition(".")[2] for each in others}


def package_files() -> list[str]:
    return [name for name in trees() if name.startswith("graphviz_torch.")]


def test_no_package_stores_a_function_of_a_package_that_imports_it() -> None:
    # Only the root may do so: it registers functions that read tensors and display graphs.
    files = {name for name in package_files() if package_of(name)} - {
        "graphviz_torch.graph.registry"
    }
    assert not {name: found for name in files if (found := list(setters(name)))}
    assert not {name: found for name in files if (found := import_effects(name))}


def test_files_do_not_import_each_other_in_a_cycle() -> None:
    left = {name: set(others) for name, others in imported_files().items()}
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert not left, f"in a cycle, or importing one: {sorted(left)}"


def inner_folder(name: str) -> str:
    """Return the folder inside a package that contains a file; the file itself if there is none."""
    return ".".join(name.split(".")[: 3 if name.count(".") > 2 else None])


# The folders of internals and render may import each other.
@pytest.mark.parametrize("top", sorted(MAY_IMPORT.keys() - {"internals", "render"}))
def test_folders_of_a_package_do_not_import_each_other_in_a_cycle(top: str) -> None:
    left: dict[str, set[str]] = {}
    for name in (each for each in trees() if package_of(each) == top):
        inside = {
            inner_folder(other) for other in imported_files()[name] if package_of(other) == top
        }
        left.setdefault(inner_folder(name), set()).update(inside - {inner_folder(name)})
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert not left, f"in a cycle, or importing one: {left}"


def test_packages_that_read_saved_graphs_never_import_torch() -> None:
    for name in trees():
        if folder(name).startswith(WITHOUT_TORCH):
            assert "torch" not in {each.split(".")[0] for each in imported(name)}, name


def test_graph_imports_only_the_standard_library() -> None:
    for name in trees():
        if package_of(name) == "graph":
            used = {each.split(".")[0] for each in imported(name)} - {"graphviz_torch"}
            assert used <= sys.stdlib_module_names, name


LISTENERS = sorted({kind.__module__ for kind in listeners.LISTENERS})


def test_a_listener_does_not_know_the_other_listeners() -> None:
    above = {f"graphviz_torch.recording.{each}" for each in ("recording", "session")}
    known = {name: imported_files()[name] & ({*LISTENERS} - {name} | above) for name in LISTENERS}
    assert not {name: others for name, others in known.items() if others}


def test_the_app_uses_public_names_only() -> None:
    for path in sources(ROOT / "app"):
        for node in nodes_of(dotted(path)):
            if isinstance(node, ast.Import):
                used = [alias.name for alias in node.names]
            else:
                used = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert all(name.count(".") < 2 for name in used if name.startswith("graphviz_")), path


def private(name: str) -> Iterator[str]:
    """Yield the private names of torch in a file: `torch._C`, `torch.utils._pytree`."""
    for node in nodes_of(name):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            names = [ast.unparse(node)]
        yield from (name for name in names if re.match(r"torch\b(\.\w+)*\._[a-zA-Z]", name))


def test_private_names_of_torch_are_used_only_in_internals() -> None:
    naming = {
        f"{folder(name)}.py"
        for name in trees()
        if package_of(name) != "internals" and any(private(name))
    }
    assert len(PRIVATE) <= 8
    assert naming == PRIVATE.keys()


def test_files_that_read_tensors_use_memory_py() -> None:
    reading = {
        name
        for name in trees()
        if any(isinstance(node, ast.Attribute) and node.attr in READS for node in nodes_of(name))
    }
    memory = dotted(PACKAGE / "internals" / "tensors" / "memory.py")
    safe = {name for name in trees() if memory in imported_files()[name]} | {memory}
    assert {f"{folder(name)}.py" for name in reading - safe} == READ_THEIR_OWN.keys()


def test_no_module_has_the_name_of_a_public_function_beside_it() -> None:
    # Importing a module `graphviz_torch.trace` would replace the function of this name.
    for package in (graphviz_torch, *map(import_module, NAMESPACES)):
        beside = {path.stem for path in Path(str(package.__file__)).parent.iterdir()}
        if Path(str(package.__file__)).stem == "__init__":
            assert not beside & set(package.__all__), package


def test_names_of_files_classes_and_functions_have_no_vague_words() -> None:
    for path in PATHS:
        kinds = ast.ClassDef | ast.FunctionDef
        nodes = [node for node in nodes_of(dotted(path)) if isinstance(node, kinds)]
        # A rule is named by its function: "backward-returned-none".
        rules = {
            node.name for node in nodes if "rule(" in "".join(map(ast.unparse, node.decorator_list))
        }
        for name in {path.stem, *(node.name for node in nodes)} - rules:
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")
            assert not VAGUE_WORDS & {*words}, f"{path}: {name}"


def test_zip_is_strict_where_graphs_are_created() -> None:
    for name in trees():
        if package_of(name) in ("graph", "tracing"):
            calls = (ast.unparse(node) for node in nodes_of(name) if isinstance(node, ast.Call))
            assert all("strict=True" in call for call in calls if call.startswith("zip(")), name
