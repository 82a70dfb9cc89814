"""`graphviz-torch run`: a script behaves as without, and then what is wrong is said."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from graphviz_torch import load

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
ENDS = {
    "exit": "sys.exit(3)",
    "message": "sys.exit('bye')",
    "error": "def f():\n    1 / 0\nf()",
    "hook": "sys.excepthook = lambda *a: print('mine', a[0].__name__, file=sys.stderr)\n{}['k']",
    # A shell's background job ignores the signal, and hands that on to those that it starts.
    "interrupt": "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "os.kill(os.getpid(), signal.SIGINT)\nsignal.pause()",
    "syntax": "def f(:",
}


def python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def recorded(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "graphviz_torch", "run", *arguments, folder=folder)


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """A folder with the script train.py, which cuts a gradient."""
    (tmp_path / "train.py").write_text(TRAINING)
    return tmp_path


@pytest.mark.parametrize("end", ENDS)
def test_output_arguments_exit_code_and_traceback_are_as_without(end: str, training: Path) -> None:
    (training / "train.py").write_text(TRAINING + ENDS[end])
    arguments = ["train.py", "--lr", "3", "--", "-o", "x"]
    plain = python(*arguments, folder=training)
    done = recorded(*arguments, folder=training)
    assert done.stdout == plain.stdout
    assert done.returncode == plain.returncode
    assert done.stderr.startswith(plain.stderr + ("" if end == "syntax" else "graphviz-torch: "))
    if end not in ("syntax",):
        assert "a result was cut by detach() at train.py:10." in done.stderr
    if end == "interrupt":
        assert done.returncode == -signal.SIGINT


def test_a_module_and_a_package_run_as_with_python_dash_m(training: Path) -> None:
    (training / "package").mkdir()
    (training / "package" / "__init__.py").touch()
    (training / "package" / "__main__.py").write_text("from . import __name__ as n\n" + TRAINING)
    for name in ("train", "package"):
        plain = python("-m", name, "7", folder=training)
        done = recorded("-m", name, "7", folder=training)
        assert (done.stdout, done.returncode) == (plain.stdout, 0)
        assert "[cut-gradient]" in done.stderr


def test_three_steps_are_recorded_or_as_many_as_asked_for(training: Path) -> None:
    for options, said in (
        ([], "3 steps recorded"),
        (["--steps", "0"], "5 steps recorded"),
        (["--steps", "2", "--every", "2"], "2 steps recorded"),
    ):
        done = recorded(*options, "train.py", folder=training)
        assert f"graphviz-torch: {said}\n" in done.stderr


def test_the_last_graph_is_written_in_every_form(training: Path) -> None:
    names = ["g.json.gz", "g.svg", "g.html", "g.txt"]
    options = [word for name in names for word in ("-o", name)]
    done = recorded(*options, "train.py", folder=training)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1  # the script's own
    labels = {node.label for node in load(training / "g.json.gz").nodes}
    assert {"b.weight", "b.bias", "loss"} <= labels
    assert "<svg" in (training / "g.svg").read_text()
    assert "<html" in (training / "g.html").read_text()
    assert "b.weight" in (training / "g.txt").read_text()


def test_sarif_names_rule_file_and_line_from_the_folder_it_runs_in(training: Path) -> None:
    (training / "src").mkdir()
    (training / "train.py").rename(training / "src" / "train.py")
    options = ("--format", "sarif", "-o", "found.sarif", "--fail-on", "warning")
    done = recorded(*options, "src/train.py", folder=training)
    assert done.returncode == 1
    said = json.loads(done.stdout.splitlines()[1])  # the script's own line comes first
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


def test_what_stands_in_the_baseline_does_not_fail(training: Path) -> None:
    fails = ["--fail-on", "warning"]
    assert recorded(*fails, "train.py", folder=training).returncode == 1
    known = ["--write-baseline", "known.json"]
    assert recorded(*fails, *known, "train.py", folder=training).returncode == 0
    (training / "train.py").write_text("# moved by a line\n" + TRAINING)
    done = recorded(*fails, "--baseline", "known.json", "train.py", folder=training)
    assert (done.returncode, "nothing found" in done.stderr) == (0, True)
    (training / "train.py").write_text(TRAINING.replace("self.a(x).detach()", "self.a(x.detach())"))
    assert recorded(*fails, "train.py", folder=training).returncode == 0


def test_an_error_in_backward_is_explained_after_its_traceback(training: Path) -> None:
    (training / "train.py").write_text(
        "import torch\nx = torch.ones(2, requires_grad=True)\n"
        "y = x.exp()\ny += 1\ny.sum().backward()\n"
    )
    done = recorded("train.py", folder=training)
    assert done.returncode == 1
    assert "[changed-in-place]" in done.stderr.split("RuntimeError")[-1]


def test_a_script_that_spawns_processes_can_be_found_by_them(training: Path) -> None:
    (training / "train.py").write_text(
        "import multiprocessing as mp\n\ndef f(x):\n    return x + 1\n\n"
        "if __name__ == '__main__':\n"
        "    with mp.get_context('spawn').Pool(1) as pool:\n        print(pool.map(f, [1, 2]))\n"
    )
    done = recorded("train.py", folder=training)
    assert done.stdout == "[2, 3]\n", done.stderr
    assert "nothing was recorded" in done.stderr


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
    arguments: list[str], said: str, training: Path
) -> None:
    done = recorded(*arguments, folder=training)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("graphviz-torch: ")
    assert said in line
