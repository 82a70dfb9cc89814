"""What the app runs, each in a process of its own."""
