"""Test the child process that runs Graphviz: formats, limits, and errors."""

from __future__ import annotations

import io
import json
import re
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from graphviz_torch.render.dot import layout as module
from graphviz_torch.render.dot.layout import FORMATS, LayoutError, LayoutTimeout, layout

SMALL = 'digraph {\n\ta [label=<<B>a</B>> fontname="DejaVu Sans"]\n\ta -> b\n}\n'
# Every pair of 80 nodes: far more than a layout can do in a moment.
HARD = "digraph {{{}}}".format(" ".join(f"{a} -> {b};" for a in range(120) for b in range(a)))
STARTS = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF", "jpg": b"\xff\xd8", "ps": b"%!PS"}


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_is_drawn(format: str) -> None:
    drawn = layout(SMALL, format)
    assert drawn.startswith(STARTS.get(format, b""))
    assert len(drawn) > 20


def test_the_dot_text_needs_no_layout_and_so_no_time() -> None:
    assert layout(HARD, "dot", timeout=0).decode() == HARD


def test_an_unknown_format_is_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match=r"format='gif2' is unknown\. Choose from svg, png, pdf"):
        layout(SMALL, "gif2")


def test_a_layout_that_takes_too_long_is_stopped() -> None:
    start = time.monotonic()
    with pytest.raises(LayoutTimeout, match=r"did not end within 1 s\. Pass a larger"):
        layout(HARD, timeout=1)
    assert time.monotonic() - start < 30


def test_a_text_that_is_no_dot_is_an_error_that_says_so() -> None:
    with pytest.raises(LayoutError, match="Graphviz failed"):
        layout("digraph { a -> ")


def test_a_bitmap_has_twice_the_points_of_the_picture() -> None:
    width = struct.unpack(">I", layout(SMALL, "png")[16:20])[0]
    points = float(layout(SMALL).split(b'width="')[1].split(b"pt")[0])
    assert width == pytest.approx(2 * points, abs=3)


@pytest.mark.parametrize("format", ["png", "jpg"])
def test_no_edge_strikes_the_title_of_a_frame(format: str) -> None:
    """A title of spaces only, as wide as its frame: nothing but the frame's colour is in it."""
    title = "&#160;" * 60
    text = (
        "digraph {\n\tsubgraph cluster_0 {\n"
        f'\t\tgraph [label=<<B>{title}</B>> style=filled fillcolor="#ffff00" color="#ffff00"]\n'
        "\t\tb\n\t}\n\ta -> b\n}\n"
    )
    frame = json.loads(layout(text, "json"))["objects"][0]
    picture = Image.open(io.BytesIO(layout(text, format))).convert("RGB")
    height = picture.height / 2  # points
    x, y = (float(part) for part in frame["lp"].split(","))
    middle = [picture.getpixel((2 * (x + by), 2 * (height - y))) for by in range(-30, 31)]
    assert all(red > 200 and green > 200 and blue < 50 for red, green, blue in middle)


def test_an_edge_that_is_invisible_in_an_svg_is_so_in_print() -> None:
    text = (
        "digraph {\n\tnewrank=true\n\tsubgraph cluster_0 {\n\t\tgraph [label=<<B>t</B>>]\n"
        "\t\ta -> b\n\t\tc -> d\n\t}\n\t{rank=same a -> c [style=invis]}\n}\n"
    )
    drawn = re.findall(r"<title>(\w)&#45;&gt;(\w)</title>", layout(text).decode())
    assert drawn == [("a", "b"), ("c", "d")]
    printed = re.findall(
        r"^% (\w)->(\w)\ngsave", layout(text, "ps").decode("latin-1"), re.MULTILINE
    )
    assert printed == drawn


@pytest.fixture
def a_dot(tmp_path: Path) -> Path:
    """Return a replacement for `dot` that prints its arguments and input."""
    dot = tmp_path / "dot"
    dot.write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:], sys.stdin.read()[:7])\n")
    dot.chmod(0o755)
    return dot


def test_the_bundled_engine_draws_where_a_dot_is_on_the_path_too(
    a_dot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(a_dot.parent))
    assert layout(SMALL).startswith(b"<?xml")


def test_a_dot_that_is_asked_for_is_used(a_dot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHVIZ_DOT", str(a_dot))
    assert layout(SMALL) == b"['-T', 'svg'] digraph\n"
    monkeypatch.setenv("GRAPHVIZ_DOT", str(a_dot.with_name("nowhere")))
    with pytest.raises(
        LayoutError, match=r"GRAPHVIZ_DOT='.*nowhere' could not be run: No such file"
    ):
        layout(SMALL)


def test_without_the_bundled_engine_a_dot_on_the_path_is_used(
    a_dot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(a_dot.parent))
    assert layout(SMALL) == b"['-T', 'svg'] digraph\n"


def test_without_any_graphviz_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(LayoutError, match=r"pygraphviz is not installed, and no `dot`"):
        layout(SMALL)
    assert layout(SMALL, "dot")


def test_drawing_writes_nothing_beside_the_packages_fonts() -> None:
    """An older fontconfig leaves a file `.uuid` in each folder of fonts that it reads."""
    (module.FONTS / ".uuid").unlink(missing_ok=True)
    before = sorted(module.FONTS.iterdir())
    layout(SMALL, "png")
    assert sorted(module.FONTS.iterdir()) == before


def test_where_the_home_cannot_be_written_the_fonts_are_copied_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    module._fonts.cache_clear()
    assert layout(SMALL).startswith(b"<?xml")
    module._fonts.cache_clear()


def test_nothing_in_the_users_folder_poses_as_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pygraphviz.py").write_text("raise SystemExit('wrong module')")
    monkeypatch.chdir(tmp_path)
    assert layout(SMALL).startswith(b"<?xml")


def test_text_is_laid_out_in_the_packages_own_font(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine without fonts text would turn into boxes; the width of one tells."""
    fonts = module.FONTS
    config = (fonts / "fonts.conf").read_text().replace("/etc/fonts/fonts.conf", "/nowhere")
    for font in fonts.glob("*.ttf"):
        (tmp_path / font.name).symlink_to(font)
    usual = layout(SMALL, "plain")
    (tmp_path / "fonts.conf").write_text(config)
    monkeypatch.setattr(module, "FONTS", tmp_path)
    assert layout(SMALL, "plain") == usual
    assert layout(SMALL, "png") == layout(SMALL, "png")


def test_a_picture_too_large_for_a_bitmap_is_said_to_be_scaled() -> None:
    long = "digraph {{rankdir=LR; {}}}".format(" -> ".join(map(str, range(300))))
    with pytest.warns(UserWarning, match="too large for png"):
        layout(long, "png", timeout=60)


def test_importing_the_layout_loads_no_graphviz() -> None:
    code = (
        "import sys; from graphviz_torch.render.dot import layout; "
        "print([name for name in sys.modules if name.startswith('pygraphviz')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
