"""Serve the app, with headers that forbid content sniffing, and framing by other sites.

Run it with `streamlit run app/main.py` or `graphviz-torch app`. The headers are added to all
responses: pages, scripts, uploads, media and component files. Pages also get a script with the
address of the server. The job server is started with the app, and the modules of the first page are
imported while the browser loads Streamlit's scripts.
"""

import importlib
import runpy
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import streamlit as st
from starlette.middleware import Middleware

FOLDER = Path(__file__).resolve().parent
HEADERS = {
    b"content-security-policy": b"frame-ancestors 'self'",
    b"x-content-type-options": b"nosniff",
}


# The address of the server. Without this script, Streamlit first tries addresses below the path of
# the page, which causes two 404 errors in the console on all pages but the first.
SERVER = b"<script>window.__streamlit = {BACKEND_BASE_URL: new URL('.', location).href}</script>"


class ResponseHeaders:
    """ASGI middleware that adds `HEADERS` to all responses, and `SERVER` to pages."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request."""
        start: Any = None  # first message of a page, which is sent when the body is complete
        body = b""

        async def answer(message: Any) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                others = [pair for pair in message["headers"] if pair[0].lower() not in HEADERS]
                message = {**message, "headers": [*others, *HEADERS.items()]}
                kind = dict(others).get(b"content-type", b"")
                if scope["method"] == "GET" and kind.startswith(b"text/html"):
                    start = message
                    return
            elif start is not None:
                body += message.get("body", b"")
                if message.get("more_body"):
                    return
                body = body.replace(b"<head>", b"<head>" + SERVER, 1)
                sized = [pair for pair in start["headers"] if pair[0] != b"content-length"]
                sized.append((b"content-length", b"%d" % len(body)))
                await send({**start, "headers": sized})
                message = {"type": "http.response.body", "body": body}
            await send(message)

        asked = dict(scope.get("headers", ()))
        if scope["type"] == "http" and b"text/html" in asked.get(b"accept", b""):
            # Request an uncompressed page, so that `SERVER` can be inserted.
            kept = [pair for pair in scope["headers"] if pair[0] != b"accept-encoding"]
            scope = {**scope, "headers": kept, "extensions": {}}
        await self.app(scope, receive, answer)


@asynccontextmanager
async def ready(_: st.App) -> AsyncIterator[None]:
    """Start the job server, and import the first page before the first visitor opens it."""
    name = runpy.run_path(str(FOLDER / "package.py"))["NAME"]
    importlib.import_module(f"{name}.jobs.job").start()
    # Streamlit needs the last two modules to read the logo.
    modules = f"{name}.views.run", "PIL.Image", "numpy"
    threading.Thread(target=lambda: [*map(importlib.import_module, modules)], daemon=True).start()
    yield


app = st.App(FOLDER / "frame.py", lifespan=ready, middleware=[Middleware(ResponseHeaders)])
