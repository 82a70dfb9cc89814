"""`SvgPicture`: a picture that this package writes as SVG, without a layout by Graphviz."""

from __future__ import annotations

import re
from os import PathLike
from pathlib import Path

from ..graph.files.replacement import replacement


class SvgPicture(str):
    """The text of an SVG, which a notebook shows as a picture.

    `render` and `pipe` are those of `Picture`, but only for the format SVG.

    >>> SvgPicture('<svg width="20" height="10"></svg>')
    SvgPicture(20 x 10; .render("picture.svg") saves it)
    """

    __slots__ = ()

    def __repr__(self) -> str:
        size = re.search(r'<svg[^>]* width="([\d.]+)[^>]* height="([\d.]+)', self)
        shown = f"{size[1]} x {size[2]}; " if size else ""
        return f'SvgPicture({shown}.render("picture.svg") saves it)'

    def _repr_svg_(self) -> str:
        return str(self)

    def render(self, outfile: str | PathLike[str], *, format: str | None = None) -> str:
        """Write the picture to `outfile`, and return the path.

        Raises:
            ValueError: for another format than "svg".
        """
        path = Path(outfile)
        if (format or path.suffix[1:]) != "svg":
            raise ValueError(
                f"{path}: this picture can only be written as SVG; name a file that ends in .svg."
            )
        with replacement(path) as file:
            file.write(self.encode())
        return str(path)

    def pipe(self, format: str = "svg") -> bytes:
        """Return the bytes of the SVG.

        Raises:
            ValueError: for another format than "svg".
        """
        if format != "svg":
            raise ValueError(f"this picture can only be written as svg, not as {format}.")
        return self.encode()
