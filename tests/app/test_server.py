"""Test the HTTP headers of all answers of the app's server."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import pytest

from tests.support.visitors import served


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(Path(tmp_path_factory.mktemp("server")) / "log") as url:
        yield url


def headers(url: str) -> Message:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.headers  # type: ignore[no-any-return]
    except urllib.error.HTTPError as error:
        return error.headers


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/devices", "/favicon.png", "/_stcore/health", "/_stcore/host-config"),
        *("/component/none/index.html", "/media/none.svg", "/%00"),
    ],
)
def test_no_other_site_frames_an_answer_and_no_browser_guesses_its_type(
    url: str, path: str
) -> None:
    found = headers(url + path)
    assert found.get_all("Content-Security-Policy") == ["frame-ancestors 'self'"]
    assert found.get_all("X-Content-Type-Options") == ["nosniff"]
