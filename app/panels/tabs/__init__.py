"""What the tabs of the page Explore show, each of one recording."""
