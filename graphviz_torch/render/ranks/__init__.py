"""Communication between ranks, as tables and as a chart of the time in collectives."""
