"""Test the command line as a shell uses it: output, files, exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphviz_torch import Graph, load, to_text, trace
from graphviz_torch.graph import (
    Failure,
    Parameter,
    TensorMeta,
    Training,
    TrainingStep,
    graph_of,
)
from graphviz_torch.integrations.command.lifeline import remove_leftovers
from graphviz_torch.integrations.command.main import COMMANDS, main
from tests.support.models import worked_example

META = TensorMeta((3,), "float32", "cpu")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return a file with the worked example."""
    tensors = worked_example()
    return trace(tensors["y"], names=tensors).save(tmp_path / "mean.json.gz")


def save(graph: Graph, path: Path) -> str:
    return str(graph.save(path))


def failed() -> Graph:
    return Graph((), failure=Failure("RuntimeError", "no such thing", "addmm", "net.py:9"))


def test_a_graph_is_printed(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--to", "text", str(saved)]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("x", "pow", "mean", "f32[3]", "all on cpu"))
    assert main(["export", "--to", "text", str(saved), "--wide", "--no-findings"]) == 0
    assert capsys.readouterr().out == to_text(load(saved), findings=None, wide=True)


def test_a_graph_is_summed_up_for_readers_and_for_programs(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["summary", str(saved)]) == 0
    assert "total" in capsys.readouterr().out
    assert main(["summary", str(saved), "--depth", "1", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[-1]["flops_forward"] == 0
    assert main(["summary", str(saved), "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("module,module_class,")


def test_a_graph_is_drawn_beside_its_file_or_where_told(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["draw", str(saved)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "mean.svg")
    assert "<svg" in (tmp_path / "mean.svg").read_text()
    assert main(["draw", str(saved), "-o", str(tmp_path / "picture.png")]) == 0
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_a_page_is_written_beside_its_file(saved: Path, tmp_path: Path) -> None:
    assert main(["export", "--to", "html", str(saved)]) == 0
    assert (tmp_path / "mean.html").read_text().startswith("<!doctype html>")


def test_a_run_for_tensorboard_is_written(saved: Path, tmp_path: Path) -> None:
    assert (
        main(
            [
                "export",
                "--to",
                "tensorboard",
                str(saved),
                "-o",
                str(tmp_path / "runs"),
                "--tag",
                "mean",
            ]
        )
        == 0
    )
    assert any("tfevents" in file.name for file in (tmp_path / "runs").iterdir())


def test_a_browser_opens_the_view(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: bool(opened.append(address)))
    assert main(["view", str(saved), "-o", str(tmp_path / "view.html")]) == 0
    assert opened == [(tmp_path / "view.html").as_uri()]
    assert "<html" in (tmp_path / "view.html").read_text()
    assert "open the file yourself" in capsys.readouterr().err
    assert main(["view", str(saved)]) == 0
    printed = Path(capsys.readouterr().out.strip())
    assert opened[1:] == [printed.as_uri()]
    assert printed.name == "mean.html"
    shutil.rmtree(printed.parent)


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["darw", "a.json"], "draw"),
        (["draw", "a.json", "--formta", "svg"], "--format"),
        (["find", "--fail-on", "eror", "a.json"], "error"),
        (["serch", "a.json"], "find"),
        (["plot", "a.json"], "draw"),
    ],
)
def test_a_word_that_is_not_known_is_told_the_nearest(
    words: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert f"Did you mean {near}?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["nothingalike"])
    assert "Did you mean" not in capsys.readouterr().err


def test_an_error_says_what_is_missing(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["diff", str(saved)])
    assert "arguments are required: B, a second graph;" in capsys.readouterr().err
    (script := tmp_path / "train.py").write_text("import torch\n")
    assert main(["view", str(script)]) == 2
    said = capsys.readouterr().err
    assert said.endswith(
        f"is a script: record it first with graphviz-torch run -o run.json.gz {script}\n"
    )
    for name in ("g.json", "g.json.gz"):
        whole = Path(load(saved).save(tmp_path / name)).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        assert main(["find", str(tmp_path / name)]) == 2
        assert f"cut short at byte {len(whole) // 2:,}" in capsys.readouterr().err
    step = TrainingStep(0, (graph_of(load(saved)),))
    one = Training((step,)).save(tmp_path / "one.json")
    assert main(["find", f"{one}@7"]) == 2
    assert "one.json has one step, 0, and no step 7." in capsys.readouterr().err


def test_colours_are_for_terminals(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(failed(), file := tmp_path / "failed.json")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("WT_SESSION", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    commands = (
        ["find", str(file)],
        ["diff", str(saved), str(file)],
        ["export", "--to", "text", str(file)],
    )
    plain = []
    for command in commands:
        main(command)
        plain.append(capsys.readouterr().out)
    assert "\x1b" not in "".join(plain)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    for command, without in zip(commands, plain, strict=True):
        main(command)
        colored = capsys.readouterr().out
        assert "\x1b[31m" in colored
        assert re.sub(r"\x1b\[\d+m", "", colored) == without
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("FORCE_COLOR", "1")
        main(command)
        assert capsys.readouterr().out == without
        monkeypatch.delenv("NO_COLOR")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
        main(command)
        assert "\x1b[31m" in capsys.readouterr().out
        monkeypatch.delenv("FORCE_COLOR")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)


def test_find_exits_with_1_for_an_error_and_with_0_for_anything_less(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["find", str(saved)]) == 0
    assert capsys.readouterr().out == "nothing found\n"

    file = save(failed(), tmp_path / "failed.json")
    assert main(["find", file]) == 1
    assert capsys.readouterr().out == (
        "error[exception]: addmm at net.py:9 ended with RuntimeError: no such thing.\n"
        " --> net.py:9\n\n"
        "1 error\nRead more: graphviz-torch rule exception\n"
        f"See it: graphviz-torch view {file}, or graphviz-torch app {file}\n"
    )

    frozen = Graph((), parameters=(Parameter("fc.weight", META, requires_grad=False),))
    assert main(["find", save(frozen, tmp_path / "frozen.json")]) == 0
    assert "1 note: frozen (--notes shows all)\nSee it: " in capsys.readouterr().out


def test_find_reads_several_files_as_steps_or_as_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.ones(2, requires_grad=True)
    total, files = torch.zeros(2), []
    for step in range(3):
        total = total + x.sin()
        files.append(save(trace(total), tmp_path / f"{step}.json"))
    assert main(["find", *files]) == 0
    assert "[retained-graph]" in capsys.readouterr().out

    parameter = Parameter("fc.weight", META, requires_grad=True, has_grad=True)
    graphs = [Graph((), parameters=(replace(parameter, has_grad=has),)) for has in (True, False)]
    ranks = [save(graph, tmp_path / f"rank{i}.json") for i, graph in enumerate(graphs)]
    assert main(["find", "--ranks", *ranks]) == 1
    assert "Rank 1 has no gradient for fc.weight" in capsys.readouterr().out


def test_the_way_to_a_node_is_printed_and_drawn(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(saved), "0", "-o", str(tmp_path / "way.dot")]) == 0
    assert "The gradient's path to" in capsys.readouterr().out
    assert "gradient-path" in (tmp_path / "way.dot").read_text()
    assert main(["explain", str(saved), "nobody"]) == 2
    assert "neither a parameter" in capsys.readouterr().err


def test_diff_exits_with_0_for_the_same_and_1_for_another(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.ones(3, requires_grad=True)
    other = save(trace(((x + 2) ** 2).mean(), names={"x": x}), tmp_path / "other.json")
    assert main(["diff", str(saved), str(saved)]) == 0
    assert capsys.readouterr().out == "No difference in 5 nodes and 4 edges.\n"
    picture = tmp_path / "both.svg"
    assert main(["diff", str(saved), other, "-o", str(picture)]) == 1
    assert "- c: add f32[3] cpu" in capsys.readouterr().out
    assert "<svg" in picture.read_text()


def test_tolerances_make_a_difference_none(saved: Path, tmp_path: Path) -> None:
    slow = trace(worked_example()["y"], names={}).annotate(seconds={2: 1.0})
    quick = slow.annotate(seconds={2: 0.1})
    files = [save(slow, tmp_path / "slow.json"), save(quick, tmp_path / "quick.json")]
    assert main(["diff", *files]) == 0  # times are left out
    assert main(["diff", *files, "--time-tolerance", "1"]) == 1
    assert main(["diff", *files, "--time-tolerance", "inf"]) == 0
    with pytest.raises(SystemExit) as ended:
        main(["diff", *files, "--time-tolerance", "-1"])
    assert ended.value.code == 2


HOSTILE = {
    "text.json": b"hello",
    "list.json": b"[1, 2]",
    "deep.json": b"[" * 100_000,
    "empty.json": b"",
    "cut.json.gz": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03cut",
    "bytes.json": b"\xff\xfe\x00",
    "newer.json": b'{"format": "graphviz_torch", "version": 999}',
}


@pytest.mark.parametrize("command", ["draw", "export --to text", "export --to html", "find"])
@pytest.mark.parametrize("name", [*HOSTILE, "missing.json", "."])
def test_a_bad_file_is_an_error_with_a_message_and_no_traceback(
    command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    if name in HOSTILE:
        path.write_bytes(HOSTILE[name])
    assert main([*command.split(), str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("graphviz-torch: ")
    assert "Traceback" not in err
    assert (path.name or "directory") in err


def test_an_unknown_format_names_those_that_are_known(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["draw", str(saved), "-o", str(tmp_path / "mean.bmp")]) == 2
    assert "svg" in capsys.readouterr().err


def test_python_dash_m_is_the_same_command(saved: Path) -> None:
    command = [sys.executable, "-m", "graphviz_torch", "diff", str(saved), str(saved)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run([*command[:3]], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "COMMAND; graphviz-torch --help lists" in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_speaks_of_flags_and_of_each_argument(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    said = capsys.readouterr().out
    assert re.findall(r"\b(?:None|True|False|math\.inf|In Python|\w+=True)\b", said) == []
    assert re.findall(r"^  (SCRIPT|ARGS|FILE|NAME|A|B)$", said, re.M) == []


def test_a_reader_that_stops_early_is_no_error(tmp_path: Path) -> None:
    y = torch.ones(2, requires_grad=True)
    for _ in range(5000):
        y = y.sin()
    file = save(trace(y), tmp_path / "long.json")
    command = f"{sys.executable} -m graphviz_torch export --to text {file} | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stdout.startswith("5,001 nodes")
    assert done.stderr == ""


def test_a_reader_that_stops_early_changes_neither_the_code_of_diff_nor_its_picture(
    tmp_path: Path,
) -> None:
    x = torch.ones(2, requires_grad=True)
    before, after = (save(trace(y), tmp_path / f"{y.dim()}.json") for y in (x.sin(), x.sin().sum()))
    command = f"{sys.executable} -m graphviz_torch diff {before} {after} -o {tmp_path}/d.dot"
    ends = f"({command}; echo $? > {tmp_path}/code) | true"
    done = subprocess.run(ends, shell=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert (tmp_path / "code").read_text() == "1\n"
    assert (tmp_path / "d.dot").read_text().startswith("digraph")


@pytest.mark.parametrize(
    ("command", "name", "said"),
    [
        ("export --to flow", "x.png", "use `graphviz-torch draw` for this format"),
        ("export --to html", "x.svg", "use `graphviz-torch draw` for this format"),
        ("draw", "x.html", "use `graphviz-torch export --to html` for this format"),
        ("export", "x.svg", "`graphviz-torch draw` for this format, or name a format: --to html, "),
        ("export", "x", "name a format: --to html, mermaid, "),
    ],
)
def test_no_form_is_written_under_the_name_of_another(
    command: str, name: str, said: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = saved.with_name(name)
    assert main([*command.split(), str(saved), "-o", str(out)]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


class Done:
    """A replacement for a process that has ended."""

    def wait(self) -> int:
        return 0

    poll = wait


def test_the_app_starts_without_a_question_and_with_options_that_streamlit_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from streamlit import config

    started: list[list[str]] = []
    monkeypatch.setattr(
        subprocess, "Popen", lambda command, **_: started.append(command[4:]) or Done()
    )
    assert main(["app", "--port", "8600"]) == 0
    [command] = started
    assert command[1:3] == ["streamlit", "run"]
    assert Path(command[3]).parts[-2:] == ("app", "main.py")
    options = dict(zip(command[4::2], command[5::2], strict=True))
    assert {name.removeprefix("--") for name in options} <= config.get_config_options().keys()
    assert options["--server.showEmailPrompt"] == "false"  # else it waits for an answer, once
    assert options["--server.address"] == "localhost"
    assert options["--server.headless"] == "true"  # else it lays cards of its own over the page


@pytest.mark.skipif(os.name != "posix", reason="the browser is a shell's script")
def test_the_app_opens_a_browser_once_it_answers(tmp_path: Path) -> None:
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    get = f"{sys.executable} -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1])'"
    browser.write_text(f'#!/bin/sh\n{get} "$1" && echo "$1" > {seen}.new && mv {seen}.new {seen}\n')
    browser.chmod(0o755)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "graphviz_torch", "app", "--port", str(port)]
    environment = {**os.environ, "BROWSER": str(browser)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not seen.exists():
            time.sleep(0.05)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert seen.read_text() == f"http://localhost:{port}\n"


# Without an optimizer, which would import Dynamo.
SCRIPT = """\
import sys, time
import torch

weight = torch.ones(3, requires_grad=True)

def step():
    (weight * 2).sum().backward()
    with torch.no_grad():
        weight.sub_(0.1 * weight.grad)
    weight.grad = None

if sys.argv[1] != "rest":
    step()
print(sys.argv[1:], flush=True)
while sys.argv[1] == "go":
    step()
    time.sleep(0.01)
"""


def test_the_app_runs_a_script_and_opens_what_it_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given: list[tuple[str, str]] = []

    start = subprocess.Popen

    def started(command: list[str], env: dict[str, str] | None = None, **more: Any) -> Any:
        if env is None:  # the script
            return start(command, **more)
        path = Path(env["GRAPHVIZ_TORCH_RECORDING"])
        given.append((path.name, " ".join(node.title for node in graph_of(load(path)).nodes)))
        return Done()

    monkeypatch.setattr(subprocess, "Popen", started)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert main(["app", "--no-browser", str(script), "learn", "--port", "x"]) == 0
    assert given == [("train.py.json.gz", "AccumulateGrad mul sum")]
    assert "['learn', '--port', 'x']" in capfd.readouterr().out  # the script's own arguments

    assert main(["app", str(script), "rest"]) == 2
    assert "train.py ended with exit code 2 and recorded no step" in capfd.readouterr().err
    assert main(["app", "nosuch.py"]) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("graphviz-torch: nosuch.py: there is no such file")
    assert len(given) == 1


ENDED = """\
import os, signal, sys, time
from pathlib import Path
from typing import Any
from graphviz_torch.integrations.command import app
from graphviz_torch.integrations.command.main import COMMANDS, main

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
signal.signal(signal.SIGINT, signal.default_int_handler)
fake = Path(sys.argv[1]) / "streamlit"
fake.mkdir()
(fake / "__init__.py").touch()
waits = "import os, time; print('server', os.getpid(), flush=True); time.sleep(600)"
(fake / "__main__.py").write_text(waits)
os.environ["PYTHONPATH"] = os.pathsep.join([sys.argv[1], os.environ.get("PYTHONPATH", "")])
sys.exit(main(["app", "--no-browser", *sys.argv[2:]]))
"""


@contextmanager
def app_of_a_script(tmp_path: Path, argument: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The command `app` with a script and a server that only waits, and the server's process id."""
    script, temporary, modules = tmp_path / "train.py", tmp_path / "tmp", tmp_path / "modules"
    script.write_text(SCRIPT)
    temporary.mkdir()
    modules.mkdir()
    command = [sys.executable, "-c", ENDED, str(modules), str(script), argument]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(temporary)}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"['{argument}']\n"
        server = int(process.stdout.readline().removeprefix("server "))
        try:
            yield process, server
        finally:
            process.terminate()


@pytest.mark.skipif(os.name != "posix", reason="Windows sends no such signal")
@pytest.mark.parametrize("argument", ["learn", "go"])
@pytest.mark.parametrize(
    ("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129), ("SIGKILL", -9), ("SIGINT", 0)]
)
def test_a_signal_that_ends_the_app_ends_its_server_and_its_script_and_leaves_no_file(
    tmp_path: Path, name: str, code: int, argument: str
) -> None:
    with app_of_a_script(tmp_path, argument) as (process, server):
        assert [*tmp_path.glob("tmp/graphviz_torch-*/train.py.json.gz")]
        number = getattr(signal, name)
        process.send_signal(number)
        assert process.wait(60) == code
        assert process.stdout is not None
        process.stdout.read()  # until nobody has it open: the script and the server have ended
    assert not [*tmp_path.glob("tmp/graphviz_torch-*")]
    wait_for(lambda: has_ended(server))


def has_ended(process: int) -> bool:
    """Return whether a process is gone, or waits for whoever asks how it ended."""
    asked = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True)
    return asked.stdout.strip()[:1] in (b"", b"Z")


@pytest.mark.skipif(os.name != "posix", reason="a folder is known by its process's number")
def test_what_nobody_was_left_to_remove_is_removed_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = [f"graphviz_torch-{ended.pid}-a", "graphviz_torch-page-old"]
    kept = [f"graphviz_torch-{os.getpid()}-b", "graphviz_torch-page-new", "graphviz_torch-x", "y"]
    for name in (*names, *kept):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    os.utime(tmp_path / "graphviz_torch-page-old", (0, 0))
    remove_leftovers()
    assert {path.name for path in tmp_path.iterdir()} == {*kept}


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
def test_a_process_that_nobody_waited_for_keeps_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # its number is still its own
    (tmp_path / f"graphviz_torch-{ended.pid}-a").mkdir()
    remove_leftovers()
    assert not [*tmp_path.iterdir()]
    ended.wait()


def wait_for(condition: Callable[[], bool]) -> None:
    """Return once the condition holds. If it never does, the test's time limit ends the test."""
    while not condition():
        time.sleep(0.02)


@pytest.mark.skipif(os.name != "posix", reason="Windows sends no such signal")
def test_the_app_follows_a_script_that_runs_and_stops_it_where_the_page_asks(
    tmp_path: Path,
) -> None:
    with app_of_a_script(tmp_path, "go") as (process, server):
        [recording] = tmp_path.glob("tmp/graphviz_torch-*/train.py.json.gz")
        seen = len(steps_of(recording))  # the script has no end of its own
        wait_for(lambda: len(steps_of(recording)) > seen)
        assert not recording.with_name("ended").exists()
        recording.with_name("stop").touch()
        wait_for(recording.with_name("ended").exists)
        wait_for(lambda: bool(recording.with_name("ended").read_text()))
        assert recording.with_name("ended").read_text() == str(-signal.SIGINT)
        numbers = [step.number for step in steps_of(recording)]
        assert numbers == [
            n for n in range(numbers[-1] + 1) if n < 100 or n % 10 ** (len(str(n)) - 2) == 0
        ]
        assert process.poll() is None
        os.kill(server, 0)


def steps_of(recording: Path) -> tuple[TrainingStep, ...]:
    """Return the steps that are recorded so far."""
    saved = load(recording)
    assert isinstance(saved, Training)
    return saved.steps


@pytest.mark.skipif(shutil.which("bash") is None, reason="asks bash")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["graphviz-torch", "dra"], ["draw"]),
        (["graphviz-torch", "draw", "--color"], ["--color-by"]),
        (["graphviz-torch", "summary", "--format", "js"], ["json"]),
        (["graphviz-torch", "export", "mea"], ["mean.json.gz"]),
        (["graphviz-torch", "export", "--to", "merm"], ["mermaid"]),
        (["graphviz-torch", "draw", "mean.json.gz", "--out", "mea"], ["mean.json.gz"]),
    ],
)
def test_bash_completes_commands_options_values_and_files(
    words: list[str], completed: list[str], saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out + (
        'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))\n'
        "$(complete -p graphviz-torch | sed 's/.*-F \\([^ ]*\\) .*/\\1/')\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    told = subprocess.run(
        ["bash", "-c", script, "bash", *words],
        cwd=saved.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == completed


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_told_every_command(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    told = capsys.readouterr().out
    assert all(re.search(rf"\b{name}\b", told) for name in COMMANDS)


def test_options_after_the_script_are_the_scripts_and_a_note_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.py"
    path.write_text("import sys\nsteps = sys.argv\n")
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    script = str(path)
    assert main(["rehearse", script, "--ranks", "8", "--steps=1", "--lr=1"]) == 0
    note = f"graphviz-torch: {script} gets --ranks; options of this command come before SCRIPT\n"
    assert capsys.readouterr().err.startswith(note)
    assert main(["rehearse", "--ranks", "8", script, "--steps", "1"]) == 0
    assert "come before SCRIPT" not in capsys.readouterr().err
