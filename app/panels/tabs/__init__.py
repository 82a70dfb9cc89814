"""What the tabs of the page Explore show, each of one recording, and what a model is asked."""
