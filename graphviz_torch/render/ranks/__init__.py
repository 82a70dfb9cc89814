"""Show communication between ranks: tables, and a chart of the time in collectives."""
