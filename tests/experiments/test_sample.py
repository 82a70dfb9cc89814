"""Test the experiment that changes another sample: programs that mix samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch.experiments import experiment
from tests.experiments.programs import classified, net, recorded

pytestmark = pytest.mark.usefixtures("the_same_numbers")
SAMPLES = 6


def images() -> Tensor:
    return torch.randn(SAMPLES, 3, 8, 8)


def series() -> Tensor:
    return torch.randn(SAMPLES, 5, 4)


def features() -> Tensor:
    return torch.randn(SAMPLES, 4)


def softmax_over_the_batch() -> Any:
    return classified(lambda self, x: self.fc(x.softmax(0)), features(), fc=nn.Linear(4, 3))


def lstm_without_batch_first() -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.fc(self.lstm(x)[0][:, -1])

    return classified(forward, series(), lstm=nn.LSTM(4, 4), fc=nn.Linear(4, 3))


def softmax_over_the_batch_after_an_lstm() -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = self.lstm(x)[0][:, -1]
        return self.fc(hidden.softmax(0))

    lstm = nn.LSTM(4, 4, batch_first=True)
    return classified(forward, series(), lstm=lstm, fc=nn.Linear(4, 3))


def hidden_state_viewed_wrongly() -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = self.gru(x)[1]
        return self.fc(hidden.view(SAMPLES, -1))

    return classified(forward, series(), gru=nn.GRU(4, 4, 2, batch_first=True), fc=nn.Linear(8, 3))


def norm_of_the_whole_batch() -> Any:
    return classified(lambda self, x: self.fc(x / x.norm()), features(), fc=nn.Linear(4, 3))


def attention_along_the_samples() -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.fc(self.attention(x, x, x, need_weights=False)[0].mean(1))

    return classified(forward, series(), attention=nn.MultiheadAttention(4, 2), fc=nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("program", "operation", "line"),
    [
        (softmax_over_the_batch, "softmax", "x.softmax(0)"),
        (lstm_without_batch_first, "", "self.lstm(x)"),
        (softmax_over_the_batch_after_an_lstm, "softmax", "hidden.softmax(0)"),
        (hidden_state_viewed_wrongly, "", "hidden.view"),
        (norm_of_the_whole_batch, "linalg_vector_norm", "x.norm()"),
        (attention_along_the_samples, "", "self.attention("),
    ],
)
def test_where_samples_meet_by_mistake_is_named_with_its_line(
    program: Callable[[], Any], operation: str, line: str
) -> None:
    [found] = experiment(program(), "sample")
    assert found.holds is False
    assert found.finding is not None
    assert found.finding.rule == "sample-leak"
    assert operation in found.operation
    number = int(found.where.rpartition(":")[2])
    assert line in Path(__file__).read_text().splitlines()[number - 1]


def batch_norm(training: bool = True) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.conv(x)).mean((2, 3)))

    norm = nn.BatchNorm2d(4).train(training)
    return classified(forward, images(), conv=nn.Conv2d(3, 4, 3), norm=norm, fc=nn.Linear(4, 3))


def group_and_instance_norm() -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.fc(self.group(self.instance(self.conv(x))).mean((2, 3)))

    return classified(
        forward,
        images(),
        conv=nn.Conv2d(3, 4, 3),
        instance=nn.InstanceNorm2d(4),
        group=nn.GroupNorm(2, 4),
        fc=nn.Linear(4, 3),
    )


def lstm_with_batch_first() -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.fc(self.lstm(x)[0][:, -1])

    return classified(forward, series(), lstm=nn.LSTM(4, 4, batch_first=True), fc=nn.Linear(4, 3))


def time_first() -> Any:
    model = net(lambda self, x: self.fc(self.lstm(x)[0]), lstm=nn.LSTM(4, 4), fc=nn.Linear(4, 3))
    return recorded(model, series(), targets=torch.arange(SAMPLES * 5) % 3)


def windows() -> Any:
    """Return a step whose attention mixes the parts of each image, with the parts as samples."""

    def forward(self: Any, x: Tensor) -> Tensor:
        parts = x.reshape(SAMPLES, 3, 2, 4, 2, 4).permute(0, 2, 4, 1, 3, 5).reshape(-1, 3 * 16)
        mixed = self.mix(parts.view(SAMPLES, 4, -1), *[parts.view(SAMPLES, 4, -1)] * 2)[0]
        return self.fc(mixed.mean(1))

    mix = nn.MultiheadAttention(48, 2, batch_first=True)
    return classified(forward, images(), mix=mix, fc=nn.Linear(48, 3))


def dropout() -> Any:
    return classified(
        lambda self, x: self.fc(self.drop(x)), features(), drop=nn.Dropout(0.5), fc=nn.Linear(4, 3)
    )


def in_batch_negatives() -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        z = self.fc(x)
        return (z @ z.T).log_softmax(-1)

    return recorded(net(forward, fc=nn.Linear(4, 3)), features())


def graph_convolution() -> Any:
    edges = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])

    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.fc(x)
        return torch.zeros_like(h).index_add(0, edges[1], h[edges[0]])

    return classified(forward, features(), fc=nn.Linear(4, 3))


def auxiliary_mean() -> Any:
    def forward(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.fc(x), x.mean(0).square().sum()

    return classified(forward, features(), fc=nn.Linear(4, 3))


@pytest.mark.parametrize(
    "program",
    [
        batch_norm,
        group_and_instance_norm,
        lstm_with_batch_first,
        time_first,
        windows,
        dropout,
        in_batch_negatives,
        graph_convolution,
        auxiliary_mean,
    ],
)
def test_nothing_is_found_where_samples_do_not_meet_or_are_meant_to(
    program: Callable[[], Any],
) -> None:
    [found] = experiment(program(), "sample")
    assert found.finding is None
    meant = program in (in_batch_negatives, graph_convolution)
    assert found.holds is (None if meant else True), str(found)


@pytest.mark.parametrize("training", [True, False])
def test_a_message_says_if_batch_norm_used_its_running_statistics(training: bool) -> None:
    recording = batch_norm(training)
    [found] = experiment(recording, "sample")
    assert found.holds is True
    assert found.message.endswith("; batch norm used its running statistics") is training
