"""What the program does that no node shows, and a rule may judge."""
