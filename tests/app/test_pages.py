"""Every page, run headless: what it shows at first, and what its controls do."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest
import torch
from streamlit.testing.v1 import AppTest

from app.jobs import checkpoints as checkpointing
from app.jobs import devices as measuring
from app.jobs import training
from app.jobs.training import Settings, Step
from app.panels import downloads
from app.panels import upload as recordings
from graphviz_torch import find, load, record

MAIN = str(Path(__file__).parents[2] / "app" / "main.py")
PAGES = ["run", "explore", "training", "devices", "checkpoints"]


def page(name: str, **query: str) -> AppTest:
    """A page of the app, as a visitor opens it with these query parameters."""
    app = AppTest.from_file(MAIN, default_timeout=120).run()
    if name != "run":
        app.switch_page(f"views/{name}.py")
    app.query_params.update(query)
    app.run()
    assert not app.exception
    return app


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_with_something_on_it_and_no_error(name: str) -> None:
    app = page(name)
    assert app.title
    assert not app.error
    assert len(app.main.children) > 4


@pytest.mark.parametrize(
    "tab", ["Graph", "Nodes", "Gradients", "Transfers", "Memory", "Differences"]
)
def test_explore_opens_the_tab_that_the_link_names(tab: str) -> None:
    app = page("explore", tab=tab, against="MLP")
    [drawn] = [each for each in app.tabs if each.children]
    assert drawn.label == tab
    if tab == "Memory":
        assert "Largest saved tensors" in " ".join(text.value for text in app.markdown)
    if tab == "Differences":
        assert [metric.label for metric in app.metric] == ["Added", "Removed", "Changed"]


def test_the_nodes_of_a_recording_can_be_narrowed_down() -> None:
    app = page("explore", tab="Nodes")
    everything = len(app.dataframe[0].value)
    app.multiselect(key="explore Operation").select("gelu").run()
    assert set(app.dataframe[0].value["operation"]) == {"gelu"}
    app.multiselect(key="explore Operation").unselect("gelu")
    app.text_input(key="explore find").input("blocks.1").run()
    assert 0 < len(app.dataframe[0].value) < everything


@pytest.mark.parametrize(("start", "said"), [("Vanishing", "vanishes"), ("Exploding", "explodes")])
def test_training_shows_what_the_gradient_does_with_its_cause(start: str, said: str) -> None:
    app = page("training", start=start)
    assert any(said in warning.value for warning in app.warning)


def test_a_healthy_training_has_no_finding_and_learns() -> None:
    app = page("training", start="Healthy")
    assert not [*app.warning, *app.error]
    loss = next(metric for metric in app.metric if metric.label == "Loss")
    assert float(loss.value) < 0.1
    assert [code.value for code in app.code if "tensorboard" in code.value]


def test_a_training_reports_each_step_and_its_gradients_are_autograds() -> None:
    steps: list[Step] = []
    settings = Settings(depth=3, steps=4, activation="Tanh")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "report", steps.append)
        trained = training.train(settings)
    assert [step.step for step in steps] == [0, 1, 2, 3]
    assert steps[-1].loss < steps[0].loss

    torch.manual_seed(settings.seed)
    model = training.Deep(settings)
    x = torch.randn(64, training.WIDTH)
    torch.nn.functional.mse_loss(model(x), torch.sin(x[:, :1] * 2)).backward()
    for norm, layer in zip(steps[0].norms, model.layers, strict=True):
        squares = sum(float(p.grad.square().sum()) for p in layer.parameters())
        assert norm == pytest.approx(squares**0.5)
    names = zipfile.ZipFile(io.BytesIO(trained.archive)).namelist()
    assert any("tfevents" in name for name in names)


def test_a_batch_of_30_is_divided_as_the_tutorial_says() -> None:
    expected = {
        2: [[15, 15]] * 3 + [[5, 5]],
        3: [[10, 10, 10]] * 3 + [[4, 4, 2]],
        8: [[4] * 7 + [2]] * 3 + [[2] * 5],
    }
    for count, batches in expected.items():
        parts, _ = measuring.divide(count, 30)
        assert [[size for _, size in batch] for batch in parts] == batches


def test_the_code_that_is_shown_for_moving_is_what_is_run() -> None:
    moves, graph = measuring.move("sim1")
    told: list[object] = []
    names = {
        "torch": torch,
        "nn": torch.nn,
        "print": told.append,
        "device": "cpu",
        "to_device": __import__("graphviz_torch").to_device,
    }
    exec(measuring.MOVING, names)
    assert [move.name for move in moves.moved] == [
        "model.weight", "model.bias", "x", "weights.0", "weights.1",
    ]  # fmt: skip
    assert sum(transfer.nbytes or 0 for transfer in graph.transfers) == moves.nbytes


def test_a_checkpoint_that_fits_gives_the_same_output_and_gradients() -> None:
    for suffix in checkpointing.FORMATS.values():
        saved = checkpointing.save("mlp", "sim1", suffix)
        loaded = checkpointing.load(saved.name, saved.data, "mlp", "cpu", False)
        assert loaded.verification is not None
        assert loaded.verification.same
        spoiled = checkpointing.load(saved.name, saved.data, "mlp", "cpu", True)
        assert spoiled.verification is not None
        assert not spoiled.verification.same


def test_a_checkpoint_of_another_model_is_refused_with_what_differs() -> None:
    app = page("checkpoints", into="CNN")
    assert "does not fit" in app.error[0].value
    assert any("missing in the file: head.weight" in code.value for code in app.code)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return __import__("os").system, ("touch /tmp/graphviz_torch_was_here",)


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 100, b"PK\x03\x04" + b"x" * 50, b"{}", b"\x80\x04cos\nsystem\n", None],
    ids=["empty", "zeros", "cut zip", "json", "cut pickle", "evil pickle"],
)
def test_a_hostile_checkpoint_gets_a_message_and_runs_nothing(data: bytes | None) -> None:
    if data is None:
        made = io.BytesIO()
        torch.save({"weight": Evil()}, made)
        data = made.getvalue()
    loaded = checkpointing.load("../../evil.pt", data, "mlp", "cpu", False)
    assert loaded.error
    assert not Path("/tmp/graphviz_torch_was_here").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        b"\x80\x04\x95",
        b"\x1f\x8b\x08\x00cut",
        b"[" * 100_000,
        b'{"format": "graphviz_torch", "version": 99}',
        b"\xff\xfe\x00",
        json.dumps({"format": "graphviz_torch", "version": 1, "nodes": 7}).encode(),
    ],
)
def test_a_hostile_recording_gets_a_message(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"evil\.json"):
        recordings.read(data, "evil.json")


def test_every_download_is_what_its_name_says(tmp_path: Path) -> None:
    x = torch.ones(3, requires_grad=True)
    with record() as recording:
        (x * 2).sum().backward()
    graph = recording.graph
    assert b"<svg" in downloads.as_picture(graph, "svg")
    assert downloads.as_picture(graph, "png").startswith(b"\x89PNG")
    assert downloads.as_picture(graph, "pdf").startswith(b"%PDF")
    (tmp_path / "graph.json").write_bytes(downloads.as_json(graph))
    assert load(tmp_path / "graph.json") == graph
    packed = zipfile.ZipFile(io.BytesIO(downloads.as_tensorboard(graph)))
    assert any("tfevents" in name for name in packed.namelist())
    assert json.loads(downloads.as_findings(find(graph))) == []
