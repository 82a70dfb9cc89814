"""The small tensor language of the page Run: parsed, checked, and never evaluated as Python."""
