"""Listeners for program behavior that no node shows. Each one notes events for the rules."""
