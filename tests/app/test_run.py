"""The page Run backward, run headless, against autograd itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from streamlit.testing.v1 import AppTest

from app import gallery
from app.jobs import choices as devices
from app.jobs.run import Choice, play

ROOT = Path(__file__).parents[2]
EXAMPLE = "x.grad = [2.0000, 2.6667, 3.3333]"
OWN = "Your own expression"
HOSTILE_NAMES = [
    "__import__('os').system('true')",
    "x.__class__",
    "x*",
    "((((",
    "9**9**9*x",
    "x@x@x",
]


def opened(**query: str) -> AppTest:
    """The page, as a visitor opens it with these query parameters."""
    app = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=120)
    app.query_params.update(query)
    return app.run()


def press(app: AppTest) -> AppTest:
    [button] = [button for button in app.button if button.label == "Run backward"]
    return button.click().run()


def codes(app: AppTest) -> list[str]:
    return [code.value for code in app.code]


def test_the_example_is_drawn_before_any_click_and_has_no_gradient_yet() -> None:
    app = opened()
    assert not app.exception
    assert "y = mean(c)" in codes(app)[0]
    assert EXAMPLE not in codes(app)
    assert any("Run backward" in info.value for info in app.info)


def test_run_backward_shows_autograds_gradient_and_the_two_copies() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    ((x + 2) ** 2 + 3).mean().backward()
    app = press(opened())
    assert not app.exception
    assert f"x.grad = [{', '.join(f'{value:.4f}' for value in x.grad.tolist())}]" == EXAMPLE
    assert EXAMPLE in codes(app)
    [table] = [each.value for each in app.dataframe if "direction" in each.value.columns]
    assert table["direction"].tolist() == ["HtoD", "DtoH"]
    assert table["bytes"].tolist() == [12, 12]
    assert table["from"].tolist() == ["cpu", "sim:0"]
    assert table["to"].tolist() == ["sim:0", "cpu"]
    assert table["phase"].tolist() == ["forward", "backward"]
    assert table["line"].tolist() == ["script.py:6"] * 2
    assert app.query_params["backward"] == "1"


def test_a_link_shows_what_it_was_copied_from() -> None:
    app = opened(backward="1", device="CPU")
    assert EXAMPLE in codes(app)
    assert not [each for each in app.dataframe if "direction" in each.value.columns]


def test_another_choice_waits_for_its_own_click() -> None:
    app = press(opened())
    app.selectbox(key="device").select("CPU").run()
    assert EXAMPLE not in codes(app)
    assert "backward" not in app.query_params
    assert EXAMPLE in codes(press(app))


def test_an_expression_of_ones_own_has_its_own_gradient() -> None:
    app = opened(source=OWN, program="y = sum(x @ w)", inputs="x = [[1, 2]]\nw = [[3], [4]]")
    app = press(app)
    assert "x.grad = [[3.0000, 4.0000]]\nw.grad = [[1.0000], [2.0000]]" in codes(app)


@pytest.mark.parametrize("program", HOSTILE_NAMES)
def test_a_hostile_expression_gets_a_message_in_place(program: str) -> None:
    app = press(opened(source=OWN, program=program))
    assert not app.exception
    assert app.error
    app.text_area(key="program").input("y = sum(x)").run()
    assert "x.grad = [1.0000, 1.0000, 1.0000]" in codes(press(app))


def test_an_input_that_is_not_used_is_named() -> None:
    app = opened(source=OWN, program="y = x * 2", inputs="x = 1, 2\nw = 3")
    [said] = [box.value.replace("\\", "") for box in app.info if "not used" in box.value]
    assert said.startswith("The input w is not used. y has shape [2]: backward starts")


def test_an_output_without_a_gradient_says_so() -> None:
    app = opened(source=OWN, program="y = detach(x)")
    assert "No gradient can flow from y to x" in app.error[0].value


@pytest.mark.parametrize("model", [name for name in gallery.NAMES if name != "forgotten"])
@pytest.mark.parametrize("device", ["cpu", "sim2"])
def test_every_model_of_the_gallery_runs(model: str, device: str) -> None:
    run = play(Choice("model", device, model=model), True)
    assert not run.error
    assert run.graph is not None
    assert any(node.grad_outputs for node in run.graph.nodes)


def test_every_model_of_the_gallery_is_a_file_and_every_file_is_there() -> None:
    files = {path.stem for path in (ROOT / "app" / "models").glob("*.py")} - {"__init__"}
    assert files == set(gallery.NAMES)
    for name in gallery.NAMES:
        assert gallery.model(name).says.endswith(".")


def test_a_failing_model_shows_its_error_and_the_graph_up_to_it() -> None:
    app = press(opened(source="A model", model="Forgotten .to()"))
    assert not app.exception
    assert "same device" in app.error[0].value.replace("\\", "")
    run = play(Choice("model", "sim1", model="forgotten"), True)
    assert run.graph is not None
    assert "addmm" in {node.operation for node in run.graph.nodes}
    assert run.graph.failure is not None


def test_the_detached_and_the_spare_layer_have_different_causes() -> None:
    app = press(opened(source="A model", model="Detached layer"))
    said = [box.value for box in [*app.warning, *app.error, *app.info]]
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
    [leaf] = [node for node in run.graph.nodes if node.label == "x"]
    expected = torch.tensor(leaf.grad_outputs[0].values).reshape(leaf.outputs[0].shape)
    assert torch.allclose(names["x"].grad, expected)
    assert (tmp_path / "graph.svg").exists()


def test_the_script_of_a_model_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = play(Choice("model", "sim1", model="mlp"), True)
    monkeypatch.chdir(tmp_path)
    exec(run.script, {"__name__": "__main__"})
    assert (tmp_path / "graph.svg").exists()


def test_lines_in_the_tables_are_those_of_the_script() -> None:
    run = play(
        Choice("expression", "sim1", program="a = x * 3\ny = sum(a)", inputs="x = 1, 2"), True
    )
    lines = run.script.splitlines()
    for node in run.graph.nodes:
        if node.label:
            assert (
                lines[int(node.source.removeprefix("script.py:")) - 1]
                .strip()
                .startswith(f"{node.label} =")
            )


def test_devices_are_there_for_the_block_and_others_are_refused() -> None:
    with devices.use("sim3") as found:
        assert len(found) == 3
    with pytest.raises(ValueError, match="not among"), devices.use("tpu"):
        pass
