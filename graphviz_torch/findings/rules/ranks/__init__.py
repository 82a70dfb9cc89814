"""Rules about programs with several ranks or several steps."""
