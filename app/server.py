"""The app as it is served: no other site may frame it, and no browser guesses what a file is.

`streamlit run app/server.py`, or `graphviz-torch app`. The headers stand on every answer: the page,
its scripts, uploads, media and the files of components.
"""

from pathlib import Path
from typing import Any

import streamlit as st
from starlette.middleware import Middleware

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


app = st.App(Path(__file__).with_name("main.py"), middleware=[Middleware(Headers)])
