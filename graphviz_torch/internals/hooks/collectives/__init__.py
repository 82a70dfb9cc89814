"""The seam of collectives between ranks: which operators they are, and what waits for them."""
