"""Take the app's screenshots for the README and the docs: `python -m examples.app_screenshots`.

It needs Playwright's Chromium, or one on the PATH. The pictures go to docs/images/.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
PAGES = {
    "app-run-backward.png": ("?backward=1&node=1", "light"),
    "app-training.png": ("training?start=Vanishing", "dark"),
}
SIZE = {"width": 1280, "height": 900}
LIMIT = 120_000  # milliseconds


def main() -> None:
    """Start the app, take each picture, end the app."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app/main.py", f"--server.port={port}"]
    process = subprocess.Popen([*command, "--server.fileWatcherType=none"], cwd=ROOT)
    IMAGES.mkdir(parents=True, exist_ok=True)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            for name, (path, theme) in PAGES.items():
                page = browser.new_page(viewport=SIZE, color_scheme=theme)  # type: ignore[arg-type]
                page.set_default_timeout(LIMIT)
                for _ in range(100):
                    try:
                        page.goto(f"http://localhost:{port}/{path}")
                        break
                    except Exception:  # the app is not there yet
                        page.wait_for_timeout(300)
                page.locator(".graph svg .node").first.wait_for()
                page.locator('.stApp[data-test-script-state="notRunning"]').wait_for()
                page.wait_for_timeout(1_500)  # animations end
                page.screenshot(path=IMAGES / name)
                print(name, (IMAGES / name).stat().st_size, "bytes")
            browser.close()
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
