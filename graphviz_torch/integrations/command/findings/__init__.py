"""Commands that report findings, with filters and formats for the reports."""
