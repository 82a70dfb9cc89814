"""What the ranks of a test do, each in a process of its own."""
