"""Record fingerprints and values of forward results and leaves."""
