"""Save values as columns of JSON, and write any file atomically."""
