"""Define `NAME`, the name under which this folder is imported.

The name is "app" in a checkout, or a name inside the installed package.

Streamlit runs `main.py` and `frame.py` as files, which have no package and no relative imports.
Both run this file with `runpy` to get `NAME`.
"""

import sys
from pathlib import Path


def _package() -> str:
    folder = Path(__file__).resolve().parent
    names = [folder.name]
    folder = folder.parent
    while (folder / "__init__.py").exists():
        names.insert(0, folder.name)
        folder = folder.parent
    if len(names) == 1:  # in a checkout, the current folder may contain an app.py
        sys.path[:] = [str(folder), *(each for each in sys.path if each != str(folder))]
    elif str(folder) not in sys.path:
        sys.path.append(str(folder))
    return ".".join(names)


NAME = _package()
