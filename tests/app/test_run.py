"""Compare the page Run backward, and the job that it starts, with autograd."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from app.jobs import devices
from app.jobs.backward import play
from app.jobs.job import QUEUE
from app.jobs.values import Choice
from app.models import gallery
from app.panels import example
from app.panels.text import escape
from graphviz_torch import record
from graphviz_torch.experiments.runner import EXPERIMENTS
from graphviz_torch.graph import TrainingStep
from graphviz_torch.graph.training_file import TrainingFile
from tests.support.app_pages import FRAME, column, drawn, has, lines, page, press

ROOT = Path(__file__).parents[2]
EXAMPLE = "x.grad = [2, 2.667, 3.333]"
OWN = "Your own expression"
HOSTILE_NAMES = ["__import__('os').system('true')", "x.__class__", "x*", "((((", "9**9**9*x"]
HOSTILE_NAMES += ["x@x@x"]


def test_before_any_click_the_program_is_there_its_copy_is_made_and_backwards_is_announced() -> (
    None
):
    app = page()
    assert lines(app)[:3] == [
        "x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)",
        "x_there = x.to(device)",
        "a = x_there + 2",
    ]
    assert lines(app, "next") == ["y.backward()"]
    assert not lines(app, "result")
    assert column(app, "run transfers", "from → to") == ["cpu → sim:0", "sim:0 → cpu"]
    assert column(app, "run transfers", "phase") == ["forward", "to come"]
    assert drawn(app, "run transfers")["announced"] == [1]
    said = " ".join(text.value for text in app.markdown)
    assert "**1 copy** in forward (12 B), **1 more** expected in backward (12 B)." in said


def test_run_backward_shows_autograds_gradient_and_the_two_copies() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    ((x + 2) ** 2 + 3).mean().backward()
    app = press(page())
    assert not app.exception
    assert f"x.grad = [{', '.join(f'{value:.4g}' for value in x.grad.tolist())}]" == EXAMPLE
    assert lines(app, "result") == [EXAMPLE]
    assert column(app, "run transfers", "direction") == ["HtoD", "DtoH"]
    assert column(app, "run transfers", "bytes") == ["12 B", "12 B"]
    assert column(app, "run transfers", "from → to") == ["cpu → sim:0", "sim:0 → cpu"]
    assert column(app, "run transfers", "phase") == ["forward", "backward"]
    assert column(app, "run transfers", "node") == ["x_there", "x_there"]
    assert column(app, "run transfers", "line") == ["script.py:6"] * 2
    assert app.query_params["backward"] == "1"


def test_the_values_of_the_program_stand_beside_its_lines_and_its_gradients() -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    a, b, c = x + 2, (x + 2) ** 2, (x + 2) ** 2 + 3
    app = press(page())
    shown = [line["value"] for line in drawn(app, "run program")["lines"] if line["value"]]
    numbers = [[f"{value:.4g}" for value in each.tolist()] for each in (x, x, a, b, c)]
    expected = [f"[{', '.join(each)}]" for each in numbers] + [f"{c.mean():.4g}"]
    assert shown == expected
    assert column(app, "run gradients", "value") == expected[::-1]
    assert column(app, "run gradients", "gradient")[-1] == EXAMPLE.removeprefix("x.grad = ")


def test_a_copy_that_the_app_makes_is_not_a_finding_and_a_visitors_own_is() -> None:
    theirs = page(source=OWN, program="y = sum(x.to(device) * 2)", backward="1")
    ours = page(source=OWN, program="y = sum(x * 2)", backward="1")
    assert [each for each in theirs.expander if "copy between devices" in each.label]
    assert not [each for each in ours.expander if "copy between devices" in each.label]


def test_a_healthy_run_says_what_was_checked() -> None:
    app = press(page())
    [checked] = [each for each in app.expander if "rules: nothing found" in each.label]
    assert "In-place" in checked.markdown[0].value or "in place" in checked.markdown[0].value


def test_a_mistake_leaves_the_last_graph_in_grey() -> None:
    app = page(source=OWN, program="y = sum(x * 2)", backward="1")
    before = drawn(app, "run view")["payload"]
    app.text_area(key="program").set_value("y = where(x > 0, x, 0)").run()
    assert "'where' is not a function here" in app.error[0].value.replace("\\", "")
    assert app.code[0].value == "  y = where(x > 0, x, 0)\n      ^"
    assert drawn(app, "before view")["payload"] == before
    assert not has(app, "run view")
    [button] = [each for each in app.button if each.label == "Run backward"]
    assert button.disabled
    app.text_area(key="program").set_value("y = sum(x * 3)").run()
    assert not app.error
    [button] = [each for each in app.button if each.label == "Run backward"]
    assert not button.disabled
    assert has(app, "run view")
    assert not has(app, "before view")


def test_an_empty_box_of_inputs_is_not_blamed_on_the_expression() -> None:
    app = page(source=OWN, inputs=" ", program="y = sum(x * 2)")
    assert app.error[0].value.replace("\\", "").startswith("Inputs is empty.")


def test_the_models_say_how_to_bring_ones_own() -> None:
    app = page(source="A model")
    assert [code.value for code in app.code] == ["graphviz-torch app train.py"]


def test_the_script_with_which_the_app_was_started_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with record() as recording:
        (torch.ones(3, requires_grad=True).exp() * 2).sum().backward()
    recording.graph.save(tmp_path / "train.py.json.gz")
    monkeypatch.setenv("GRAPHVIZ_TORCH_RECORDING", str(tmp_path / "train.py.json.gz"))
    app = page()
    [sources] = [group for group in app.get("button_group") if "train.py" in str(group.proto)]
    assert sources.proto.options[0].content == "train.py"
    assert len(column(app, "own gradients", "tensor")) == len(recording.graph.nodes)
    parts = [part.type for part in app.main.children.values()]
    # Title, what is wrong, then the graph and its tables, then the files.
    assert [kind for kind in parts if kind != "empty"] == [
        "flex_container",
        "expander",
        "flex_container",
        "expander",
    ]
    explored = page("explore")
    [chosen] = [box for box in explored.selectbox if box.label == "Recording"]
    assert chosen.value == "train.py"
    (tmp_path / "train.py.json.gz").unlink()
    assert "was removed" in page().error[0].value


def test_the_page_follows_a_script_that_runs_and_can_ask_for_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    weight = torch.ones(3, requires_grad=True)
    steps = []
    for factor in range(1, 20):
        with record() as recording:
            (weight * factor).sum().backward()
        steps.append(TrainingStep(len(steps), (recording.graph,)))
    path = tmp_path / "train.py.json.gz"
    file = TrainingFile(path)
    file.append(*steps[:2])
    monkeypatch.setenv("GRAPHVIZ_TORCH_RECORDING", str(path))
    monkeypatch.setenv("GRAPHVIZ_TORCH_LIVE", "1")
    app = page()
    assert "**train\\.py runs**: step 1, 2 steps recorded" in app.markdown[0].value
    app.toggle(key="follow").set_value(False).run()
    file.append(*steps[2:])
    app.run()
    assert "runs**: step 1, 2 steps recorded" in app.markdown[0].value
    app.toggle(key="follow").set_value(True).run()
    said = "step 18, 19 steps recorded, the first 4 and the last 8 checked"
    assert said in app.markdown[0].value
    rows = zip(
        *(column(app, "own gradients", name) for name in ("tensor", "gradient")), strict=True
    )
    # Of the last step, in a file that keeps two digits of it.
    assert float(dict(rows)["weight"].strip("[]").split(", ")[0]) == pytest.approx(19, rel=0.01)
    press(app, "Stop")
    assert (tmp_path / "stop").exists()
    (tmp_path / "ended").write_text("-2")
    app.run()
    assert "**train\\.py** was stopped: step 18" in app.markdown[0].value
    assert "Stop" not in [button.label for button in app.button]


def test_a_link_shows_what_it_was_copied_from() -> None:
    app = page(backward="1", device="CPU")
    assert EXAMPLE in lines(app, "result")
    assert not has(app, "run transfers")
    assert "x_there = x.to(device)" not in lines(app)


def test_another_choice_waits_for_its_own_click() -> None:
    app = press(page())
    app.selectbox(key="device").select("CPU").run()
    assert EXAMPLE not in lines(app, "result")
    assert "backward" not in app.query_params
    assert EXAMPLE in lines(press(app), "result")


@pytest.mark.parametrize("node", ["9" * 5_000, "-1", "²", "1e3", "٣"])
def test_a_node_in_the_link_that_is_none_is_passed_over(node: str) -> None:
    app = page(node=node)
    assert drawn(app, "run program")["selected"] is None


def test_the_node_in_the_link_is_marked_everywhere() -> None:
    app = page(node="1", backward="1")
    for place in ("run program", "run view", "run transfers", "run timeline", "run gradients"):
        assert drawn(app, place)["selected"] == 1


def test_an_expression_of_ones_own_has_its_own_gradient() -> None:
    app = page(source=OWN, program="y = sum(x @ w)", inputs="x = [[1, 2]]\nw = [[3], [4]]")
    gradients = ["x.grad = [[3, 4]]", "w.grad = [[1], [2]]"]
    assert lines(press(app), "result") == gradients


@pytest.mark.parametrize("program", HOSTILE_NAMES)
def test_a_hostile_expression_gets_a_message_in_place(program: str) -> None:
    app = page(source=OWN, program=program)
    assert not app.exception
    assert app.error
    assert [each.disabled for each in app.button if "Run backward" in each.label] == [True]
    app.text_area(key="program").input("y = sum(x)").run()
    assert lines(press(app), "result") == ["x.grad = [1, 1, 1]"]


@pytest.mark.parametrize("program", ["lambda: 1", "__import__('os')"])
def test_a_refused_text_is_answered_while_all_places_are_taken(program: str) -> None:
    taken = [QUEUE.enter(f"visitor {number}") for number in range(QUEUE.count)]
    try:
        app = page(source=OWN, program=program)  # a job would wait for a place until it is killed
        assert app.error
        assert not app.exception
    finally:
        for ticket in taken:
            ticket.leave()


def test_an_input_that_is_not_used_is_named() -> None:
    app = page(source=OWN, program="y = x * 2", inputs="x = 1, 2\nw = 3")
    [said] = [box.value.replace("\\", "") for box in app.info if "not used" in box.value]
    assert said.startswith("The input w is not used. y has shape [2]: backward starts")


def test_an_output_without_a_gradient_says_so() -> None:
    app = page(source=OWN, program="y = detach(x)")
    assert "No gradient can flow from y to x" in app.error[0].value


@pytest.mark.parametrize("model", [name for name in gallery.NAMES if name != gallery.FAILING])
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_every_model_runs_on_all_of_its_devices_with_its_own_lines(model: str, device: str) -> None:
    for count in gallery.DEVICES[model]:
        name = f"sim{count}" if device == "sim" else "cpu"
        run = play(Choice("model", name, model=model), True)
        assert not run.error
        assert run.opened is not None
        graph = run.opened.graph
        assert any(node.grad_outputs for node in graph.nodes)
        if device == "sim":  # every device that is offered is used
            copies = {end for copy in graph.transfers for end in (copy.source, copy.target)}
            assert {f"sim:{index}" for index in range(count)} <= copies
        places = {node.where for node in graph.nodes} | {t.where for t in graph.transfers}
        files = {place.rpartition(":")[0] for place in places - {""}}
        assert files <= {f"{model}.py"}
        shown = {number for number, _ in run.program}
        assert {int(place.rpartition(":")[2]) for place in places - {""}} <= shown


def test_every_model_of_the_gallery_is_a_file_and_every_file_is_there() -> None:
    files = {path.stem for path in (ROOT / "app" / "models").glob("*.py")}
    assert files - {"__init__", "gallery"} == {*gallery.NAMES, *gallery.MESHES, gallery.LARGE}
    for name in gallery.NAMES:
        assert gallery.model(name).description.endswith(".")
        assert gallery.model(name).picture.exists()


def test_a_failing_model_shows_its_error_and_the_graph_up_to_it() -> None:
    app = page(source="A model", model="Forgotten .to()")
    assert not app.exception
    assert "same device" in app.error[0].value.replace("\\", "")
    run = play(Choice("model", "sim1", model="forgotten"), True)
    assert run.opened is not None
    assert "addmm" in {node.operation for node in run.opened.graph.nodes}
    assert run.opened.graph.failure is not None


def test_the_detached_and_the_spare_layer_have_different_causes() -> None:
    app = press(page(source="A model", model="Detached layer"))
    said = [each.label for each in app.expander]
    assert any("first" in text and "detach" in text for text in said)
    assert any("spare" in text and "never called" in text for text in said)


@pytest.mark.parametrize("device", ["cpu", "sim1"])
@pytest.mark.parametrize(
    ("program", "inputs"),
    [
        ("a = x + 2\ny = mean(a ** 2 + 3)", "x = 1, 2, 3"),
        ("silu(x @ w.T).sum() * pi + max(w)", "x = randn(2, 3)\nw = randn(4, 3)"),
        ("e = x * 2; y = cross_entropy(e.reshape(2, 2), t)", "x = arange(4)\nt = randint(0, 2, 2)"),
        ("x * 2", "x = 1, 2"),
    ],
)
def test_the_script_to_copy_runs_and_gives_the_same_gradient(
    program: str, inputs: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = play(Choice("expression", device, seed=4, program=program, inputs=inputs), True)
    assert not run.error
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(run.script, names)
    [leaf] = [node for node in run.opened.graph.nodes if node.label == "x"]
    expected = torch.tensor(leaf.grad_outputs[0].values).reshape(leaf.outputs[0].shape)
    assert torch.allclose(names["x"].grad, expected)
    assert (tmp_path / "graph.svg").exists()


def test_the_script_of_a_model_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = play(Choice("model", "sim1", model="mlp"), True)
    monkeypatch.chdir(tmp_path)
    exec(run.script, {"__name__": "__main__"})
    assert (tmp_path / "graph.svg").exists()


def test_lines_in_the_tables_are_those_of_the_program_that_is_shown() -> None:
    choice = Choice("expression", "sim1", program="a = x * 3\ny = sum(a)", inputs="x = 1, 2")
    run = play(choice, True)
    shown = dict(run.program)
    assert run.opened is not None
    for node in run.opened.graph.nodes:
        if node.label:
            text = shown[int(node.where.removeprefix("script.py:"))]
            assert text.startswith(f"{node.label} =")


@pytest.mark.parametrize("device", ["cpu", "sim1"])
@pytest.mark.parametrize(
    ("program", "inputs", "rule", "line", "words"),
    [
        ("y = mean(sqrt(x))", "x = -1, 4", "nonfinite-value", "sqrt(x", "sqrt at {} made 1 NaN"),
        (
            "a = detach(x) * w\ny = mean(a)",
            "x = -1, 4\nw = 2, 3",
            "cut-gradient",
            "detach(x",
            "{}.",
        ),
    ],
)
def test_a_finding_names_the_line_that_is_shown_and_the_visitors_names(
    program: str, inputs: str, rule: str, line: str, words: str, device: str
) -> None:
    run = play(Choice("expression", device, program=program, inputs=inputs), True)
    assert run.opened is not None
    [number] = [number for number, text in run.program if line in text]
    [finding] = [each for each in run.opened.findings if each.rule == rule]
    assert finding.where == f"script.py:{number}"
    assert words.format(finding.where) in finding.message
    shown = dict(run.program)
    for node in run.opened.graph.nodes:  # one that was cut off, too
        if node.label:
            assert shown[int(node.where.removeprefix("script.py:"))].startswith(f"{node.label} =")
    assert "inputs." not in finding.message


def test_the_cards_stand_before_a_model_is_chosen() -> None:
    app = page(source="A model")
    said = " ".join(text.value for text in app.markdown)
    for name in gallery.NAMES:
        assert gallery.model(name).sentence.split(",")[0].split(".")[0][:20] in said.replace(
            "\\", ""
        )
    opened = app.button(key="card cnn").click().run()
    assert opened.query_params["model"] == ["CNN"] or opened.query_params["model"] == "CNN"
    assert any("class CNN" in line for line in lines(opened))


def test_no_function_of_the_app_is_drawn_around_a_visitors_expression() -> None:
    run = play(example.CHOICE, backward=True)
    assert run.opened is not None
    assert [node.call for node in run.opened.graph.nodes] == ["", "to", "add", "pow", "add", "mean"]


def test_the_first_page_shows_what_a_run_gives_now() -> None:
    assert example.forward() == play(example.CHOICE, backward=False)


def test_the_first_page_loads_neither_torch_nor_what_streamlit_needs_for_data_frames() -> None:
    text = f"""
import sys
from streamlit.testing.v1 import AppTest
assert not AppTest.from_file({FRAME!r}, default_timeout=120).run().exception
heavy = "torch", "pandas", "graphviz_torch.render.dot", "graphviz_torch.findings"
print(*{{*heavy}} & {{*sys.modules}})
"""
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []


def test_devices_are_there_for_the_block_and_others_are_refused() -> None:
    with devices.use("sim3") as found:
        assert len(found) == 3
    with pytest.raises(ValueError, match="device 'tpu' is unknown"), devices.use("tpu"):
        pass


def test_a_button_makes_experiments_on_the_model_and_shows_each_answer() -> None:
    app = page(source="A model", model="Transformer", backward="1")
    assert not app.warning
    press(app, "Experiments")
    assert not app.exception, app.exception
    [first] = [each.value for each in app.warning]
    assert escape("future-leak") in first  # it has no mask, and its targets are the next tokens
    assert "softmax" in first
    assert escape("transformer.py:23") in first
    said = "\n".join(each.value for each in (*app.success, *app.info))
    for name in EXPERIMENTS.keys() - {"positions"}:
        assert f"**{escape(name)}**" in said
    assert has(app, "run influence")
    press(app)
    assert has(app, "run influence")


def test_no_experiment_is_offered_where_there_is_no_model() -> None:
    assert "Experiments" not in [button.label for button in page().button]
