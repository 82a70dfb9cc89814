"""Observers of program behavior that no node shows, noted as events for rules."""
