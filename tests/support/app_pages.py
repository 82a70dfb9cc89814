"""Open pages of the app without a browser, and read the data of their components."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest

FRAME = str(Path(__file__).parents[2] / "app" / "frame.py")
LIMIT = 120  # seconds until a page has to be drawn

# Streamlit reads the metadata of all installed packages for each page.
manifest_scanner.scan_component_manifests = cache(manifest_scanner.scan_component_manifests)


def page(name: str = "run", **query: str) -> AppTest:
    """Open the page `name` with these query parameters, and return it."""
    if name == "run":
        app = AppTest.from_file(FRAME, default_timeout=LIMIT)
    else:
        text = f"from app.views import {name}\n\n{name}.draw()\n"
        app = AppTest.from_string(text, default_timeout=LIMIT)
    app.query_params.update(query)
    app.run()
    assert not app.exception, app.exception
    return app


def press(app: AppTest, label: str = "Run backward") -> AppTest:
    """Press the button with this label, and return the page after the script has run."""
    [button] = [button for button in app.button if button.label == label]
    return button.click().run()


def drawn(app: AppTest, place: str) -> dict[str, Any]:
    """Return the data of the component with this key: `drawn(app, "run program")["lines"]`."""
    [part] = [each for each in app.get("bidi_component") if each.key == place]
    data: dict[str, Any] | list[dict[str, Any]] = json.loads(part.proto.json)
    return data[0] if isinstance(data, list) else data  # linked components get a list


def has(app: AppTest, place: str) -> bool:
    """Return True if the page has a component with this key."""
    return any(each.key == place for each in app.get("bidi_component"))


def lines(app: AppTest, kind: str = "code") -> list[str]:
    """Return the texts of the program's lines of one kind: "code", or a kind of result line."""
    return [line["text"] for line in drawn(app, "run program")["lines"] if line["kind"] == kind]


def column(app: AppTest, place: str, name: str) -> list[str]:
    """Return the texts in the column `name` of the table with the key `place`."""
    data = drawn(app, place)
    index = [column["name"] for column in data["columns"]].index(name)
    return [row[index][0] for row in data["rows"]]
