"""What ranks send to each other, as tables and as a chart of who stood where."""
