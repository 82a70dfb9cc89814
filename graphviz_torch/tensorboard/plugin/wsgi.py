"""Typed wrappers of TensorBoard's functions for the routes of a plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorboard import plugin_util  # type: ignore[import-untyped]
from tensorboard.backend import http_util  # type: ignore[import-untyped]
from werkzeug import Request, Response


def routes(**answers: Callable[[Request], Response]) -> dict[str, Any]:
    """Return path -> WSGI application, as TensorBoard expects the routes of a plugin.

    Args:
        answers: path -> function that returns the response to a request. "__" in a path becomes
            ".".
    """
    return {
        "/" + name.replace("__", "."): Request.application(answer)
        for name, answer in answers.items()
    }


def respond(
    request: Request, content: object, kind: str = "application/json", code: int = 200
) -> Response:
    """Return a response with TensorBoard's headers, compressed if the browser accepts it."""
    response: Response = http_util.Respond(request, content, kind, code=code)
    return response


def refuse(request: Request, message: str, code: int) -> Response:
    """Return a plain-text response that describes an error."""
    return respond(request, message, "text/plain", code)


def request_context(request: Request) -> tuple[Any, str]:
    """Return the context that TensorBoard's data provider needs, and the id of the experiment."""
    return plugin_util.context(request.environ), plugin_util.experiment_id(request.environ)
