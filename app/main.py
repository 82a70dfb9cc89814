"""The app as it is served: no other site may frame it, and no browser guesses what a file is.

`streamlit run app/main.py`, or `graphviz-torch app`. The headers stand on every answer: the page,
its scripts, uploads, media and the files of components. The process that runs jobs starts with it.
"""

import importlib
import runpy
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


class Headers:
    """Adds the headers to each answer of an ASGI application."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""

        async def answer(message: Any) -> None:
            if message["type"] == "http.response.start":
                others = [pair for pair in message["headers"] if pair[0].lower() not in HEADERS]
                message = {**message, "headers": [*others, *HEADERS.items()]}
            await send(message)

        await self.app(scope, receive, answer)


@asynccontextmanager
async def ready(_: st.App) -> AsyncIterator[None]:
    """Let the jobs' process load torch before the first visitor comes."""
    name = runpy.run_path(str(FOLDER / "package.py"))["NAME"]
    importlib.import_module(f"{name}.jobs.job").start()
    yield


app = st.App(FOLDER / "frame.py", lifespan=ready, middleware=[Middleware(Headers)])
