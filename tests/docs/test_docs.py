"""Build the documentation without warnings, and run each block of Python in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from docs import figures, images, page_outputs, reference
from docs.page_outputs import without_varying
from docs.programs import outputs
from tests.support.chromium import CHROMIUM, FLAGS
from tests.support.declared import declare
from tests.support.processes.forks import forked

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_block_of_a_page_runs_after_those_above_it(page: str, tmp_path: Path) -> None:
    text = (ROOT / page).read_text()
    package = declare(tmp_path) if page == "CONTRIBUTING.md" else None
    shown = re.findall(r"^```text\n(.*?)^```", text, re.M | re.S)
    printed = [output.printed for output in outputs(text, package=package) if output.printed]
    assert [*map(without_varying, shown)] == [*map(without_varying, printed)]


def test_the_readme_is_short_and_opens_with_the_pictures_that_its_first_lines_draw() -> None:
    """Draw the pictures anew with `python -m docs.images still` where this fails for the looks."""
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 900
    first, _, rest = text.partition("```python")
    pictures = [ROOT / picture for picture in re.findall(r"!\[.*?\]\((.*?)\)", first)]
    [output] = outputs("```python" + rest.partition("\n```\n")[0] + "\n```\n")
    assert sorted(output.drawn) == sorted(picture.read_text() for picture in pictures)
    assert all((ROOT / picture).exists() for picture in re.findall(r"!\[.*?\]\((.*?)\)", rest))


def test_every_page_starts_the_app_with_the_same_command() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    pages += [*(ROOT / "docs").glob("*.py"), *(ROOT / "app").glob("*.py")]
    texts = {page.name: page.read_text() for page in pages}
    started = [
        re.findall(r"streamlit(?: |\", \")run(?: |\", \")([\w/.]+)", t) for t in texts.values()
    ]
    assert {file for files in started for file in files} == {"app/main.py"}
    assert sum(map(bool, started)) >= 4


def test_the_annotated_picture_is_drawn_by_its_page_and_numbers_each_row() -> None:
    """Draw it anew with `python -m docs.images annotated` where this fails for the looks."""
    drawn = (ROOT / "docs" / "images" / "annotated.svg").read_text()
    assert drawn == images.annotated()
    rows = re.findall(r"^\| (\d) \|", (ROOT / "docs" / "pictures.md").read_text(), re.M)
    assert re.findall(r'text-anchor="middle".*?>(\d)</text>', drawn) == rows


@pytest.mark.parametrize("page", page_outputs.pages(), ids=lambda page: page.stem)
def test_a_page_runs_and_shows_what_it_prints_and_draws(page: Path) -> None:
    for file, text in page_outputs.written(page).items():
        shown, expected = map(without_varying, (file.read_text(), text))
        assert shown == expected, "write it with `python -m docs.page_outputs`"


def test_no_picture_of_a_page_is_left_over() -> None:
    shown = {
        (page.parent / file).resolve()
        for page in page_outputs.pages()
        for file in re.findall(r"\((\S*drawn/\S*)\)", page.read_text())
    }
    assert shown == {*page_outputs.DRAWN.glob("*.svg")}


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_is_as_its_script_draws_it(name: str) -> None:
    drawn = (figures.IMAGES / f"explained-{name}.svg").read_text()
    assert drawn == figures.figure(name), "draw it with `python -m docs.figures`"


WORDS_OF_A_PARAGRAPH = 60
PROSE = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]


def test_no_paragraph_is_long() -> None:
    """A paragraph is a block of prose or one item of a list; code and tables are none."""
    long = []
    for page in PROSE:
        text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.M | re.S)
        parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text)
        prose = [part.split() for part in parts if not part.lstrip().startswith("|")]
        counted = [words for words in prose if len(words) > WORDS_OF_A_PARAGRAPH]
        long += [(str(page), " ".join(words[:8])) for words in counted]
    assert not long


# Every page is written without the theme and a search index, which take most of the time.
BUILD = """
import gc, sys
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.cmd.build import main

folder, *pages = sys.argv[1:]
options = f"--keep-going -q -d {folder}/doctrees -D gallery_models=MLP docs {folder}".split()
gc.disable()
StandaloneHTMLBuilder.search = False
failed = main(["-Wb", "json", *options])
StandaloneHTMLBuilder.search = True
sys.exit(failed or main(["-b", "html", *options, *pages]))
"""


def test_the_site_numbers_the_lines_of_its_programs_and_opens_a_view_offline(
    tmp_path: Path,
) -> None:
    (tmp_path / "build.py").write_text(BUILD)
    pages = ("docs/gallery.md", "docs/tutorial/8-what-is-wrong.md")
    done = forked(tmp_path / "build.py", tmp_path, *pages, folder=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    [warning] = done.stderr.splitlines()
    assert "index will be incomplete" in warning  # of two pages
    assert (tmp_path / "searchindex.js").exists()  # the search needs no server

    page = (tmp_path / "tutorial" / "8-what-is-wrong.html").read_text()
    text = re.sub(r"<[^>]*>", "", page)
    [name] = re.findall(r'src="../_images/([\w.-]*-2a.svg)"', page)
    assert "features was cut by" in (tmp_path / "_images" / name).read_text()
    [line] = {*re.findall(r"cut by\s+detach\(\) at train.py:(\d+)", text)}
    assert re.search(rf"^{line} +features = features.detach\(\)", text, re.M)

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        shown = browser.new_context(offline=True).new_page()
        shown.goto((tmp_path / "gallery.html").as_uri())
        shown.locator('a[href="views/mlp.html"] img').click()
        shown.get_by_text("fc1").first.wait_for()
        assert shown.title() == "MLP"
        browser.close()


def test_no_page_of_the_repository_has_a_directive() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert len(pages) > 200
    directive = re.compile(r"^[`:]{3,}\s*\{|\{[\w-]+\}`", re.M)
    assert not [page for page in pages if directive.search(page.read_text())]


def test_the_reference_names_every_public_name_and_says_what_it_does() -> None:
    expected = reference.pages()
    assert {file.name for file in reference.FOLDER.glob("*.md")} == expected.keys()
    for file, text in expected.items():
        written = (reference.FOLDER / file).read_text()
        assert written == text, f"write {file} with `python -m docs.reference`"
