"""The visitor's expression: read, checked, and run without evaluating text as Python."""
