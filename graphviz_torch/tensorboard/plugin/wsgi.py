"""Routes of a TensorBoard plugin, with types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorboard import plugin_util  # type: ignore[import-untyped]
from tensorboard.backend import http_util  # type: ignore[import-untyped]
from werkzeug import Request, Response


def routes(**answers: Callable[[Request], Response]) -> dict[str, Any]:
    """TensorBoard's form of `{name: answer}`; a "." in a path is a "__" in the name."""
    return {
        "/" + name.replace("__", "."): Request.application(answer)
        for name, answer in answers.items()
    }


def respond(
    request: Request, content: object, kind: str = "application/json", code: int = 200
) -> Response:
    """An answer with the headers that TensorBoard gives, compressed where the browser takes it."""
    response: Response = http_util.Respond(request, content, kind, code=code)
    return response


def refuse(request: Request, message: str, code: int) -> Response:
    """An answer that is a sentence about what is wrong."""
    return respond(request, message, "text/plain", code)


def where(request: Request) -> tuple[Any, str]:
    """TensorBoard's context of a request, and its experiment."""
    return plugin_util.context(request.environ), plugin_util.experiment_id(request.environ)
