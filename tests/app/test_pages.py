"""Test each page without a browser: its first state, and the effect of its controls."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from streamlit.testing.v1 import AppTest
from torch.utils.flop_counter import FlopCounterMode

from app.jobs import checkpoints as checkpointing
from app.jobs import measurement as measuring
from app.jobs import ranks, recordings, rehearsals, training
from app.jobs.values import MOVING, LoggedStep, TrainingSettings
from app.panels import text
from app.panels.checkpoints import FORMATS
from app.views import explore
from graphviz_torch import find, load, record
from graphviz_torch.rehearsal import rehearse
from tests.support.app_pages import column, drawn, has, page, press

PAGES = ["run", "explore", "training", "devices", "processes"]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_with_something_on_it_and_no_error(name: str) -> None:
    app = page(name)
    assert app.title
    assert not app.error or name == "processes"  # whose sample has a finding
    assert len(app.main.children) > 2


@pytest.mark.parametrize("tab", [*explore.TABS, *explore.RENAMED_TABS])
def test_explore_opens_the_tab_that_the_link_names(tab: str) -> None:
    app = page("explore", tab=tab)
    [shown] = [each for each in app.tabs if each.children]
    assert shown.label == explore.RENAMED_TABS.get(tab, tab)


def test_two_recordings_are_one_drawing_with_a_list_of_what_differs() -> None:
    app = page("explore", against="MLP")
    assert has(app, "explore differences")
    [listed] = [each for each in app.expander if each.label.startswith("In the second: ")]
    assert "From Transformer to MLP" in listed.code[0].value


def test_the_summary_has_a_row_for_each_module_and_counts_as_torch_does() -> None:
    app = page("explore", open="MLP", tab="Modules")
    assert [name.strip() for name in column(app, "explore modules", "module")] == [
        "0", "1", "2", "total",
    ]  # fmt: skip
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    counts = [sum(p.numel() for p in each.parameters()) for each in [*model, model]]
    assert column(app, "explore modules", "parameters") == [f"{count}" for count in counts]
    with FlopCounterMode(display=False) as counted:
        model(torch.randn(32, 8))
    assert column(app, "explore modules", "FLOPs")[-1] == text.short(counted.get_total_flops())


def test_the_path_of_a_gradient_goes_from_the_loss_to_the_node_of_the_link() -> None:
    app = page("explore", open="MLP", tab="Gradients", node="3")
    path = drawn(app, "explore path")
    assert (path["nodes"][-1], path["selected"]) == (3, 3)
    app.selectbox(key="explore target").select("0.weight").run()
    norms = [float(norm) for norm in column(app, "explore path", "norm")]
    factors = [float(factor) for factor in column(app, "explore path", "factor")[1:]]
    assert [b / a for a, b in pairwise(norms)] == pytest.approx(factors, rel=0.01)
    assert "arrived at 0" in app.markdown[-1].value


def test_the_gradient_flow_of_a_recording_says_what_learns() -> None:
    app = page("explore", open="MLP", tab="Gradients")
    assert not app.exception
    shown = app.get("html")[-1].proto.body
    data = shown.partition("base64,")[2].partition('"')[0]
    assert "All 4 parameters learn." in base64.b64decode(data).decode()


def test_the_nodes_of_a_recording_can_be_narrowed_down() -> None:
    app = page("explore", tab="Nodes")
    everything = len(drawn(app, "explore nodes")["rows"])
    app.multiselect(key="explore Operation").select("gelu").run()
    assert set(column(app, "explore nodes", "operation")) == {"gelu"}
    assert set(column(app, "explore nodes", "attributes")) == {"approximate=none"}
    app.multiselect(key="explore Operation").unselect("gelu")
    app.text_input(key="explore find").input("blocks.1").run()
    assert 0 < len(drawn(app, "explore nodes")["rows"]) < everything


@pytest.mark.parametrize(("start", "said"), [("Vanishing", "vanishes"), ("Exploding", "explodes")])
def test_training_shows_what_the_gradient_does_with_its_cause(start: str, said: str) -> None:
    app = page("training", start=start)
    assert any(said in expander.label for expander in app.expander)


def test_a_healthy_training_has_no_finding_and_learns() -> None:
    app = page("training", start="Healthy")
    assert not [*app.warning, *app.error]
    loss = next(metric for metric in app.metric if metric.label == "Loss")
    assert float(loss.value) < 0.1
    assert [code.value for code in app.code if "tensorboard" in code.value]


def test_a_training_reports_each_step_and_its_gradients_are_autograds() -> None:
    steps: list[LoggedStep] = []
    settings = TrainingSettings(depth=3, steps=4, activation="Tanh")
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


def test_the_ranks_of_the_sample_differ_and_the_page_says_how() -> None:
    app = page("processes")
    assert any("Rank 1 has no gradient" in expander.label for expander in app.expander)
    found = [one.graph for one in ranks.sample()]
    other = page("processes", rank="rank 1")
    start = [app.session_state["rank 0 node"], other.session_state["rank 1 node"]]
    at = [graph.nodes[node] for graph, node in zip(found, start, strict=True)]
    assert [node.module for node in at] == ["extra", "last"]  # which rank 1 has not, and what reads


def test_the_charts_stand_there_before_the_first_step_has_ended() -> None:
    program = "from app.views import training\n\ntraining._draw_steps([])\n"
    app = AppTest.from_string(program, default_timeout=60)
    app.run()
    assert not app.exception
    assert [metric.label for metric in app.metric][:1] == ["Loss"]
    assert len(app.get("vega_lite_chart")) == 2


def test_a_training_that_has_ended_is_drawn_again() -> None:
    app = page("training", steps="3")
    assert not app.run().exception
    assert [button.disabled for button in app.button if button.label == "Pause"] == [True]


def test_the_page_says_which_rank_has_what_and_what_it_sends() -> None:
    app = page("processes", ranks="Tensor parallel")
    (table,) = (table.value for table in app.table if "shape" in table.value)
    first = {column: values[0].replace("\\", "") for column, values in table.items()}
    assert first["parameter"] == "up.weight"
    assert first["rank 1"] == "Shard(0) on tp, local [32, 16]"
    assert "**1 collective** in forward (1.9 KiB)." in [m.value for m in app.markdown]


def test_the_page_says_whether_a_rank_fits_and_what_it_has() -> None:
    app = page("processes", part="Will it fit?", **{"fit ranks": "16"})
    block = 2 * 8192 * 32768 + 32768 + 3 * 8192  # two matrices, their biases, and the norm's two
    shown = {metric.label: metric.value for metric in app.metric}
    assert shown["Parameters"] == shown["Gradients"] == text.size(12 * block * 4 / 16)
    assert app.success[0].value.startswith("**Rank 0 of 16 fits**")
    assert "data:image/svg+xml" in app.get("html")[0].proto.body
    app.number_input(key="fit memory").set_value(5.0)
    press(app, "Rehearse")
    assert app.error[0].value.startswith("**Rank 0 of 16 does not fit**")
    app.number_input(key="fit tp").set_value(3)
    press(app, "Rehearse")
    assert "pass a divisor of 16" in app.error[0].value


def test_a_rehearsal_is_read_from_what_the_command_printed() -> None:
    def train() -> None:
        torch.nn.Linear(10, 100)(torch.ones(5, 10)).sum().backward()

    given = rehearse(train).to_dict()
    [one] = rehearsals.read(json.dumps(given).encode(), "fit.json")
    assert (one.ranks, dict(one.parts)["parameters"], one.flops) == (1, 4400, 20000)
    assert len(rehearsals.read(json.dumps([given, given]).encode(), "fit.json")) == 2
    row = {"kind": "", "group": "", "count": 1, "nbytes": 1, "module": "", "where": 7}
    wrong = [{}, [], [1], [given] * 17, {**given, "ranks": "1"}, {**given, "peak_bytes": -1}]
    wrong += [{**given, "collectives": [row]}, {**given, "flops": 2**70}, {**given, "rank": True}]
    for data in (b"", b"[" * 100_000, b"\xff", *(json.dumps(each).encode() for each in wrong)):
        with pytest.raises(ValueError, match=r"fit\.json is not a rehearsal\. Pass the output"):
            rehearsals.read(data, "fit.json")


def test_a_batch_of_30_is_divided_as_the_tutorial_says() -> None:
    expected = {
        2: [[15, 15]] * 3 + [[5, 5]],
        3: [[10, 10, 10]] * 3 + [[4, 4, 2]],
        8: [[4] * 7 + [2]] * 3 + [[2] * 5],
    }
    for count, batches in expected.items():
        divided = measuring.divide(count, 30)
        assert [[size for _, size in batch] for batch in divided.batches] == batches


def test_no_graph_names_a_line_of_the_app_itself() -> None:
    saved = checkpointing.save("mlp", "sim1", ".pt")
    shown = [
        measuring.move("sim1").opened,
        measuring.divide(2, 50).opened,
        training.train(TrainingSettings(depth=2, steps=1)).opened,
        checkpointing.load(saved.name, saved.data, "mlp", "sim1", False).opened,
        *ranks.sample(),
    ]
    for opened in shown:
        assert opened is not None
        graph = opened.graph
        places = {node.where for node in graph.nodes} | {copy.where for copy in graph.transfers}
        files = {place.rpartition(":")[0] for place in places}
        assert files <= {"", "mlp.py"}


def test_the_code_that_is_shown_for_moving_is_what_is_run() -> None:
    moved = measuring.move("sim1")
    names = {
        "torch": torch,
        "nn": torch.nn,
        "print": lambda report: None,
        "device": "cpu",
        "to_device": __import__("graphviz_torch").to_device,
    }
    exec(MOVING, names)
    assert moved.names == ("model.weight", "model.bias", "x", "weights.0", "weights.1")
    assert sum(copy.nbytes or 0 for copy in moved.opened.graph.transfers) == moved.nbytes


def test_nothing_is_measured_before_it_is_asked_for() -> None:
    app = page("devices", work="elementwise")
    assert "compare results" not in app.session_state
    assert not app.get("vega_lite_chart")
    [measure] = [button for button in app.button if button.label == "Measure"]
    measure.click().run()
    assert len(app.get("vega_lite_chart")) == 1
    assert [button.label for button in app.button] == ["Measure again"]


def test_a_measurement_has_a_spread_and_what_lies_inside_it_is_not_said_to_pay() -> None:
    timing = measuring._measure("elementwise", 64, "cpu, 1 thread", "cpu", 0.5)
    assert timing.low <= timing.seconds <= timing.high

    def timings(*rows: tuple[str, int, float, float]) -> list[measuring.MedianTiming]:
        return [measuring.MedianTiming(d, n, (lo + hi) / 2, lo, hi, "") for d, n, lo, hi in rows]

    noisy = timings(
        ("a", 8, 1.0, 2.0), ("b", 8, 0.5, 1.1), ("a", 16, 1.0, 2.0), ("b", 16, 0.5, 1.1)
    )
    clear = [*noisy[:2], *timings(("a", 16, 1.0, 2.0), ("b", 16, 0.5, 0.9))]
    assert measuring._pays(noisy, "b", "a") is None
    assert measuring._pays(clear, "b", "a") == 16


def test_a_checkpoint_that_fits_gives_the_same_output_and_gradients() -> None:
    for suffix in FORMATS.values():
        saved = checkpointing.save("mlp", "sim1", suffix)
        assert checkpointing.load(saved.name, saved.data, "mlp", "cpu", False).same is True
        assert checkpointing.load(saved.name, saved.data, "mlp", "cpu", True).same is False


def test_a_checkpoint_of_another_model_is_refused_with_what_differs() -> None:
    app = page("devices", part="Checkpoints", into="CNN")
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
    for name in ("../../evil.pt", "..", ".", "", "a" * 300, "evil.pt/"):
        loaded = checkpointing.load(name, data, "mlp", "cpu", False)
        assert loaded.error
        assert "/tmp" not in loaded.error
    assert not Path("/tmp/graphviz_torch_was_here").exists()


@pytest.mark.parametrize(
    ("name", "data", "said", "command"),
    [
        ("train.py", b"import torch", "train.py is a script.", ["graphviz-torch app train.py"]),
        (
            "a $(b).py",
            b"x.to('cuda')",
            "a $(b).py is a script.",
            ["graphviz-torch app --simulate 2 'a $(b).py'"],
        ),
        ("cat.png", b"\x89PNG", "cat.png is not a recording: pass a .json", []),
        ("cut.json", b'{"format', "cut.json: the file was cut short at byte 8", []),
    ],
)
def test_a_file_that_is_no_recording_gets_one_line_and_a_script_its_command(
    name: str, data: bytes, said: str, command: list[str]
) -> None:
    app = page("run", source="A recording")
    app.file_uploader[0].set_value(("step.json", b"{}", "application/json")).run()
    before = app.error[0].value
    app.file_uploader[0].set_value((name, data, "text/plain")).run()
    [shown] = [*app.error, *app.info]
    assert said in shown.value.replace("\\", "")
    assert before not in shown.value
    assert [each.value for each in app.code if each.value.startswith("graphviz-torch")] == command


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
    assert b"<svg" in recordings.as_picture(graph, (), "svg")
    assert recordings.as_picture(graph, (), "png").startswith(b"\x89PNG")
    assert recordings.as_picture(graph, (), "pdf").startswith(b"%PDF")
    (tmp_path / "graph.json").write_bytes(recordings.as_json(graph))
    assert load(tmp_path / "graph.json") == graph
    packed = zipfile.ZipFile(io.BytesIO(recordings.as_tensorboard(graph)))
    assert any("tfevents" in name for name in packed.namelist())
    assert json.loads(recordings.as_findings(find(graph))) == []


def test_a_recording_with_too_many_nodes_is_refused_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = recordings.as_json(measuring.divide(2, 50).opened.graph)
    assert recordings.read(data, "mine.json").graph.nodes
    monkeypatch.setattr(recordings, "MAX_NODES", 3)
    with pytest.raises(ValueError, match=r"mine\.json has \d+ nodes; the app shows at most 3\."):
        recordings.read(data, "mine.json")
