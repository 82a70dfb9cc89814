"""Explanations of exceptions raised by a call or a backward."""
