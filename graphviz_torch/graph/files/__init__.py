"""Save values as columns of JSON, and write files atomically."""
