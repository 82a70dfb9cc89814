"""The small tensor language of the page Run: text is parsed and checked, never run as Python."""
