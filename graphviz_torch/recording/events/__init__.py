"""Observe program behavior that no node shows, and record it as events for the rules."""
