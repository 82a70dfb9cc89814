"""`graphviz-torch run`: a script behaves as without, and then what is wrong is said."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from graphviz_torch import load
from graphviz_torch.integrations.command.main import main

TRAINING = """\
import sys
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.b(self.a(x).detach())

def main():
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for i in range(5):
        optimizer.zero_grad()
        loss = net(torch.ones(2, 3)).sum()
        loss.backward()
        optimizer.step()
    print(__name__, __file__, sys.argv, sys.path[0], __spec__ and __spec__.name, loss.item())

if __name__ == "__main__":
    main()
    print("on stderr", file=sys.stderr)
"""
SHOWS = "import sys\nprint(__name__, __file__, sys.argv, sys.path[0], __spec__.name)\n"
ENDS = {
    "exit": "sys.exit(3)",
    "message": "sys.exit('bye')",
    "error": "def f():\n    1 / 0\nf()",
    "hook": "sys.excepthook = lambda *a: print('mine', a[0].__name__, file=sys.stderr)\n{}['k']",
    # A shell's background job ignores the signal, and hands that on to those that it starts.
    "interrupt": "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "os.kill(os.getpid(), signal.SIGINT)\nsignal.pause()",
    "end": "pass",
}
# Each end in a process of its own, which has trained: its output in files, its status on stdout.
FORKS = """\
import os
for end in {ends}:
    sys.stdout.flush()
    child = os.fork()
    if not child:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{folder}/{{end}}.{{name}}", os.O_WRONLY | os.O_CREAT), number)
        break
    print(end, os.waitpid(child, 0)[1])
"""


def python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def recorded(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "graphviz_torch", "run", *arguments, folder=folder)


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    training: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """The same inside this process, which has loaded torch: exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["run", *arguments])
        return code, *capsys.readouterr()

    monkeypatch.chdir(training)
    return run


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """A folder with the script train.py, which cuts a gradient."""
    (tmp_path / "train.py").write_text(TRAINING)
    return tmp_path


def test_output_arguments_exit_code_and_traceback_are_as_without(training: Path) -> None:
    ends = "".join(
        f"if end == {end!r} and not child:\n{textwrap.indent(text, '    ')}\n"
        for end, text in ENDS.items()
    )
    arguments = ["train.py", "--lr", "3", "--", "-o", "x"]
    done = {}
    for way in (python, recorded):
        folder = training / way.__name__
        folder.mkdir()
        forks = FORKS.format(ends=list(ENDS), folder=folder)
        (training / "train.py").write_text(TRAINING + forks + ends)
        done[way] = way(*arguments, folder=training)
    plain, ours = done[python], done[recorded]
    assert (ours.stdout, ours.returncode) == (plain.stdout, 0), ours.stderr
    assert f"interrupt {signal.SIGINT}\n" in ours.stdout
    assert ours.stderr.startswith(plain.stderr + "graphviz-torch: ")
    for end in ENDS:
        bare, said = (
            (training / way.__name__ / f"{end}.err").read_text() for way in (python, recorded)
        )
        assert said.startswith(bare + "graphviz-torch: "), end
        assert "a result was cut by detach() at train.py:10." in said
        assert bool(bare) == (end not in ("exit", "end"))


def test_a_script_that_python_cannot_read_ends_as_without(training: Path) -> None:
    (training / "train.py").write_text("def f(:")
    plain, done = python("train.py", folder=training), recorded("train.py", folder=training)
    assert done.stderr.startswith(plain.stderr)
    assert done.returncode == plain.returncode == 1


def test_a_module_and_a_package_run_as_with_python_dash_m(training: Path) -> None:
    (training / "package").mkdir()
    (training / "package" / "__init__.py").touch()
    (training / "package" / "__main__.py").write_text("from . import __name__ as n\n" + TRAINING)
    (training / "module.py").write_text(SHOWS)
    for name in ("module", "package"):
        plain = python("-m", name, "7", folder=training)
        done = recorded("-m", name, "7", folder=training)
        assert (done.stdout, done.returncode) == (plain.stdout, 0)
    assert "[cut-gradient]" in done.stderr


def test_a_script_that_fails_at_its_first_import_has_no_step(
    training: Path, command: Command
) -> None:
    (training / "train.py").write_text("import not_there\n")
    code, _, said = command("train.py")
    assert (code, "graphviz-torch: 0 steps recorded\n" in said) == (1, True)


def test_the_last_graph_is_written_in_every_form(training: Path, command: Command) -> None:
    names = ["g.json.gz", "g.svg", "g.html", "g.txt"]
    code, out, said = command(*(word for name in names for word in ("-o", name)), "train.py")
    assert code == 0, said
    assert len(out.splitlines()) == 1  # the script's own
    labels = {node.label for node in load(training / "g.json.gz").nodes}
    assert {"b.weight", "b.bias", "loss"} <= labels
    assert "<svg" in (training / "g.svg").read_text()
    assert "<html" in (training / "g.html").read_text()
    assert "b.weight" in (training / "g.txt").read_text()


def test_sarif_names_rule_file_and_line_from_the_folder_it_runs_in(
    training: Path, command: Command
) -> None:
    (training / "src").mkdir()
    (training / "train.py").rename(training / "src" / "train.py")
    options = ("--format", "sarif", "-o", "found.sarif", "--fail-on", "warning")
    code, out, _ = command(*options, "src/train.py")
    assert code == 1
    said = json.loads(out.splitlines()[1])  # the script's own line comes first
    assert json.loads((training / "found.sarif").read_text()) == said
    [run] = said["runs"]
    [result] = run["results"]
    assert (result["ruleId"], result["level"]) == ("cut-gradient", "warning")
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "cut-gradient"
    [location] = result["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "src/train.py"},
        "region": {"startLine": 10},
    }


def test_what_stands_in_the_baseline_does_not_fail(training: Path, command: Command) -> None:
    fails = ["--fail-on", "warning"]
    assert command(*fails, "train.py")[0] == 1
    assert command(*fails, "--write-baseline", "known.json", "train.py")[0] == 0
    (training / "train.py").write_text("# moved by a line\n" + TRAINING)
    code, _, said = command(*fails, "--baseline", "known.json", "train.py")
    assert (code, "nothing found" in said) == (0, True)
    (training / "train.py").write_text(TRAINING.replace("self.a(x).detach()", "self.a(x.detach())"))
    assert command(*fails, "train.py")[0] == 0


def test_an_error_in_backward_is_explained_after_its_traceback(
    training: Path, command: Command
) -> None:
    (training / "train.py").write_text(
        "import torch\nx = torch.ones(2, requires_grad=True)\n"
        "y = x.exp()\ny += 1\ny.sum().backward()\n"
    )
    code, _, said = command("train.py")
    assert code == 1
    assert "[changed-in-place]" in said.split("RuntimeError")[-1]


def test_a_script_that_spawns_processes_can_be_found_by_them(training: Path) -> None:
    (training / "train.py").write_text(
        "import multiprocessing as mp\n\ndef f(x):\n    return x + 1\n\n"
        "if __name__ == '__main__':\n"
        "    with mp.get_context('spawn').Pool(1) as pool:\n        print(pool.map(f, [1, 2]))\n"
    )
    done = recorded("train.py", folder=training)
    assert done.stdout == "[2, 3]\n", done.stderr
    assert "nothing was recorded" in done.stderr


@pytest.mark.parametrize(
    ("options", "count"), [([], 3), (["--steps", "0"], 5), (["--steps", "2", "--every", "2"], 2)]
)
def test_three_steps_are_recorded_or_as_many_as_asked_for(
    options: list[str], count: int, command: Command
) -> None:
    assert f"graphviz-torch: {count} steps recorded\n" in command(*options, "train.py")[2]


def test_modes_that_the_script_holds_over_a_steps_end_do_no_harm(training: Path) -> None:
    inner = TRAINING.replace(
        "    main()\n",
        """\
    from torch.utils.flop_counter import FlopCounterMode
    torch.set_default_device("cpu")
    with FlopCounterMode(display=False) as counter, torch.autograd.set_detect_anomaly(True):
        main()
    print(counter.get_total_flops())
""",
    )
    (training / "train.py").write_text(inner)
    plain, done = python("train.py", folder=training), recorded("train.py", folder=training)
    assert (done.stdout, done.returncode) == (plain.stdout, 0), done.stderr
    assert "3 steps recorded" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.py"], "missing.py"),
        (["."], "folder"),
        (["-m", "no_such_module"], "no_such_module"),
        (["--steps", "-1", "train.py"], "--steps -1"),
        (["--every", "0", "train.py"], "--every 0"),
        (["-o", "graph.bmp", "train.py"], "graph.bmp"),
        (["--baseline", "missing.json", "train.py"], "missing.json"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: list[str], said: str, command: Command
) -> None:
    code, _, errors = command(*arguments)
    assert code == 2
    assert errors.splitlines()[-1].startswith("graphviz-torch: ")
    assert said in errors.splitlines()[-1]
