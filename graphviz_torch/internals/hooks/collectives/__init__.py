"""Watch collectives between ranks, and the waits for them."""
