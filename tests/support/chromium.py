"""The browser of the tests: its path, and flags with which it does not use the network."""

CHROMIUM = "/usr/bin/chromium"  # path in Debian
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
