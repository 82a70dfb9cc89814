"""Test that `graphviz-torch run` keeps all finished steps, however a script ends."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from graphviz_torch import load
from graphviz_torch.graph import Training
from tests.integrations.scripts import ARGUMENTS, NODES, SAID_EARLY, TRAINING, python
from tests.support.processes.forks import forked

# How a script ends, after its training.
ENDS = {
    "end": "pass",
    "exit": "sys.exit(3)",
    "message": "sys.exit('bye')",
    "error": "def f():\n    1 / 0\nf()",
    "hook": "sys.excepthook = lambda *a: print('mine', a[0].__name__, file=sys.stderr)\n{}['k']",
    "bad hook": "def hook(*a):\n    {}['mine']\nsys.excepthook = hook\n{}['k']",
    "hook that exits": "sys.excepthook = lambda *a: sys.exit(7)\n{}['k']",
    # A shell's background job ignores the signal, and hands that on to those that it starts.
    "interrupt": "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "os.kill(os.getpid(), signal.SIGINT)\nsignal.pause()",
    # Surroundings that the script has spoilt.
    "closed stdout": "sys.stdout.close()",
    "no stdout": "sys.stdout = None",
    "closed both": "sys.stdout.close()\nsys.stderr.close()",
    "no stderr": "sys.stderr = None\nsys.exit('bye')",
    "broken pipe": "sys.stdout.flush()\nr, w = os.pipe()\n"
    "os.dup2(w, 1)\nos.close(r)\nprint('lost')",
    "no folder": "import shutil\nshutil.rmtree(os.getcwd())",
    "no modules": "for name in [*sys.modules]:\n"
    "    if name.split('.')[0] in ('torch', 'graphviz_torch', 'json'):\n"
    "        del sys.modules[name]",
    "no module": "sys.modules.clear()",
    "warnings are errors": "import warnings\nwarnings.simplefilter('error')",
    "no letters": "sys.stdout.reconfigure(encoding='ascii')\nprint('\\xe9')",
}
# Ends that no report at the end would see.
# A signal may reach another thread first: the script waits for it.
KILLS = {
    "SIGTERM": "import signal\nos.kill(os.getpid(), signal.SIGTERM)\nsignal.pause()",
    "SIGHUP": "import signal\nos.kill(os.getpid(), signal.SIGHUP)\nsignal.pause()",
    "SIGKILL": "import signal\nos.kill(os.getpid(), signal.SIGKILL)\nsignal.pause()",
    "_exit": "os._exit(5)",
    "abort": "os.abort()",
    "crash": "import ctypes\nctypes.string_at(0)",
    "another program": "os.execv('/bin/sh', ['sh', '-c', 'exit 6'])",
    "a handler of its own": "import signal\n"
    "signal.signal(signal.SIGTERM, lambda *a: os._exit(9))\nos.kill(os.getpid(), signal.SIGTERM)\n"
    "signal.pause()",
}
# Each end in a process of its own, which has trained: its output in files, its status on stdout.
# Under the command the script is started for each end; without, it is forked after its training.
FORK = """\
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.makedirs(f"{folder}/{{end}}/folder")
        os.chdir(f"{folder}/{{end}}/folder")
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"../{{name}}", os.O_WRONLY | os.O_CREAT), number)
        break
    print(end, os.waitpid(child, 0)[1])
else:
    sys.exit()
"""
FORKS = """
import gc, os
gc.freeze()  # what is loaded: a fork that ends would look at each of a million objects
ends = {ends}
for end in [os.environ["END"]] if "END" in os.environ else ends:
    if "END" in os.environ:
        break
{fork}
exec(compile(ends[end], "ends.py", "exec"))
"""
DRIVER = """\
import gc, os, sys, torch
from graphviz_torch.integrations.command import main, run
from graphviz_torch.integrations.steps import LoopSteps, due_steps

steps = LoopSteps(due_steps(), lambda *step: None)  # all is loaded once
model = torch.nn.Linear(2, 1)
model(torch.ones(1, 2)).sum().backward()
torch.optim.SGD(model.parameters()).step()
steps.close()
gc.freeze()
for end in {ends}:
{fork}
os.environ["END"] = end
sys.exit(main.main(["run", "-o", "g.json", "-o", "found.sarif", "{script}", *sys.argv[1:]]))
"""
SHOW_SOMETHING = ("message", "error", "hook", "bad hook", "interrupt", "no stderr", "broken pipe")
SHOW_SOMETHING += ("no letters",)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what each end left, bare and under the command; each status is the same."""
    folder = tmp_path_factory.mktemp("ended")
    texts = ENDS | KILLS
    forks = FORKS.format(ends=texts, fork=FORK.format(folder=folder / "bare"))
    (folder / "train.py").write_text(TRAINING + forks)
    fork = FORK.format(folder=folder / "ours")
    driver = DRIVER.format(ends=[*texts], fork=fork, script=folder / "train.py")
    (folder / "driver.py").write_text(driver)
    plain = python(folder / "train.py", *ARGUMENTS, folder=folder)
    done = python("driver.py", *ARGUMENTS, folder=folder)
    expected = plain.stdout.replace("no folder 0\n", f"no folder {2 << 8}\n")  # no file either
    assert expected.splitlines()[1:] == done.stdout.splitlines(), done.stderr
    assert all(f"\n{end} " in plain.stdout for end in texts)
    return folder


def node_counts(path: Path) -> list[int]:
    """Return the number of nodes of each step in a file."""
    run = load(path)
    assert isinstance(run, Training)
    return [len(step.graph.nodes) for step in run.steps]


def test_a_script_ends_as_without_and_what_is_wrong_is_said_after_it(ended: Path) -> None:
    for end in ENDS:
        bare, ours = ended / "bare" / end, ended / "ours" / end
        said, shown = (ours / "err").read_text(), (bare / "err").read_text()
        out = (ours / "out").read_text().splitlines()[1:]
        assert out == (bare / "out").read_text().splitlines(), end
        assert SAID_EARLY.search(said), end
        late = SAID_EARLY.sub("", said)
        if end == "closed both":
            assert late == "on stderr\n" + shown
        elif end == "no module":
            assert late.startswith("on stderr\ngraphviz-torch: the report could not be written (")
            assert late.count("\n") == 2
        elif end == "broken pipe":  # Python says so when all is over
            assert late.startswith("on stderr\ngraphviz-torch: 3 steps recorded; see above\n")
            assert late.endswith(shown)
        else:
            report = "graphviz-torch: 3 steps recorded; see above\n"
            assert late.startswith("on stderr\n" + shown + report), end
            assert ("\ng.json\nfound.sarif\n" in late) == (end != "no folder"), end
        if end == "no folder":
            assert "graphviz-torch: g.json was not written: " in late
        else:
            assert node_counts(ours / "folder" / "g.json")[:3] == [NODES] * 3, end
        assert bool(shown) == (end in SHOW_SOMETHING), end


def test_a_script_that_is_stopped_leaves_report_and_files(ended: Path) -> None:
    for end in KILLS:
        bare, ours = ended / "bare" / end, ended / "ours" / end
        said = (ours / "err").read_text()
        assert (bare / "out").read_text() == (ours / "out").read_text() == ""  # not flushed
        assert SAID_EARLY.sub("", said) == "on stderr\n" + (bare / "err").read_text(), end
        assert "a result was cut by detach(). --> train.py:10 |" in " ".join(said.split())
        assert {*os.listdir(ours / "folder")} == {"g.json", "found.sarif"}, end
        assert node_counts(ours / "folder" / "g.json") == [NODES] * 3
        [result] = json.loads((ours / "folder" / "found.sarif").read_text())["runs"][0]["results"]
        assert result["ruleId"] == "cut-gradient"


# Two child processes train a model that they share; the parent waits.
HOGWILD = """\
import os, sys
import torch
import torch.multiprocessing as mp

def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()

def learn(model):
    model(torch.ones(2, 3)).sum().backward()  # an optimizer takes seconds in a new process

if __name__ == "__main__":
    model = torch.nn.Linear(3, 1).share_memory()
"""
SPAWNS = """\
    processes = [mp.get_context("spawn").Process(target=learn, args=(model,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        print(process.exitcode)
"""
FORKS_THAT_END_AS_SCRIPTS = """\
    if sys.argv[1:]:
        train(model)
    for number in range(3):
        child = os.fork()
        if not child:
            if number:
                train(model)
            sys.stdout = open(os.devnull, "w")
            print(1 / (2 - number)) if number else sys.exit(4)
            break
        print(os.waitpid(child, 0)[1])
"""


def test_children_that_were_spawned_are_counted_where_the_parent_recorded_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(HOGWILD + SPAWNS)
    done = forked("-m", "graphviz_torch", "run", "train.py", folder=tmp_path)
    assert (done.stdout, done.returncode) == ("0\n0\n", 0), done.stderr
    assert done.stderr == (
        "graphviz-torch: nothing was recorded: no backward ran; "
        "2 child processes were started and were not recorded\n"
    )


@pytest.mark.parametrize("parent_trains", [False, True])
def test_a_forked_child_ends_as_without_and_the_parent_counts_those_that_trained(
    parent_trains: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(HOGWILD + FORKS_THAT_END_AS_SCRIPTS)
    arguments = ["train.py", *["too"] * parent_trains]
    plain = forked(*arguments, folder=tmp_path)
    done = forked("-m", "graphviz_torch", "run", "-o", "g.json", *arguments, folder=tmp_path)
    assert plain.stdout == "1024\n0\n256\n"
    assert (done.stdout, done.returncode) == (plain.stdout, plain.returncode)
    told = "2 child processes trained and were not recorded\n"
    if parent_trains:
        early = "graphviz-torch: nothing found so far, while the script continues\n"
        _, found, last = done.stderr.partition(early)
        assert found
        last = re.sub(r" \(optimizer stepped, 2 parameters, loss \S+ -> \S+\)", "", last)
        expected = (
            f"graphviz-torch: 3 steps recorded; {told}nothing found in 3 recorded steps; "
            "--steps 0 records all; --experiment tries changes\ng.json\n"
            "graphviz-torch: see it: graphviz-torch view g.json, or graphviz-torch app g.json\n"
        )
        assert last == plain.stderr + expected
        assert node_counts(tmp_path / "g.json") == [5] * 3
    else:
        said = f"graphviz-torch: nothing was recorded: no backward ran; {told}"
        assert done.stderr == plain.stderr + said
        assert not (tmp_path / "g.json").exists()


def test_forwards_without_a_backward_are_not_reported_as_nothing_found(tmp_path: Path) -> None:
    script = "import torch\nmodel = torch.nn.Linear(2, 1)\nfor _ in range(4):\n"
    (tmp_path / "train.py").write_text(script + "    model(torch.ones(3, 2)).sum()\n")
    done = forked("-m", "graphviz_torch", "run", "train.py", folder=tmp_path)
    assert "info[no-backward]: No backward ran" in done.stderr
    assert "nothing found" not in done.stderr
