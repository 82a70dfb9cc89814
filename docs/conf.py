"""Configure Sphinx, which builds the site: `python -m sphinx -W docs build/site` in a checkout."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import graphviz_torch

project = "graphviz_torch"
author = "the graphviz_torch authors"
copyright = "2026, the graphviz_torch authors"
version = release = graphviz_torch.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "docs.site"]
nitpicky = False

html_theme = "furo"
html_title = "graphviz_torch"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_theme_options = {
    "source_repository": "https://github.com/graphviz-torch/graphviz_torch",
    "source_branch": "main",
    "source_directory": "docs/",
    "footer_icons": [],
}

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

myst_heading_anchors = 3
