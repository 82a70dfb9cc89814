"""Test that `graphviz-torch run` does not change a script, and prints its findings."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from graphviz_torch import load
from graphviz_torch.compare import first_difference
from graphviz_torch.graph import Training, TrainingStep
from graphviz_torch.graph.training_file import TrainingFile
from graphviz_torch.integrations.command import outputs
from graphviz_torch.integrations.command.main import main
from tests.integrations.scripts import ARGUMENTS, NODES, SAID_EARLY, TRAINING, python, recorded
from tests.support.processes.forks import forked

SHOWS = "import sys\nprint(__name__, __file__, sys.argv, sys.path[0], __spec__.name)\n"
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


def forked_run(*arguments: str, folder: Path) -> CompletedProcess[str]:
    """The same in a process of its own, which has loaded torch."""
    return forked("-m", "graphviz_torch", "run", *arguments, folder=folder)


def test_output_and_arguments_are_as_without(training: Path) -> None:
    plain = forked("train.py", *ARGUMENTS, folder=training)
    done = forked_run("train.py", *ARGUMENTS, folder=training)
    assert (done.stdout, done.returncode) == (plain.stdout, 0)
    assert SAID_EARLY.sub("", done.stderr).startswith(plain.stderr + "graphviz-torch: ")


def test_a_script_that_python_cannot_read_ends_as_without(training: Path) -> None:
    (training / "train.py").write_text("def f(:")
    plain, done = python("train.py", folder=training), recorded("train.py", folder=training)
    sentence = "graphviz-torch: nothing was recorded: the script could not be read\n"
    assert done.stderr == plain.stderr + sentence
    assert (done.stdout, done.returncode) == (plain.stdout, 1)


def test_a_module_and_a_package_run_as_with_python_dash_m(training: Path) -> None:
    (training / "package").mkdir()
    (training / "package" / "__init__.py").write_text("import sys\nprint(sys.argv)\n")
    (training / "package" / "__main__.py").write_text("from . import __name__ as n\n" + TRAINING)
    (training / "module.py").write_text(SHOWS)
    for name in ("module", "package"):
        plain = forked("-m", name, "7", folder=training)
        done = forked_run("-m", name, "7", folder=training)
        code = 2 if name == "module" else 0  # it trains nothing
        assert (done.stdout, done.returncode) == (plain.stdout, code)
    assert "[cut-gradient]" in done.stderr


def test_a_script_that_fails_at_its_first_import_has_no_step(
    training: Path, command: Command
) -> None:
    (training / "train.py").write_text("import not_there\n")
    code, _, said = command("train.py")
    assert (code, "graphviz-torch: 0 steps recorded\n" in said) == (1, True)


def test_the_steps_are_written_as_one_file_and_the_last_one_in_every_form(
    training: Path, command: Command
) -> None:
    names = ["g.json.gz", "g.svg", "g.html", "g.txt", "g.mmd"]
    code, out, said = command(*(word for name in names for word in ("-o", name)), "train.py")
    assert code == 0, said
    assert len(out.splitlines()) == 1  # the script's own
    run = load(training / "g.json.gz")
    assert isinstance(run, Training)
    assert [step.number for step in run.steps] == [0, 1, 2]
    labels = {node.label for node in run.graph.nodes}
    assert {"b.weight", "b.bias", "loss"} <= labels
    assert "<svg" in (training / "g.svg").read_text()
    assert "<html" in (training / "g.html").read_text()
    assert "b.weight" in (training / "g.txt").read_text()
    assert "flowchart" in (training / "g.mmd").read_text()


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


LOOKS = """\
        import glob, graphviz_torch
        if i: print(i, sorted(glob.glob("[gfk]*.*")), len(graphviz_torch.load("g.json").steps))
"""


def test_files_are_written_when_the_next_step_begins_and_pictures_for_the_first_and_the_last(
    training: Path, command: Command
) -> None:
    (training / "train.py").write_text(
        TRAINING.replace("        loss.backward()\n", LOOKS + "        loss.backward()\n").replace(
            "range(5)", "range(3)"
        )
    )
    names = ["g.json", "g.txt", "g.html", "found.sarif", "g.dot"]
    words = [word for name in names for word in ("-o", name)]
    code, out, said = command(*words, "--write-baseline", "known.json", "--steps", "9", "train.py")
    assert code == 0, said
    each = "['found.sarif', 'g.dot', 'g.html', 'g.json', 'g.txt', 'known.json']"
    assert out.splitlines()[:2] == [f"1 {each} 1", f"2 {each} 2"]
    assert "script continues" not in said
    assert [*said.splitlines()[-7:-1]] == [*names, "known.json"]
    view_commands = "graphviz-torch view g.json, or graphviz-torch app g.json"
    assert said.splitlines()[-1] == f"graphviz-torch: see it: {view_commands}"


def test_with_all_steps_recorded_what_is_new_is_said_at_once(
    training: Path, command: Command
) -> None:
    _, _, said = command("--steps", "0", "train.py")
    assert said.startswith(
        "graphviz-torch: found so far, while the script continues\nwarning[cut-gradient]: "
    )
    assert said.count("script continues") == 1
    last = "cut-gradient train.py:10, in each of 5 steps"
    assert (
        f"graphviz-torch: 5 steps recorded; see above\n{last}\ngraphviz-torch: to see the graph, "
        in said
    )
    assert said.count("got no gradient") == 1
    assert "10 |         return self.b(self.a(x).detach())\n" in said


def test_after_a_finding_hidden_notes_are_counted_without_nothing_found(
    training: Path, command: Command
) -> None:
    noted = TRAINING.replace("loss.backward()", "loss.backward(retain_graph=True)")
    (training / "train.py").write_text(noted)
    said = command("train.py")[2]
    assert "[cut-gradient]" in said
    assert "steps recorded; see above\n1 note: unneeded-retain-graph (--notes shows all)\n" in said
    assert "nothing found" not in said


def test_a_script_that_fails_between_steps_has_the_last_step_and_the_failure(
    training: Path, command: Command
) -> None:
    fails = (
        "        if i == 2:\n            raise KeyError('row 7')\n        optimizer.zero_grad()\n"
    )
    (training / "train.py").write_text(TRAINING.replace("        optimizer.zero_grad()\n", fails))
    names = ["g.json", "g.html", "g.txt", "g.dot", "found.sarif"]
    code, _, said = command(*(word for name in names for word in ("-o", name)), "train.py")
    assert (code, "graphviz-torch: 2 steps recorded\n" in said) == (1, True)
    run = load(training / "g.json")
    assert isinstance(run, Training)
    assert [len(step.graph.nodes) for step in run.steps] == [NODES, NODES, 0]
    graph = run.graph
    assert len(graph.nodes) == NODES
    assert graph.failure is not None
    assert (graph.failure.error, graph.failure.where) == ("KeyError", "train.py:18")
    assert "addmm" in (training / "g.txt").read_text()
    rules = json.loads((training / "found.sarif").read_text())["runs"][0]["results"]
    assert {each["ruleId"] for each in rules} == {"exception", "cut-gradient"}


def test_files_are_written_where_the_command_was_started(training: Path, command: Command) -> None:
    (training / "other").mkdir()
    (training / "train.py").write_text("import os\nos.chdir('other')\n" + TRAINING)
    _, out, said = command("-o", "g.json", "-o", "found.sarif", "train.py")
    assert len(out.splitlines()) == 1
    assert "\ng.json\nfound.sarif\ngraphviz-torch: see it: " in said
    assert {"g.json", "found.sarif"} <= {*os.listdir(training)}
    [run] = json.loads((training / "found.sarif").read_text())["runs"]
    [place] = run["results"][0]["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "train.py"


def test_a_file_that_cannot_be_written_is_one_sentence_and_the_status_says_so(
    training: Path, command: Command
) -> None:
    code, _, said = command("-o", "missing/g.json", "-o", "g.txt", "train.py")
    assert code == 2
    early, line = (line for line in said.splitlines() if "missing" in line)
    assert said.startswith(early)  # before hours of work
    assert early.endswith(
        "/missing' does not exist: g.json is lost unless the script creates this folder."
    )
    assert line.startswith("graphviz-torch: g.json was not written: ")
    assert "missing/g.json: the folder '" in line
    assert line.endswith("/missing' does not exist; create it first.")
    assert "addmm" in (training / "g.txt").read_text()


def test_a_file_that_keeps_earlier_steps_is_not_said_to_be_unwritten(
    training: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingFile, "append", TrainingFile.append)  # which the script replaces
    (training / "train.py").write_text(
        TRAINING + "\nimport errno\nfrom graphviz_torch.graph.training_file import TrainingFile\n"
        "def full(*_):\n    raise OSError(errno.ENOSPC, 'No space left on device', 'g.json')\n"
        "TrainingFile.append = full\nloss = (torch.ones(1, requires_grad=True) * 2).sum()\n"
        "loss.backward()\n"
    )
    code, _, said = command("--steps", "0", "-o", "g.json", "train.py")
    assert code == 2
    assert "graphviz-torch: g.json does not contain the last step: g.json: No space left" in said
    assert isinstance(load(training / "g.json"), Training)


def test_steps_that_found_no_room_are_named_and_those_after_are_written(
    training: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "_MAX_BATCH", 10)
    monkeypatch.setattr(outputs, "_MAX_UNWRITTEN", 20)
    (training / "train.py").write_text(
        "import resource\nimport torch\n"
        "def room(size):\n"
        "    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))\n"
        "net = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for i in range(40):\n"
        "    if i in (5, 33):\n"
        "        room(0 if i == 5 else None)\n"
        "    optimizer.zero_grad()\n"
        "    net(torch.ones(3, 2)).square().sum().backward()\n"
        "    optimizer.step()\n"
    )
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        code, _, said = command("--steps", "0", "-o", "g.json.gz", "train.py")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    run = load(training / "g.json.gz")
    assert isinstance(run, Training)
    there = [step.number for step in run.steps]
    lost = sorted({*range(40)} - {*there})
    assert there == [*range(lost[0]), *range(lost[-1] + 1, 40)]
    assert 0 < len(lost) < 20
    assert f"graphviz-torch: g.json.gz does not contain steps {lost[0]} to {lost[-1]}: " in said
    assert "File too large" in said
    assert code == 2


@pytest.mark.parametrize(
    ("options", "count"), [([], 3), (["--steps", "0"], 5), (["--steps", "2", "--every", "2"], 2)]
)
def test_three_steps_are_recorded_or_as_many_as_asked_for(
    options: list[str], count: int, command: Command
) -> None:
    said = command(*options, "train.py")[2]
    assert said.count(f"{count} steps recorded") == 1
    assert f"graphviz-torch: {count} steps recorded; see above\n" in said


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
    plain, done = forked("train.py", folder=training), forked_run("train.py", folder=training)
    assert (done.stdout, done.returncode) == (plain.stdout, 0), done.stderr
    assert "3 steps recorded" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.py"], "missing.py: there is no such file; check its name."),
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


LEAKING = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax(0))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().sum().backward()
    optimizer.step()
print("done")
"""


def test_run_makes_experiments_when_it_is_asked_to(training: Path, command: Command) -> None:
    (training / "train.py").write_text(LEAKING)
    _, plain, said = command("train.py")
    assert (plain, "sample" in said) == ("done\n", False)
    _, out, said = command("--experiment", "train.py")
    assert out == "done\n"
    assert "sample: does not hold  train.py:7" in said
    assert "[sample-leak]" in said


GATED = """
import torch
torch.manual_seed(0)
first, act, last = torch.nn.Linear(4, 3), torch.nn.GELU("none"), torch.nn.Linear(3, 1)
last(act(first(torch.randn(8, 4)))).mean().backward()
"""


def test_two_scripts_are_compared_by_values_that_run_has_recorded(
    training: Path, command: Command
) -> None:
    (training / "train.py").write_text(GATED)
    (training / "other.py").write_text(GATED.replace('"none"', '"tanh"'))
    assert command("--fingerprints", "-o", "a.json.gz", "train.py")[0] == 0
    assert command("--fingerprints", "-o", "b.json.gz", "other.py")[0] == 0
    a, b = (load(training / name).last.graph for name in ("a.json.gz", "b.json.gz"))
    found = first_difference(a, b)
    assert found.kind == "another approximation of GELU: none before, tanh after"
    assert "train.py:5" in str(found)


TRAINED = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.5)
for _ in range(3):
    loss = (2 * model(torch.randn(8, 4)).square()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_two_trainings_are_compared_at_the_first_step_where_they_part(
    training: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    (training / "train.py").write_text(TRAINED)
    (training / "other.py").write_text(TRAINED.replace("2 *", "3 *"))
    for script, file in (("train.py", "a.json.gz"), ("other.py", "b.json.gz")):
        assert command("--fingerprints", "-o", file, script)[0] == 0
    a, b = (str(training / name) for name in ("a.json.gz", "b.json.gz"))
    assert main(["diff", "--fingerprints", a, b]) == 1
    said = capsys.readouterr().out
    assert "up to mul (other.py:7)" in said
    assert "a.json.gz@0: mul (train.py:7)" in said
    assert main(["diff", "--fingerprints", a, a]) == 0


def test_a_script_that_trains_in_a_thread_is_told_which(training: Path) -> None:
    (training / "train.py").write_text(
        TRAINING.replace(
            "    main()\n",
            "    import threading\n    worker = threading.Thread(target=main, name='trainer')\n"
            "    worker.start()\n    worker.join()\n",
        )
    )
    plain = forked("train.py", folder=training)
    done = forked_run("train.py", folder=training)
    assert (done.stdout, done.returncode) == (plain.stdout, 0)
    assert done.stderr.splitlines()[-1] == (
        "graphviz-torch: nothing was recorded: no backward ran in the main thread; 5 backwards "
        "ran in the thread 'trainer', which is not recorded: train in the main thread"
    )


def test_backwards_in_another_thread_beside_recorded_ones_are_counted(training: Path) -> None:
    (training / "train.py").write_text(
        TRAINING.replace(
            "    main()\n",
            "    import threading\n    worker = threading.Thread(target=main, name='trainer')\n"
            "    main()\n    worker.start()\n    worker.join()\n",
        )
    )
    said = forked_run("--steps", "0", "train.py", folder=training).stderr
    assert "graphviz-torch: 5 steps recorded; 5 backwards ran in the thread 'trainer'" in said


@pytest.mark.parametrize("line", ["        return self.b(", "        loss.backward()"])
def test_ctrl_c_before_the_first_step_ended_is_said_so(training: Path, line: str) -> None:
    interrupt = "__import__('os').kill(__import__('os').getpid(), 2)"
    indent = " " * (len(line) - len(line.lstrip()))
    (training / "train.py").write_text(TRAINING.replace(line, f"{indent}{interrupt}\n{line}", 1))
    done = forked_run("-o", "g.json", "train.py", folder=training)
    said = done.stderr[done.stderr.index("graphviz-torch: ") :]
    assert said.startswith("graphviz-torch: Ctrl-C came before the first step ended")
    assert "nothing found" not in said
    assert "steps recorded" not in said
    assert "see it" not in said
    assert done.returncode == -2


def test_where_every_step_is_recorded_they_are_written_in_batches(
    training: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (training / "train.py").write_text(TRAINED.replace("range(3)", "range(120)"))
    batches: list[int] = []
    append = TrainingFile.append

    def counted(file: TrainingFile, *steps: TrainingStep) -> None:
        batches.append(len(steps))
        append(file, *steps)

    monkeypatch.setattr(TrainingFile, "append", counted)
    monkeypatch.setattr(outputs, "_BATCH_SECONDS", 1e9)  # else a batch ends after that time too
    assert command("--steps", "0", "-o", "g.json.gz", "train.py")[0] == 0
    assert batches == [1, 50, 50, 19]
    read = load(training / "g.json.gz")
    assert isinstance(read, Training)
    assert [step.number for step in read.steps] == [*range(120)]


DEEP = """
import sys
import torch
class Outer(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def forward(self, x):
        return self.inner(x)
def nested(depth):
    module = torch.nn.Identity()
    for _ in range(depth):
        module = Outer(module)
    return module(torch.ones(1))
def recurse(depth):
    return recurse(depth - 1) if depth else 0
def deepest(function):
    reached, failed = 0, 2 * sys.getrecursionlimit()
    while failed - reached > 1:
        depth = (reached + failed) // 2
        try:
            function(depth)
        except RecursionError:
            failed = depth
        else:
            reached = depth
    return reached
model = Outer(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(1)).sum().backward()
    print(deepest(nested), deepest(recurse))
    optimizer.step()
"""


def test_modules_and_functions_reach_the_depth_of_a_plain_run_in_steps_recorded_or_not(
    training: Path,
) -> None:
    (training / "train.py").write_text(DEEP)
    plain, done = (
        forked("train.py", folder=training),
        forked_run("--steps", "2", "train.py", folder=training),
    )
    pairs = zip(plain.stdout.split(), done.stdout.split(), strict=True)
    assert all(int(reached) >= int(bare) for bare, reached in pairs), (plain.stdout, done.stdout)
    assert "2 steps recorded" in done.stderr
