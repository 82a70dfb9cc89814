"""Where the way of a gradient was cut."""
