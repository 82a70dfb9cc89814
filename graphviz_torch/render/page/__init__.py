"""About how large a drawing is, and where its pieces stand so that it fits a page."""
