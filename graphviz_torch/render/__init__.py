"""Render a `Graph` as DOT, SVG, HTML, Mermaid or text."""
