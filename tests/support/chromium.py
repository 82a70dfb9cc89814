"""The browser of the tests: where it is, and the flags with which it asks no network."""

CHROMIUM = "/usr/bin/chromium"  # Debian's
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
