"""Values of forward results: fingerprints, small values, reordered views."""
