"""How Sphinx builds the site: `sphinx-build -W docs build/docs`."""

import graphviz_torch

project = "graphviz_torch"
author = "the graphviz_torch authors"
copyright = "2026, the graphviz_torch authors"
version = release = graphviz_torch.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["README.zh-CN.md"]
nitpicky = False

html_theme = "furo"
html_title = f"graphviz_torch {release}"
html_static_path: list[str] = []

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
