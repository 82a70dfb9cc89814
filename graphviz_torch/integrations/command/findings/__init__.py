"""The commands that report findings, their filters and report formats."""
