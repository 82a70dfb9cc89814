"""Commands that report findings: which they report, and in which format."""
