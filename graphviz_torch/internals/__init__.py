"""Private PyTorch APIs, one per file; each file names the torch versions it was checked on."""
