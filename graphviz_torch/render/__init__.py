"""Renderers of a `Graph`: DOT, SVG, HTML, Mermaid and text."""
