"""Test that files are replaced as a whole: full disk, kill, many writers, missing rights."""

from __future__ import annotations

import ast
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from graphviz_torch import Graph, draw_graph, load, record, save, to_html, to_tensorboard
from graphviz_torch.checkpoint import load_checkpoint, save_checkpoint
from graphviz_torch.export import to_chrome_trace, to_model_explorer, to_pbtxt
from graphviz_torch.graph.files import replacement as module
from graphviz_torch.graph.files.replacement import replacement
from graphviz_torch.integrations.command.files import write_text
from graphviz_torch.integrations.command.judge import write_baseline

ROOT = Path(__file__).parents[2]
OLD = b"what stood there"
NOBODY = 65534
STATE = {"a": torch.arange(50_000), "b": torch.ones(3)}


@cache
def step() -> Graph:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    with record(model) as recording:
        model(torch.ones(2, 3)).sum().backward()
    return recording.graph


@cache
def picture() -> Any:
    drawn = draw_graph(step())
    drawn.pipe()  # laid out once, by a child process
    return drawn


# Each writer of files: the end of their names, and how it is called.
WRITERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "save": (".json", lambda path: save(step(), path)),
    "save, compressed": (".json.gz", lambda path: save(step(), path)),
    "to_html": (".html", lambda path: to_html(step(), path)),
    "to_model_explorer": (".json", lambda path: to_model_explorer(step(), path)),
    "to_chrome_trace": (".json", lambda path: to_chrome_trace(step(), path)),
    "to_pbtxt": (".pbtxt", lambda path: to_pbtxt(step(), path)),
    "save_checkpoint": (".pt", lambda path: save_checkpoint(STATE, path)),
    "safetensors": (".safetensors", lambda path: save_checkpoint(STATE, path)),
    "render": (".svg", lambda path: picture().render(outfile=path)),
    "a picture's text": (".gv", lambda path: picture().save(path)),
    "the command's text": (".txt", lambda path: write_text("text\n" * 1000, path)),
    "a baseline": (".json", lambda path: write_baseline(path, [])),
}
EACH = pytest.mark.parametrize("writer", WRITERS)


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Limit files of this process to `size` bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def forked(program: Callable[[], object]) -> int:
    """Return the id of a child that runs this, and ends with 0, or with 1 for an exception."""
    child = os.fork()
    if child:
        return child
    try:
        program()
    except BaseException:
        os._exit(1)
    os._exit(0)


def status(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die(*_: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process goes on")


def without_unnamed_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a file system or operating system without unnamed files."""
    monkeypatch.setattr(module.os, "O_TMPFILE", os.O_RDWR)  # a folder cannot be opened so


@EACH
def test_a_disk_that_is_full_leaves_the_old_file(writer: str, tmp_path: Path) -> None:
    ending, write = WRITERS[writer]
    path = tmp_path / f"file{ending}"
    write(path)  # what is made only once
    path.write_bytes(OLD)
    with at_most(40), pytest.raises(OSError, match="File too large"):
        write(path)
    assert path.read_bytes() == OLD
    left = {"file.json", "file.gradient.json", "file.time.json", "file.memory.json", path.name}
    assert {*os.listdir(tmp_path)} <= left


@EACH
def test_a_process_killed_while_it_writes_leaves_the_old_file_and_nothing_beside(
    writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending, write = WRITERS[writer]
    path = tmp_path / f"file{ending}"
    picture()
    path.write_bytes(OLD)
    monkeypatch.setattr(os, "fsync", die)  # all is written, and nothing is in its place
    assert status(forked(lambda: write(path))) == -signal.SIGKILL
    assert path.read_bytes() == OLD
    assert os.listdir(tmp_path) == [path.name]


def test_where_files_need_names_a_kill_leaves_one_that_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_unnamed_files(monkeypatch)
    path = save(step(), tmp_path / "a.json")
    assert os.listdir(tmp_path) == ["a.json"]
    old = path.read_bytes()
    monkeypatch.setattr(os, "fsync", die)
    assert status(forked(lambda: save(step(), path))) == -signal.SIGKILL
    assert path.read_bytes() == old
    [rest] = {*os.listdir(tmp_path)} - {"a.json"}
    assert rest.startswith(".graphviz_torch-")
    assert rest.endswith(".partial")


@pytest.mark.parametrize("unnamed", [True, False])
def test_an_exception_or_an_interrupt_leaves_the_old_file_and_nothing_beside(
    unnamed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not unnamed:
        without_unnamed_files(monkeypatch)
    path = tmp_path / "a"

    def half(error: type[BaseException]) -> NoReturn:
        with replacement(path) as file:
            file.write(b"half")
            raise error

    for there in (False, True):
        if there:
            path.write_bytes(OLD)
        for error in (ValueError, KeyboardInterrupt):
            with pytest.raises(error):
                half(error)
        assert os.listdir(tmp_path) == ["a"] * there
    assert path.read_bytes() == OLD


def test_a_tensorboard_folder_gets_a_whole_event_file_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_tensorboard(step(), tmp_path / "runs")
    before = os.listdir(tmp_path / "runs")
    with at_most(100), pytest.raises(OSError, match="File too large"):
        to_tensorboard(step(), tmp_path / "runs", step=1)
    monkeypatch.setattr(os, "fsync", die)
    killed = forked(lambda: to_tensorboard(step(), tmp_path / "runs", step=1))
    assert status(killed) == -signal.SIGKILL
    assert os.listdir(tmp_path / "runs") == before


@pytest.mark.parametrize("unnamed", [True, False])
def test_four_writers_and_a_reader_see_whole_files_only(
    unnamed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not unnamed:
        without_unnamed_files(monkeypatch)
    graph, tensors = tmp_path / "a.json.gz", tmp_path / "a.pt"
    save(step(), graph)
    save_checkpoint([torch.zeros(1)], tensors)

    def write(number: int) -> None:
        torch.set_num_threads(1)
        for _ in range(20):
            save(step().annotate(note=dict.fromkeys(range(number), "*")), graph)
            save_checkpoint([torch.full((2000 * number,), number)], tensors)

    writers = [forked(lambda number=number: write(number)) for number in range(1, 5)]
    running = set(writers)
    while running:
        assert len(load(graph).nodes) == len(step().nodes)
        [value] = load_checkpoint(tensors)
        assert len(value) == 2000 * int(value[0]) or len(value) == 1
        for writer in [*running]:
            if os.waitid(os.P_PID, writer, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                assert status(writer) == 0
                running.remove(writer)
    assert {*os.listdir(tmp_path)} == {"a.json.gz", "a.pt"}


def test_what_may_not_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    """A folder that is read-only, a file that is read-only, somebody else's relative path."""
    closed, open_ = tmp_path / "closed", tmp_path / "open"
    for folder in (closed, open_):
        folder.mkdir()
        (folder / "old").write_bytes(OLD)
        (folder / "old").chmod(0o666)
    (open_ / "read-only").write_bytes(OLD)
    (open_ / "read-only").chmod(0o444)
    open_.chmod(0o777)
    closed.chmod(0o555)

    def refused(path: str) -> None:
        with pytest.raises(PermissionError) as error, replacement(path) as file:
            file.write(b"new")
        assert error.value.filename == path

    def nobody() -> None:
        os.chdir(closed)
        if os.getuid() == 0:
            os.setuid(NOBODY)
        refused("old")
        refused("new")

    def nobody_either() -> None:
        os.chdir(open_)
        if os.getuid() == 0:
            os.setuid(NOBODY)
        refused("read-only")
        with replacement("old") as file:
            file.write(b"new")

    assert status(forked(nobody)) == 0
    assert os.listdir(closed) == ["old"]
    assert (closed / "old").read_bytes() == OLD
    assert status(forked(nobody_either)) == 0
    assert (open_ / "read-only").read_bytes() == OLD
    assert (open_ / "old").read_bytes() == b"new"
    assert {*os.listdir(open_)} == {"old", "read-only"}


@pytest.mark.parametrize("unnamed", [True, False])
def test_the_mode_is_that_of_the_old_file_or_of_a_file_that_open_makes(
    unnamed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not unnamed:
        without_unnamed_files(monkeypatch)
    mask = os.umask(0o027)
    try:
        for name in ("new", "old", "theirs"):
            with open(tmp_path / f"plain {name}", "w"):
                pass
            if name != "new":
                (tmp_path / name).touch()
                (tmp_path / name).chmod(0o604)
            if name == "theirs" and os.getuid() == 0:
                os.chown(tmp_path / name, NOBODY, NOBODY)
            with replacement(tmp_path / name) as file:
                file.write(b"1")
    finally:
        os.umask(mask)

    def mode(name: str) -> int:
        return stat.S_IMODE((tmp_path / name).stat().st_mode)

    assert mode("new") == mode("plain new") == 0o640
    assert mode("old") == mode("theirs") == 0o604
    owner = NOBODY if os.getuid() == 0 else os.getuid()
    assert (tmp_path / "theirs").stat().st_uid == owner


def test_a_link_stays_and_what_it_names_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "real").write_bytes(OLD)
    (tmp_path / "folder" / "second").symlink_to("real")
    (tmp_path / "first").symlink_to("folder/second")
    (tmp_path / "dangling").symlink_to(tmp_path / "folder" / "made")
    for link in ("first", "dangling"):
        with replacement(tmp_path / link) as file:
            file.write(b"new")
        assert (tmp_path / link).is_symlink()
        assert (tmp_path / link).read_bytes() == b"new"
    assert {*os.listdir(tmp_path / "folder")} == {"real", "second", "made"}
    assert (tmp_path / "folder" / "second").is_symlink()


def test_a_pipe_and_a_device_are_written_as_they_are(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    save(step(), pipe)
    reader.join()
    expected = save(step(), tmp_path / "a.json").read_bytes()
    assert got == [expected]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert {*os.listdir(tmp_path)} == {"pipe", "a.json"}

    def nobody() -> None:  # a mistake here must not replace a device
        if os.getuid() == 0:
            os.setuid(NOBODY)
        save(step(), "/dev/null")
        with pytest.raises(OSError, match="No space left"):
            save(step(), "/dev/full")

    assert status(forked(nobody)) == 0


@pytest.mark.parametrize("name", ["a link", "/dev/fd/1", "/proc/self/fd/1"])
def test_stdout_that_goes_to_a_file_is_written_where_it_goes(name: str, tmp_path: Path) -> None:
    if name == "a link":  # as /dev/stdout is one
        (tmp_path / "links").mkdir()
        (tmp_path / "links" / "stdout").symlink_to("/proc/self/fd/1")
        name = str(tmp_path / "links" / "stdout")
    program = (
        "import sys\nfrom graphviz_torch.graph.files.replacement import replacement\n"
        "with replacement(sys.argv[1]) as file:\n    file.write(b'new\\n')\nprint('more')\n"
    )
    command = [sys.executable, "-c", program, name]
    piped = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    assert piped.stdout == b"new\nmore\n"
    (tmp_path / "folder").mkdir()
    with open(tmp_path / "folder" / "out", "ab") as out:
        subprocess.run(command, cwd=ROOT, stdout=out, check=True)
    assert (tmp_path / "folder" / "out").read_bytes() == b"new\nmore\n"
    assert os.listdir(tmp_path / "folder") == ["out"]


def test_what_cannot_be_a_file_is_the_error_that_open_raises(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    for name in ("loop", ".", "file/below", "missing/a", "", "a" * 300):
        with pytest.raises(OSError, match="Errno") as plain, open(tmp_path / name, "wb"):
            pass
        with pytest.raises(type(plain.value)) as ours, replacement(tmp_path / name):
            pass
        assert (ours.value.errno, ours.value.filename) == (plain.value.errno, str(tmp_path / name))
    assert {*os.listdir(tmp_path)} == {"loop", "file"}
    with replacement(tmp_path / ("a" * 255)) as file:
        file.write(b"as long as a name can be")


@pytest.mark.parametrize("ending", [".pt", ".safetensors"])
def test_a_checkpoint_is_not_held_twice(ending: str, tmp_path: Path) -> None:
    program = (
        "import resource, sys, torch\nfrom graphviz_torch.checkpoint import save_checkpoint\n"
        "save_checkpoint({'x': torch.ones(10)}, sys.argv[1])\n"
        "x = torch.ones(40_000_000)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "save_checkpoint({'x': x}, sys.argv[1])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / f"x{ending}")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 80_000  # KiB; the tensor has 156,250


# What writes a file, or puts one in another's place: methods of any value, and functions.
_METHODS = {"write_text", "write_bytes", "save_file", "tofile", "savefig", "rename", "touch"}
_METHODS |= {"export_chrome_trace", "symlink_to", "hardlink_to", "GFile", "fdopen"}
_FUNCTIONS = {"os.replace", "os.link", "os.open", "json.dump", "pickle.dump", "shutil.move"}
_FUNCTIONS |= {"shutil.copy", "shutil.copyfile", "NamedTemporaryFile", "mkstemp"}
_FUNCTIONS |= {"tempfile.NamedTemporaryFile", "tempfile.mkstemp"}
# Who may, and why.
OWN = {
    "graphviz_torch/graph/files/replacement.py": "this is the function",
    "graphviz_torch/graph/files/file.py": "compresses into what the function gives",
    "graphviz_torch/graph/training_file.py": "a line at the end; what it cannot finish is cut off",
    "graphviz_torch/tensorboard/events.py": "a bucket, which shows no file before it is closed",
    "graphviz_torch/render/view/build.py": "a build step, which no user runs",
    "graphviz_torch/recording/transfers/profiler.py": "a temporary folder of its own",
    "graphviz_torch/integrations/command/files.py": "a temporary folder of its own",
    "graphviz_torch/integrations/command/main.py": "/dev/null in the place of a pipe",
    "graphviz_torch/integrations/command/app.py": "a mark in a temporary folder of its own",
    "app/panels/own.py": "a mark in the same folder",
    "app/jobs/recordings.py": "a temporary folder of its own",
    "app/jobs/checkpoints.py": "a temporary folder of its own",
}


def writers(tree: ast.AST) -> Iterator[str]:
    """Yield the calls that may write a file, except those that write to a `replacement`."""
    files = {
        item.optional_vars.id
        for node in ast.walk(tree)
        if isinstance(node, ast.With)
        for item in node.items
        if isinstance(item.optional_vars, ast.Name) and "replacement(" in ast.unparse(item)
    }
    # A file that is handed on to a function of the same file, by the name of its parameter.
    files |= {
        argument.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for argument in node.args.args
        if argument.annotation is not None and ast.unparse(argument.annotation) == "BinaryIO"
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called, given = ast.unparse(node.func), [ast.unparse(each) for each in node.args]
        name = called.rpartition(".")[2]
        modes = [*given, *(ast.unparse(each.value) for each in node.keywords)]
        opens = any(re.fullmatch(r"'[rbt]*[wax+][wbt+]*'", mode) for mode in modes)
        if (
            (name in ("open", "GzipFile", "fdopen") and opens)
            or (called == "open" and len(given) > 1 and not re.match("'", given[1]))
            or (name in _METHODS and called != name)
            or (called == "torch.save" and given[-1] not in files)
            or called in _FUNCTIONS
        ):
            yield f"{called}({', '.join(given)})"


def test_every_file_is_written_by_the_function() -> None:
    found = {
        str(path.relative_to(ROOT)): calls
        for top in ("graphviz_torch", "app")
        for path in (ROOT / top).rglob("*.py")
        if "node_modules" not in path.parts and (calls := [*writers(ast.parse(path.read_text()))])
    }
    unknown = {name: calls for name, calls in found.items() if name not in OWN}
    assert not unknown
    assert {*found} == {*OWN}


@pytest.mark.parametrize(
    "text",
    [
        "open(path, 'w')",
        "open(path, mode)",
        "path.open('wb')",
        "Path(path).write_text(page)",
        "torch.save(state, path)",
        "with open(path, 'xb') as file: torch.save(state, file)",
        "gzip.open(path, 'wb')",
        "os.fdopen(number, 'wb')",
        "json.dump(value, other)",
        "safetensors.torch.save_file(state, path)",
        "os.replace(partial, path)",
    ],
)
def test_a_writer_of_another_kind_would_be_found(text: str) -> None:
    assert [*writers(ast.parse(text))]
    reading = "open(path)\nopen(path, 'rb')\nwatch.open()\nio.open_code(path)\n"
    ours = "with replacement(path) as file:\n    torch.save(state, file)\n"
    assert not [*writers(ast.parse(reading + ours))]
