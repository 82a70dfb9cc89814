"""Rules of programs of many ranks, and of many steps."""
