"""Programs of tests that run on several ranks, each rank in a process of its own."""
